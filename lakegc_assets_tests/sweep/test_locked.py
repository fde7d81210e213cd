"""Locked objects end no sweep: the others are deleted, and all is reported."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakegc_assets.defs.metadata import of_sweep
from lakegc_assets.errors import RefusedError
from lakegc_assets.estate.explanation import explain
from lakegc_assets.estate.run_state import SWEPT, state_of
from lakegc_assets.mark.incremental_listing import GONE
from lakegc_assets.prune.keep_reasons import deleted_objects
from lakegc_assets.recovery.restore.restored_set import restore
from lakegc_assets.recovery.restore.selection import Choice
from lakegc_assets.run.pins import Pin, prune_pins, write_pin
from lakegc_assets.run.undo import undoable
from lakegc_assets.storage.errors import StorageError
from lakegc_assets.storage.local import LocalStore
from lakegc_assets.storage.opening import open_store
from lakegc_assets.storage.values import FREED, DeleteOutcome
from lakegc_assets.sweep import ledger
from lakegc_assets.sweep.delete_answers import hopeless
from lakegc_assets.sweep.deletion import DeletingTask
from lakegc_assets.sweep.lease import repository_lease
from lakegc_assets.sweep.ledger import Outcome
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets.sweep.task_orders import Orders
from lakegc_assets.sweep.totals import space_facts, space_in, space_lines, space_sentence
from lakegc_assets_tests.kills import Killed, let_the_killed_be_gone
from lakegc_assets_tests.lake import REPOSITORY, RUN, Marked, SmallLake, make_marked, running
from lakegc_assets_tests.sessions import Session
from lakegc_assets_tests.sweep.deleting import Time, orders, plant, reach_at, recorded, run, time
from lakegc_assets_tests.sweep.outcomes import swept
from lakegc_assets_tests.sweep.stand_ins import stand_in

__all__ = ["orders", "time"]

WHY = "Access Denied because object protected by object lock."


@pytest.fixture
def locked(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Ends of keys that the store does not delete; empty to begin with."""
    ends = set[str]()
    delete_many = LocalStore.delete_many

    def delete(
        store: LocalStore, keys: Iterable[str], etags: Any = None, **more: Any
    ) -> Sequence[DeleteOutcome]:
        wanted = list(keys)
        held = {key for key in wanted if any(key.endswith(end) for end in ends)}
        gone = delete_many(store, [key for key in wanted if key not in held], etags, **more)
        told = {one.key: one for one in gone}
        refused = {key: DeleteOutcome(key, "locked", "ObjectLocked", WHY) for key in held}
        return [refused.get(key) or told[key] for key in wanted]

    monkeypatch.setattr(LocalStore, "delete_many", delete)
    return ends


def test_a_whole_batch_that_is_locked_ends_no_sweep(
    lake: SmallLake, marked: Marked, spark: Session, locked: set[str]
) -> None:
    """Neither does one in the middle; both were locked after they were marked."""
    addresses = sorted(marked.candidates)
    batch = {*addresses[:4], addresses[6]}
    locked |= batch
    before = lake.keys()
    manifest = sweep(lake.context(spark, sweep_batch=4))
    assert lake.keys() == before - (marked.candidates - batch)
    found = swept(lake)
    assert {a for a, (o, _) in found.items() if o == "locked"} == batch
    assert {a for a, (o, _) in found.items() if o == "deleted"} == marked.candidates - batch
    facts: dict[str, Any] = dict(manifest.facts)
    assert facts["outcomes"]["locked"]["objects"] == len(batch)
    gone = len(marked.candidates) - len(batch)
    assert facts["space"]["held"]["objects"] == gone
    assert facts["space"]["freed"] == {"objects": 0, "bytes": 0}
    # The trash holds them.
    assert facts["space"]["until"].endswith(" at least")
    attempt = lake.root.attempt(REPOSITORY, RUN)
    state = state_of(attempt)
    assert state.state == SWEPT
    assert state.because.endswith(f"{gone} objects are deleted, and 5 objects are locked")
    assert state.gone.objects == gone
    ctx = lake.context(spark)
    one = explain(ctx, addresses[0])
    assert f"the sweep: locked ({WHY})" in one.because
    assert "the sweep: deleted (space held until 20" in explain(ctx, addresses[5]).because
    shown = of_sweep(manifest)
    assert shown["objects locked"] == 5
    assert shown["objects deleted"] == gone
    assert (shown["bytes freed"], shown["bytes held"]) == (0, facts["space"]["held"]["bytes"])
    assert "space held, until 20" in shown["space"]
    # A mark that leaves out what earlier sweeps have deleted does not leave these out.
    assert "locked" not in GONE
    assert deleted_objects(manifest) == gone


