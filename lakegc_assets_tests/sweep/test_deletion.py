"""The task that deletes: what it asks before each batch, and what it leaves undone."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from moto.s3.responses import S3Response

from lakegc_assets.errors import ConfigurationError
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.parts import write_part
from lakegc_assets.run.settings import Settings
from lakegc_assets.storage.base import DeleteOutcome, ObjectStore
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.sweep import answers, deletion
from lakegc_assets.sweep.deletion import DeletingTask, Reach, delete_portion
from lakegc_assets.sweep.lease import repository_lease
from lakegc_assets.sweep.ledger import Outcome
from lakegc_assets.sweep.look import CHECK_LIFETIME, CHECK_TIME, fingerprint
from lakegc_assets.sweep.moment import Moment
from lakegc_assets.sweep.orders import Orders, Portion, Told, progress_of, summed, told_of
from lakegc_assets.sweep.pace import Limits
from lakegc_assets_tests.lake import REPOSITORY, SmallLake
from lakegc_assets_tests.sweep.stand_ins import as_listed, earlier

FAST = Limits(keys=1e9, requests=1e9)

_OUTCOMES = st.sampled_from(["deleted", "already_missing", "failed"])


@given(st.lists(st.builds(Outcome, st.text(max_size=3), st.integers(0, 2**40), _OUTCOMES)))
def test_what_is_told_adds_up(outcomes: list[Outcome]) -> None:
    told = {one.outcome: one for one in summed([*told_of(outcomes[:3]), *told_of(outcomes[3:])])}
    for name in ("deleted", "already_missing", "failed"):
        of_it = [outcome.size for outcome in outcomes if outcome.outcome == name]
        found = told.get(name, Told(name))
        assert (found.objects, found.size) == (len(of_it), sum(of_it))
    gone = [outcome for outcome in outcomes if outcome.outcome != "failed"]
    assert progress_of(list(told.values())).deleted == len(gone)


def test_one_failure_is_told() -> None:
    failed = Outcome("a", 1, "failed", "AccessDenied", "not yours")
    one, other = told_of([failed, Outcome("b", 1, "deleted")])
    assert (one.error_code, one.detail) == ("AccessDenied", "a: not yours")
    assert other.error_code is None
    progress = progress_of([one, other, Told("stale", detail="too old")])
    assert progress.error == "AccessDenied: a: not yours"
    assert progress.ended_early == {"stale": "too old"}


@pytest.mark.parametrize("batch", [0, -1, 1001])
def test_a_batch_that_no_store_takes(batch: int) -> None:
    with pytest.raises(ConfigurationError, match="sweep_batch is"):
        Settings(sweep_batch=batch)


@contextmanager
def ordered(bare: SmallLake, stores: StoreConfig, url: str) -> Iterator[Orders]:
    """Two objects a batch, under a lease, with a delta mark that was taken just now."""
    connections = Connections(bare.config, stores, url, "/nowhere")
    store = connections.store()
    with repository_lease(store, {"host": "here"}, duration=timedelta(minutes=3)) as lease:
        lease.begin_round(1)
        yield Orders(
            connections=connections,
            repository=REPOSITORY,
            artifacts_url=str(bare.folder / "attempt"),
            delta=fingerprint(bare.client, REPOSITORY, protect_tags=False),
            taken=Moment.now(store),
            protect_tags=False,
            lease=lease.token,
            number=1,
            condition="none",
            batch=2,
            limits=FAST,
        )


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
    reach: Reach | None = None,
    number: int = 0,
) -> Iterator[Told]:
    """Objects as they are listed now, some with other etags, in one task."""
    reach = reach or Reach.of(orders)
    objects = as_listed(orders.connections.store(), addresses, etags)
    return DeletingTask(orders, number, reach).run(objects)


def names(told: Iterable[Told]) -> list[str]:
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


def reach_at(orders: Orders, time: Time) -> Reach:
    """The real world, at a time that the test tells."""
    return replace(Reach.of(orders), clock=time, sleep=time.sleep)


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
        if left and path.endswith("/branches"):
            time.now += left.pop(0)

    bare.on_request = see
    return left


def test_orders_travel(orders: Orders) -> None:
    """A task on another machine gets the same, and does the same."""
    assert pickle.loads(pickle.dumps(orders)) == orders


def test_a_portion_is_deleted(bare: SmallLake, orders: Orders) -> None:
    addresses = plant(bare, 5)
    objects = as_listed(orders.connections.store(), addresses)
    part = write_part(Reach.of(orders).artifacts, "swept_set/survivors/", objects)
    assert delete_portion(orders, Portion(3, part)) == [Told("deleted", 5, 35)]
    assert delete_portion(orders, Portion(3, part))[0].outcome == "taken"
    assert recorded(orders) == dict.fromkeys(addresses, "deleted")


def test_every_batch_is_recorded_before_the_next_is_sent(bare: SmallLake, orders: Orders) -> None:
    addresses = plant(bare, 5)
    task = run(orders, addresses)
    (bare.objects / addresses[1]).unlink()
    before = bare.keys()
    outcomes: dict[str, str] = {}
    for told in task:
        outcomes = recorded(orders)
        assert bare.keys() == before - outcomes.keys()
        assert told.outcome in ("deleted", "already_missing")
    assert outcomes == dict.fromkeys(addresses, "deleted") | {addresses[1]: "already_missing"}


@pytest.mark.parametrize("age", [541, 600, 10**6, -100])
def test_nothing_is_sent_when_the_delta_mark_is_old_or_from_the_future(
    bare: SmallLake, orders: Orders, age: float
) -> None:
    addresses, before = plant(bare, 3), bare.keys()
    told = run(replace(orders, taken=earlier(orders.taken, age)), addresses)
    assert names(told) == ["stale"]
    assert bare.keys() == before


def test_nothing_more_is_sent_when_heads_changed(bare: SmallLake, orders: Orders) -> None:
    """Where nothing is known that could be extended."""
    addresses = plant(bare, 5)
    task = run(orders, addresses)
    assert next(task).objects == 2
    bare.commit("busy")
    (stale,) = task
    assert stale.outcome == "stale"
    assert "HEADs have changed" in str(stale.detail)
    assert recorded(orders) == dict.fromkeys(addresses[:2], "deleted")
    assert set(addresses[2:]) <= bare.keys()


def test_heads_and_rules_are_read_again_when_the_answer_took_long(
    bare: SmallLake, orders: Orders, time: Time
) -> None:
    """The clock counts suspension: what was read before a machine slept says nothing."""
    addresses = plant(bare, 2)
    left = slow_answers(bare, time, [20, 16, 14])
    assert names(run(orders, addresses, reach=reach_at(orders, time))) == ["deleted"]
    assert not left


def test_nothing_is_sent_when_every_answer_takes_long(
    bare: SmallLake, orders: Orders, time: Time
) -> None:
    addresses, before = plant(bare, 2), bare.keys()
    left = slow_answers(bare, time, [20] * 9)
    (stale,) = run(orders, addresses, reach=reach_at(orders, time))
    assert stale == Told("stale", detail="lakeFS and the store take too long to answer")
    assert len(left) == 6
    assert bare.keys() == before


def test_the_store_is_looked_at_again_when_lakefs_took_long(
    bare: SmallLake, orders: Orders, time: Time
) -> None:
    """What was written again meanwhile is seen, although it was as listed at first."""
    addresses = plant(bare, 2)
    took = [40, 30]

    def see(_method: str, path: str) -> None:
        if took and path.endswith("/branches"):
            time.now += took.pop(0)
            if not took:
                orders.connections.store().put(addresses[0], b"written again")

    bare.on_request = see
    assert names(run(orders, addresses, reach=reach_at(orders, time))) == ["spared", "deleted"]
    assert bare.keys() & set(addresses) == {addresses[0]}


def test_the_request_ends_within_a_minute_of_the_reading() -> None:
    # Credentials are renewed within the time of a connection, or nothing is sent.
    longest = CHECK_TIME + 2 * deletion.CONNECT_TIMEOUT + deletion.REQUEST_TIMEOUT
    assert longest <= CHECK_LIFETIME == 60


def fill(orders: Orders, count: int) -> dict[str, str]:
    """Objects in the store of the orders, with their etags."""
    store = orders.connections.store()
    return {f"data/s/{n}": store.put(f"data/s/{n}", b"content %d" % n) for n in range(count)}


def keys(orders: Orders) -> set[str]:
    store = orders.connections.store()
    return {key for batch in store.list("data/") for key in batch["key"].to_pylist()}


def answer_with_errors(patch: pytest.MonkeyPatch, codes: dict[str, list[str]]) -> None:
    """Let S3 refuse keys of a bulk delete with these codes, one at each try; then it obeys."""
    allowed = S3Response._bucket_response_delete_keys

    def refuse(response: S3Response, bucket: str, authenticated: bool = True) -> object:  # noqa: FBT001, FBT002 - moto's
        errors = ""
        for key, left in codes.items():
            identifier = f"<Object><Key>ns/{key}</Key></Object>"
            body = response.body.decode()
            if left and identifier in body:
                response.body = body.replace(identifier, "").encode()
                errors += f"<Error><Key>ns/{key}</Key><Code>{left.pop(0)}</Code></Error>"
        if "<Object>" not in response.body.decode():
            return 200, {}, f"<DeleteResult>{errors}</DeleteResult>"
        status, headers, answer = allowed(response, bucket, authenticated)
        text = answer.decode() if isinstance(answer, bytes) else answer
        assert "</DeleteResult>" in text
        return status, headers, text.replace("</DeleteResult>", f"{errors}</DeleteResult>")

    patch.setattr(S3Response, "_bucket_response_delete_keys", refuse)


def test_access_denied_stops_all_tasks(s3_orders: Orders, monkeypatch: pytest.MonkeyPatch) -> None:
    """S3 refuses one key of a batch: each key has its own outcome, and no batch follows."""
    addresses = list(fill(s3_orders, 5))
    answer_with_errors(monkeypatch, {addresses[0]: ["AccessDenied"]})
    told = {one.outcome: one for one in run(s3_orders, addresses)}
    assert told["failed"].error_code == "AccessDenied"
    assert told["failed"].objects == told["deleted"].objects == 1
    assert recorded(s3_orders) == {addresses[0]: "failed", addresses[1]: "deleted"}
    assert keys(s3_orders) == {addresses[0], *addresses[2:]}
    (stopped,) = run(s3_orders, addresses[2:], number=1)
    assert stopped.outcome == "stopped"
    assert "AccessDenied: data/s/0" in str(stopped.detail)
    assert keys(s3_orders) == {addresses[0], *addresses[2:]}


def test_a_second_attempt_of_a_task_does_nothing(bare: SmallLake, orders: Orders) -> None:
    """Retried or speculative: what the first attempt has begun is its own in this round."""
    addresses = plant(bare, 4)
    first = run(orders, addresses)
    assert next(first).outcome == "deleted"
    before = bare.keys()
    assert names(run(orders, addresses)) == ["taken"]
    assert bare.keys() == before
    assert names(first) == ["deleted"]
    assert recorded(orders) == dict.fromkeys(addresses, "deleted")
    ledger = list(Path(orders.artifacts_url).glob("swept_set/ledger/*.parquet"))
    assert sum(pq.read_table(path).num_rows for path in ledger) == len(addresses)


def test_the_second_attempt_tells_why_the_first_one_failed(
    bare: SmallLake, orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = plant(bare, 3)
    before = bare.keys()
    with monkeypatch.context() as patch:
        patch.setattr(deletion, "fingerprint", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            list(run(orders, addresses))
    (taken,) = run(orders, addresses)
    assert taken.outcome == "taken"
    assert str(taken.detail).endswith("has begun, and failed: ZeroDivisionError: division by zero")
    assert bare.keys() == before


def test_a_task_of_an_earlier_round_stops(bare: SmallLake, orders: Orders) -> None:
    addresses = plant(bare, 3)
    (lost,) = run(replace(orders, number=0), addresses)
    assert lost.outcome == "lost"
    assert "round 1 of this sweep has begun" in str(lost.detail)
    assert set(addresses) <= bare.keys()


def test_what_the_store_cannot_take_now_is_sent_again(
    s3_orders: Orders, monkeypatch: pytest.MonkeyPatch, s3_time: Time
) -> None:
    """SlowDown for one key of a bulk answer: the other is recorded, and this one follows later."""
    addresses = list(fill(s3_orders, 3))
    answer_with_errors(
        monkeypatch, {addresses[0]: ["SlowDown", "InternalError"], addresses[2]: ["SlowDown"]}
    )
    assert set(names(run(s3_orders, addresses, reach=reach_at(s3_orders, s3_time)))) == {"deleted"}
    assert recorded(s3_orders) == dict.fromkeys(addresses, "deleted")
    assert keys(s3_orders) == set()
    assert sum(s3_time.waited) >= 3


def test_a_store_that_never_takes_a_key_fails_it_and_stops(
    s3_orders: Orders, monkeypatch: pytest.MonkeyPatch, s3_time: Time
) -> None:
    addresses = list(fill(s3_orders, 3))
    answer_with_errors(monkeypatch, {address: ["SlowDown"] * 99 for address in addresses})
    told = list(run(s3_orders, addresses, reach=reach_at(s3_orders, s3_time)))
    assert {(one.outcome, one.error_code) for one in told} == {("failed", "SlowDown")}
    assert keys(s3_orders) == set(addresses)
    assert len(s3_time.waited) >= answers.TRIES - 1
    assert names(run(s3_orders, addresses, number=1)) == ["stopped"]


def test_an_object_that_was_rewritten_is_spared(bare: SmallLake, orders: Orders) -> None:
    """Whatever it holds now, and although the deletes are not conditional."""
    addresses = plant(bare, 3)
    task = run(orders, addresses)
    content = (bare.objects / addresses[1]).read_bytes()
    orders.connections.store().put(addresses[1], content)
    assert names(task) == ["spared", "deleted", "deleted"]
    assert recorded(orders) == dict.fromkeys(addresses, "deleted") | {addresses[1]: "spared"}
    assert set(addresses) & bare.keys() == {addresses[1]}


class Meddling:
    """A store in which something happens just before each call that deletes."""

    def __init__(self, store: ObjectStore, happen: Callable[[Sequence[str]], object]) -> None:
        self.store = store
        self.happen = happen
        self.calls: list[Mapping[str, Any]] = []

    def delete_many(
        self, keys: Sequence[str], etags: Mapping[str, str] | None = None, **more: Any
    ) -> Sequence[DeleteOutcome]:
        self.happen(keys)
        self.calls.append(more)
        return self.store.delete_many(keys, etags, **more)


def meddling(orders: Orders, happen: Callable[[Sequence[str]], object]) -> tuple[Reach, Meddling]:
    reach = Reach.of(orders)
    store = Meddling(reach.deleting, happen)
    return replace(reach, deleting=cast("ObjectStore", store)), store


@pytest.mark.parametrize("condition", ["bulk", "none"])
def test_only_the_condition_spares_what_is_rewritten_after_the_look(
    bare: SmallLake, orders: Orders, condition: Any
) -> None:
    addresses = plant(bare, 3)

    def rewrite(keys: Sequence[str]) -> None:
        if addresses[1] in keys:
            orders.connections.store().put(addresses[1], b"written again")

    conditional = replace(orders, condition=condition)
    reach, _ = meddling(conditional, rewrite)
    list(run(conditional, addresses, reach=reach))
    spared = {addresses[1]} if condition == "bulk" else set()
    assert set(addresses) & bare.keys() == spared
    assert {a for a, outcome in recorded(orders).items() if outcome == "spared"} == spared


def test_single_deletes_are_conditional_where_bulk_ones_are_not(s3_orders: Orders) -> None:
    """Moto honours the condition of single deletes only."""
    addresses = list(fill(s3_orders, 5))
    store = s3_orders.connections.store()

    def happen(keys: Sequence[str]) -> None:
        if addresses[3] in keys:
            store.put(addresses[3], b"written again")
        if addresses[4] in keys:
            store.delete_many([addresses[4]])

    single = replace(s3_orders, condition="single")
    reach, _ = meddling(single, happen)
    list(run(single, addresses, reach=reach))
    expected = dict.fromkeys(addresses, "deleted")
    expected |= {addresses[3]: "spared", addresses[4]: "already_missing"}
    assert recorded(s3_orders) == expected
    assert keys(s3_orders) == {addresses[3]}


def test_single_deletes_stop_when_the_look_is_old(s3_orders: Orders, s3_time: Time) -> None:
    """Each batch is begun again with a new look; no key is lost on the way."""
    addresses = list(fill(s3_orders, 4))
    single = replace(s3_orders, condition="single", batch=4)
    sent: list[float] = []

    def take_time(_keys: Sequence[str]) -> None:
        sent.append(s3_time.now)
        s3_time.now += 25

    reach, _ = meddling(single, take_time)
    reach = replace(reach, clock=s3_time, sleep=s3_time.sleep)
    assert names(run(single, addresses, reach=reach)) == ["deleted", "deleted"]
    assert recorded(s3_orders) == dict.fromkeys(addresses, "deleted")
    assert [at - sent[0] for at in sent] == [0, 25, 50, 75]


@pytest.mark.parametrize("condition", ["none", "single"])
def test_a_delete_carries_what_is_left_of_its_minute(
    bare: SmallLake, orders: Orders, time: Time, condition: Any
) -> None:
    """From the time that the store told in the look, whenever it is sent."""
    addresses = plant(bare, 4)
    slow_answers(bare, time, [14, 3])
    dated = replace(orders, condition=condition, expires_s=60)

    def take_time(_keys: Sequence[str]) -> None:
        time.now += 2

    reach, store = meddling(dated, take_time)
    list(run(dated, addresses, reach=replace(reach, clock=time, sleep=time.sleep)))
    left = [call["expires_s"] for call in store.calls]
    assert left == ([46, 57] if condition == "none" else [46, 46, 57, 57])
    told = [call["since"] for call in store.calls]
    assert told == sorted(told)
    assert len(set(told)) == 2
    assert recorded(orders) == dict.fromkeys(addresses, "deleted")


def test_what_the_store_refused_as_late_is_sent_again(
    bare: SmallLake, orders: Orders, time: Time
) -> None:
    """With a new look before it."""
    addresses = plant(bare, 2)
    looks: list[str] = []
    bare.on_request = lambda _, path: looks.append(path) if path.endswith("/branches") else None
    dated = replace(orders, expires_s=60)
    reach, store = meddling(dated, lambda _keys: None)
    late = [[DeleteOutcome(a, "failed", "Expired", "too late") for a in addresses]]
    send = store.delete_many

    def refuse_once(keys: Sequence[str], *args: Any, **more: Any) -> Sequence[DeleteOutcome]:
        return late.pop() if late else send(keys, *args, **more)

    store.delete_many = refuse_once  # type: ignore[method-assign]
    reach = replace(reach, clock=time, sleep=time.sleep)
    assert names(run(dated, addresses, reach=reach)) == ["deleted"]
    assert len(looks) == 2
    assert recorded(orders) == dict.fromkeys(addresses, "deleted")
