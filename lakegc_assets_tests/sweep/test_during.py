"""Changes during a sweep are seen before the next batch, and losses afterwards."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from lakegc_assets.errors import IntegrityError, RefusedError
from lakegc_assets.run.clocks import NEVER, SYSTEM_CLOCKS, Clocks
from lakegc_assets.run.context import RunContext
from lakegc_assets.storage import bulk
from lakegc_assets.storage.errors import StorageError, StoreFullError, StoreUnavailableError
from lakegc_assets.storage.http import seconds
from lakegc_assets.storage.local import LocalStore
from lakegc_assets.storage.trash import LocalTrash
from lakegc_assets.storage.values import DeleteOutcome
from lakegc_assets.sweep import alarm, ledger, rate_limit, rounds
from lakegc_assets.sweep.delta import STAGED
from lakegc_assets.sweep.delta_extension import ALIKE, HELD
from lakegc_assets.sweep.hold import HOLD, write_hold
from lakegc_assets.sweep.lease import Lease
from lakegc_assets.sweep.lease_record import lost, read_lease
from lakegc_assets.sweep.ledger import Outcome
from lakegc_assets.sweep.rate_limit import Limits, RateLimiter
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets.sweep.task_orders import Orders, Portion, TaskResult
from lakegc_assets_tests.lake import REPOSITORY, RUN, Marked, SmallLake
from lakegc_assets_tests.sessions import Session
from lakegc_assets_tests.sweep.outcomes import after_first_delete, check_swept, spared
from lakegc_assets_tests.sweep.stand_ins import in_this_thread, spare, stand_in


def test_what_comes_alive_in_the_middle_is_spared(
    lake: SmallLake, marked: Marked, spark: Session
) -> None:
    revived: list[str] = []

    def commit_an_orphan(left: set[str]) -> None:
        revived.append(min(left & marked.groups["orphans"]))
        lake.stage("busy", "late/commit", revived[0])
        lake.commit("busy")

    # Batches of two: the orphans cannot all be in the first.
    seen = after_first_delete(lake, marked, commit_an_orphan)
    manifest = sweep(lake.context(spark, sweep_batch=2))
    assert seen == [f"GET /api/v1/repositories/{REPOSITORY}/branches"]
    # The delta mark is extended; no other is taken.
    assert manifest.facts["rounds"] == 1
    check_swept(lake, marked, alike(lake, marked) | {revived[0]: HELD})


def alike(lake: SmallLake, marked: Marked) -> dict[str, str]:
    """Spared beyond need: as large as an object that a branch which moved has now."""
    found = {address: ALIKE for address, why in spared(lake).items() if why == ALIKE}
    assert found.keys() <= marked.groups["removed"]
    return found


def test_what_is_staged_by_hand_while_the_sweep_is_suspended_is_spared(
    lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No HEAD moves, so only a new delta mark shows it."""
    resumed = [NEVER]
    monkeypatch.setattr(Clocks, "resumed", lambda _clocks: resumed[-1])
    staged: list[str] = []

    def sleep(left: set[str]) -> None:
        staged.append(min(left & marked.groups["orphans"]))
        lake.stage("busy", "late/link", staged[0])
        resumed.append(SYSTEM_CLOCKS.elapsed())

    after_first_delete(lake, marked, sleep)
    manifest = sweep(lake.context(spark, sweep_batch=2))
    assert manifest.facts["rounds"] == 2
    check_swept(lake, marked, {staged[0]: STAGED})


