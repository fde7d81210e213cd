"""Backups that were not finished, and those whose removal was not."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from lakegc_assets.errors import RefusedError
from lakegc_assets.recovery import backup_creation, backup_pruning
from lakegc_assets.recovery.backup_creation import Summary, make_backup, summarized
from lakegc_assets.recovery.backups import BEGIN, MANIFEST, PRUNING, all_backups
from lakegc_assets.recovery.restore.restored_set import restore
from lakegc_assets.recovery.restore.selection import Choice
from lakegc_assets.run.context import RunContext
from lakegc_assets.storage.removal import remove_objects
from lakegc_assets.storage.trash import TRASH
from lakegc_assets.sweep.lease import leased_to_prune
from lakegc_assets.sweep.lease_record import LEASE, read_lease
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.lake import REPOSITORY, Marked
from lakegc_assets_tests.recovery.conftest import Place, anywhere_the_same, on_s3_later
from lakegc_assets_tests.recovery.prunes import NAME, left, prune, pruning
from lakegc_assets_tests.sweep.stand_ins import stand_in

_LATE = "late/link"


def need(place: Place, address: str) -> None:
    """Let somebody need an object that was marked."""
    place.lake.stage("main", _LATE, address)


def give_up(place: Place) -> None:
    """Let nobody need it any more."""
    place.lake.client.delete_object(REPOSITORY, "main", _LATE)


def lose_what_is_needed(place: Place, marked: Marked) -> str:
    """Let somebody need an object that was marked, and that only the backup has; its address."""
    address = min(marked.candidates)
    (place.lake.objects / address).unlink()
    need(place, address)
    return address


def leave_unrecorded(place: Place) -> None:
    """Leave a backup as a try does that was killed before it recorded what it had copied."""
    journal = [k for page in place.store.list("_lakegc/ledger/") for k in page["key"].to_pylist()]
    place.store.delete_many([MANIFEST, *journal])


def interrupt_prune(place: Place, *gone: str) -> None:
    """Leave a backup as a prune does that was killed when some copies were gone."""
    place.store.put(PRUNING, place.found.record.to_bytes())
    place.store.delete_many([MANIFEST, *gone])


def remove(place: Place, *names: str, days: float = 31) -> None:
    """Prune the backup, which nothing keeps."""
    assert prune(place, *names, days=days) == {NAME: ""}
    assert left(place) == 0


@pytest.mark.parametrize("recorded", [True, False])
def test_a_backup_that_was_not_finished_stays_unless_it_is_named_and_not_needed(
    place: Place, marked: Marked, *, recorded: bool
) -> None:
    """It may hold the only copy: its journal shows that, or only a listing if it was killed."""
    make_backup(place.context())
    place.store.delete_many([MANIFEST])
    if not recorded:
        leave_unrecorded(place)
    assert prune(place)[NAME].startswith("it was not finished; to remove it nevertheless")
    lose_what_is_needed(place, marked)
    before = place.contents()
    assert "the only copy of 1 object" in prune(place, NAME)[NAME]
    assert place.contents() == before
    give_up(place)
    remove(place, NAME)


def test_a_backup_that_is_finished_while_its_end_waits_for_the_lease_stays(
    place: Place, marked: Marked
) -> None:
    """Whoever held the lease has maybe swept, and relies on it now."""
    make_backup(place.context())
    record = place.store.get(MANIFEST)
    place.store.delete_many([MANIFEST])

    @contextmanager
    def alone(_: RunContext) -> Iterator[None]:
        place.store.put(MANIFEST, record)
        yield

    before = place.contents()
    (judged,) = pruning(place, NAME, alone=alone).run()
    assert judged.kept.endswith("has changed meanwhile: prune again")
    assert place.contents() == before
    assert place.copied.num_rows == len(marked.candidates)


@anywhere_the_same
def test_an_interrupted_prune_believes_no_listing_that_ends_early(
    swept: Place, marked: Marked, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = max(marked.candidates)
    interrupt_prune(swept)
    need(swept, last)
    listed = type(swept.store).list

    def cut(store: Any, prefix: str = "", start_after: str | None = None, **more: Any) -> Any:
        pages = listed(store, prefix, start_after, **more)
        if store.url == swept.store.url and not prefix:
            # Our own files come first, so it has copies, and not all of them.
            first = itertools.islice(pages, 1)
            pages = (page.slice(0, max(1, page.num_rows - 2)) for page in first)
        return pages

    before = swept.contents()
    with monkeypatch.context() as patch:
        patch.setattr(type(swept.store), "list", cut)
        assert f"for example {last!r}" in prune(swept, days=0)[NAME]
    assert swept.contents() == before


@on_s3_later
def test_an_interrupted_prune_goes_on_and_looks_again(swept: Place, marked: Marked) -> None:
    first, *others = sorted(marked.candidates)
    interrupt_prune(swept, *others)
    with pytest.raises(RefusedError, match=r"is being removed|was swept already"):
        make_backup(swept.context())
    (found,) = all_backups(swept.root.stores, swept.url)
    assert found.state == "being removed"
    # What is gone already is of no interest, what is left is.
    swept.lake.stage("main", "late/other", others[0])
    need(swept, first)
    assert (
        f"the only copy of 1 object that is needed now, for example {first!r}"
        in prune(swept, days=0)[NAME]
    )
    assert swept.contents().keys() == {first}
    give_up(swept)
    remove(swept, days=0)


@anywhere_the_same
def test_an_interrupted_prune_believes_no_empty_listing(
    swept: Place, marked: Marked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it lists is what it asks lakeFS about, and what it is about to remove."""
    first, *_ = sorted(marked.candidates)
    interrupt_prune(swept)
    need(swept, first)
    with monkeypatch.context() as patch:
        patch.setattr("lakegc_assets.recovery.copies.list_copies", lambda _store: iter(()))
        assert "shows no copy, but" in prune(swept, days=0)[NAME]
    assert first in swept.contents()
    assert "the only copy of 1 object" in prune(swept, days=0)[NAME]


