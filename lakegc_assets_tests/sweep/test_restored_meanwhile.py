"""Sweeps of a mark that was swept and restored in part before: each object is told once."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pyarrow as pa
import pytest

from lakegc_assets.recovery.restore.restored_set import restore
from lakegc_assets.recovery.restore.selection import Choice
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.pins import PINNED, Pin, pinned, write_pin
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.trash import trash_folder
from lakegc_assets.sweep import delta, ledger, rounds
from lakegc_assets.sweep.ledger import Outcome
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets.sweep.task_orders import Orders, Portion, TaskResult
from lakegc_assets_tests.kills import Killed
from lakegc_assets_tests.lake import REPOSITORY, RUN, Marked, SmallLake
from lakegc_assets_tests.sessions import Session
from lakegc_assets_tests.sweep.outcomes import swept

TRASH = trash_folder("first-try", datetime.now(timezone.utc))


def kill_in_the_middle(
    lake: SmallLake,
    spark: Session,
    monkeypatch: pytest.MonkeyPatch,
    recorded: list[str],
    unrecorded: list[str],
) -> None:
    """A sweep that deletes some objects, records some of these, and dies."""

    def delete(ctx: RunContext, *_: object) -> None:
        store = ctx.connect().connections.store()
        told = store.delete_many([*recorded, *unrecorded], trash=TRASH)
        known = [Outcome(o.key, 1, "deleted", version=o.version) for o in told if o.key in recorded]
        ledger.record(ctx.root.attempt(REPOSITORY, RUN).store(), "batch", known)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(rounds, "delete", delete)
        with pytest.raises(Killed):
            sweep(lake.context(spark))


def test_what_is_restored_between_two_tries_of_a_sweep_stays(
    lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object that the sweep had recorded, had not recorded, or had not come to yet."""
    told, silent, later, gone, *_ = sorted(marked.candidates)
    before = lake.contents(marked.candidates)
    kill_in_the_middle(lake, spark, monkeypatch, [told, gone], [silent])
    restore(lake.context(spark), Choice(addresses=(told, silent, later)))
    sweep(lake.context(spark))
    back = {told, silent, later}
    assert lake.keys() == marked.live | back
    assert lake.contents(back) == {k: before[k] for k in back}
    found = swept(lake)
    assert found.keys() == marked.candidates
    assert found[told][0] == "deleted"
    assert all(str(found[key][1]).startswith(PINNED) for key in (silent, later))
    assert {found[key][0] for key in (silent, later)} == {"spared"}
    assert {o for key, (o, _) in found.items() if key not in back} == {"deleted"}
    # Nor does the end of the sweep prevent that the rest comes back.
    restore(lake.context(spark), Choice(everything=True))
    left = lake.contents(marked.candidates)
    assert left == before


def test_a_sweep_that_put_back_and_was_killed_leaves_that_alone(
    lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where nothing needs it any more by then: it is for the next mark."""
    back, *_ = sorted(marked.candidates)
    kill_in_the_middle(lake, spark, monkeypatch, [back], [])
    restore(lake.context(spark, pin_days=0), Choice(addresses=(back,)))
    attempt = lake.root.attempt(REPOSITORY, RUN)
    ledger.record(attempt.store(), "put-back", [Outcome(back, 1, "put_back", detail="needed")])
    sweep(lake.context(spark))
    assert lake.keys() == marked.live | {back}
    found = swept(lake)
    assert found[back] == ("put_back", "needed")
    assert {o for key, (o, _) in found.items() if key != back} == {"deleted"}


def test_a_pin_that_ends_in_the_middle_of_a_sweep(
    lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects spared by a delta mark stay spared in this sweep; nothing is recorded twice."""
    one, *_ = sorted(marked.candidates)
    store = lake.store
    until = datetime.now(timezone.utc) + timedelta(days=1)
    write_pin(store, Pin("p", until, RUN, "restored", 1), pa.array([one]))
    asked: list[int] = []

    def ending(of: ObjectStore) -> pa.Table:
        asked.append(1)
        return pinned(of) if len(asked) == 1 else pinned(of).slice(0, 0)

    monkeypatch.setattr(delta, "pinned", ending)
    real = rounds.delete

    def idle_at_first(ctx: RunContext, orders: Orders, portions: list[Portion]) -> list[TaskResult]:
        return real(ctx, orders, portions if len(asked) > 1 else [])

    monkeypatch.setattr(rounds, "delete", idle_at_first)
    sweep(lake.context(spark))
    assert len(asked) > 2
    assert lake.keys() == marked.live | {one}
    found = swept(lake)
    assert found.keys() == marked.candidates
    assert found[one][0] == "spared"
