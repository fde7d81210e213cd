"""The task that deletes: what it asks before each batch, and what it leaves undone."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from moto.s3.responses import S3Response

from lakegc_assets.engine.datasets import write_part
from lakegc_assets.errors import ConfigurationError
from lakegc_assets.mark.marked_objects import Stretch
from lakegc_assets.mark.refs import load_commits, read_heads
from lakegc_assets.run.clocks import SUSPENSION, SYSTEM_CLOCKS, Watch
from lakegc_assets.run.settings import Settings
from lakegc_assets.storage.values import DeleteOutcome
from lakegc_assets.sweep import deletion
from lakegc_assets.sweep.batch_guard import CHECK_LIFETIME, CHECK_TIME, Look
from lakegc_assets.sweep.delete_answers import TRIES
from lakegc_assets.sweep.deletion import DeletingTask, TaskClients, delete_portion
from lakegc_assets.sweep.delta_extension import KnownCommits, write_known
from lakegc_assets.sweep.ledger import Outcome
from lakegc_assets.sweep.store_comparison import Marked
from lakegc_assets.sweep.task_orders import (
    SUSPENDED,
    Orders,
    Portion,
    TaskResult,
    results_of,
    summed,
)
from lakegc_assets_tests.clocks import StubClocks
from lakegc_assets_tests.lake import REPOSITORY, SmallLake
from lakegc_assets_tests.sweep.deleting import (
    Time,
    fill,
    keys,
    names,
    orders,
    plant,
    reach_at,
    recorded,
    run,
    s3_orders,
    s3_time,
    slow_answers,
    time,
)
from lakegc_assets_tests.sweep.stand_ins import as_listed, earlier

__all__ = ["orders", "s3_orders", "s3_time", "time"]

_OUTCOMES = st.sampled_from(["deleted", "already_missing", "failed"])


@given(st.lists(st.builds(Outcome, st.text(max_size=3), st.integers(0, 2**40), _OUTCOMES)))
def test_what_is_told_adds_up(outcomes: list[Outcome]) -> None:
    told = {
        one.outcome: one for one in summed([*results_of(outcomes[:3]), *results_of(outcomes[3:])])
    }
    for name in ("deleted", "already_missing", "failed"):
        of_it = [outcome.size for outcome in outcomes if outcome.outcome == name]
        found = told.get(name, TaskResult(name))
        assert (found.objects, found.size) == (len(of_it), sum(of_it))


def test_one_failure_is_told() -> None:
    failed = Outcome("a", 1, "failed", "AccessDenied", "not yours")
    one, other = results_of([failed, Outcome("b", 1, "deleted")])
    assert (one.error_code, one.detail) == ("AccessDenied", "a: not yours")
    assert other.error_code is None
    again = TaskResult("failed", 2, 7, "SlowDown", "later")
    assert summed([one, other, again]) == [one._replace(objects=3, size=8), other]


@pytest.mark.parametrize("batch", [0, -1, 1001])
def test_a_batch_that_no_store_takes(batch: int) -> None:
    with pytest.raises(ConfigurationError, match="sweep_batch is"):
        Settings(sweep_batch=batch)


def test_orders_travel(orders: Orders, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task on another machine gets the same, and does the same."""
    # A region or endpoint that only this machine knows goes with them.
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    travelled = pickle.loads(pickle.dumps(orders))
    assert type(travelled.clocks) is type(orders.clocks)
    assert replace(travelled, clocks=orders.clocks) == orders


def test_a_portion_is_deleted(bare: SmallLake, orders: Orders) -> None:
    addresses = plant(bare, 5)
    objects = as_listed(orders.connections.store(), addresses)
    part = write_part(TaskClients.of(orders).artifacts, "swept_set/survivors/", objects)
    portion = Portion(3, [Stretch(part, 0, 1), Stretch(part, 1, 3), Stretch(part, 4, 1)])
    assert portion.rows == len(addresses)
    assert delete_portion(orders, portion) == [TaskResult("deleted", 5, 35)]
    assert delete_portion(orders, portion)[0].outcome == "taken"
    assert recorded(orders) == dict.fromkeys(addresses, "deleted")


@pytest.mark.parametrize("gap", [SUSPENSION, SUSPENSION + 1])
def test_a_process_that_was_suspended_before_it_could_notice_deletes_nothing(
    bare: SmallLake, orders: Orders, gap: float
) -> None:
    """What is staged while a process is started is in no delta mark."""
    addresses = plant(bare, 2)
    clocks = StubClocks(watch=Watch(SYSTEM_CLOCKS.elapsed))
    started = replace(orders, awake=clocks.watched_since() - gap, clocks=clocks)
    objects = as_listed(orders.connections.store(), addresses)
    told = list(DeletingTask(started, 0, TaskClients.of(started)).run([objects]))
    slept = gap > SUSPENSION
    deleted = TaskResult("deleted", 2, 14)
    assert told == [TaskResult("stale", detail=SUSPENDED) if slept else deleted]


