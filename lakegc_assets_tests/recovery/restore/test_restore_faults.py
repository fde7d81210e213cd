"""Restores among damage, and those that are run again."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lakegc_assets.errors import IntegrityError, RefusedError
from lakegc_assets.recovery import portions, undeletion
from lakegc_assets.recovery.restore import restored_set as restoring
from lakegc_assets.recovery.restore import task
from lakegc_assets.recovery.restore.dry_run import plan
from lakegc_assets.recovery.restore.restored_set import restore
from lakegc_assets.recovery.restore.selection import Choice, deleted_versions
from lakegc_assets.recovery.restore.task import restore_portion
from lakegc_assets.recovery.restore_record import record, restores
from lakegc_assets.recovery.undeletion import RestoreOutcome
from lakegc_assets.recovery.workspace import Workspace
from lakegc_assets.run.pins import read_pins
from lakegc_assets.storage.copies import copy_object
from lakegc_assets.storage.errors import AccessDeniedError, StorageError
from lakegc_assets.sweep.lease_record import LEASE, read_lease
from lakegc_assets_tests.lake import REPOSITORY, RUN, Marked
from lakegc_assets_tests.recovery.conftest import Place
from lakegc_assets_tests.recovery.restore.swept import (
    ALL,
    Swept,
    backed_up,
    from_anywhere_the_same,
    outcomes,
    swept,
    swept_once,
)

__all__ = ["swept", "swept_once"]


@from_anywhere_the_same
def test_a_damaged_mark_restores_nothing(swept: Swept, marked: Marked) -> None:
    place, _ = swept
    attempt = place.lake.root.attempt(REPOSITORY, RUN)
    part = attempt.manifest("deletion_candidates").parts["data"][0]
    store = attempt.store()
    store.put(part.key, store.get(part.key)[:-1] + b"x")
    with pytest.raises(IntegrityError, match="is not what its manifest says"):
        restore(place.context(), ALL)
    assert place.lake.keys() == marked.live


def test_a_copy_that_went_wrong_is_found_by_the_next_try_and_can_be_mended(
    place: Place, marked: Marked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It got its name before that showed, and nothing is ever removed by a restore."""
    _, before = backed_up(place, marked)
    bad = min(marked.candidates)
    copy = copy_object

    def cut_short(source: Any, key: str, target: Any, *more: Any, **asked: Any) -> Any:
        if key != bad:
            return copy(source, key, target, *more, **asked)
        target.put(key, before[key][:-1])
        raise StorageError("the store cut it short")

    with monkeypatch.context() as patch:
        patch.setattr(undeletion, "copy_object", cut_short)
        with pytest.raises(StorageError, match="An object is at its key now: restore again"):
            restore(place.context(), ALL)
    for manifest in (restore(place.context(), ALL), restore(place.context(), ALL)):
        assert outcomes(place.context(), manifest)[bad] == ("already_there", None)
        size = len(before[bad])
        assert (
            "1 object did not come back, since something else is at its key: "
            f"{bad!r}: another object is there: it has {size - 1} bytes, and {size} were marked"
        ) in str(manifest.facts["warnings"])
    (place.lake.objects / bad).unlink()
    manifest = restore(place.context(), ALL)
    assert outcomes(place.context(), manifest)[bad] == ("restored", "backup")
    assert manifest.facts["warnings"] == []
    assert place.lake.contents(marked.candidates) == before


def test_what_was_in_the_way_is_asked_for_again_by_a_restore_that_goes_on(
    place: Place, marked: Marked
) -> None:
    _, before = backed_up(place, marked)
    lost, other, *_ = sorted(marked.candidates)
    copy = place.lake.folder.parent / "backups" / REPOSITORY / RUN / lost
    copy.unlink()
    place.lake.write(other, b"in the way")
    with pytest.raises(StorageError, match="1 object could not be restored"):
        restore(place.context(), ALL)
    copy.write_bytes(before[lost])
    (place.lake.objects / other).unlink()
    manifest = restore(place.context(backup_url=None), ALL)
    assert outcomes(place.context(), manifest)[other] == ("not_kept", None)


def test_a_damaged_record_of_the_sweep_keeps_nothing_from_coming_back(
    swept: Swept, marked: Marked
) -> None:
    """It only gives the ids by which the store may have kept what is asked for."""
    place, before = swept
    attempt = place.lake.root.attempt(REPOSITORY, RUN)
    for key in attempt.files("swept_set"):
        if "/ledger/" in key:
            attempt.store().put(key, b"cut sho")
    restore(place.context(), ALL)
    assert place.lake.contents(marked.candidates) == before


