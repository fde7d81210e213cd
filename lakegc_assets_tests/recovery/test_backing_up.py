"""A backup is made under the lease of its repository, which it gives back."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lakegc_assets.errors import RefusedError
from lakegc_assets.recovery import making
from lakegc_assets.recovery.backups import MANIFEST
from lakegc_assets.sweep import backing_up
from lakegc_assets.sweep.backing_up import back_up
from lakegc_assets.sweep.lease import owner_of, read_lease, repository_lease
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.recovery.conftest import Place


def test_nobody_sweeps_or_backs_up_while_a_backup_is_made(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[str] = []
    make = making.make_backup

    def made(ctx: object) -> object:
        for other in (back_up, sweep):
            with pytest.raises(RefusedError, match="holds its lease") as error:
                other(place.context())
            refused.append(str(error.value))
        return make(ctx)  # type: ignore[arg-type]  # it is what was given

    monkeypatch.setattr(backing_up, "make_backup", made)
    assert back_up(place.context()) is not None
    assert len(refused) == 2
    assert all("doing backup" in told for told in refused)
    assert place.store.exists(MANIFEST)
    assert read_lease(place.context().connect()[1].store()).released


def test_a_backup_waits_for_who_has_the_lease(place: Place) -> None:
    store = place.context().connect()[1].store()
    with repository_lease(store, owner_of(doing="restore"), duration=timedelta(minutes=3)):
        with pytest.raises(RefusedError, match="restore"):
            back_up(place.context())
        assert not place.store.exists(MANIFEST)
    assert back_up(place.context()) is not None


def test_without_a_place_for_backups_nobody_needs_the_lease(place: Place) -> None:
    store = place.context().connect()[1].store()
    with repository_lease(store, owner_of(doing="restore"), duration=timedelta(minutes=3)):
        assert back_up(place.context(backup_url=None)) is None