@pytest.mark.parametrize("condition", ["none", "bulk"])
def test_a_store_that_refuses_a_whole_batch_since_one_is_locked(
    condition: Any, bare: SmallLake, orders: Orders, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others go one by one, each batch of them behind a look of its own."""
    addresses = plant(bare, 9)
    held = {addresses[0], addresses[4]}
    calls: list[list[str]] = []
    delete_many = LocalStore.delete_many

    def refuse(
        store: LocalStore, keys: Iterable[str], etags: Any = None, **more: Any
    ) -> Sequence[DeleteOutcome]:
        wanted = list(keys)
        calls.append(wanted)
        time.now += 4
        if not held & {*wanted}:
            return delete_many(store, wanted, etags, **more)
        outcome: Any = "locked" if len(wanted) == 1 else "failed"
        return [DeleteOutcome(key, outcome, "ObjectLocked", WHY) for key in wanted]

    monkeypatch.setattr(LocalStore, "delete_many", refuse)
    looks = 0
    look = DeletingTask.look

    def count(task: DeletingTask) -> Any:
        nonlocal looks
        looks += 1
        return look(task)

    monkeypatch.setattr(DeletingTask, "look", count)
    told = list(
        run(replace(orders, batch=6, condition=condition), addresses, reach=reach_at(orders, time))
    )
    assert {one.outcome for one in told} == {"deleted", "locked"}
    assert recorded(orders) == {a: "locked" if a in held else "deleted" for a in addresses}
    assert held <= bare.keys()
    assert calls[0] == addresses[:6]
    # Of those only as many follow one look as a batch has time for.
    assert calls[1:5] == [[address] for address in addresses[:4]]
    assert calls[5:] == [[addresses[4]], [addresses[5]], addresses[6:]]
    assert looks == 4


def test_nothing_but_locked_objects(
    lake: SmallLake, marked: Marked, spark: Session, locked: set[str]
) -> None:
    locked |= marked.candidates
    before = lake.keys()
    manifest = sweep(lake.context(spark, sweep_batch=4))
    assert lake.keys() == before
    assert {outcome for outcome, _ in swept(lake).values()} == {"locked"}
    # A prune has nothing of it to keep.
    assert deleted_objects(manifest) == 0
    assert space_sentence(manifest.facts["space"]) == "nothing was deleted"


def test_a_sweep_that_was_killed_goes_on_past_what_is_locked(
    lake: SmallLake,
    marked: Marked,
    spark: Session,
    locked: set[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An object recorded as locked is not asked for again, and is no loss."""
    let_the_killed_be_gone(monkeypatch)
    addresses = sorted(marked.candidates)
    locked |= {addresses[0], addresses[2]}

    recorded = ledger.record

    def die_later(*args: Any) -> None:
        recorded(*args)
        raise Killed

    stand_in(monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(ledger, "record", die_later)
        with pytest.raises(Killed):
            sweep(lake.context(spark))
    attempt = lake.root.attempt(REPOSITORY, RUN)
    told = {r["address"]: r["outcome"] for r in ledger.read(attempt).to_pylist()}
    assert told[addresses[0]] == told[addresses[2]] == "locked"
    locked.clear()
    sent = list[str]()
    send = DeletingTask.send

    def watch(task: DeletingTask, batch: Any) -> Any:
        sent.extend(one.address for one in batch)
        return send(task, batch)

    monkeypatch.setattr(DeletingTask, "send", watch)
    sweep(lake.context(spark))
    found = swept(lake)
    assert {a for a, (o, _) in found.items() if o == "locked"} == {addresses[0], addresses[2]}
    assert not {addresses[0], addresses[2]} & set(sent)
    assert {addresses[0], addresses[2]} <= lake.keys()


def test_a_restore_brings_back_what_was_deleted_and_leaves_what_was_locked(
    lake: SmallLake, marked: Marked, spark: Session, locked: set[str]
) -> None:
    before = lake.keys()
    some = set(sorted(marked.candidates)[:3])
    locked |= some
    manifest = sweep(lake.context(spark))
    back = restore(lake.context(spark), Choice(everything=True))
    assert lake.keys() == before
    outcomes: Any = back.facts["outcomes"]
    assert outcomes["restored"]["objects"] == len(marked.candidates - some)
    assert "failed" not in outcomes
    assert "not_kept" not in outcomes
    state = state_of(lake.root.attempt(REPOSITORY, RUN))
    assert state.summary.startswith(f"restored {len(marked.candidates) - 3} of ")
    assert "can be restored until" in undoable(manifest.facts, manifest.finished)


def test_a_store_that_locks_whatever_is_written_is_refused_before_the_lease(
    tmp_path: Path, locked: set[str]
) -> None:
    store = open_store(str(tmp_path))
    locked.add("/put")
    with (
        pytest.raises(RefusedError, match=r"locks each object that .*Nothing was d"),
        repository_lease(store, {"host": "here"}, duration=timedelta(minutes=3)),
    ):
        pass
    left = {key for batch in store.list() for key in batch["key"].to_pylist()}
    assert not any(key.endswith("lease.json") for key in left)


def test_what_is_locked_is_not_hopeless() -> None:
    locked = [Outcome(f"data/{n}", 1, "locked", "ObjectLocked", WHY) for n in range(3)]
    assert hopeless(locked) is None
    denied = Outcome("data/x", 1, "failed", "AccessDenied", "Access Denied")
    assert hopeless([*locked, denied]) is denied


def test_pins_that_are_locked_have_not_gone(tmp_path: Path, locked: set[str]) -> None:
    store = open_store(str(tmp_path))
    ended = store.server_time() - timedelta(seconds=1)
    write_pin(store, Pin("one", ended, RUN, "it was restored", 1), pa.array(["data/a"]))
    locked.add("")
    with pytest.raises(StorageError, match=r"pins of .*: 1 object could not be removed"):
        prune_pins(store, store.server_time())


def test_space_is_added_up_by_what_is_known_of_it() -> None:
    found = space_facts(
        [
            (FREED, 2, 20),
            ("space held until 2026-12-01", 1, 10),
            ("space held until 2026-12-24 at least", 3, 30),
            ("space perhaps held", 1, 5),
            # As older sweeps have recorded it.
            (None, 4, 40),
        ]
    )
    assert found == {
        "freed": {"objects": 2, "bytes": 20},
        "held": {"objects": 4, "bytes": 40},
        "not_known": {"objects": 5, "bytes": 45},
        "until": "2026-12-24 at least",
    }
    assert space_sentence(found) == (
        "space freed: 2 objects; space held, until 2026-12-24 at least: 4 objects; space freed or "
        "held, which is not known: 5 objects"
    )
    endless = space_facts([("space held until 2026-12-01", 1, 10), (HELD_FOR_EVER, 1, 1)])
    assert endless["until"] is None
    assert space_lines(endless) == [("space held, until when is not known", 2, 11)]
    assert json.loads(json.dumps(found)) == found


HELD_FOR_EVER = "space held, until when is not known"


def test_space_of_a_ledger_that_is_not_finished() -> None:
    rows = [
        ("a", 1, "deleted", None, FREED, None, None),
        ("b", 2, "locked", "ObjectLocked", WHY, None, None),
        ("c", 4, "deleted", None, HELD_FOR_EVER, None, "v1"),
    ]
    columns = [pa.array([r[n] for r in rows], f.type) for n, f in enumerate(ledger.SWEPT)]
    found = space_in(pa.Table.from_arrays(columns, schema=ledger.SWEPT))
    assert (found["freed"]["bytes"], found["held"]["bytes"], found["until"]) == (1, 4, None)


def test_a_store_that_frees_at_once_says_so_but_of_files_with_another_link(
    tmp_path: Path, spark: Session
) -> None:
    marked = make_marked(tmp_path / "lake", spark)
    linked = min(marked.candidates)
    with running(marked.folder) as lake:
        (tmp_path / "another").hardlink_to(lake.objects / linked)
        manifest = sweep(lake.context(spark, trash_days=0))
        rows = lake.root.attempt(REPOSITORY, RUN).read("swept_set").to_pylist()
    space: Any = manifest.facts["space"]
    assert space["freed"]["objects"] == len(marked.candidates) - 1
    assert (space["held"]["objects"], space["not_known"]["objects"]) == (1, 0)
    details = {row["address"]: row["detail"] for row in rows}
    assert details.pop(linked) == "space held, the file has another hard link"
    assert set(details.values()) == {FREED}
