"""What a sweep deleted comes back, exactly, from whatever has it; nothing else changes."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest
import requests

from lakegc_assets.errors import RefusedError
from lakegc_assets.estate.explanation import explain as why
from lakegc_assets.estate.repository_state import read_runs
from lakegc_assets.estate.run_state import state_of
from lakegc_assets.lakefs.errors import GoneError
from lakegc_assets.recovery import undeletion
from lakegc_assets.recovery.backup_creation import make_backup
from lakegc_assets.recovery.restore.restored_set import restore
from lakegc_assets.recovery.restore.selection import Choice
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.run.pins import PINS, read_pins, write_pin
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.copies import copy_object
from lakegc_assets.storage.errors import StorageError
from lakegc_assets.storage.local import LocalStore
from lakegc_assets.sweep import ledger
from lakegc_assets.sweep.hold import HOLD
from lakegc_assets.sweep.lease import repository_lease
from lakegc_assets.sweep.status import restored, with_restores
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.lake import (
    REPOSITORY,
    RUN,
    SECRET_KEY,
    STAGES,
    Marked,
    SmallLake,
    candidates,
    mark,
)
from lakegc_assets_tests.recovery.conftest import Place
from lakegc_assets_tests.recovery.restore.swept import (
    ALL,
    Swept,
    age,
    backed_up,
    from_anywhere_the_same,
    outcomes,
    swept,
    swept_once,
)
from lakegc_assets_tests.sessions import Session

__all__ = ["swept", "swept_once"]


def test_all_of_a_mark_comes_back_and_reads(swept: Swept, marked: Marked) -> None:
    place, before = swept
    lake, ctx = place.lake, place.context()
    with pytest.raises(GoneError):
        lake.client.get_object(REPOSITORY, marked.commits["first"], "a/0")
    manifest = restore(ctx, ALL)
    assert lake.keys() == marked.live | marked.candidates
    assert lake.contents(marked.candidates) == before
    found = outcomes(ctx, manifest)
    assert found.keys() == marked.candidates
    assert {outcome for outcome, _ in found.values()} == {"restored"}
    for n in range(4):
        content = lake.client.get_object(REPOSITORY, marked.commits["first"], f"a/{n}")
        assert content == f"first a {n}".encode()
    sample = manifest.facts["sample"]
    named = marked.groups["replaced"] | marked.groups["second"] | marked.groups["removed"]
    assert {one["address"] for one in sample} == named
    assert {(one["before"], one["after"]) for one in sample} == {("gone (410)", "reads")}
    assert manifest.facts["warnings"] == []


def test_one_that_is_interrupted_brings_no_other_batch_back_and_goes_on_later(
    swept: Swept, marked: Marked, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, _ = swept
    with monkeypatch.context() as patch:
        patch.setattr("lakegc_assets.recovery.restore.task.interrupted", lambda: True)
        with pytest.raises(StorageError, match="the restore was interrupted"):
            restore(place.context(), ALL)
    assert place.lake.keys() == marked.live
    restore(place.context(), ALL)
    assert place.lake.keys() == marked.live | marked.candidates


@from_anywhere_the_same
def test_restored_objects_are_pinned_and_the_next_mark_leaves_them_alone(
    swept: Swept, marked: Marked
) -> None:
    place, _ = swept
    manifest = restore(place.context(), ALL)
    age(place.lake, marked.candidates)
    until = datetime.fromisoformat(manifest.facts["pinned_until"])
    days = (until - datetime.now(timezone.utc)) / timedelta(days=1)
    assert 29.9 < days < 30.1
    for run, clean in (("clean", True), ("optimized", False)):
        ctx = mark(place.context(run, clean=clean))
        assert candidates(ctx) == set()
        facts = ctx.root.attempt(REPOSITORY, run).manifest("deletion_candidates").facts
        (reason,) = facts["spared"]
        assert reason == f"pinned until {until:%Y-%m-%d %H:%M} UTC: restored from run 'mark-1'"
        told = why(ctx, min(marked.candidates))
        assert (told.verdict, told.because) == ("spared", reason)
    told = why(place.context(), min(marked.candidates))
    assert re.search(rf"; the sweep: deleted \(space .+\); {re.escape(reason)}$", told.because)
    # Once the pin has ended, both find what is dead; the first of them lists the store.
    store = place.lake.store
    ((pin, addresses),) = read_pins(store)
    write_pin(store, replace(pin, until=datetime.now(timezone.utc)), addresses)
    for run in ("after", "later"):
        assert candidates(mark(place.context(run))) == marked.candidates


@from_anywhere_the_same
def test_a_store_whose_clock_is_behind_does_not_end_the_pin_early(
    swept: Swept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the clock is right again, the next mark must not take what was restored."""
    place, _ = swept
    now = datetime.now(timezone.utc)
    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "server_time", lambda _: now - timedelta(days=365))
        restore(place.context(), ALL)
    ((pin, _),) = read_pins(place.lake.store)
    assert pin.until - now > timedelta(days=29)


