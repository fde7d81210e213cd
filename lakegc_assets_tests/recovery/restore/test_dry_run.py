"""A dry run says what the restore behind it does, and changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

from lakegc_assets.engine import folders
from lakegc_assets.recovery.copies import scratch_space
from lakegc_assets.recovery.restore import dry_run
from lakegc_assets.recovery.restore.dry_run import plan
from lakegc_assets.recovery.restore.restored_set import restore
from lakegc_assets.recovery.restore.selection import Choice
from lakegc_assets.run.object_lookup import look_up
from lakegc_assets.run.scratch import scratch
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import AccessDeniedError, StoreUnavailableError
from lakegc_assets.storage.local import LocalStore
from lakegc_assets.storage.opening import open_store
from lakegc_assets.storage.values import ARCHIVED, Lost, UndeleteOutcome
from lakegc_assets.sweep.lease_record import FOLDER
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.lake import REPOSITORY, RUN, Marked
from lakegc_assets_tests.recovery.conftest import Place
from lakegc_assets_tests.recovery.restore.swept import (
    ALL,
    Swept,
    backed_up,
    from_anywhere_the_same,
    swept,
    swept_once,
)

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


def test_a_rule_that_ends_pins_is_told(swept: Swept, monkeypatch: pytest.MonkeyPatch) -> None:
    place, _ = swept
    days = dict.fromkeys([FOLDER], 7.0)
    monkeypatch.setattr(LocalStore, "expires_after", lambda _store, keys: [*map(days.get, keys)])
    (told,) = (one for one in restore(place.context(), ALL).facts["warnings"] if "rule" in one)
    assert "removes what is older than 7 days" in told
    assert f"/{FOLDER}: sweeps need its holds and pins" in told


def test_what_cannot_be_read_when_it_is_back_is_told(
    swept: Swept, marked: Marked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store may keep what was deleted in an archive, from where nothing reads it."""
    place, _ = swept
    undelete_file = LocalStore.undelete_file

    def archived(store: LocalStore, lost: Lost, *, dry_run: bool) -> UndeleteOutcome:
        found = undelete_file(store, lost, dry_run=dry_run)
        restored = found.outcome == "restored"
        return replace(found, detail=f"{ARCHIVED} (GLACIER)") if restored else found

    monkeypatch.setattr(LocalStore, "undelete_file", archived)
    kept = place.context().settings.backup_url is None
    count = f"{len(marked.candidates)} objects"
    foreseen, made = (
        plan(place.context(), ALL)["warnings"],
        restore(place.context(), ALL).facts["warnings"],
    )
    words = (f"{count} would come back and could not be read", f"{count} came back and cannot be")
    for warnings, begin in zip((foreseen, made), words, strict=True):
        told = [one for one in warnings if one.startswith(begin) and "(GLACIER)" in one]
        assert len(told) == kept


def _refuse_writes(place: Place, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let nobody write to the artifacts; the keys that somebody wanted to write."""
    refused: list[str] = []
    artifacts = place.lake.root.open().url

    def guard(name: str) -> None:
        write = getattr(LocalStore, name)

        def denied(store: LocalStore, *args: Any, **options: Any) -> Any:
            if store.url.startswith(artifacts):
                refused.append(f"{name} {args[0]}")
                raise AccessDeniedError(f"{store.url} is not to be written")
            return write(store, *args, **options)

        monkeypatch.setattr(LocalStore, name, denied)

    for name in ("put", "put_if_absent", "put_if_match", "put_stream", "delete_many"):
        guard(name)
    return refused


def test_it_only_reads_the_artifacts(
    swept: Swept, marked: Marked, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also where what is marked is put in order first, and where a part of it is asked for."""
    place, _ = swept
    one = min(marked.candidates)
    made: list[str] = []

    def make(*, prefix: str) -> str:
        made.append(mkdtemp(prefix=prefix, dir=tmp_path))
        return made[-1]

    monkeypatch.setattr(folders, "mkdtemp", make)
    refused = _refuse_writes(place, monkeypatch)
    ctx = place.context(engine="embedded", sweep_batch=2)
    assert _counts(plan(ctx, ALL)) == (len(marked.candidates), 0, 0)
    assert _counts(plan(ctx, Choice(addresses=(one,)))) == (1, 0, 0)
    assert refused == []
    assert made
    assert not any(Path(folder).exists() for folder in made)


@from_anywhere_the_same
def test_on_spark_it_says_that_it_must_write(swept: Swept, monkeypatch: pytest.MonkeyPatch) -> None:
    place, _ = swept
    _refuse_writes(place, monkeypatch)
    with pytest.raises(AccessDeniedError, match=r"on Spark a dry run writes .*--engine embedded"):
        plan(place.context(engine="spark"), ALL)


def test_what_went_wrong_is_said_although_nothing_can_be_removed(
    swept: Swept, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place, _ = swept

    def denied(*_: Any) -> None:
        raise AccessDeniedError("nothing may be deleted")

    def stops(*_: Any) -> None:
        raise StoreUnavailableError("the store is away")

    monkeypatch.setattr(LocalStore, "delete_many", denied)
    monkeypatch.setattr(dry_run, "find_objects", stops)
    with pytest.raises(StoreUnavailableError, match="the store is away"):
        plan(place.context(engine="spark"), ALL)
    assert "nothing may be deleted" in caplog.text


@pytest.mark.parametrize("kind", ["space", "folder"])
def test_what_went_wrong_in_a_scratch_folder_is_said_although_it_stays(
    kind: str, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = place.context()

    def denied(*_: Any) -> None:
        raise AccessDeniedError("nothing may be deleted")

    def stops(store: ObjectStore) -> None:
        store.put("x", b"")
        monkeypatch.setattr(LocalStore, "delete_many", denied)
        raise StoreUnavailableError("the store is away")

    def work() -> None:
        if kind == "folder":
            with scratch(ctx.root, REPOSITORY, "_compared") as url:
                stops(open_store(url))
        with scratch_space(ctx.connect()) as space:
            stops(space.attempt.store())

    with pytest.raises(StoreUnavailableError, match="the store is away"):
        work()


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
        return look_up(store, keys)

    monkeypatch.setattr("lakegc_assets.recovery.undeletion.look_up", unanswered)
    found = plan(place.context(), ALL)
    assert _counts(found) == (0, 0, len(marked.candidates))
    assert "the backup could not be read: no answer" in found["not_known"]["some"][0]["why"]
