"""How the work of a backup is cut, taken and paced."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Lock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakegc_assets.engine.datasets import write_part
from lakegc_assets.lakefs.config import LakeFSConfig
from lakegc_assets.mark.marked_objects import Stretch
from lakegc_assets.recovery import backup_task, journal
from lakegc_assets.recovery.backup_task import (
    BandwidthLimiter,
    CopyingTask,
    Orders,
)
from lakegc_assets.recovery.portions import Portion, batches, equal_stretches
from lakegc_assets.run.connections import Connections
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.opening import open_store
from lakegc_assets.storage.s3.store import S3Store


def read(backup: ObjectStore) -> pa.Table:
    """All that the journal of a backup has."""
    return pa.concat_tables(journal.read_file(backup, file) for file, _, _ in journal.spans(backup))


#: Objects and bytes of a batch at most.
BATCH = (backup_task.BATCH, backup_task.BATCH_BYTES)
SIZES = st.lists(st.integers(0, 1 << 34), max_size=60)


@given(SIZES, st.integers(1, 12))
def test_work_is_cut_into_stretches_of_about_equal_cost(sizes: list[int], parts: int) -> None:
    costs = 0.001 + np.array(sizes, np.float64) * 1e-8
    stretches = equal_stretches(costs, parts)
    assert [n for at, count in stretches for n in range(at, at + count)] == list(range(len(sizes)))
    assert len(stretches) <= parts
    assert all(count for _, count in stretches)
    # None holds more than its share and the one object that begins within it.
    most = costs.sum() / parts + costs.max(initial=0.0) + 1e-6
    assert all(costs[at : at + count].sum() <= most for at, count in stretches)


@given(SIZES)
def test_what_is_recorded_together_is_little(sizes: list[int]) -> None:
    rows = pa.table({"size": pa.array(sizes, pa.int64())})
    cuts = list(batches(rows, np.array(sizes, np.int64), *BATCH))
    assert [size for some in cuts for size in some["size"].to_pylist()] == sizes
    for some in cuts:
        held = some["size"].to_pylist()
        assert len(held) == 1 or sum(held) <= BATCH[1]
        assert 0 < len(held) <= BATCH[0]


class Clock:
    """A clock that only waiting moves on."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lock = Lock()

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        with self.lock:
            self.now += seconds


@given(st.lists(st.integers(0, 10_000_000), max_size=40), st.floats(1e3, 1e9))
def test_no_more_bytes_than_allowed_ever_went_by(sizes: list[int], rate: float) -> None:
    clock = Clock()
    pace = BandwidthLimiter(rate, clock, clock.wait)
    begun = 0
    for size in sizes:
        pace.wait(size)
        begun += size
        assert begun <= rate * clock.now * (1 + 1e-9) + 1e-6


def test_threads_share_the_rate_and_no_rate_is_no_wait() -> None:
    clock = Clock()
    pace = BandwidthLimiter(1000.0, clock, clock.wait)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(pace.wait, [100] * 50))
    assert clock.now >= 5.0 - 1e-9
    clock = Clock()
    BandwidthLimiter(None, clock, clock.wait).wait(1 << 50)
    assert clock.now == 0


@pytest.fixture
def orders(tmp_path: Path) -> Orders:
    connections = Connections(
        LakeFSConfig(), StoreConfig(), str(tmp_path / "namespace"), str(tmp_path / "cache")
    )
    artifacts, backup = str(tmp_path / "artifacts"), str(tmp_path / "backup")
    return Orders(connections, artifacts, backup, None, "round-1", None)


def portion(orders: Orders, number: int, *keys: str) -> Portion:
    """Objects of the namespace, as a task gets them."""
    source = orders.connections.store()
    rows = [(key, len(key.encode()), source.put(key, key.encode())) for key in keys]
    columns = dict(zip(("address", "size", "etag"), zip(*rows, strict=True), strict=True))
    store = open_store(orders.artifacts_url)
    part = write_part(store, "portions/", pa.table(columns))
    return Portion(number, Stretch(part, 0, part.rows))