@from_anywhere_the_same
def test_a_sweep_of_another_mark_spares_what_was_restored_since(
    swept: Swept, marked: Marked
) -> None:
    place, _ = swept
    restore(place.context(pin_days=0), ALL)
    age(place.lake, marked.candidates)
    assert list(place.lake.store.list(PINS)) == []
    again = mark(place.context("again", clean=True, backup_url=None))
    assert candidates(again) == marked.candidates
    pinned = min(marked.candidates)
    restore(place.context(), Choice(addresses=(pinned,)))
    sweep(again)
    assert place.lake.keys() == marked.live | {pinned}


@from_anywhere_the_same
def test_only_what_is_asked_for_comes_back(swept: Swept, marked: Marked) -> None:
    place, _ = swept
    lake = place.lake
    one, *_ = sorted(marked.groups["orphans"])
    back = {one}
    restore(place.context(), Choice(addresses=(one, f"local://{REPOSITORY}/{one}")))
    assert lake.keys() == marked.live | back

    second = marked.commits["second"]
    restore(place.context(), Choice(ref=second, path="a/1"))
    found = lake.client.stat(REPOSITORY, second, "a/1").physical_address
    back.add(found.removeprefix(f"local://{REPOSITORY}/"))
    assert lake.keys() == marked.live | back

    restore(place.context(), Choice(ref=second, prefix="r/"))
    back |= marked.groups["removed"]
    assert lake.keys() == marked.live | back

    lake.client.create_branch(REPOSITORY, "feed", marked.commits["given up"])
    restore(place.context(), Choice(ref="feed"))
    back |= marked.groups["given up"] | marked.groups["second"]
    assert lake.keys() == marked.live | back
    for n in range(3):
        assert lake.client.get_object(REPOSITORY, "feed$", f"try/{n}")
    # Each has its own record.
    attempt = lake.root.attempt(REPOSITORY, RUN)
    ids = [key for key in attempt.files("restored_set") if "/data/" in key]
    assert len(ids) == 4


@from_anywhere_the_same
@pytest.mark.parametrize(
    ("choice", "words"),
    [
        (Choice(addresses=("data/other", "data/more")), "2 of these objects are not named by"),
        (Choice(ref="nobody"), "has no branch, tag or commit 'nobody'"),
        (
            Choice(ref="main"),
            r"names none of the objects that lakeFS shows at 'main' \(7 objects\)",
        ),
        (Choice(ref="main", path="a/0"), r"lakeFS shows at 'a/0' of 'main' \(1 object\)"),
        (Choice(ref="main", path="a"), r"lakeFS shows at 'a' of 'main' \(0 objects\)"),
        (Choice(ref="main", prefix="keep/"), r"shows at 'main' below 'keep/' \(3 objects\)"),
    ],
)
def test_what_the_mark_does_not_name_is_refused(
    swept: Swept, marked: Marked, choice: Choice, words: str
) -> None:
    place, _ = swept
    with pytest.raises(RefusedError, match=words):
        restore(place.context(), choice)
    assert place.lake.keys() == marked.live
    assert read_pins(place.lake.store) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"everything": True, "ref": "main"},
        {"addresses": ("a",), "everything": True},
        {"everything": True, "path": "a"},
        {"ref": "main", "path": "a", "prefix": "b"},
    ],
)
def test_a_request_that_contradicts_itself_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(RefusedError):
        Choice(**wrong)  # type: ignore[arg-type] # this is what is tested