def test_what_comes_alive_while_the_sweep_is_suspended_within_a_batch_of_files_is_spared(
    lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No store keeps a deadline there: this process looks at it before each file."""
    take, revived = LocalTrash.take, list[str]()

    def take_and_sleep(store: LocalTrash, *of: Any) -> None:
        take(store, *of)
        if not revived:
            revived.append(max(lake.keys() & marked.groups["orphans"]))
            lake.stage("busy", "late/commit", revived[0])
            lake.commit("busy")
            monkeypatch.setattr(bulk, "seconds", lambda: seconds() + 3600)

    monkeypatch.setattr(LocalTrash, "take", take_and_sleep)
    sweep(lake.context(spark))
    check_swept(lake, marked, alike(lake, marked) | {revived[0]: HELD})


def test_files_that_take_longer_than_a_batch_may_are_sent_with_the_next_one(
    lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing has failed, so nothing is tried less often, or more slowly, for it."""
    take, taken = LocalTrash.take, list[str]()

    def take_slowly(store: LocalTrash, directory: int, name: str, *of: Any) -> None:
        taken.append(name)
        take(store, directory, name, *of)

    monkeypatch.setattr(LocalTrash, "take", take_slowly)
    monkeypatch.setattr(bulk, "seconds", lambda: seconds() + 40 * len(taken))
    failed: list[str] = []
    monkeypatch.setattr(RateLimiter, "failed", lambda *_, **__: failed.append("slower"))
    sweep(lake.context(spark))
    check_swept(lake, marked, alike(lake, marked))
    assert failed == []


def test_rules_that_change_in_the_middle(lake: SmallLake, marked: Marked, spark: Session) -> None:
    """The rule is a new one, but brings nothing back."""
    after_first_delete(lake, marked, lambda _left: lake.rules(20, main=11))
    manifest = sweep(lake.context(spark, sweep_batch=6))
    assert manifest.facts["rounds"] == 2
    check_swept(lake, marked, {})


def test_a_repository_that_never_rests(
    lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "IDLE_ROUNDS", 2)
    monkeypatch.setattr(rounds, "require_passed", lambda _results: None)
    monkeypatch.setattr(rounds, "evaluate", lambda _ctx, _selection: [])
    busy = False

    def commit(method: str, path: str) -> None:
        nonlocal busy
        if not busy and path.endswith("/branches") and method == "GET":
            busy = True
            lake.commit("busy")
            busy = False

    lake.on_request = commit
    with pytest.raises(RefusedError, match="changes so fast that no delta mark holds"):
        sweep(lake.context(spark))
    assert lake.keys() == marked.live | marked.candidates


def test_heads_that_were_others_while_the_delta_mark_looked(
    lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A branch is there at first and when deletes begin, and not while its commits are read."""
    monkeypatch.setattr(rounds, "evaluate", lambda _ctx, _selection: [])
    monkeypatch.setattr(rounds, "require_passed", lambda _results: None)
    rescue = f"/api/v1/repositories/{REPOSITORY}"
    lake.client.create_branch(REPOSITORY, "rescue", marked.commits["first"])
    seen: list[str] = []

    def flicker(_method: str, path: str) -> None:
        seen.append(path.removeprefix(rescue))
        # The rules are read before the commits are, the tags after them.
        if seen.count("/settings/gc_rules") == 1 and seen[-1] == "/settings/gc_rules":
            lake.client.delete_branch(REPOSITORY, "rescue")
        if seen[-1] == "/tags" and seen.count("/tags") == 1:
            lake.client.create_branch(REPOSITORY, "rescue", marked.commits["first"])

    lake.on_request = flicker
    manifest = sweep(lake.context(spark))
    # It was not there for the delta mark, so its extension finds it.
    assert manifest.facts["rounds"] == 1
    assert "rescue" in {branch.id for branch in lake.client.branches(REPOSITORY)}
    back = dict.fromkeys(marked.groups["replaced"], HELD)
    check_swept(lake, marked, alike(lake, marked) | back)


def test_a_repository_that_was_made_anew_elsewhere(
    lake: SmallLake, marked: Marked, spark: Session
) -> None:
    """Objects at its old place may belong to another repository by now."""
    there: list[set[str]] = []

    def make_anew(_left: set[str]) -> None:
        there.append(lake.keys())
        lake.client.call("DELETE", "repositories", REPOSITORY)
        lake.client.create_repository(REPOSITORY, "local://elsewhere")

    after_first_delete(lake, marked, make_anew)
    with pytest.raises(IntegrityError, match="is at local://elsewhere now, and the mark is about"):
        sweep(lake.context(spark, sweep_batch=2))
    assert [lake.keys()] == there


def test_an_alarm_of_another_sweep(lake: SmallLake, marked: Marked, spark: Session) -> None:
    """One that lost its lease, say, and found that it had deleted too much."""
    there: list[set[str]] = []

    def hold(left: set[str]) -> None:
        there.append(left)
        write_hold(LocalStore(lake.objects, "local://repo"), {"alarm": "look first"})

    after_first_delete(lake, marked, hold)
    with pytest.raises(
        RefusedError, match=r"(?s)on hold, and is not swept: look first.*`lakegc hold repo`"
    ):
        sweep(lake.context(spark, sweep_batch=2, sweep_num_partitions=1))
    assert [lake.keys() & marked.candidates] == there
    (lake.objects / HOLD).unlink()
    sweep(lake.context(spark))
    check_swept(lake, marked, {})


def test_an_object_that_cannot_be_deleted(
    lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store refuses one; the others are done and recorded; mended, the sweep goes on."""
    stuck = min(marked.groups["second"])
    path, aside = lake.objects / stuck, lake.folder / "aside"
    delete = LocalStore.delete_file

    def in_place_of_it(store: LocalStore, key: str, *args: Any) -> DeleteOutcome:
        if key == stuck and not aside.exists():
            path.rename(aside)
            os.mkfifo(path)
        return delete(store, key, *args)

    monkeypatch.setattr(LocalStore, "delete_file", in_place_of_it)
    words = (
        rf"1 object of local://repo could not be deleted.*{stuck}.*Correct the cause, then sweep "
        r".* again\. 17 of the 18 objects of mark 'mark-1' are deleted\. The live set after the "
        r"deletes was computed"
    )
    with pytest.raises(StorageError, match=words):
        sweep(lake.context(spark))
    path.unlink()
    os.link(aside, path)
    assert lake.keys() == marked.live | {stuck}
    sweep(lake.context(spark))
    check_swept(lake, marked, {})


def _holder(found: dict[str, Any]) -> tuple[object, ...]:
    return tuple(found[name] for name in ("branch", "path", "commit"))


def test_what_is_gone_and_needed_raises_an_alarm(
    lake: SmallLake, marked: Marked, spark: Session
) -> None:
    """One comes alive just after it was deleted; one was deleted by a sweep that never said so."""
    unrecorded, *_ = sorted(marked.groups["orphans"])
    contents = lake.contents(marked.candidates)
    (lake.objects / unrecorded).unlink()
    lake.stage("main", "late/link", unrecorded)
    needed = {unrecorded}

    def commit_what_is_gone(left: set[str]) -> None:
        needed.add(min(marked.candidates - left - {unrecorded}))
        lake.stage("busy", "too/late", max(needed, key=lambda key: key != unrecorded))
        lake.commit("busy")

    first = len(marked.candidates) - 1

    def look(_method: str, _path: str) -> None:
        left = lake.keys() & marked.candidates
        if len(needed) == 1 and len(left) < first:
            commit_what_is_gone(left)

    lake.on_request = look
    words = r"2 objects of mark 'mark-1' are gone, and are needed"
    with pytest.raises(IntegrityError, match=words) as raised:
        sweep(lake.context(spark, sweep_batch=6, restore_revived=False))
    assert all(key in str(raised.value) for key in needed)
    assert lake.keys() == marked.live
    hold = lake.objects / HOLD
    held = json.loads(hold.read_text())
    assert held["run"] == RUN
    assert {found["address"]: _holder(found) for found in held["objects"]} == {
        unrecorded: ("main", "late/link", None),
        **{key: ("busy", "too/late", lake.head("busy")) for key in needed - {unrecorded}},
    }
    assert "branch 'main', path 'late/link'" in str(raised.value)
    assert f"path 'too/late', commit '{lake.head('busy')}'" in str(raised.value)

    with pytest.raises(RefusedError, match="on hold"):
        sweep(lake.context(spark))

    for key in needed:
        lake.write(key, contents[key])
    hold.unlink()
    manifest = sweep(lake.context(spark))
    assert manifest.rows == len(marked.candidates)
    assert lake.keys() == marked.live | needed
    assert lake.root.attempt(REPOSITORY, RUN).has("swept_set")


@pytest.mark.parametrize("told", [("deleted",), ("failed", "Timeout")])
def test_an_alarm_is_raised_also_after_a_failure(
    lake: SmallLake,
    marked: Marked,
    spark: Session,
    monkeypatch: pytest.MonkeyPatch,
    told: tuple[str, ...],
) -> None:
    """The store fails after one object was deleted, which is alive by then."""
    gone = min(marked.candidates)
    stand_in(monkeypatch, *[spare(set()), spare({gone})] * 2)
    others: list[dict[str, str]] = []

    def fail(ctx: RunContext, *_: object) -> None:
        (lake.objects / gone).unlink(missing_ok=True)
        attempt = ctx.root.attempt(REPOSITORY, RUN)
        ledger.record(attempt.store(), "batch", [Outcome(gone, 1, *told)])
        for alarm_of_another in others:
            write_hold(LocalStore(lake.objects, "local://repo"), alarm_of_another)
        raise StorageError("the store is on fire")

    def full(*_: object) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr(rounds, "delete", fail)
    with monkeypatch.context() as patch:
        patch.setattr(alarm, "add_alarm", full)
        with pytest.raises(IntegrityError, match=r"hold\.json COULD NOT BE WRITTEN"):
            sweep(lake.context(spark))
    others.append({"alarm": "another sweep lost this"})
    with pytest.raises(IntegrityError, match=f"(?s)1 object .* is gone, and is needed.*{gone}"):
        sweep(lake.context(spark))
    with pytest.raises(RefusedError, match=r"(?s)on hold.*another sweep lost this"):
        sweep(lake.context(spark))
    assert lake.keys() == marked.live | marked.candidates - {gone}


def test_a_delta_mark_that_aged_under_the_invariants_is_taken_again(
    lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = min(marked.candidates)
    stand_in(monkeypatch, spare(set(), age=200), spare({late}), spare({late}))
    manifest = sweep(lake.context(spark))
    assert manifest.facts["rounds"] == 2
    check_swept(lake, marked, {late: "it is alive"})


def test_who_deletes_does_not_wait_for_a_server_that_is_away(
    lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task must not wait, since its look would be too old; all before and behind may."""
    given: list[float] = []

    def delete(ctx: RunContext, orders: Orders, portions: list[Portion]) -> list[TaskResult]:
        given.append(orders.connections.lakefs.wait_s)
        return in_this_thread(ctx, orders, portions)

    stand_in(monkeypatch)
    monkeypatch.setattr(rounds, "delete", delete)
    ctx = lake.context(spark)
    sweep(replace(ctx, lakefs=replace(ctx.lakefs, wait_s=60.0)))
    assert given == [0.0]
    check_swept(lake, marked, {})


def test_the_limit_of_requests_holds_where_each_key_needs_one(
    lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Google with deadlines: one call of a task is a hundred requests."""
    given: list[Limits] = []

    def delete(ctx: RunContext, orders: Orders, portions: list[Portion]) -> list[TaskResult]:
        given.append(orders.limits)
        return in_this_thread(ctx, orders, portions)

    stand_in(monkeypatch)
    monkeypatch.setattr(rounds, "delete", delete)
    monkeypatch.setattr(LocalStore, "sends_deadlines_singly", True)
    sweep(lake.context(spark))
    assert given == [Limits(keys=1000.0, requests=1000.0)]
    check_swept(lake, marked, {})


def test_a_round_that_failed_is_over_before_it_is_looked_at(
    lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other tasks of the round may still run; what they delete later would not be seen."""
    seen: list[int] = []
    store = lake.store

    def fail_late(self: rounds.Rounds, number: int, _remaining: object) -> None:
        self.lease.begin_round(number)
        outcome = Outcome(min(marked.candidates), 1, "deleted")
        ledger.record(self.recorded.space.attempt.store(), "one", [outcome])
        seen.append(read_lease(store).round)
        raise IntegrityError("a task failed")

    monkeypatch.setattr(rounds.Rounds, "run_round", fail_late)
    monkeypatch.setitem(
        sweep.__globals__, "raise_alarm_if_needed", lambda *_: seen.append(read_lease(store).round)
    )
    with pytest.raises(IntegrityError, match="a task failed"):
        sweep(lake.context(spark))
    assert seen == [1, 2]


@pytest.mark.parametrize("under_way", [True, False])
def test_one_that_is_interrupted_keeps_the_lease_while_a_task_may_delete(
    lake: SmallLake,
    marked: Marked,
    spark: Session,
    monkeypatch: pytest.MonkeyPatch,
    *,
    under_way: bool,
) -> None:
    """Whoever comes next waits until that has ended; and the task begins no other batch."""
    given: list[Orders] = []

    def interrupt(_ctx: RunContext, orders: Orders, _portions: object) -> list[TaskResult]:
        given.append(orders)
        artifacts = orders.connections.open(orders.artifacts_url)
        pace = RateLimiter(artifacts, orders.notes, 0, orders.limits)
        pace.begin()
        if not under_way:
            pace.end()
        raise KeyboardInterrupt

    stand_in(monkeypatch)
    monkeypatch.setattr(rounds, "delete", interrupt)
    with pytest.raises(KeyboardInterrupt):
        sweep(lake.context(spark))
    store = lake.store
    assert read_lease(store).released is not under_way
    (orders,) = given
    assert lost(store, orders.lease, orders.number, store.server_time())
    assert lake.keys() >= marked.candidates


def test_one_that_is_interrupted_deletes_no_other_batch(
    lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever ends a sweep has seen something: no task goes on with what it has left to do."""
    in_tasks, delete, sent = rounds.delete, LocalStore.delete_many, list[str]()

    def delete_and_interrupt(store: LocalStore, keys: Sequence[str], *more: Any, **how: Any) -> Any:
        some = marked.candidates & set(keys)
        sent.extend(some)
        if some and len(sent) == 3:
            # It arrives in the thread that waits for the tasks, as those of a terminal do.
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            time.sleep(0.5)
        return delete(store, keys, *more, **how)

    stand_in(monkeypatch)
    monkeypatch.setattr(rounds, "delete", in_tasks)
    monkeypatch.setattr(rounds, "BATCHES_PER_TASK", len(marked.candidates) // 2)
    monkeypatch.setattr(LocalStore, "delete_many", delete_and_interrupt)
    heeded = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            sweep(lake.context(spark, sweep_batch=1, sweep_num_partitions=2))
    finally:
        signal.signal(signal.SIGINT, heeded)
    # The other task was in the middle of one, or about to begin it.
    assert len(sent) <= 3 + 3 < len(marked.candidates)
    assert lake.keys() >= marked.candidates - set(sent)
    assert read_lease(lake.store).released


def test_one_that_is_interrupted_twice_keeps_the_lease(
    lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is impatient interrupts what is to find out whether a request is on its way."""

    def interrupt(*_: object) -> Any:
        monkeypatch.setattr(Lease, "begin_round", interrupt)
        raise KeyboardInterrupt

    stand_in(monkeypatch)
    monkeypatch.setattr(rounds, "delete", interrupt)
    with pytest.raises(KeyboardInterrupt):
        sweep(lake.context(spark))
    assert not read_lease(lake.store).released
    assert lake.keys() >= marked.candidates


def test_one_that_is_interrupted_while_it_waits_for_its_requests_keeps_the_lease(
    lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_ctx: RunContext, orders: Orders, _portions: object) -> list[TaskResult]:
        artifacts = orders.connections.open(orders.artifacts_url)
        pace = RateLimiter(artifacts, orders.notes, 0, orders.limits)
        pace.begin()
        pace.unanswered()
        pace.end()
        raise StorageError("no answer")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    stand_in(monkeypatch)
    monkeypatch.setattr(rounds, "delete", fail)
    monkeypatch.setitem(sweep.__globals__, "settle", interrupt)
    with pytest.raises(KeyboardInterrupt):
        sweep(lake.context(spark))
    assert not read_lease(lake.store).released
    assert lake.keys() >= marked.candidates


def test_one_that_is_interrupted_within_a_request_keeps_the_lease(
    lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task ends in order, but what it has asked for may yet be carried out."""
    delete = LocalStore.delete_many

    def interrupt(store: LocalStore, keys: Sequence[str], *more: Any, **how: Any) -> Any:
        if marked.candidates & set(keys):
            raise KeyboardInterrupt
        return delete(store, keys, *more, **how)

    stand_in(monkeypatch)
    monkeypatch.setattr(LocalStore, "delete_many", interrupt)
    with pytest.raises(KeyboardInterrupt):
        sweep(lake.context(spark))
    store = lake.store
    assert not read_lease(store).released


def test_what_was_deleted_and_could_not_be_recorded_is_looked_at(
    lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects that came back to life are put back by this sweep, not by the next one."""
    looked: list[set[str]] = []

    def fail(*_: object) -> None:
        raise StorageError("no space left")

    stand_in(monkeypatch)
    monkeypatch.setattr(ledger, "record", fail)
    monkeypatch.setitem(sweep.__globals__, "settle", lambda *_: None)
    monkeypatch.setitem(
        sweep.__globals__, "raise_alarm_if_needed", lambda *_: looked.append(lake.keys())
    )
    with pytest.raises(StorageError, match="no space left"):
        sweep(lake.context(spark))
    (left,) = looked
    assert marked.candidates - left


def test_one_that_cannot_end_its_round_keeps_the_lease(
    lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks of a job that failed may live on, and send requests behind the last look."""

    def refuse(_lease: Lease, _number: int) -> None:
        raise StoreUnavailableError("no answer")

    def fail(_ctx: RunContext, _orders: Orders, _portions: object) -> list[TaskResult]:
        monkeypatch.setattr(Lease, "begin_round", refuse)
        raise StorageError("a task failed")

    stand_in(monkeypatch)
    monkeypatch.setattr(rounds, "delete", fail)
    with pytest.raises(StorageError, match="a task failed"):
        sweep(lake.context(spark))
    assert not read_lease(lake.store).released
    assert lake.keys() >= marked.candidates


def test_a_batch_that_could_not_be_recorded_is_told_with_what_was(
    lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise StoreFullError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(rate_limit, "CHECK_LIFETIME", 0.1)
        patch.setattr(ledger, "record", full)
        with pytest.raises(StoreFullError, match=r"0 of the 18 objects .* and perhaps more"):
            sweep(lake.context(spark))
    assert lake.keys() == marked.live
    sweep(lake.context(spark))
    found = ledger.read(lake.root.attempt(REPOSITORY, RUN))
    assert set(found["outcome"].to_pylist()) == {"already_missing"}
