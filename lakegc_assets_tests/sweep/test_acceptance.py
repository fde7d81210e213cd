"""A hold ends when a person accepts it: exactly that one, and only what nobody can bring back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakegc_assets.errors import IntegrityError, RefusedError
from lakegc_assets.recovery.backup_creation import make_backup
from lakegc_assets.recovery.undeletion import bring_back
from lakegc_assets.run.artifacts import ArtifactRoot
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.pins import read_pins
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import StoreUnavailableError
from lakegc_assets.storage.local import LocalStore
from lakegc_assets.storage.values import UndeleteOutcome
from lakegc_assets.sweep import acceptance, ledger, lost_objects
from lakegc_assets.sweep.acceptance import BACK, Alarm, accept_hold, look_at_alarms
from lakegc_assets.sweep.alarm import AlarmError
from lakegc_assets.sweep.hold import (
    HOLD,
    RECORDS,
    Hold,
    HoldError,
    find_hold,
    read_hold,
    require_no_hold,
    without_accepted,
    write_hold,
)
from lakegc_assets.sweep.hold_report import hold_lines, known_hold
from lakegc_assets.sweep.lease import leased
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.kills import Killed, Reaper
from lakegc_assets_tests.lake import (
    REPOSITORY,
    RUN,
    Marked,
    SmallLake,
    copy_lake,
    copy_of,
    running,
)
from lakegc_assets_tests.sessions import Session
from lakegc_assets_tests.sweep.outcomes import swept
from lakegc_assets_tests.sweep.stand_ins import spare, stand_in


@pytest.fixture
def store(lake: SmallLake) -> ObjectStore:
    return lake.store


def alarmed(
    lake: SmallLake, ctx: RunContext, monkeypatch: pytest.MonkeyPatch, needed: set[str]
) -> AlarmError:
    """Sweep a mark of which some objects are needed once they are deleted."""
    stand_in(monkeypatch, spare(set()), spare(needed))
    with pytest.raises(AlarmError) as raised:
        sweep(ctx)
    assert not needed & lake.keys()
    return raised.value


@pytest.fixture(scope="module")
def with_a_loss(marked: Marked, spark: Session, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake whose sweep has lost a needed object and left a hold; to be copied."""
    folder = copy_of(marked, tmp_path_factory.mktemp("lost"))
    with running(folder) as found, pytest.MonkeyPatch.context() as patch:
        alarmed(found, found.context(spark, trash_days=0), patch, {min(marked.candidates)})
    return folder


@pytest.fixture
def lake(request: pytest.FixtureRequest, marked: Marked, tmp_path: Path) -> Iterator[SmallLake]:
    """A marked lake, or one with a loss where a test names what is ``lost``."""
    loses = "lost" in request.fixturenames
    folder: Path = request.getfixturevalue("with_a_loss") if loses else marked.folder
    with running(copy_lake(folder, tmp_path / "lake")) as found:
        yield found


@pytest.fixture
def lost(marked: Marked) -> str:
    """An object that is gone for good, needed, and on hold."""
    return min(marked.candidates)


def hold_of(store: ObjectStore) -> Hold:
    found = find_hold(store)
    assert found is not None
    return found