@anywhere_the_same
def test_what_an_interrupted_prune_must_leave_can_be_restored(swept: Place, marked: Marked) -> None:
    """As it says; nothing else tells of these copies any more."""
    first, *others = sorted(marked.candidates)
    content = swept.contents()[first]
    interrupt_prune(swept, *others)
    need(swept, first)
    store = swept.lake.store
    trash = [key for page in store.list(TRASH) for key in page["key"].to_pylist()]
    store.delete_many(trash)
    assert "restore them first" in prune(swept, days=0)[NAME]
    restore(swept.context(), Choice(addresses=(first,)))
    assert store.get(first) == content
    remove(swept, days=0)


def test_who_was_suspended_while_it_removed_what_holds_nothing_removes_no_other_backup(
    place: Place, marked: Marked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another prune ends what this one began, and the mark is backed up again and swept."""
    make_backup(place.context())
    interrupt_prune(place, *marked.candidates)
    was, before = remove_objects, dict[str, bytes]()

    def suspended(*given: Any) -> None:
        monkeypatch.setattr(backup_pruning, "remove_objects", was)
        place.store.delete_many([k for page in place.store.list() for k in page["key"].to_pylist()])
        store = place.lake.store
        if store.exists(LEASE):
            store.put(LEASE, replace(read_lease(store), released=True).to_bytes())
        make_backup(place.context())
        stand_in(monkeypatch)
        sweep(place.context())
        before.update(place.contents())
        was(*given)

    monkeypatch.setattr(backup_pruning, "remove_objects", suspended)
    with suppress(RefusedError):
        list(pruning(place, NAME, alone=leased_to_prune).run())
    assert before.keys() == marked.candidates
    assert place.contents() == before


def test_no_sweep_relies_on_a_backup_whose_removal_was_begun(place: Place, marked: Marked) -> None:
    """A prune that was killed right after it began goes on, however young the sweep is."""
    make_backup(place.context())
    place.store.put(PRUNING, place.found.record.to_bytes())
    with pytest.raises(RefusedError, match="holds no finished backup"):
        sweep(place.context())
    assert marked.candidates <= place.lake.keys()


def test_what_was_removed_while_it_was_made_is_no_backup(
    place: Place, marked: Marked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who was suspended for longer than its lease wakes up, and writes a manifest."""

    def pruned(*given: Any) -> Summary:
        found = summarized(*given)
        assert prune(place, NAME) == {NAME: ""}
        return found

    with monkeypatch.context() as patch:
        patch.setattr(backup_creation, "summarized", pruned)
        with pytest.raises(RefusedError, match="was removed while it was made: let"):
            make_backup(place.context())
    (found,) = all_backups(place.root.stores, place.url)
    assert found.state == "being removed"
    # Nor is it the end of another one of the same mark, which was begun meanwhile.
    later = replace(found.record, begun=found.record.begun + timedelta(seconds=1), finished=None)
    place.store.put(BEGIN, later.to_bytes())
    (found,) = all_backups(place.root.stores, place.url)
    assert found.state == "being removed"
    with pytest.raises(RefusedError, match="holds no finished backup"):
        sweep(place.context())
    with pytest.raises(RefusedError, match="is being removed: let"):
        make_backup(place.context())
    remove(place, days=0)
    make_backup(place.context())
    assert place.contents().keys() == marked.candidates


def test_what_a_finished_backup_holds_and_does_not_name_may_be_the_only_copy(
    place: Place, marked: Marked
) -> None:
    """It was copied by a try that was killed, and was gone when the next one came to it."""
    make_backup(place.context())
    leave_unrecorded(place)
    address = lose_what_is_needed(place, marked)
    make_backup(place.context())
    assert address not in place.copied["address"].to_pylist()
    before = place.contents()
    assert "the only copy of 1 object" in prune(place, NAME)[NAME]
    assert place.contents() == before
    give_up(place)
    remove(place, NAME)