def test_what_is_there_is_never_overwritten(place: Place, marked: Marked) -> None:
    """Whether it was written since the sweep, or while the restore reads the backup."""
    _, before = backed_up(place, marked)
    lake = place.lake
    early, late, *_ = sorted(marked.candidates)
    lake.write(early, b"new, and needed")
    with pytest.MonkeyPatch.context() as patch:

        def written_meanwhile(source: ObjectStore, key: str, *rest: Any, **options: Any) -> object:
            if key == late:
                lake.write(late, b"just written")
            return copy_object(source, key, *rest, **options)

        patch.setattr(undeletion, "copy_object", written_meanwhile)
        manifest = restore(place.context(), ALL)
    found = outcomes(place.context(), manifest)
    assert found[early] == found[late] == ("already_there", None)
    rows = lake.root.attempt(REPOSITORY, RUN).read(manifest.asset).to_pylist()
    (said,) = [row["detail"] for row in rows if row["address"] == early]
    assert said == f"another object is there: it has 15 bytes, and {len(before[early])} were marked"
    assert (lake.objects / early).read_text() == "new, and needed"
    assert (lake.objects / late).read_text() == "just written"
    rest = marked.candidates - {early, late}
    assert lake.contents(rest) == {key: before[key] for key in rest}


def test_from_wherever_the_backup_is(anywhere: Place, marked: Marked) -> None:
    before = anywhere.lake.contents(marked.candidates)
    make_backup(anywhere.context())
    sweep(anywhere.context(trash_days=0))
    manifest = restore(anywhere.context(), ALL)
    assert anywhere.lake.contents(marked.candidates) == before
    assert manifest.facts["outcomes"].keys() == {"restored"}


@from_anywhere_the_same
def test_a_hold_asks_for_a_restore(swept: Swept, marked: Marked) -> None:
    place, _ = swept
    hold = place.lake.objects / HOLD
    hold.write_text('{"alarm": "something is gone"}')
    manifest = restore(place.context(), ALL)
    assert place.lake.keys() == marked.live | marked.candidates
    assert "is on hold" in str(manifest.facts["warnings"])
    assert hold.exists()


def test_a_repository_made_anew_elsewhere_gets_nothing(swept: Swept, marked: Marked) -> None:
    place, _ = swept
    client = place.lake.client
    answer = requests.delete(
        f"{place.lake.server.endpoint}/api/v1/repositories/{REPOSITORY}",
        auth=(place.lake.server.access_key, SECRET_KEY),
        timeout=60,
    )
    answer.raise_for_status()
    client.create_repository(REPOSITORY, "local://another")
    with pytest.raises(RefusedError, match="was made anew"):
        restore(place.context(), ALL)
    assert place.lake.keys() == marked.live
    assert not (place.lake.server.objects_dir / "another" / PINS).exists()


@from_anywhere_the_same
def test_nobody_restores_while_another_sweeps(swept: Swept, marked: Marked) -> None:
    place, _ = swept
    store = place.lake.store
    duration = timedelta(minutes=3)
    with (
        repository_lease(store, {"host": "elsewhere"}, duration=duration),
        pytest.MonkeyPatch.context() as patch,
    ):
        # A lease that nobody renews is waited for.
        patch.setattr("lakegc_assets.sweep.lease.PATIENCE", timedelta(0))
        with pytest.raises(RefusedError, match=r"holds the lease of .* by somebody on elsewhere"):
            restore(place.context(), ALL)
    assert place.lake.keys() == marked.live
    assert read_pins(store) == []
    restore(place.context(), ALL)
    assert place.lake.keys() == marked.live | marked.candidates


