"""The trash of local stores: nothing is lost on the way there, on the way back, or by the prune."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lakegc_assets.storage import files, trash
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import StorageError
from lakegc_assets.storage.local import LocalStore
from lakegc_assets.storage.opening import open_store
from lakegc_assets.storage.probes import probe_recovery
from lakegc_assets.storage.trash import TRASH, old_trash, remove_trash, trash_folder
from lakegc_assets.storage.values import Lost, Recovery

NOW = datetime(2026, 11, 22, 7, 0, tzinfo=timezone.utc)
FOLDER = trash_folder("sweep", NOW)
WEEK = timedelta(days=7)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def store(root: Path) -> ObjectStore:
    return open_store(str(root))


def lose(store: ObjectStore, key: str, folder: str | None = FOLDER) -> Lost:
    etag = store.put(key, key.encode())
    (outcome,) = store.delete_many([key], {key: etag}, trash=folder)
    assert outcome.outcome == "deleted"
    return Lost(key, len(key.encode()), etag, outcome.version)


def outcome_of(store: ObjectStore, lost: Lost) -> tuple[str, str | None, str]:
    (outcome,) = store.undelete_many([lost])
    return outcome.outcome, outcome.error_code, str(outcome.detail)


def keys(store: ObjectStore) -> list[str]:
    return [key for batch in store.list() for key in batch["key"].to_pylist()]


def prune_trash(store: ObjectStore, older_than: timedelta, now: datetime, *stay: str) -> int:
    def stays(addresses: pa.Array) -> pa.Array:
        return pc.is_in(addresses, pa.array(stay, pa.string()))

    return sum(
        remove_trash(store, folder, stays, lambda: None)
        for folder in old_trash(store, older_than, now)
    )


def test_a_deleted_file_is_in_the_trash_and_its_directory_is_gone(
    store: ObjectStore, root: Path
) -> None:
    lost = lose(store, "data/slice/a")
    assert lost.version == f"{FOLDER}data/slice/a"
    assert keys(store) == [lost.version]
    assert not (root / "data").exists()
    assert outcome_of(store, lost)[0] == "restored"
    assert keys(store) == ["data/slice/a"]
    assert not (root / "_lakefs").exists()


def test_without_a_trash_nothing_is_kept(store: ObjectStore) -> None:
    lost = lose(store, "data/a", None)
    assert (lost.version, keys(store)) == (None, [])
    outcome, _, detail = outcome_of(store, lost)
    assert outcome == "not_kept"
    assert "it was pruned" in detail
    assert probe_recovery(store, "_lakefs/probe/", None).kind == "nothing"
    assert probe_recovery(store, "_lakefs/probe/", FOLDER).kind == "trash"
    assert keys(store) == []


def test_what_the_trash_has_already_is_not_replaced(store: ObjectStore) -> None:
    first = lose(store, "data/a")
    etag = store.put("data/a", b"second")
    (outcome,) = store.delete_many(["data/a"], trash=FOLDER)
    assert outcome.outcome == "failed"
    assert "is in the trash already" in str(outcome.detail)
    assert store.head("data/a").etag == etag
    assert store.head(str(first.version)).etag == first.etag


def test_a_file_of_the_trash_where_a_directory_is_needed_is_no_missing_object(
    store: ObjectStore,
) -> None:
    lose(store, "data/a")
    store.put("data/a/b", b"1")
    (outcome,) = store.delete_many(["data/a/b"], trash=FOLDER)
    assert outcome.outcome == "failed"
    assert store.get("data/a/b") == b"1"


def test_a_trash_on_another_file_system_is_said(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rename(*_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(trash, "rename", rename)
    store.put("data/a", b"1")
    (outcome,) = store.delete_many(["data/a"], trash=FOLDER)
    assert outcome.outcome == "failed"
    assert "set trash_days to 0" in str(outcome.detail)
    assert store.get("data/a") == b"1"
    found = probe_recovery(store, "_lakefs/probe/", FOLDER)
    assert found.kind == "nothing"
    assert "did not come back" in found.notice


def test_a_file_that_could_not_be_given_back_is_not_taken(
    store: ObjectStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux lets nobody link what others own and he cannot write, and lets him rename it."""
    link, uid = os.link, os.geteuid()

    def protected(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(trash, "geteuid", lambda: uid + 1)
    monkeypatch.setattr(trash, "link", protected)
    store.put("data/a", b"1")
    (outcome,) = store.delete_many(["data/a"], trash=FOLDER)
    assert (outcome.outcome, outcome.error_code) == ("failed", "AccessDenied")
    assert "set trash_days to 0" in str(outcome.detail)
    assert store.get("data/a") == b"1"
    monkeypatch.setattr(trash, "link", link)
    lost = lose(store, "data/a")
    assert [path.name for path in (root / FOLDER / "data").iterdir()] == ["a"]
    assert outcome_of(store, lost)[0] == "restored"


def test_what_was_moved_to_another_disk_comes_back(root: Path) -> None:
    """Where only one file can be it: its size and time, to the nanosecond, came along."""
    here = LocalStore(root / "here", "file:///here")
    kept, twice = lose(here, "data/a"), lose(here, "data/b")
    other = root / "here" / trash_folder("other", NOW - WEEK) / "data/b"
    other.parent.mkdir(parents=True)
    shutil.copy2(root / "here" / str(twice.version), other)
    shutil.copytree(root / "here", root / "there")
    store = LocalStore(root / "there", "file:///there")
    assert [one.outcome for one in store.kept_many([kept, twice])] == ["restored", "not_kept"]
    assert outcome_of(store, kept)[0] == "restored"
    assert store.get("data/a") == b"data/a"
    assert outcome_of(store, twice)[0] == "not_kept"
    (root / "there" / str(twice.version)).unlink()
    os.utime(root / "there" / other.relative_to(root / "here"))
    assert outcome_of(store, twice)[0] == "not_kept"


class Owners:
    """``os`` of a machine on which anybody gives files away, as root does: by their inodes."""

    def __init__(self) -> None:
        self.of: dict[int, int] = {}

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)

    def fchown(self, descriptor: int, owner: int, _group: int) -> None:
        if owner >= 0:
            self.of[os.fstat(descriptor).st_ino] = owner

    def fstat(self, descriptor: int) -> SimpleNamespace:
        found = os.fstat(descriptor)
        values = {name: getattr(found, name) for name in dir(found) if name.startswith("st_")}
        return SimpleNamespace(**values | {"st_uid": self.of.get(found.st_ino, found.st_uid)})


