"""A dry run says what the restore behind it does, and changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from lakegc_assets.recovery.restore.dry_run import plan
from lakegc_assets.recovery.restore.restored_set import restore
from lakegc_assets.recovery.undeletion import present
from lakegc_assets.storage.errors import StoreUnavailableError
from lakegc_assets.storage.local import LocalStore
from lakegc_assets.storage.values import Lost, UndeleteOutcome
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.lake import REPOSITORY, RUN, Marked
from lakegc_assets_tests.recovery.conftest import Place
from lakegc_assets_tests.recovery.restore.swept import ALL, Swept, backed_up, swept, swept_once

__all__ = ["swept", "swept_once"]


def _counts(found: dict[str, Any]) -> tuple[int, int, int]:
    return tuple(found[name]["objects"] for name in ("would_come_back", "lost", "not_known"))


def test_what_would_come_back_and_from_where(swept: Swept, marked: Marked) -> None:
    place, before = swept
    found = plan(place.context(), ALL)
    assert _counts(found) == (len(marked.candidates), 0, 0)
    assert found["would_come_back"]["bytes"] == sum(map(len, before.values()))
    sources = {name: count for name, count in found["would_come_back"]["from"].items() if count}
    where = "trash" if place.context().settings.backup_url is None else "backup"
    assert sources == {where: len(marked.candidates)}
    assert place.lake.keys() == marked.live
    restore(place.context(), ALL)
    assert _counts(plan(place.context(), ALL)) == (0, 0, 0)


def test_what_nobody_has_is_lost(place: Place, marked: Marked) -> None:
    """A copy that is gone, and one that was changed, as the restore would find."""
    _, before = backed_up(place, marked)
    lost, damaged, *_ = sorted(marked.candidates)
    folder = place.lake.folder.parent / "backups" / REPOSITORY / RUN
    (folder / lost).unlink()
    (folder / damaged).write_bytes(b"x" * len(before[damaged]))
    found = plan(place.context(), ALL)
    assert _counts(found) == (len(marked.candidates) - 2, 2, 0)
    assert found["lost"]["some"] == [
        {"address": lost, "why": "its copy in the backup is gone"},
        {"address": damaged, "why": "its copy in the backup is not the one that was verified"},
    ]


def test_without_trash_and_backup_all_is_lost(place: Place, marked: Marked) -> None:
    sweep(place.context(backup_url=None, trash_days=0))
    found = plan(place.context(backup_url=None), ALL)
    assert _counts(found) == (0, len(marked.candidates), 0)


def test_what_cannot_be_asked_for_is_not_known(
    place: Place, marked: Marked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither lost nor sure to come back; the backup that has it makes it sure."""

    def denied(_store: LocalStore, objects: Sequence[Lost]) -> list[UndeleteOutcome]:
        return [UndeleteOutcome(one.key, "failed", "AccessDenied", "no") for one in objects]

    backed_up(place, marked)
    monkeypatch.setattr(LocalStore, "kept_many", denied)
    assert _counts(plan(place.context(), ALL)) == (len(marked.candidates), 0, 0)
    found = plan(place.context(backup_url=None), ALL)
    assert _counts(found) == (0, 0, len(marked.candidates))
    assert {one["why"] for one in found["not_known"]["some"]} == {"no"}

    def unanswered(store: LocalStore, keys: Sequence[str]) -> Any:
        if "backups" in store.url:
            raise StoreUnavailableError("no answer")
        return present(store, keys)

    monkeypatch.setattr("lakegc_assets.recovery.undeletion.present", unanswered)
    found = plan(place.context(), ALL)
    assert _counts(found) == (0, 0, len(marked.candidates))
    assert "the backup could not be looked at: no answer" in found["not_known"]["some"][0]["why"]
