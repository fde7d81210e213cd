"""Folders of backups that somebody copied, moved, or lost a part of: nothing goes for them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lakegc_assets.errors import RefusedError
from lakegc_assets.recovery.backup_creation import make_backup
from lakegc_assets.recovery.backups import MANIFEST, folder_url
from lakegc_assets.recovery.restore.restored_set import restore
from lakegc_assets.recovery.restore.selection import Choice
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.opening import open_store
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.lake import REPOSITORY, Marked, mark
from lakegc_assets_tests.recovery.conftest import Place, anywhere_the_same, on_s3_later
from lakegc_assets_tests.recovery.prunes import NAME, left, prune

COPY = f"{REPOSITORY}/copy"


def folder(place: Place, run: str) -> ObjectStore:
    return open_store(folder_url(place.url, REPOSITORY, run), place.root.stores)


def copy_folder(place: Place, run: str) -> ObjectStore:
    """Copy the backup of the mark to the name of another run, beside it."""
    target = folder(place, run)
    for page in place.store.list():
        for key in page["key"].to_pylist():
            target.put(key, place.store.get(key))
    return target


def count(store: ObjectStore) -> int:
    return sum(page.num_rows for page in store.list())


@on_s3_later
def test_a_copied_folder_goes_by_its_own_name_only(swept: Place) -> None:
    copied, before = copy_folder(swept, "copy"), swept.contents()
    all_of_it = left(swept)
    told = prune(swept, dry_run=True)
    assert told[NAME] == ""
    assert told[COPY] == (
        f"it is a copy of the backup {NAME}; to remove it nevertheless, name it: --backup {COPY}"
    )
    assert prune(swept, COPY) == {COPY: ""}
    assert count(copied) == 0
    assert (swept.contents(), left(swept)) == (before, all_of_it)
    copy_folder(swept, "copy")
    assert prune(swept, NAME) == {NAME: ""}
    assert left(swept) == 0
    assert count(copied) == all_of_it


def test_no_sweep_backup_or_restore_takes_a_copied_folder_for_that_of_its_run(
    place: Place, marked: Marked
) -> None:
    make_backup(place.context())
    mark(place.context("copy", backup_url=None))
    copy_folder(place, "copy")
    ctx = place.context("copy")
    for refused in (make_backup, sweep):
        with pytest.raises(RefusedError, match="backup of another attempt or mark") as raised:
            refused(ctx)
        # Never the one that it was copied from.
        assert f"--backup {COPY}`" in str(raised.value)
    assert marked.candidates <= place.lake.keys()
    sweep(place.context("copy", backup_url=None))
    facts = restore(ctx, Choice(everything=True)).facts
    assert "the backup is not used: " in facts["warnings"][0]
    assert facts["sources"].keys() == {"store"}


@anywhere_the_same
def test_what_is_needed_and_in_a_copied_folder_only_is_copied_by_hand(
    swept: Place, marked: Marked
) -> None:
    copied, address = copy_folder(swept, "copy"), min(marked.candidates)
    swept.lake.stage("main", "late/link", address)
    kept = prune(swept, COPY)[COPY]
    namespace = f"local://{REPOSITORY}"
    assert kept.endswith(
        f"a restore does not read the copies of 1 object, for example {address!r}: check whether "
        f"they are complete, and copy them by hand, from {copied.url}/ to {namespace}/, "
        "each to its own address"
    )
    # As it says.
    content = copied.get(address)
    swept.lake.store.put(address, content)
    assert prune(swept, COPY) == {COPY: ""}


@anywhere_the_same
def test_copies_that_are_not_there_are_not_said_to_be(swept: Place, marked: Marked) -> None:
    gone, there, cut, *_ = sorted(marked.candidates)
    swept.store.delete_many([gone])
    swept.store.put(cut, swept.store.get(cut)[:-1])
    for path, address in (("one", gone), ("two", there), ("three", cut)):
        swept.lake.stage("main", f"late/{path}", address)
    kept = prune(swept)[NAME]
    assert "restore them first: `lakegc restore repo --run mark-1 --all" in kept
    assert f"a restore does not read the copies of 1 object, for example {cut!r}" in kept
    assert kept.endswith(
        f"the copies of 1 object, for example {gone!r}, are missing. If they are lost, remove "
        f"{swept.store.url} by hand once all others are restored"
    )


def test_what_an_unfinished_backup_alone_holds_is_copied_by_hand(
    place: Place, marked: Marked
) -> None:
    make_backup(place.context())
    place.store.delete_many([MANIFEST])
    address = min(marked.candidates)
    (place.lake.objects / address).unlink()
    place.lake.stage("main", "late/link", address)
    kept = prune(place, NAME)[NAME]
    assert "restore them first" not in kept
    assert f"copy them by hand, from {place.store.url}/ to local://" in kept
    assert f"the copies of 1 object, for example {address!r}: check whether they are" in kept
    (place.lake.objects / address).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(Path(place.url, NAME, address), place.lake.objects / address)
    assert prune(place, NAME) == {NAME: ""}