def test_a_mark_that_was_never_made_or_never_published(lake: SmallLake, spark: Session) -> None:
    with pytest.raises(RefusedError, match="there is no mark 'none'"):
        restore(lake.context(spark, "none"), ALL)
    ctx = lake.context(spark, "half")
    mark(ctx, STAGES[:-1])
    with pytest.raises(RefusedError, match="so nothing of it was deleted"):
        restore(ctx, ALL)


def test_what_nobody_has_is_said(place: Place, marked: Marked) -> None:
    _, before = backed_up(place, marked)
    lost, damaged, *_ = sorted(marked.candidates)
    folder = place.lake.folder.parent / "backups" / REPOSITORY / RUN
    (folder / lost).unlink()
    (folder / damaged).write_bytes(b"x" * len(before[damaged]))
    with pytest.raises(StorageError, match=r"2 objects could not be restored and 0 were not") as e:
        restore(place.context(), ALL)
    assert "CopyMissing" in str(e.value)
    assert "CopyChanged" in str(e.value)
    rest = marked.candidates - {lost, damaged}
    assert place.lake.keys() == marked.live | rest
    # Mended, the same restore goes on, and ends.
    (folder / lost).write_bytes(before[lost])
    manifest_of = place.context(backup_url=None)
    manifest = restore(manifest_of, ALL)
    found = outcomes(place.context(), manifest)
    assert {a for a, (outcome, _) in found.items() if outcome == "not_kept"} == {lost, damaged}
    assert "2 objects are neither kept" in str(manifest.facts["warnings"])
    assert len(list(read_pins(place.lake.store))) == 1


def test_without_a_backup_a_restore_says_so(place: Place, marked: Marked) -> None:
    sweep(place.context(backup_url=None, trash_days=0))
    manifest = restore(place.context(), Choice(addresses=(min(marked.candidates),)))
    assert manifest.facts["outcomes"].keys() == {"not_kept"}
    assert "there is no finished backup of 'mark-1'" in manifest.facts["warnings"][0]


@from_anywhere_the_same
def test_addresses_are_pinned_as_they_are(swept: Swept, marked: Marked) -> None:
    place, _ = swept
    some = tuple(sorted(marked.candidates))[:3]
    restore(place.context(), Choice(addresses=some))
    ((pin, addresses),) = read_pins(place.lake.store)
    assert addresses.combine_chunks() == pa.array(some)
    assert pin.run == RUN


def test_what_came_back_without_a_pin_is_listed_again(place: Place, marked: Marked) -> None:
    """Else an optimized run leaves out what a sweep before the last one had deleted."""
    sweep(place.context(backup_url=None))
    again = mark(place.context("again", backup_url=None))
    facts = again.root.attempt(REPOSITORY, "again").manifest("store_listing").facts
    assert facts["mode"] == "optimized"
    sweep(again)
    one = min(marked.candidates)
    restore(place.context(backup_url=None, pin_days=0), Choice(addresses=(one,)))
    later = mark(place.context("later", backup_url=None))
    assert candidates(later) == {one}
    facts = later.root.attempt(REPOSITORY, "later").manifest("store_listing").facts
    assert facts["because"] == "objects were restored since the last clean run"


@from_anywhere_the_same
def test_what_is_back_of_a_sweep_is_told_and_what_was_deleted_again_is_not(
    swept: Swept, marked: Marked
) -> None:
    place, _ = swept
    attempt = place.context().root.attempt(REPOSITORY, RUN)
    assert restored(attempt) is None
    one, *others = sorted(marked.candidates)
    restore(place.context(), Choice(addresses=(one,)))
    first = restored(attempt)
    assert first is not None
    assert (first.objects, first.deleted, first.whole) == (1, len(marked.candidates), False)
    with pytest.raises(RefusedError, match=rf"swept already, and restored 1 of {first.deleted} on"):
        sweep(place.context())
    restore(place.context(), ALL)
    back = restored(attempt)
    assert back is not None
    assert back.whole
    assert str(back).startswith(f"restored {len(others) + 1} of {len(others) + 1} on 20")
    assert back.at > first.at

    # As a ledger says whose sweep went on after a pin had ended.
    later = attempt.read("swept_set").set_column(
        5, "at", pa.array([back.at + timedelta(hours=1)] * first.deleted, pa.timestamp("us", "UTC"))
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger, "recorded", lambda _attempt: later)
        assert restored(attempt) is None