def test_a_process_that_was_suspended_while_its_task_waited_deletes_nothing(
    bare: SmallLake, orders: Orders
) -> None:
    """It noticed before the task began, and after the delta mark."""
    addresses, before, time = plant(bare, 2), bare.keys(), Time(SYSTEM_CLOCKS.elapsed())
    watch = Watch(time)
    time.now += SUSPENSION + 1
    assert watch.resumed() == time.now
    time.now += 1
    reach = replace(TaskClients.of(orders), clocks=StubClocks(time.sleep, time, watch))
    assert list(run(orders, addresses, reach=reach)) == [TaskResult("stale", detail=SUSPENDED)]
    assert bare.keys() == before


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
    """Without a snapshot that could be extended."""
    addresses = plant(bare, 5)
    task = run(orders, addresses)
    assert next(task).objects == 2
    bare.commit("busy")
    (stale,) = task
    assert stale.outcome == "stale"
    assert "HEADs have changed" in str(stale.detail)
    assert recorded(orders) == dict.fromkeys(addresses[:2], "deleted")
    assert set(addresses[2:]) <= bare.keys()


def test_what_extensions_have_found_is_spared_in_later_stretches_too(
    bare: SmallLake, orders: Orders
) -> None:
    """No later look finds it again: the HEADs are those of the extension by then."""
    addresses, heads = plant(bare, 6), read_heads(bare.client, REPOSITORY)
    commits = load_commits(bare.client, REPOSITORY, heads.values())
    known = KnownCommits(None, orders.taken.store_time, heads, commits, commits.keys())
    reach = TaskClients.of(orders)
    files = write_known(reach.artifacts, "swept_set/known/", known, frozenset())

    def commit(branch: str, *some: str) -> None:
        for address in some:
            bare.stage(branch, f"late/{address}", address, size=8)
        bare.commit(branch)

    stretches = [
        as_listed(orders.connections.store(), addresses[n : n + 2]) for n in range(0, 6, 2)
    ]
    commit("busy", addresses[3], addresses[5])
    task = DeletingTask(replace(orders, known=files), 0, reach).run(stretches)
    assert next(task).outcome == "deleted"
    commit("main", addresses[4])
    assert set(names(task)) == {"spared", "deleted"}
    assert bare.keys() & set(addresses) == set(addresses[3:])


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
    assert stale == TaskResult("stale", detail="lakeFS and the store take too long to answer")
    assert len(left) == 6
    assert bare.keys() == before


@pytest.mark.parametrize(("waits", "looks"), [(CHECK_TIME - 1, 1), (CHECK_TIME, 2)])
def test_nothing_is_sent_long_after_the_look(
    bare: SmallLake, orders: Orders, time: Time, waits: float, looks: int
) -> None:
    """What was read before a thread waited for the machine says nothing."""
    addresses, looked = plant(bare, 2), list[Look]()

    class Waiting(DeletingTask):
        def look(self) -> Look:
            looked.append(super().look())
            time.now += waits if len(looked) == 1 else 0
            return looked[-1]

    objects = as_listed(orders.connections.store(), addresses)
    told = Waiting(orders, 0, reach_at(orders, time)).run([objects])
    assert names(told) == ["deleted"]
    assert len(looked) == looks


def test_nothing_is_sent_when_a_suspension_is_noticed_after_the_look(
    bare: SmallLake, orders: Orders, time: Time
) -> None:
    addresses, before, watched = plant(bare, 2), bare.keys(), Time(time.now)
    clocks = StubClocks(time.sleep, time, Watch(watched))

    class Suspended(DeletingTask):
        def send(self, batch: Sequence[Marked]) -> list[DeleteOutcome]:
            watched.now += SUSPENSION + 1
            return super().send(batch)

    reach = replace(TaskClients.of(orders), clocks=clocks)
    objects = as_listed(orders.connections.store(), addresses)
    told = Suspended(orders, 0, reach).run([objects])
    assert list(told) == [TaskResult("stale", detail=SUSPENDED)]
    assert bare.keys() == before


def test_the_store_is_looked_at_again_when_lakefs_took_long(
    bare: SmallLake, orders: Orders, time: Time
) -> None:
    """An object that was written again meanwhile is seen, although it was as listed at first."""
    addresses = plant(bare, 2)
    took = [40, 30]

    def see(_method: str, path: str) -> None:
        if took and path.endswith("/settings/gc_rules"):
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
        patch.setattr(deletion, "seen_now", lambda *_, **__: 1 / 0)
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
    assert len(s3_time.waited) >= TRIES - 1
    assert names(run(s3_orders, addresses, number=1)) == ["stopped"]
