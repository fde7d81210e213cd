"""A sweep puts needed objects back that it deleted; a hold is for the rest."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from lakegc_assets.engine.session import Dataset
from lakegc_assets.errors import IntegrityError
from lakegc_assets.estate.explanation import explain as why
from lakegc_assets.recovery.backup_creation import make_backup
from lakegc_assets.run.context import RunContext
from lakegc_assets.storage.errors import StorageError
from lakegc_assets.storage.local import LocalStore
from lakegc_assets.storage.values import Lost, UndeleteOutcome
from lakegc_assets.sweep import alarm, ledger, rounds
from lakegc_assets.sweep.alarm import raise_alarm_if_needed
from lakegc_assets.sweep.delta import DeltaMark, DeltaMarks
from lakegc_assets.sweep.hold import HOLD
from lakegc_assets.sweep.ledger import Outcome
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.kills import Killed, Reaper
from lakegc_assets_tests.lake import REPOSITORY, RUN, Marked, SmallLake
from lakegc_assets_tests.sessions import Session
from lakegc_assets_tests.sweep.outcomes import revive_after_first_delete, swept
from lakegc_assets_tests.sweep.stand_ins import spare, stand_in

#: Nothing is kept of what is deleted.
NO_TRASH = {"trash_days": 0}


@pytest.mark.parametrize("where", ["trash", "backup"])
def test_what_came_back_to_life_is_put_back_and_reads(
    lake: SmallLake,
    marked: Marked,
    spark: Session,
    where: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    contents = lake.contents(marked.candidates)
    settings: dict[str, Any] = {"sweep_batch": 6}
    if where == "backup":
        settings |= {**NO_TRASH, "backup_url": str(lake.folder.parent / "backups")}
        make_backup(lake.context(spark, **settings))
    revived = revive_after_first_delete(lake, marked)
    manifest = sweep(lake.context(spark, **settings))
    (address,) = revived
    assert (lake.objects / address).read_bytes() == contents[address]
    assert lake.client.get_object(REPOSITORY, "busy", "too/late") == contents[address]
    held = f"branch 'busy', path 'too/late', commit '{lake.head('busy')}'"
    told = f"an active commit holds it now: {held}"
    found = swept(lake)
    assert found.keys() == marked.candidates
    assert {a for a, (o, _) in found.items() if o == "put_back"} == {address}
    assert found[address] == ("put_back", told)
    assert manifest.facts["put_back"] == [{"address": address, "detail": told}]
    assert manifest.facts["outcomes"]["put_back"]["objects"] == 1
    assert (
        f"1 object came back to life while 'mark-1' was swept, and put back:\n  {address}  "
        in caplog.text
    )
    assert not (lake.objects / HOLD).exists()
    assert why(lake.context(spark), address).because.endswith(f"; the sweep: put_back ({told})")
    # The others are gone, or are spared since they look like what was committed.
    left = lake.keys() - marked.live - {address}
    assert left == {a for a, (outcome, _) in found.items() if outcome == "spared"}


def test_it_is_not_where_that_is_not_wanted(
    lake: SmallLake, marked: Marked, spark: Session
) -> None:
    revived = revive_after_first_delete(lake, marked)
    with pytest.raises(IntegrityError, match="1 object of mark 'mark-1' is gone, and is needed"):
        sweep(lake.context(spark, sweep_batch=6, restore_revived=False))
    held = json.loads((lake.objects / HOLD).read_text())
    assert [found["address"] for found in held["objects"]] == revived
    assert not (lake.objects / revived[0]).exists()


def test_a_hold_names_only_what_could_not_be_put_back(
    lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two comes back from the trash; the other was removed behind the sweep's back."""
    kept, lost, *_ = sorted(marked.groups["orphans"])
    stand_in(monkeypatch, spare(set()), spare({kept, lost}))
    (lake.objects / lost).unlink()
    with pytest.raises(IntegrityError, match=r"1 object of mark .* is gone, and is needed") as e:
        sweep(lake.context(spark))
    assert lost in str(e.value)
    assert kept not in str(e.value)
    held = json.loads((lake.objects / HOLD).read_text())
    assert [found["address"] for found in held["objects"]] == [lost]
    assert lake.keys() == marked.live | {kept}
    recorded = ledger.read(lake.root.attempt(REPOSITORY, RUN)).to_pylist()
    assert {r["address"] for r in recorded if r["outcome"] == "put_back"} == {kept}