@pytest.mark.parametrize("owner", [1001, os.geteuid()])
@pytest.mark.parametrize("kept", [True, False])
def test_who_owns_the_directory_above_may_use_what_was_put_back(
    store: ObjectStore, root: Path, monkeypatch: pytest.MonkeyPatch, owner: int, *, kept: bool
) -> None:
    """From the trash, or written anew as from a backup. Of one's own directory umask decides."""
    lost = lose(store, "data/slice/a")
    above = root / "data"
    above.mkdir()
    owners = Owners()
    owners.of[above.stat().st_ino] = owner
    monkeypatch.setattr(files, "os", owners)
    above.chmod(0o775)
    before = os.umask(0o027)
    try:
        if kept:
            assert outcome_of(store, lost)[0] == "restored"
        else:
            store.put_if_absent("data/slice/a", b"1")
    finally:
        os.umask(before)
    ours = owner == os.geteuid()
    made = [(above / "slice", 0o750 if ours else 0o775)]
    made += [] if kept else [(above / "slice/a", 0o640 if ours else 0o664)]
    for path, mode in made:
        found = path.stat()
        assert stat.S_IMODE(found.st_mode) == mode
        assert owners.of.get(found.st_ino, found.st_uid) == owner


def test_what_is_not_the_expected_object_is_not_moved(store: ObjectStore) -> None:
    store.put("data/a", b"1")
    (outcome,) = store.delete_many(["data/a"], {"data/a": "other"}, trash=FOLDER)
    assert outcome.outcome == "spared"
    (late,) = store.delete_many(["data/a"], expires_s=-1, trash=FOLDER)
    assert late.error_code == "Expired"
    assert keys(store) == ["data/a"]