def test_a_loss_that_is_accepted_lets_the_sweep_go_on_without_another_alarm(
    lake: SmallLake,
    marked: Marked,
    spark: Session,
    store: ObjectStore,
    lost: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hold = hold_of(store)
    done, _ = accept_hold(lake.context(spark), hold.id, "ada")
    assert read_hold(store) is None
    kept = Hold((lake.objects / RECORDS / f"{hold.id}.json").read_text())
    assert done == kept == find_hold(store)
    assert kept.acceptance is not None
    assert {"id": hold.id, "by": "ada"}.items() <= kept.acceptance.items()
    assert kept.acceptance["owner"]["doing"] == "accept a hold"
    assert kept.values["lost"] == {RUN: [lost]}
    assert kept.values["hold"] == hold.text
    stand_in(monkeypatch, spare(set()), spare({lost}))
    sweep(lake.context(spark))
    assert swept(lake).keys() == marked.candidates
    assert lake.keys() == marked.live


def test_it_was_lost_before_the_ledger_could_say_it_and_is_not_deleted_again(
    lake: SmallLake,
    marked: Marked,
    spark: Session,
    store: ObjectStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another program has removed it; somebody brings it back by hand once that was accepted."""
    gone, first, *_ = sorted(marked.candidates)
    content = (lake.objects / gone).read_bytes()
    (lake.objects / gone).unlink()
    stand_in(monkeypatch, spare({gone}), spare({gone}))
    with pytest.raises(AlarmError):
        sweep(lake.context(spark))
    accept_hold(lake.context(spark), hold_of(store).id, "ada")
    (lake.objects / gone).write_bytes(content)
    (lake.objects / first).parent.mkdir(parents=True, exist_ok=True)
    stand_in(monkeypatch, spare(set()), spare(set()))
    sweep(lake.context(spark))
    assert lake.keys() == marked.live | {gone}


@pytest.mark.parametrize("where", ["trash", "backup"])
def test_what_can_be_had_back_comes_back_in_place_of_being_accepted(
    lake: SmallLake,
    marked: Marked,
    spark: Session,
    store: ObjectStore,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
) -> None:
    gone = min(marked.candidates)
    content = (lake.objects / gone).read_bytes()
    settings: dict[str, Any] = {"restore_revived": False}
    if where == "backup":
        settings |= {"backup_url": str(lake.folder.parent / "backups")}
        settings |= {"trash_days": 0}
        make_backup(lake.context(spark, **settings))
    ctx = lake.context(spark, **settings)
    alarmed(lake, ctx, monkeypatch, {gone})
    (look,) = look_at_alarms(ctx.connect(), hold_of(store))
    assert look.states == {gone: f"gone, and in the {where}"}
    told = known_hold(ctx)
    advice = "\n".join(hold_lines(told))
    assert (
        f"nothing is lost yet: accept the hold, which restores the kept objects:  {told['accept']}"
        in advice
    )
    assert "if you have copies elsewhere" not in advice
    done, _ = accept_hold(ctx, hold_of(store).id, "ada")
    assert (lake.objects / gone).read_bytes() == content
    assert done.values["lost"] == {RUN: []}
    assert done.values["totals"] == [{"run": RUN, "brought back now": 1}]


def test_of_what_nothing_keeps_it_is_said_that_accepting_loses_it(
    lake: SmallLake, spark: Session, lost: str
) -> None:
    told = known_hold(lake.context(spark))
    (alarm,) = told["alarms"]
    assert alarm["states"] == {"gone, and nothing keeps it": 1}
    advice = "\n".join(hold_lines(told)).partition("What to do:")[2]
    assert f"accept the loss of the 1 object that nothing keeps:  {told['accept']}" in advice
    assert f"the job gc_accept_hold with `accept` {told['id']}" in advice
    assert "lakegc restore" not in advice
    assert lost in str(alarm["objects"])


def test_what_cannot_be_looked_for_everywhere_is_not_said_to_be_lost(
    lake: SmallLake, spark: Session, lost: str
) -> None:
    ctx = lake.context(spark, backup_url=str(lake.folder.parent / "elsewhere"))
    told = known_hold(ctx)
    (alarm,) = told["alarms"]
    assert alarm["states"] == {"gone, and it is not known if anything keeps it": 1}
    advice = "\n".join(hold_lines(told)).partition("What to do:")[2]
    assert "lakegc restore" in advice
    assert "accept the loss of the objects that nothing keeps" in advice
    assert lost in str(alarm["objects"])


def test_a_hold_of_which_all_is_back_can_just_be_accepted(
    lake: SmallLake, spark: Session, lost: str
) -> None:
    candidates = lake.root.attempt(REPOSITORY, RUN).read("deletion_candidates").to_pylist()
    (size,) = (row["size"] for row in candidates if row["address"] == lost)
    lake.write(lost, b"x" * size)
    told = known_hold(lake.context(spark))
    assert told["all_back"]
    advice = "\n".join(hold_lines(told)).partition("What to do:")[2]
    assert "all objects are at their addresses again, and nothing is lost" in advice
    assert advice.count("\n") == 1
    (lake.objects / lost).write_bytes(b"x" * (size + 1))
    told = known_hold(lake.context(spark))
    assert not told["all_back"]
    assert "lakegc restore" in "\n".join(hold_lines(told))


def test_a_newer_hold_is_not_accepted_by_an_older_look(
    lake: SmallLake, spark: Session, store: ObjectStore, lost: str
) -> None:
    older = hold_of(store)
    write_hold(store, {"run": RUN, "alarm": "more is gone", "objects": [{"address": lost}]})
    with pytest.raises(HoldError, match="another alarm was raised"):
        accept_hold(lake.context(spark), older.id, "ada")
    assert read_hold(store) is not None


def test_nor_is_one_that_is_written_while_it_is_accepted(
    lake: SmallLake,
    spark: Session,
    store: ObjectStore,
    lost: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a sweep that has lost its lease."""
    newer = {"run": RUN, "alarm": "more is gone", "objects": [{"address": lost}]}

    def meanwhile(*args: Any) -> Any:
        write_hold(store, newer)
        return bring_back(*args)

    monkeypatch.setattr("lakegc_assets.sweep.acceptance.bring_back", meanwhile)
    with pytest.raises(HoldError, match="another alarm was raised"):
        accept_hold(lake.context(spark), hold_of(store).id, "ada")
    assert hold_of(store).values == newer
    assert not (lake.objects / RECORDS).exists()


def test_killed_at_any_step_it_is_accepted_or_not_and_the_same_command_ends_it(
    lake: SmallLake,
    spark: Session,
    store: ObjectStore,
    lost: str,
    reaper: Reaper,
) -> None:
    hold = hold_of(store)
    for name in ("put", "put_if_match"):
        reaper.watch(LocalStore, name, about="_lakefs/retention/gc/lakegc/")
    for name in ("bring_back", "record_missing", "pin_unclear", "replace_hold"):
        reaper.watch(acceptance, name)
    seen = []
    for target in (
        "before bring_back",
        "after bring_back",
        "before record_missing",
        "after record_missing",
        "after pin_unclear",
        "before replace_hold",
    ):
        reaper.arm(target, 1)
        with pytest.raises(Killed):
            accept_hold(lake.context(spark), hold.id, "ada")
        seen.append(target)
        assert hold_of(store) == hold, target
    reaper.arm("after replace_hold", 1)
    with pytest.raises(Killed):
        accept_hold(lake.context(spark), hold.id, "ada")
    assert read_hold(store) is None
    assert not (lake.objects / RECORDS).exists()
    with pytest.raises(RefusedError, match="not on hold any more: ada has accepted it on"):
        accept_hold(lake.context(spark), hold.id, "ada")
    outcomes = ledger.read(lake.root.attempt(REPOSITORY, RUN)).to_pylist()
    assert [row["outcome"] for row in outcomes if row["address"] == lost] == ["deleted"]


def test_the_next_alarm_keeps_what_was_accepted_before_it(
    lake: SmallLake,
    marked: Marked,
    spark: Session,
    store: ObjectStore,
    lost: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its record had not been written when whoever accepted it was killed."""
    accepted, _ = accept_hold(lake.context(spark), hold_of(store).id, "ada")
    (record,) = (lake.objects / RECORDS).iterdir()
    record.unlink()
    other = max(marked.candidates)
    # Nothing is left to delete: only the last look is made again.
    stand_in(monkeypatch, spare({lost, other}))
    with pytest.raises(AlarmError):
        sweep(lake.context(spark, trash_days=0))
    assert record.read_text() == accepted.text
    hold = hold_of(store)
    assert [one["address"] for one in hold.values["objects"]] == [other]
    assert "earlier" not in hold.values
    accept_hold(lake.context(spark), hold.id, "bob")
    stand_in(monkeypatch, spare({lost, other}))
    sweep(lake.context(spark))


def test_an_answer_that_was_lost_is_looked_for(
    lake: SmallLake,
    spark: Session,
    store: ObjectStore,
    lost: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put = LocalStore.put_if_match

    def lose_answer(self: LocalStore, key: str, data: bytes, etag: str) -> str:
        found = put(self, key, data, etag)
        if key == HOLD:
            raise StoreUnavailableError("the answer was lost")
        return found

    monkeypatch.setattr(LocalStore, "put_if_match", lose_answer)
    assert accept_hold(lake.context(spark), hold_of(store).id, "ada")[0].values["lost"] == {
        RUN: [lost]
    }
    assert read_hold(store) is None


def _no_answer(_lake: SmallLake, ctx: RunContext, monkeypatch: pytest.MonkeyPatch) -> RunContext:
    def fail(_store: LocalStore, objects: Sequence[Any]) -> list[UndeleteOutcome]:
        return [UndeleteOutcome(one.key, "failed", "501", "NotImplemented") for one in objects]

    monkeypatch.setattr(LocalStore, "undelete_many", fail)
    return ctx


def _no_artifacts(lake: SmallLake, ctx: RunContext, _patch: pytest.MonkeyPatch) -> RunContext:
    return replace(ctx, root=ArtifactRoot(str(lake.folder / "elsewhere"), ctx.root.stores))


def _no_backup(lake: SmallLake, ctx: RunContext, _patch: pytest.MonkeyPatch) -> RunContext:
    begun = json.dumps({"backup": "s3://kept/backups"}).encode()
    lake.root.attempt(REPOSITORY, RUN).store().put("swept_set/backup.json", begun)
    return ctx


def _damaged(lake: SmallLake, ctx: RunContext, _patch: pytest.MonkeyPatch) -> RunContext:
    lake.write(HOLD, b"\xff{")
    return ctx


def _nested(lake: SmallLake, ctx: RunContext, _patch: pytest.MonkeyPatch) -> RunContext:
    lake.write(HOLD, b"[" * 100_000)
    return ctx


@pytest.mark.parametrize(
    ("spoil", "why", "pinned"),
    [
        (_no_answer, "1 object of 'repo' could not be restored.*501: NotImplemented", None),
        (_no_artifacts, "the records of the sweep of mark 'mark-1' cannot be read", True),
        (
            _no_backup,
            "its sweep relied on the backup at s3://kept/backups, and backup_url is not",
            True,
        ),
        (_damaged, "hold.json is not the JSON of an alarm", False),
        (_nested, "hold.json is not the JSON of an alarm", False),
    ],
)
def test_what_is_not_known_to_be_lost_stays_on_hold_unless_nobody_can_ever_tell(
    lake: SmallLake,
    spark: Session,
    store: ObjectStore,
    lost: str,
    monkeypatch: pytest.MonkeyPatch,
    spoil: Callable[[SmallLake, RunContext, pytest.MonkeyPatch], RunContext],
    why: str,
    *,
    pinned: bool | None,
) -> None:
    ctx = spoil(lake, lake.context(spark), monkeypatch)
    hold = hold_of(store)
    with pytest.raises(IntegrityError, match=why):
        accept_hold(ctx, hold.id, "ada")
    assert hold_of(store) == hold
    if pinned is None:
        with pytest.raises(IntegrityError, match=why):
            accept_hold(ctx, hold.id, "ada", unverified=True)
        return
    done, _ = accept_hold(ctx, hold.id, "ada", unverified=True)
    assert read_hold(store) is None
    assert done.values["unverified"] == ([lost] if pinned else [])
    # Its sweep can be tried again only where its artifacts are, and its ledger says so.
    known = [lost] if spoil is _no_backup else []
    assert [one for of_run in done.values["lost"].values() for one in of_run] == known
    # What a prune finds pinned it leaves, in the trash and in the backup.
    found = [addresses.to_pylist() for _, addresses in read_pins(store)]
    assert found == ([[lost]] if pinned else [])


def test_what_another_object_is_in_the_way_of_is_pinned(
    lake: SmallLake, spark: Session, store: ObjectStore, lost: str
) -> None:
    lake.write(lost, b"something else, and longer than what was there")
    accept_hold(lake.context(spark), hold_of(store).id, "ada")
    ((pin, addresses),) = read_pins(store)
    assert addresses.to_pylist() == [lost]
    assert pin.until > store.server_time()


@pytest.mark.usefixtures("frequent_renewals")
def test_nobody_accepts_a_hold_while_somebody_works_on_the_repository(
    lake: SmallLake, spark: Session, store: ObjectStore, lost: str
) -> None:
    assert lost
    ctx = lake.context(spark)
    with leased(ctx, store, doing="restore"), pytest.raises(RefusedError, match="restore"):
        accept_hold(replace(ctx), hold_of(store).id, "ada")
    assert read_hold(store) is not None


def test_what_an_earlier_alarm_has_found_is_accepted_with_it(
    lake: SmallLake, marked: Marked, spark: Session, store: ObjectStore, lost: str
) -> None:
    earlier = hold_of(store).text
    other = max(marked.candidates)
    (lake.objects / other).unlink(missing_ok=True)
    newer = {"run": RUN, "alarm": "more", "objects": [{"address": other}], "earlier": earlier}
    write_hold(store, newer)
    done, _ = accept_hold(lake.context(spark), hold_of(store).id, "ada")
    assert set(done.values["lost"][RUN]) == {lost, other}


def _values(count: int) -> Mapping[str, Any]:
    objects = [{"address": f"data/{n:03d}", "why": "it is needed"} for n in range(min(count, 100))]
    alarm = f"{count} objects of mark 'm' are gone, and are needed"
    return {
        "run": "m", "at": "2026-03-01T02:00:00+00:00", "alarm": alarm, "count": count,
        "all": "s3://artifacts/all.parquet", "objects": objects,
    }  # fmt: skip


def test_a_refusal_says_first_what_happened_and_what_to_do(
    lake: SmallLake, spark: Session, store: ObjectStore
) -> None:
    """It printed the whole hold, 716 lines of it, and its advice last."""
    values = _values(716)
    write_hold(store, values)
    ctx = lake.context(spark, backup_url="s3://kept/back ups")
    with pytest.raises(HoldError) as raised:
        require_no_hold(ctx, store)
    lines = str(raised.value).split("\n")
    given = "--set 'backup_url=s3://kept/back ups'"
    job = "gc_accept_hold"
    assert lines[:3] == [
        f"'repo' is on hold since 2026-03-01 02:00 UTC, and is not swept: {values['alarm']}",
        f"The lost objects and the next steps: `lakegc hold repo {given}`, or the job {job}",
        f"First restore the objects: `lakegc restore repo --run m --all {given}`",
    ]
    assert lines[3:13] == [f"  data/{n:03d}  it is needed" for n in range(10)]
    assert lines[13:] == ["  and 706 more", "All objects: s3://artifacts/all.parquet"]


def test_an_alarm_says_the_same_and_what_goes_on_afterwards(
    lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = set(sorted(marked.candidates)[:12])
    assert len(needed) == 12
    error = alarmed(lake, lake.context(spark, trash_days=0), monkeypatch, needed)
    first, second, third, *lines = str(error).split("\n")
    count = len(marked.candidates)
    assert first == (
        "12 objects of mark 'mark-1' are gone, and are needed. Not put back: it is not "
        "in the trash: it was pruned, or never moved there (12 of them). "
        f"{count} of the {count} objects of mark 'mark-1' are deleted. The live set after the "
        "deletes was computed"
    )
    assert second.startswith(
        "'repo' is on hold: no sweep starts until the hold is accepted. First restore the objects: "
    )
    look = "The lost objects and the next steps: `lakegc hold repo`, or the job gc_accept_hold. "
    assert third.startswith(look)
    assert "After the acceptance: `lakegc sweep repo --run mark-1 --set " in third
    assert [line.split()[0] for line in lines[:10]] == sorted(needed)[:10]
    assert lines[10] == "  and 2 more"
    (everything,) = lines[11:]
    assert everything.startswith(f"All objects: file://{lake.root.url}/")
    assert error.figures["next step"] == "lakegc hold repo"
    assert "to continue" not in error.figures


def test_nothing_is_accepted_where_there_is_no_hold(lake: SmallLake, spark: Session) -> None:
    with pytest.raises(RefusedError, match="'repo' is not on hold"):
        accept_hold(lake.context(spark), "anything", "ada")


def test_a_hold_that_says_it_is_accepted_without_an_id_holds(store: ObjectStore) -> None:
    for text in ('{"accepted": {}}', '{"accepted": true}', "[]", "", '{"accepted": {"by": "x"}}'):
        store.put(HOLD, text.encode())
        assert read_hold(store) == Hold(text)


def test_an_alarm_of_which_more_may_be_gone_is_not_back() -> None:
    alarm = Alarm({}, {"data/a": BACK}, lost_objects.LOST.empty_table())
    assert alarm.is_back
    assert not replace(alarm, states={}).is_back
    assert not replace(alarm, unread="nobody can read what its sweep recorded").is_back


def test_the_loss_of_one_mark_is_none_of_another(store: ObjectStore) -> None:
    accepted = {"accepted": {"id": "1"}, "lost": {"m1": ["data/a"]}}
    store.put(f"{RECORDS}1.json", json.dumps(accepted).encode())
    # What was accepted counts, not what is to be.
    store.put(f"{RECORDS}2.json", json.dumps({"lost": {"m1": ["data/b"]}}).encode())
    gone = pa.table({"address": ["data/a", "data/b"], "why": ["x", "y"]})
    assert without_accepted(store, "m1", gone)["address"].to_pylist() == ["data/b"]
    assert without_accepted(store, "m2", gone) == gone