@from_anywhere_the_same
def test_what_came_back_through_another_mark_is_told_of_the_one_that_deleted_it(
    swept: Swept, marked: Marked
) -> None:
    place, _ = swept
    lake, first = place.lake, place.context().root.attempt(REPOSITORY, RUN)
    lost = min(marked.candidates)
    restore(place.context(pin_days=0), Choice(addresses=(lost,)))
    age(lake, {lost})
    third, fourth = (mark(place.context(run, clean=True)) for run in ("third", "fourth"))
    for one in (third, fourth):
        if one.settings.backup_url:
            make_backup(one)
    assert candidates(third) == candidates(fourth) == {lost}
    sweep(third)
    swept_again = third.root.attempt(REPOSITORY, "third")
    # What came back before is gone again.
    assert state_of(swept_again).gone.objects == 1
    restore(fourth, Choice(addresses=(lost,)))
    state = state_of(swept_again)
    assert (state.state, state.gone.objects) == ("restored", 0)
    assert state.summary.startswith("restored 1 of 1 on 20")
    states = read_runs(third.root, REPOSITORY).states
    assert states["third"] == state
    assert states[RUN] == state_of(first)


@from_anywhere_the_same
def test_a_restore_of_what_was_listed_after_a_sweep_does_not_read_what_that_did(
    swept: Swept, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, _ = swept
    first = place.context().root.attempt(REPOSITORY, RUN)
    ended, read = first.recorded("swept_set").finished, list[str]()
    restore(place.context(), ALL)
    (through,) = with_restores([first])
    assert through.seen is not None
    assert through.seen < ended
    # As a run that names the same, and another sweep of it.
    other = first.root.open(REPOSITORY, "other", first.attempt)
    for key in [key for page in first.store().list() for key in page["key"].to_pylist()]:
        if not key.startswith("restored_set/"):
            named = first.store().get(key).replace(f'"{RUN}"'.encode(), b'"other"')
            other.put(key, named)
    again = replace(first, run="other")
    recorded = ledger.recorded

    def spy(one: AttemptArtifacts) -> pa.Table:
        read.append(one.run)
        return recorded(one)

    monkeypatch.setattr(ledger, "recorded", spy)
    back = restored(again, [through])
    assert back is not None
    assert back.whole
    assert read == ["other"]
    late = through._replace(seen=ended + timedelta(hours=1))
    assert restored(again, [late]) is None
    assert read == ["other"]


@from_anywhere_the_same
def test_what_a_sweep_found_missing_is_told_where_it_is_back(
    swept: Swept, marked: Marked, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, _ = swept
    attempt = place.context().root.attempt(REPOSITORY, RUN)
    rows, number = attempt.read("swept_set"), len(marked.candidates)
    outcomes = ["already_missing", "already_missing", *["deleted"] * (number - 2)]
    # As one says whose first try was killed before it had recorded two deletes.
    missing = rows.set_column(2, "outcome", pa.array(outcomes))
    monkeypatch.setattr(ledger, "recorded", lambda _attempt: missing)
    restore(place.context(), Choice(addresses=(missing["address"][0].as_py(),)))
    first = restored(attempt)
    assert first is not None
    assert (first.objects, first.deleted, first.whole) == (1, number - 1, False)
    restore(place.context(), ALL)
    back = restored(attempt)
    assert back is not None
    assert (back.objects, back.size) == (number, sum(missing["size"].to_pylist()))
    assert back.whole