def test_a_portion_is_of_the_task_that_begins_it_first(orders: Orders) -> None:
    """Whatever is run again, or twice at a time, copies nothing twice."""
    portions = [portion(orders, number, f"data/{number}") for number in range(20)]
    with ThreadPoolExecutor(4) as pool:
        told = pool.map(backup_task.copy_portions, [orders] * 4, [portions] * 4)
        assert list(told) == [None] * 4
    rows = read(open_store(orders.backup_url))
    assert sorted(rows["address"].to_pylist()) == sorted(f"data/{n}" for n in range(20))
    assert set(rows["outcome"].to_pylist()) == {"copied"}


def test_a_task_that_is_interrupted_copies_no_other_batch(
    orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    some, told = portion(orders, 0, "data/a", "data/b", "data/c"), iter([False, True])
    monkeypatch.setattr(backup_task, "BATCH", 1)
    monkeypatch.setattr(backup_task, "interrupted", lambda: next(told))
    ended = backup_task.copy_portions(orders, [some])
    assert str(ended).endswith("was interrupted")
    assert read(open_store(orders.backup_url))["address"].to_pylist() == ["data/a"]


def test_names_that_no_mark_names_are_copied_or_told_each_for_itself(orders: Orders) -> None:
    """A line break is copied; what would take the place of our own files is not."""
    odd = ["data/a\nb", "data/ x ", "data/\t", "data/" + "é" * 120, "_lakegc/manifest.json"]
    CopyingTask(orders).copy(portion(orders, 0, *odd))
    rows = {row["address"]: row for row in read(open_store(orders.backup_url)).to_pylist()}
    assert {key: row["outcome"] for key, row in rows.items()} == dict.fromkeys(odd, "copied") | {
        "_lakegc/manifest.json": "failed"
    }
    assert rows["_lakegc/manifest.json"]["error_code"] == "InvalidKey"
    backup = open_store(orders.backup_url)
    assert [backup.get(key) for key in odd[:-1]] == [key.encode() for key in odd[:-1]]
    assert not backup.exists("_lakegc/manifest.json")


def test_a_name_that_the_backup_cannot_hold_is_told_and_the_others_are_copied(
    orders: Orders, s3_server: str, s3_bucket: str
) -> None:
    """A prefix may make a key longer than a store takes."""
    long = "data/" + "/".join(["x" * 190] * 5)
    some = portion(orders, 0, "data/a", long, "data/z")
    stores = StoreConfig(endpoint_url=s3_server)
    there = Orders(
        Connections(LakeFSConfig(), stores, orders.connections.namespace_url, ""),
        orders.artifacts_url,
        f"s3://{s3_bucket}/{'y' * 100}",
        None,
        "round-1",
        None,
    )
    CopyingTask(there).copy(some)
    rows = read(open_store(there.backup_url, stores)).to_pylist()
    assert {row["address"]: (row["outcome"], row["error_code"]) for row in rows} == {
        "data/a": ("copied", None),
        long: ("failed", "InvalidKey"),
        "data/z": ("copied", None),
    }


def test_within_one_store_no_content_passes_through_this_machine(
    orders: Orders, s3_server: str, s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = StoreConfig(endpoint_url=s3_server)
    connections = Connections(LakeFSConfig(), stores, f"s3://{s3_bucket}/namespace", "")
    backup = f"s3://{s3_bucket}/backups/repo/run"
    there = replace(orders, connections=connections, backup_url=backup)
    some = portion(there, 0, "data/a", "data/é b", "data/|")

    def never(*_: object, **__: object) -> None:
        raise AssertionError("the content was read")

    with monkeypatch.context() as patch:
        patch.setattr(S3Store, "stream", never)
        CopyingTask(there).copy(some)
    store = open_store(backup, stores)
    rows = read(store).to_pylist()
    assert {row["outcome"] for row in rows} == {"copied"}
    assert {row["address"]: store.get(row["address"]).decode() for row in rows} == {
        key: key for key in ("data/a", "data/é b", "data/|")
    }
