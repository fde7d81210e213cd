"""A sweep where backups are set: only what is verified in the backup of its mark is deleted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest

from lakegc_assets.errors import IntegrityError, LakegcError, RefusedError
from lakegc_assets.recovery.backup_creation import make_backup
from lakegc_assets.recovery.backups import BEGIN, MANIFEST, Record
from lakegc_assets.run.undo import undoable
from lakegc_assets.storage.errors import StorageError
from lakegc_assets.sweep import relations
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.kills import Killed
from lakegc_assets_tests.lake import REPOSITORY, RUN, Marked
from lakegc_assets_tests.recovery.conftest import Place, before_copies
from lakegc_assets_tests.sweep.outcomes import check_swept
from lakegc_assets_tests.sweep.stand_ins import stand_in


@pytest.fixture(autouse=True)
def _stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)


def test_all_that_is_backed_up_is_deleted(anywhere: Place, marked: Marked) -> None:
    make_backup(anywhere.context())
    manifest = sweep(anywhere.context())
    check_swept(anywhere.lake, marked, {})
    assert manifest.facts["backup"] == anywhere.store.url
    assert anywhere.contents().keys() == marked.candidates


def test_without_backup_url_no_backup_is_asked_for(place: Place, marked: Marked) -> None:
    assert sweep(place.context(backup_url=None)).facts["backup"] is None
    check_swept(place.lake, marked, {})


def _none(_place: Place) -> None:
    pass


def _unfinished(place: Place) -> None:
    make_backup(place.context())
    place.store.delete_many([MANIFEST])


def _of_another(place: Place) -> None:
    make_backup(place.context())
    for key in (BEGIN, MANIFEST):
        record = Record.from_bytes(place.store.get(key), key)
        other = replace(record, subject=replace(record.subject, mark="another"))
        place.store.put(key, other.to_bytes())


def _damaged(place: Place) -> None:
    record = make_backup(place.context())
    assert record is not None
    place.store.put(record.parts[0].key, b"another")


@pytest.mark.parametrize(
    ("spoil", "kind", "words"),
    [
        (_none, RefusedError, "no finished backup of mark 'mark-1'.*lakegc backup repo --run mark"),
        (_unfinished, RefusedError, "no finished backup of mark 'mark-1'"),
        (_of_another, RefusedError, "is a backup of another attempt or mark"),
        (_damaged, IntegrityError, "is not what its manifest says"),
    ],
)
def test_nothing_is_deleted_without_the_backup_of_this_very_mark(
    place: Place,
    spoil: Callable[[Place], None],
    kind: type[LakegcError],
    words: str,
) -> None:
    spoil(place)
    before = place.lake.keys()
    with pytest.raises(kind, match=words):
        sweep(place.context())
    assert place.lake.keys() == before


def test_what_the_backup_lacks_is_spared_and_what_it_lost_too(
    anywhere: Place, marked: Marked, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed, changed, gone, lost, other, swapped, *_ = sorted(marked.candidates)

    def cut(key: str) -> None:
        if key == failed:
            raise StorageError("it was cut short")

    before_copies(monkeypatch, cut)
    path = anywhere.lake.objects / changed
    path.unlink()
    path.write_text("another one")
    missing = anywhere.lake.objects / gone
    missing.rename(missing.with_suffix(".away"))
    make_backup(anywhere.context())
    missing.with_suffix(".away").rename(missing)
    anywhere.store.delete_many([lost])
    anywhere.store.put(other, anywhere.store.get(other) + b"?")
    anywhere.store.put(swapped, anywhere.store.get(swapped)[::-1])
    sweep(anywhere.context())
    why = {
        failed: "not in the backup: failed Storage",
        changed: "not in the backup: changed",
        gone: "not in the backup: missing",
        lost: "not in the backup: the copy is gone or another",
        other: "not in the backup: the copy is gone or another",
        swapped: "not in the backup: the copy is gone or another",
    }
    check_swept(anywhere.lake, marked, why)


def test_an_engine_that_loses_rows_of_what_has_no_copy_is_noticed(
    place: Place, monkeypatch: pytest.MonkeyPatch, marked: Marked
) -> None:
    make_backup(place.context())
    place.store.delete_many([min(marked.candidates)])
    whole = relations.not_backed_up
    monkeypatch.setattr(
        relations, "not_backed_up", lambda *frames: whole(*frames).where("size < 0")
    )
    before = place.lake.keys()
    with pytest.raises(IntegrityError, match=r"has lost rows in .* should have a copy in"):
        sweep(place.context())
    assert place.lake.keys() == before


def test_a_sweep_that_was_killed_keeps_what_it_did(
    place: Place, marked: Marked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was deleted before the copy was lost is deleted still."""
    make_backup(place.context())

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("lakegc_assets.sweep.ledger_state.LedgerState.write", die)
        with pytest.raises(Killed):
            sweep(place.context())
    place.store.delete_many([min(marked.candidates)])
    sweep(place.context())
    check_swept(place.lake, marked, {})
    assert not Path(place.url, REPOSITORY, RUN, min(marked.candidates)).exists()


def test_what_an_earlier_try_deleted_without_a_backup_is_not_said_to_be_in_it(
    place: Place, marked: Marked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor in the trash, where that try had none."""

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("lakegc_assets.sweep.ledger_state.LedgerState.write", die)
        with pytest.raises(Killed):
            sweep(place.context(backup_url=None, trash_days=0))
    make_backup(place.context())
    facts = sweep(place.context()).facts
    check_swept(place.lake, marked, {})
    told = undoable(facts, datetime.now(timezone.utc))
    count = len(marked.candidates)
    assert f"(trash), except for {count} objects" in told
    assert f"until that is pruned, except for {count} objects" in told
