"""A backup is made under the lease of its repository, and a sweep that relied on one goes on so."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lakegc_assets.errors import RefusedError
from lakegc_assets.recovery import backup_creation
from lakegc_assets.recovery.backups import MANIFEST
from lakegc_assets.sweep import lease
from lakegc_assets.sweep import sweep as sweeping
from lakegc_assets.sweep.backup_guard import relied_on
from lakegc_assets.sweep.lease import back_up, repository_lease
from lakegc_assets.sweep.lease_record import owner_of, read_lease
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.lake import REPOSITORY, RUN, Marked
from lakegc_assets_tests.recovery.conftest import Place


@pytest.mark.usefixtures("frequent_renewals")
def test_nobody_sweeps_or_backs_up_while_a_backup_is_made(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[str] = []
    make = backup_creation.make_backup

    def made(ctx: object) -> object:
        for other in (back_up, sweep):
            with pytest.raises(RefusedError, match="holds the lease") as error:
                other(place.context())
            refused.append(str(error.value))
        return make(ctx)  # type: ignore[arg-type]  # it is what was given

    monkeypatch.setattr(lease, "make_backup", made)
    assert back_up(place.context()) is not None
    assert len(refused) == 2
    assert all(f"a backup of run {RUN!r} by " in told for told in refused)
    assert place.store.exists(MANIFEST)
    assert read_lease(place.lake.store).released


@pytest.mark.usefixtures("frequent_renewals")
def test_a_backup_waits_for_who_has_the_lease(place: Place) -> None:
    store = place.lake.store
    with repository_lease(store, owner_of(doing="restore"), duration=timedelta(minutes=3)):
        with pytest.raises(RefusedError, match="restore"):
            back_up(place.context())
        assert not place.store.exists(MANIFEST)
    assert back_up(place.context()) is not None


def test_without_a_place_for_backups_nobody_needs_the_lease(place: Place) -> None:
    store = place.lake.store
    with repository_lease(store, owner_of(doing="restore"), duration=timedelta(minutes=3)):
        assert back_up(place.context(backup_url=None)) is None


def test_a_sweep_that_relied_on_a_backup_does_not_go_on_without(
    place: Place, marked: Marked, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert back_up(place.context()) is not None

    class KilledError(Exception):
        """Before its first delete."""

    def killed(*_: object) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(sweeping, "delete_in_rounds", killed)
        with pytest.raises(KilledError):
            sweep(place.context())
    before = place.lake.keys()
    told = (
        f"relies on the backup at .*/{REPOSITORY}/{RUN}, and backup_url is not set: set backup_url"
    )
    with pytest.raises(RefusedError, match=told):
        sweep(place.context(backup_url=None))
    record = place.root.attempt(REPOSITORY, RUN).store()
    record.put("swept_set/backup.json", b"cut")
    with pytest.raises(
        RefusedError, match=r"relies on the backup at a place that is not known, since .*damaged"
    ):
        sweep(place.context(backup_url=None))
    assert place.lake.keys() == before
    sweep(place.context())
    assert not place.lake.keys() & marked.candidates


def test_who_wants_no_backup_any_more_says_so(place: Place, marked: Marked) -> None:
    record = place.root.attempt(REPOSITORY, RUN).store()
    record.put("swept_set/backup.json", b"[" * 100_000)
    with pytest.raises(
        RefusedError, match=r"To continue without a backup .*--set without_backup=true`"
    ):
        sweep(place.context(backup_url=None))
    assert place.lake.keys() > marked.candidates
    sweep(place.context(backup_url=None, without_backup=True))
    # Whoever brings something back is to know where its sweep had a backup.
    assert relied_on(record).startswith("a place that is not known, since ")
    assert not place.lake.keys() & marked.candidates