def test_an_object_is_found_in_whichever_trash_it_is(store: ObjectStore) -> None:
    """A kill between the move and its record loses where it is."""
    other = trash_folder("other", NOW - WEEK)
    older, lost = lose(store, "data/a", other), lose(store, "data/a")
    assert outcome_of(store, older._replace(version=None))[0] == "restored"
    assert outcome_of(store, lost._replace(version=None))[0] == "already_there"
    assert store.head("data/a").etag == older.etag
    assert keys(store) == [lost.version, "data/a"]


@pytest.mark.parametrize("version", ["data/b", "_lakefs/x", f"{FOLDER}data/b"])
def test_a_version_that_names_another_object_is_not_taken(store: ObjectStore, version: str) -> None:
    store.put("data/b", b"data/a")
    lost = lose(store, "data/a")
    assert outcome_of(store, lost._replace(version=version))[0] == "restored"
    assert store.get("data/b") == b"data/a"


def test_a_killed_undo_is_done_again(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its two steps the file has both names, and loses the one in the trash later."""
    lost = lose(store, "data/a")
    unlink = os.unlink

    def killed(name: str, **where: Any) -> None:
        if name == "a":
            raise KeyboardInterrupt
        unlink(name, **where)

    with monkeypatch.context() as patch:
        patch.setattr(trash, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            store.undelete_many([lost])
    assert keys(store) == [lost.version, "data/a"]
    assert outcome_of(store, lost)[0] == "already_there"
    assert keys(store) == ["data/a"]
    assert store.head("data/a").etag == lost.etag


def test_what_is_written_between_look_and_undo_stays(
    store: ObjectStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one that asks for no lock."""
    lost = lose(store, "data/a")
    link = os.link

    def meanwhile(*names: Any, **where: Any) -> None:
        (root / "data/a").write_bytes(b"meanwhile")
        link(*names, **where)

    monkeypatch.setattr(trash, "link", meanwhile)
    assert outcome_of(store, lost)[0] == "already_there"
    assert store.get("data/a") == b"meanwhile"
    assert store.get(str(lost.version)) == b"data/a"


@pytest.mark.parametrize("blocking", ["data/a/b", "data"])
def test_what_is_in_the_way_stays(store: ObjectStore, blocking: str) -> None:
    """A directory at the key, and a file where the key's directory was."""
    lost = lose(store, "data/a")
    store.put(blocking, b"1")
    assert outcome_of(store, lost)[:2] == ("failed", "InvalidKey")
    assert keys(store) == [lost.version, blocking]


@pytest.mark.parametrize("step", ["rename", "link"])
def test_directories_that_vanish_meanwhile_are_made_again(
    store: ObjectStore, root: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """A prune removes empty directories of the trash, and a delete those of keys."""
    lost = lose(store, "data/a") if step == "link" else None
    call: Callable[..., None] = getattr(trash, step)
    calls: list[object] = []

    def once_without(*names: Any, **where: Any) -> None:
        calls.append(names)
        if len(calls) == 1:
            (root / (f"{FOLDER}data" if step == "rename" else "data")).rmdir()
        call(*names, **where)

    monkeypatch.setattr(trash, step, once_without)
    if lost is None:
        assert lose(store, "data/a").version == f"{FOLDER}data/a"
    else:
        assert outcome_of(store, lost)[0] == "restored"
    assert len(calls) == 2


def test_an_object_that_vanishes_before_it_is_moved_is_missing(
    store: ObjectStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("data/a", b"1")
    rename = os.rename

    def gone(*names: Any, **where: Any) -> None:
        (root / "data/a").unlink(missing_ok=True)
        rename(*names, **where)

    monkeypatch.setattr(trash, "rename", gone)
    (outcome,) = store.delete_many(["data/a"], trash=FOLDER)
    assert outcome.outcome == "already_missing"


def test_only_old_trash_is_pruned(store: ObjectStore, root: Path) -> None:
    """By the name of its folder: what is moved keeps its time, which may be years ago."""
    old, young = trash_folder("old", NOW - WEEK), trash_folder("young", NOW - timedelta(days=6))
    stays = [lose(store, f"data/{number}", young).version for number in range(3)]
    for number in range(3):
        lose(store, f"data/{number}", old)
    for version in stays:
        os.utime(root / str(version), (0, 0))
    store.put("data/live", b"1")
    store.put(f"{TRASH}notes/by hand", b"1")
    assert prune_trash(store, WEEK, NOW, "data/0", "data/1") == 1
    assert sorted(keys(store))[:2] == [f"{old}data/0", f"{old}data/1"]
    assert prune_trash(store, WEEK, NOW) == 2
    assert keys(store) == [*map(str, stays), f"{TRASH}notes/by hand", "data/live"]
    assert not (root / old).exists()
    assert prune_trash(store, WEEK, NOW) == 0


def test_trash_stays_for_as_long_as_its_sweep_promised(store: ObjectStore) -> None:
    """Whatever the sweep that prunes keeps itself; and longer, if that one keeps more."""
    month = trash_folder("a", NOW, timedelta(days=30))
    version = lose(store, "data/a", month).version
    for days in (7, 29.9):
        assert prune_trash(store, WEEK, NOW + timedelta(days=days)) == 0
    assert prune_trash(store, 6 * WEEK, NOW + timedelta(days=31)) == 0
    assert keys(store) == [version]
    # As names were before they told that.
    store.put(f"{TRASH}20261122T070000Z-0123456789abcdef/data/b", b"1")
    assert prune_trash(store, WEEK, NOW + WEEK) == 1
    assert prune_trash(store, WEEK, NOW + timedelta(days=30)) == 1


def test_a_killed_prune_is_done_again(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        lose(store, f"data/{number}")
    delete = LocalStore.delete_file
    gone: list[str] = []

    def killed(self: LocalStore, key: str, *more: Any) -> Any:
        if len(gone) == 2:
            raise KeyboardInterrupt
        gone.append(key)
        return delete(self, key, *more)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "delete_file", killed)
        with pytest.raises(KeyboardInterrupt):
            prune_trash(store, WEEK, NOW + WEEK)
    assert len(keys(store)) == 3
    assert prune_trash(store, WEEK, NOW + WEEK) == 3
    assert keys(store) == []


def test_a_prune_that_is_refused_says_so(store: ObjectStore, root: Path) -> None:
    lost = lose(store, "data/a")
    folder = (root / str(lost.version)).parent
    real = LocalStore.delete_file

    class Refusing(LocalStore):
        def delete_file(self, key: str, *more: Any) -> Any:
            outcome = real(self, key, *more)
            return type(outcome)(key, "failed", "AccessDenied", "no")

    with pytest.raises(StorageError, match=r"1 object could not be removed, .*/trash/"):
        prune_trash(Refusing(root, root.as_uri()), WEEK, NOW + WEEK)
    assert not folder.exists()


class Forgetful(LocalStore):
    """Says that it keeps what is deleted, and does not, or gives something else back."""

    back: bytes | None = None

    def recovery(self) -> Recovery:
        return Recovery("versions", 30, "versioning is enabled")

    def undelete_many(self, objects: Any) -> Any:
        if self.back is None:
            return super().undelete_many(objects)
        self.put(objects[0].key, self.back)
        return [type(one)(one.key, "restored") for one in super().undelete_many(objects)]


@pytest.mark.parametrize(("back", "words"), [(None, "not_kept"), (b"else", "another content")])
def test_settings_are_believed_only_after_they_were_tried(
    root: Path, back: bytes | None, words: str
) -> None:
    store = Forgetful(root, root.as_uri())
    store.back = back
    found = probe_recovery(store, "_lakefs/probe/", None)
    assert found.kind == "nothing"
    assert words in found.notice
    assert keys(store) == []
