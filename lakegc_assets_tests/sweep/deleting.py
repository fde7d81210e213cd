"""Fixtures of the tests of the deleting task: its orders, a clock, and objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pyarrow.parquet as pq
import pytest

from lakegc_assets.run.connections import Connections
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.values import DeleteOutcome
from lakegc_assets.sweep.deletion import DeletingTask, TaskClients
from lakegc_assets.sweep.lease import repository_lease
from lakegc_assets.sweep.task_orders import Orders, TaskResult
from lakegc_assets_tests.clocks import StubClocks
from lakegc_assets_tests.lake import REPOSITORY, SmallLake
from lakegc_assets_tests.sweep.stand_ins import as_listed, orders_of


@contextmanager
def ordered(bare: SmallLake, stores: StoreConfig, url: str) -> Iterator[Orders]:
    """Two objects a batch, under a lease, with a delta mark that was taken just now."""
    connections = Connections(bare.config, stores, url, "/nowhere")
    store = connections.store()
    with repository_lease(store, {"host": "here"}, duration=timedelta(minutes=3)) as lease:
        lease.begin_round(1)
        yield orders_of(connections, bare.folder / "attempt", lease)


@pytest.fixture
def orders(bare: SmallLake) -> Iterator[Orders]:
    with ordered(bare, bare.server.store_config, f"local://{REPOSITORY}") as found:
        yield found


@pytest.fixture
def s3_orders(bare: SmallLake, s3_server: str, s3_bucket: str) -> Iterator[Orders]:
    with ordered(bare, StoreConfig(endpoint_url=s3_server), f"s3://{s3_bucket}/ns") as found:
        yield found


def plant(bare: SmallLake, count: int) -> list[str]:
    addresses = [f"data/planted/{n}" for n in range(count)]
    for address in addresses:
        path = bare.objects / address
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("planted")
    return addresses


def recorded(orders: Orders) -> dict[str, str]:
    """The ledger's outcomes."""
    found: dict[str, str] = {}
    for path in Path(orders.artifacts_url).glob("swept_set/ledger/*.parquet"):
        table = pq.read_table(path)
        found.update(zip(*(table[c].to_pylist() for c in ("address", "outcome")), strict=True))
    return found


def run(
    orders: Orders,
    addresses: Iterable[str],
    etags: Mapping[str, str] | None = None,
    reach: TaskClients | None = None,
    number: int = 0,
) -> Iterator[TaskResult]:
    """Objects as they are listed now, some with other etags, in one task."""
    reach = reach or TaskClients.of(orders)
    objects = as_listed(orders.connections.store(), addresses, etags)
    return DeletingTask(orders, number, reach).run([objects])


def names(told: Iterable[TaskResult]) -> list[str]:
    return [one.outcome for one in told]


class Time:
    """A clock that moves only when somebody waits, or says so."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self.waited: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.waited.append(seconds)
        self.now += seconds


def reach_at(orders: Orders, time: Time) -> TaskClients:
    """The real world, at a time that the test tells."""
    return replace(TaskClients.of(orders), clocks=StubClocks(time.sleep, time))


class Meddling:
    """A store in which something happens just before each call that deletes."""

    watches_deadlines = False

    def __init__(self, store: ObjectStore, happen: Callable[[Sequence[str]], object]) -> None:
        self.store = store
        self.happen = happen
        self.calls: list[Mapping[str, Any]] = []

    def is_deleted_alone(self, key: str) -> bool:
        return self.store.is_deleted_alone(key)

    def delete_many(
        self, keys: Sequence[str], etags: Mapping[str, str] | None = None, **more: Any
    ) -> Sequence[DeleteOutcome]:
        self.happen(keys)
        self.calls.append(more)
        return self.store.delete_many(keys, etags, **more)


def meddling(
    orders: Orders, happen: Callable[[Sequence[str]], object], time: Time | None = None
) -> tuple[TaskClients, Meddling]:
    """The real world, at a time that the test may tell, with such a store."""
    reach = TaskClients.of(orders) if time is None else reach_at(orders, time)
    store = Meddling(reach.deleting, happen)
    return replace(reach, deleting=cast("ObjectStore", store)), store


@pytest.fixture
def time(orders: Orders) -> Time:
    """Begins when the delta mark was taken."""
    return Time(orders.taken.elapsed)


@pytest.fixture
def s3_time(s3_orders: Orders) -> Time:
    return Time(s3_orders.taken.elapsed)


def slow_answers(bare: SmallLake, time: Time, seconds: Iterable[float]) -> list[float]:
    """Let the answers to the first looks take so long; the seconds that were not needed."""
    left = list(seconds)

    def see(_method: str, path: str) -> None:
        if left and path.endswith("/settings/gc_rules"):
            time.now += left.pop(0)

    bare.on_request = see
    return left


def fill(orders: Orders, count: int) -> dict[str, str]:
    """Objects in the store of the orders, with their etags."""
    store = orders.connections.store()
    return {f"data/s/{n}": store.put(f"data/s/{n}", b"content %d" % n) for n in range(count)}


def keys(orders: Orders) -> set[str]:
    store = orders.connections.store()
    return {key for batch in store.list("data/") for key in batch["key"].to_pylist()}