def test_an_alarm_and_its_hold_have_the_words_of_the_store(
    lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One does not come back in another way than the others."""
    first, *others = sorted(marked.groups["orphans"])
    stand_in(monkeypatch, spare(set()), spare({first, *others}))
    undelete = LocalStore.undelete_many

    def fail(store: LocalStore, objects: Sequence[Lost]) -> Sequence[UndeleteOutcome]:
        if not {one.key for one in objects} & {first, *others}:
            return undelete(store, objects)
        told = {first: "there is no version of it"}
        usual = "NotImplemented (A header implies what is not implemented)"
        return [
            UndeleteOutcome(one.key, "failed", "NotImplemented", told.get(one.key, usual))
            for one in objects
        ]

    monkeypatch.setattr(LocalStore, "undelete_many", fail)
    with pytest.raises(IntegrityError) as raised:
        sweep(lake.context(spark))
    told = (
        f"NotImplemented (A header implies what is not implemented) ({len(others)} of them); "
        "there is no version of it (1 of them)"
    )
    assert f"Not put back: {told}. " in str(raised.value)
    held = json.loads((lake.objects / HOLD).read_text())
    assert held["not_put_back"] == told
    found = {one["address"]: one["not_put_back"] for one in held["objects"]}
    assert found.keys() == {first, *others}
    assert found[first] == "there is no version of it"


@pytest.mark.parametrize("broken", ["put_back", "record_put_back"])
def test_a_hold_is_written_whatever_goes_wrong_with_putting_back(
    lake: SmallLake,
    marked: Marked,
    spark: Session,
    monkeypatch: pytest.MonkeyPatch,
    broken: str,
) -> None:
    kept, lost, *_ = sorted(marked.groups["orphans"])
    stand_in(monkeypatch, spare(set()), spare({kept, lost}))
    (lake.objects / lost).unlink()

    def fail(*_: object) -> None:
        raise ValueError("this is a bug")

    monkeypatch.setattr(alarm, broken, fail)
    with pytest.raises(IntegrityError, match=r"gone, and (is|are) needed"):
        sweep(lake.context(spark))
    held = json.loads((lake.objects / HOLD).read_text())
    assert lost in {found["address"] for found in held["objects"]}
    assert ("this is a bug" in held["not_put_back"]) == (broken == "put_back")


def test_what_is_put_back_after_a_failure_is_no_alarm(
    lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failure is told, and the next sweep ends with the right outcomes."""
    gone = min(marked.candidates)
    content = (lake.objects / gone).read_bytes()
    stand_in(monkeypatch, spare(set()), spare({gone}), spare({gone}), spare({gone}))
    delete = rounds.delete

    def fail(ctx: RunContext, *_: object) -> None:
        store = ctx.connect().connections.store()
        trash = "_lakefs/retention/gc/lakegc/trash/20260101T000000Z-x/"
        (found,) = store.delete_many([gone], trash=trash)
        outcome = Outcome(gone, len(content), "deleted", version=found.version)
        ledger.record(ctx.root.attempt(REPOSITORY, RUN).store(), "batch", [outcome])
        raise StorageError("the store is on fire")

    monkeypatch.setattr(rounds, "delete", fail)
    with pytest.raises(StorageError, match="the store is on fire"):
        sweep(lake.context(spark))
    assert (lake.objects / gone).read_bytes() == content
    assert not (lake.objects / HOLD).exists()
    monkeypatch.setattr(rounds, "delete", delete)
    sweep(lake.context(spark))
    found = swept(lake)
    assert found[gone] == ("put_back", "it is alive")
    assert lake.keys() == marked.live | {gone}


@pytest.mark.parametrize("same", [True, False])
def test_somebody_who_writes_it_first_is_not_overwritten(
    lake: SmallLake,
    marked: Marked,
    spark: Session,
    monkeypatch: pytest.MonkeyPatch,
    *,
    same: bool,
) -> None:
    """A needed object is still missing where another object is at its address."""
    gone = min(marked.candidates)
    written = (lake.objects / gone).read_text() if same else "written anew"
    stand_in(monkeypatch, spare(set()), spare({gone}))
    undelete = LocalStore.undelete_many

    def after_a_writer(store: LocalStore, objects: Sequence[Lost]) -> Sequence[UndeleteOutcome]:
        if gone in {one.key for one in objects}:
            (lake.objects / gone).parent.mkdir(parents=True, exist_ok=True)
            (lake.objects / gone).write_text(written)
        return undelete(store, objects)

    monkeypatch.setattr(LocalStore, "undelete_many", after_a_writer)
    if same:
        sweep(lake.context(spark))
        assert swept(lake)[gone] == ("put_back", "it is alive")
    else:
        with pytest.raises(IntegrityError, match=r"1 object of mark .* is gone, and is needed"):
            sweep(lake.context(spark))
        held = json.loads((lake.objects / HOLD).read_text())
        assert [found["address"] for found in held["objects"]] == [gone]
    assert (lake.objects / gone).read_text() == written
    assert lake.keys() == marked.live | {gone}


@pytest.mark.parametrize("backup", [True, False])
def test_what_the_store_takes_for_there_and_is_not_comes_from_the_backup_or_is_held(
    lake: SmallLake,
    marked: Marked,
    spark: Session,
    monkeypatch: pytest.MonkeyPatch,
    *,
    backup: bool,
) -> None:
    """As by a list of versions that is older than the delete."""
    settings: dict[str, Any] = {"sweep_batch": 6, **NO_TRASH}
    if backup:
        settings["backup_url"] = str(lake.folder.parent / "backups")
        make_backup(lake.context(spark, **settings))
    revived = revive_after_first_delete(lake, marked)
    undelete = LocalStore.undelete_many

    def stale(store: LocalStore, objects: Sequence[Lost]) -> Sequence[UndeleteOutcome]:
        if not {one.key for one in objects} & marked.candidates:
            return undelete(store, objects)
        return [UndeleteOutcome(one.key, "already_there") for one in objects]

    monkeypatch.setattr(LocalStore, "undelete_many", stale)
    if backup:
        sweep(lake.context(spark, **settings))
        assert swept(lake)[revived[0]][0] == "put_back"
    else:
        with pytest.raises(IntegrityError, match="1 object of mark 'mark-1' is gone, and is need"):
            sweep(lake.context(spark, **settings))
    assert (lake.objects / revived[0]).exists() == backup
    assert (lake.objects / HOLD).exists() == (not backup)


#: In this order each is reached by a sweep that the ones before have left behind.
KILLS = (
    ("after delete", 1),
    ("before put_back", 1),
    ("before undelete", 1),
    ("after undelete", 2),
    ("after put_back", 1),
    ("before record_put_back", 1),
    ("after record_put_back", 1),
    ("after raise_alarm_if_needed", 1),
    ("before finish", 1),
    ("after finish", 1),
)


def test_killed_at_every_step_of_putting_back(
    lake: SmallLake,
    marked: Marked,
    spark: Session,
    monkeypatch: pytest.MonkeyPatch,
    reaper: Reaper,
) -> None:
    contents = lake.contents(marked.candidates)
    alive = set(sorted(marked.candidates)[::5])

    # They come back to life when all is deleted.
    def late(deltas: DeltaMarks, candidates: Dataset) -> DeltaMark:
        return spare(set() if marked.candidates <= lake.keys() else alive)(deltas, candidates)

    stand_in(monkeypatch, late)
    for owner, name in (
        (rounds, "delete"),
        (alarm, "put_back"),
        (alarm, "record_put_back"),
        (type(lake.root.attempt(REPOSITORY, RUN)), "finish"),
    ):
        reaper.watch(owner, name)
    reaper.watch_undelete()
    watched = raise_alarm_if_needed

    def alarmed(*args: object) -> None:
        watched(*args)  # type: ignore[arg-type]
        reaper.step("after raise_alarm_if_needed")

    monkeypatch.setitem(sweep.__globals__, "raise_alarm_if_needed", alarmed)
    seen: set[str] = set()
    for target, count in KILLS:
        reaper.arm(target, count)
        try:
            sweep(lake.context(spark))
        except Killed:
            seen.add(target)
        assert marked.live <= lake.keys() <= marked.live | marked.candidates
        for key in lake.keys() & marked.candidates:
            assert (lake.objects / key).read_bytes() == contents[key]
        assert not (lake.objects / HOLD).exists()
    assert lake.keys() == marked.live | alive
    found = swept(lake)
    assert {a for a, (outcome, _) in found.items() if outcome == "put_back"} == alive
    assert {o for a, (o, _) in found.items() if a not in alive} == {"deleted"}
    assert seen == {target for target, _ in KILLS}