def test_a_file_that_is_no_record_hides_no_record_of_the_sweep(swept: Swept) -> None:
    """What people, or their tools, leave beside a ledger is not of it."""
    ctx = swept[0].context()
    attempt = ctx.root.attempt(REPOSITORY, RUN)
    space = Workspace(ctx.connect(), attempt, "restore/here/")
    known = deleted_versions(space)
    assert known.rows > 0
    for name in ("0.txt", "~"):
        attempt.store().put(f"swept_set/ledger/{name}", b"notes")
    assert deleted_versions(space).rows == known.rows


def test_a_task_that_is_run_twice_replaces_no_record(
    swept: Swept, marked: Marked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark repeats a task whose worker died; the second one finds what the first did."""
    place, _ = swept
    task = restore_portion

    def twice(*asked: Any) -> str:
        task(*asked)
        return task(*asked)

    monkeypatch.setattr(restoring, "restore_portion", twice)
    found = outcomes(place.context(), restore(place.context(), ALL))
    assert found.keys() == marked.candidates
    assert {outcome for outcome, _ in found.values()} == {"restored"}


def _cut_short(content: bytes) -> bytes:
    return content[:-9]


def _with_zeros(content: bytes) -> bytes:
    return content[:4] + bytes(100) + content[104:]


@pytest.mark.parametrize(
    "damaged", [_cut_short, pytest.param(_with_zeros, marks=pytest.mark.conformance)]
)
def test_a_damaged_record_of_a_restore_is_asked_for_again(
    place: Place, marked: Marked, damaged: Callable[[bytes], bytes]
) -> None:
    """What is not known to be back is asked for, and found."""
    _, before = backed_up(place, marked)
    lost = min(marked.candidates)
    copy = place.lake.folder.parent / "backups" / REPOSITORY / RUN / lost
    copy.rename(copy.with_name("aside"))
    with pytest.raises(StorageError, match="1 object could not be restored"):
        restore(place.context(), ALL)
    attempt = place.lake.root.attempt(REPOSITORY, RUN)
    ledger = [key for key in attempt.files("restored_set") if "/ledger/" in key]
    assert ledger
    for key in ledger:
        attempt.store().put(key, damaged(attempt.store().get(key)))
    copy.with_name("aside").rename(copy)
    found = outcomes(place.context(), restore(place.context(), ALL))
    assert found.keys() == marked.candidates
    assert found[lost] == ("restored", "backup")
    assert place.lake.contents(marked.candidates) == before


def test_where_the_backup_is_is_told_to_who_did_not_say_so(place: Place, marked: Marked) -> None:
    """In a panic nobody remembers what was set."""
    backed_up(place, marked)
    words = f"the swept objects are in the backup .*/backups/{REPOSITORY}/{RUN}, and backup_url is "
    for url, told in ((None, "not set"), (f"{place.url}-2", f"{place.url}-2")):
        ctx = place.context(backup_url=url)
        planned = plan(ctx, ALL)
        (warning,) = [one for one in planned["warnings"] if "the swept objects" in one]
        # Nobody has looked into that backup: nothing is known to be lost.
        assert planned["lost"]["objects"] == 0
        assert planned["not_known"]["objects"] == len(marked.candidates)
        assert {one["why"] for one in planned["not_known"]["some"]} == {warning}
        assert re.match(f"{words}{told}: set it to the place of that backup", warning)
        assert warning in restore(ctx, ALL).facts["warnings"]
    assert plan(place.context(), ALL)["warnings"] == []


def test_a_copy_that_is_lost_for_good_keeps_no_other_from_coming_back(
    place: Place, marked: Marked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large objects are in batches of their own: no other one of its batch came back."""
    _, before = backed_up(place, marked)
    lost = min(marked.candidates)
    (place.lake.folder.parent / "backups" / REPOSITORY / RUN / lost).unlink()
    monkeypatch.setattr(task, "BATCH_BYTES", 1)
    with pytest.raises(StorageError, match=r"1 object could not be restored and 0 were not"):
        restore(place.context(), ALL)
    rest = marked.candidates - {lost}
    assert place.lake.contents(rest) == {address: before[address] for address in rest}


def test_where_nothing_can_be_written_it_is_not_tried_for_each_object(
    place: Place, marked: Marked, monkeypatch: pytest.MonkeyPatch
) -> None:
    backed_up(place, marked)
    asked: list[str] = []

    def refused(_source: Any, key: str, *_: Any, **__: Any) -> Any:
        asked.append(key)
        raise AccessDeniedError("these may only read")

    monkeypatch.setattr(undeletion, "copy_object", refused)
    monkeypatch.setattr(task, "BATCH_BYTES", 1)
    monkeypatch.setattr(portions, "REFUSED_IN_A_ROW", 2)
    with pytest.raises(StorageError, match="AccessDenied: these may only read"):
        restore(place.context(), ALL)
    assert len(asked) == 2 < len(marked.candidates)
    assert place.lake.keys() == marked.live


def test_what_something_deleted_between_two_tries_is_brought_back_again(
    place: Place, marked: Marked
) -> None:
    """As lakeFS's own job may, which knows nothing of pins: no record says that it is back."""
    _, before = backed_up(place, marked)
    lost, deleted, *_ = sorted(marked.candidates)
    copy = place.lake.folder.parent / "backups" / REPOSITORY / RUN / lost
    aside = copy.rename(copy.with_name("aside"))
    with pytest.raises(StorageError, match=r"1 object could not be restored and 0 were not"):
        restore(place.context(), ALL)
    (place.lake.objects / deleted).unlink()
    aside.rename(copy)
    manifest = restore(place.context(), ALL)
    assert place.lake.contents(marked.candidates) == before
    found = outcomes(place.context(), manifest)
    assert found[lost] == found[deleted] == ("restored", "backup")
    assert {outcome for outcome, _ in found.values()} == {"restored", "already_there"}


def _lose_one(place: Place, marked: Marked) -> None:
    """Leave a swept lake of which one object cannot come back."""
    backed_up(place, marked)
    (place.lake.folder.parent / "backups" / REPOSITORY / RUN / min(marked.candidates)).unlink()


def test_a_restore_whose_lease_is_taken_over_brings_no_other_batch_back(
    place: Place, marked: Marked, monkeypatch: pytest.MonkeyPatch
) -> None:
    backed_up(place, marked)
    store, copied = place.lake.store, list[str]()

    def take_over(source: Any, key: str, *more: Any, **asked: Any) -> Any:
        copied.append(key)
        store.put(LEASE, replace(read_lease(store), token="another's").to_bytes())
        return copy_object(source, key, *more, **asked)

    monkeypatch.setattr(undeletion, "copy_object", take_over)
    monkeypatch.setattr(task, "BATCH_BYTES", 1)
    with pytest.raises(RefusedError, match=r"was lost: .* What was restored is recorded and"):
        restore(place.context(), ALL)
    assert len(copied) == 1
    assert place.lake.keys() == {*marked.live, *copied}


def test_what_is_too_much_for_one_pin_is_pinned_by_several(
    swept: Swept, marked: Marked, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, _ = swept
    monkeypatch.setattr(restoring, "OBJECTS_PER_PIN", 4)
    restore(place.context(), ALL)
    pinned = [one for _, some in read_pins(place.lake.store) for one in some.to_pylist()]
    assert sorted(pinned) == sorted(marked.candidates)


def test_without_pins_each_try_is_a_restore_of_its_own(place: Place, marked: Marked) -> None:
    """By its time alone the next mark learns that something is back since the store was listed."""
    _lose_one(place, marked)
    for _ in range(2):
        with pytest.raises(StorageError, match="1 object could not be restored"):
            restore(place.context(pin_days=0), ALL)
    assert len(restores(place.lake.root.attempt(REPOSITORY, RUN))) == 2


def test_a_record_of_what_nobody_asked_for_stands_for_nothing_that_was(
    place: Place, marked: Marked
) -> None:
    _lose_one(place, marked)
    with pytest.raises(StorageError, match="1 object could not be restored"):
        restore(place.context(), ALL)
    attempt = place.lake.root.attempt(REPOSITORY, RUN)
    (restore_id,) = restores(attempt)
    other = RestoreOutcome(min(marked.live), "restored", "backup")
    record(attempt.store(), f"restored_set/{restore_id}/ledger/", "other", [1], [other])
    with pytest.raises(IntegrityError, match="has 1 object that this restore did not choose"):
        restore(place.context(), ALL)
    # As it says, another request begins anew.
    manifest = restore(place.context(), Choice(addresses=(max(marked.candidates),)))
    assert manifest.asset != f"restored_set/{restore_id}"
