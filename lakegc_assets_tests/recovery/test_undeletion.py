"""What a store says of an object that is to come back is believed only where a look shows it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import md5
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakegc_assets.recovery.journal import CopyVerifier
from lakegc_assets.recovery.undeletion import BackupCopies, bring_back, forecast
from lakegc_assets.storage.errors import PreconditionFailedError, StoreUnavailableError
from lakegc_assets.storage.local import LocalStore
from lakegc_assets.storage.values import Lost, ObjectInfo, Recovery, UndeleteOutcome

KEY = "data/a"
CONTENT = b"what was marked"


class Stale(LocalStore):
    """Its list of versions is older than the delete: it still shows the object."""

    def recovery(self) -> Recovery:
        return Recovery("versions", None, "as the test says")

    def undelete_many(self, objects: Sequence[Lost]) -> Sequence[UndeleteOutcome]:
        return [UndeleteOutcome(one.key, "already_there") for one in objects]


class Refusing(LocalStore):
    """Says that something is there, and writes nothing."""

    def copy_from(self, *_: Any, **__: Any) -> None:
        raise PreconditionFailedError("something is there")


class Unseen(Stale):
    """Cannot be looked at."""

    def head(self, key: str) -> ObjectInfo:  # noqa: ARG002 - it is the signature
        raise StoreUnavailableError("no answer")

    def list(self, *_: object, **__: object) -> Iterator[pa.RecordBatch]:
        raise StoreUnavailableError("no answer")


class Blinking(Stale):
    """Lists nothing, and of one object it does not answer."""

    def head(self, key: str) -> ObjectInfo:
        if key == KEY:
            raise StoreUnavailableError("no answer")
        return super().head(key)

    def list(self, *_: object, **__: object) -> Iterator[pa.RecordBatch]:
        return iter(())


class Returning(Stale):
    """Says that the object is back, and leaves what a test says at its key."""

    left: bytes | None = None

    def undelete_many(self, objects: Sequence[Lost]) -> Sequence[UndeleteOutcome]:
        if self.left is not None:
            self.put(KEY, self.left)
        return [UndeleteOutcome(one.key, "restored") for one in objects]


def lost(etag: str = "e") -> list[Lost]:
    return [Lost(KEY, len(CONTENT), etag)]


def copies(folder: Path) -> BackupCopies:
    backup = LocalStore(folder / "backup", "file:///backup")
    return BackupCopies({KEY: backup.put(KEY, CONTENT)}, CopyVerifier(backup))


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    (tmp_path / "lake").mkdir()
    return tmp_path / "lake"


def test_what_a_stale_list_shows_is_copied(lake: Path, tmp_path: Path) -> None:
    store = Stale(lake, "file:///lake")
    (one,) = bring_back(store, lost(), None)
    assert (one.outcome, one.error_code) == ("failed", "NotThere")
    (one,) = bring_back(store, lost(), copies(tmp_path))
    assert (one.outcome, one.source) == ("restored", "backup")
    assert store.get(KEY) == CONTENT
    (one,) = bring_back(store, lost(), copies(tmp_path))
    assert (one.outcome, one.detail) == ("already_there", None)


@pytest.mark.parametrize("kind", [Refusing, LocalStore])
def test_what_refuses_a_copy_and_is_not_there_is_not_believed(
    lake: Path, tmp_path: Path, kind: type[LocalStore]
) -> None:
    """A conflict with another writer that wrote nothing either; or a link, which is no object."""
    store = kind(lake, "file:///lake")
    if kind is LocalStore:
        (lake / "data").mkdir()
        (lake / KEY).symlink_to("nowhere")
    (one,) = bring_back(store, lost(), copies(tmp_path))
    assert (one.outcome, one.error_code) == ("failed", "NotThere")
    assert "a read finds none" in str(one.detail)


def test_what_is_in_the_way_of_the_trash_is_no_object(lake: Path) -> None:
    store = LocalStore(lake, "file:///lake")
    etag = store.put(KEY, CONTENT)
    trash = "_lakefs/retention/gc/lakegc/trash/20260101T000000Z-168h-s/"
    (deleted,) = store.delete_many([KEY], trash=trash)
    (lake / "data").mkdir()
    (lake / KEY).symlink_to("nowhere")
    (one,) = bring_back(store, [Lost(KEY, len(CONTENT), etag, deleted.version)])
    assert (one.outcome, one.error_code) == ("failed", "NotThere")
    (lake / KEY).unlink()
    (one,) = bring_back(store, [Lost(KEY, len(CONTENT), etag, deleted.version)])
    assert one.outcome == "restored"


def test_what_cannot_be_looked_at_is_not_back(lake: Path) -> None:
    (one,) = bring_back(Unseen(lake, "file:///lake"), lost())
    assert one.outcome == "failed"
    assert one.detail is not None


@pytest.mark.parametrize("others", [1, 20], ids=["asked", "listed"])
def test_one_that_cannot_be_looked_at_says_nothing_of_the_others(lake: Path, others: int) -> None:
    store = Blinking(lake, "file:///lake")
    keys = [KEY, *(f"data/b{number}" for number in range(others))]
    objects = [Lost(key, len(CONTENT), store.put(key, CONTENT)) for key in keys]
    first, *rest = bring_back(store, objects)
    assert (first.outcome, "no answer" in str(first.detail)) == ("failed", True)
    assert {(one.outcome, one.detail) for one in rest} == {("already_there", None)}


@pytest.mark.parametrize(
    ("left", "told"), [(None, "it is missing again"), (CONTENT[:-1], "it came back with 14 bytes")]
)
def test_what_a_store_gives_back_otherwise_is_not_back(
    lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: bytes | None, told: str
) -> None:
    store = Returning(lake, "file:///lake")
    monkeypatch.setattr(Returning, "left", left)
    (one,) = bring_back(store, lost())
    assert (one.outcome, one.error_code) == ("failed", "NotVerified")
    assert str(one.detail).startswith(told)
    (one,) = bring_back(store, lost(), copies(tmp_path))
    assert one.outcome == ("restored" if left is None else "failed")
    assert store.get(KEY) == (left or CONTENT)


@pytest.mark.parametrize("there", [CONTENT, CONTENT[::-1], CONTENT[:-1]])
@pytest.mark.parametrize("known_by", ["the mark", "the backup", "nobody"])
def test_what_is_there_is_compared_in_size_and_checksum(
    lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bytes, known_by: str
) -> None:
    monkeypatch.setattr(
        LocalStore, "checksums", lambda self, key: {"md5": md5(self.get(key)).hexdigest()}
    )
    store = Stale(lake, "file:///lake")
    store.put(KEY, there)
    etag = md5(CONTENT).hexdigest() if known_by == "the mark" else "e"
    (one,) = bring_back(store, lost(etag), copies(tmp_path) if known_by == "the backup" else None)
    differs = len(there) != len(CONTENT) or (there != CONTENT and known_by != "nobody")
    assert one.outcome == "already_there"
    assert (one.detail or "").startswith("another object is there") is differs
    assert store.get(KEY) == there


class Summing(Stale):
    """Names the MD5 of each object, as S3 does for objects that no client and no KMS encrypted."""

    def checksums(self, key: str) -> Mapping[str, str]:
        return {"md5": md5(self.get(key)).hexdigest()}


@pytest.mark.parametrize("there", [CONTENT, CONTENT[::-1]])
@pytest.mark.parametrize("copied", [True, False])
def test_the_etag_of_an_encrypted_object_is_no_md5(
    lake: Path, tmp_path: Path, there: bytes, *, copied: bool
) -> None:
    """It looks like one. A copy in a backup that names no checksum shows what was marked."""
    store = Summing(lake, "file:///lake")
    store.put(KEY, there)
    (one,) = bring_back(store, lost("0" * 32), copies(tmp_path) if copied else None)
    assert one.outcome == "already_there"
    assert (one.detail is None) is (copied and there == CONTENT)
    if one.detail is not None:
        assert one.detail.startswith("another object is there: its md5 is ")
        assert "it is none if the marked object was encrypted with a key of KMS" in one.detail
    assert store.get(KEY) == there


def test_a_copy_that_changed_does_not_show_what_was_marked(lake: Path, tmp_path: Path) -> None:
    store = Summing(lake, "file:///lake")
    store.put(KEY, CONTENT)
    known = copies(tmp_path)
    known.proof.store.put(KEY, CONTENT)
    (one,) = bring_back(store, lost("0" * 32), known)
    assert str(one.detail).startswith("another object is there")


class Silent(Stale):
    """Tells no checksum of what is there."""

    def checksums(self, key: str) -> Mapping[str, str]:
        raise StoreUnavailableError(f"no answer for {key}")


def test_what_cannot_be_compared_is_not_said_to_be_the_marked_object(lake: Path) -> None:
    store = Silent(lake, "file:///lake")
    store.put(KEY, CONTENT)
    (one,) = bring_back(store, lost(md5(CONTENT).hexdigest()))
    assert one.outcome == "already_there"
    assert str(one.detail).startswith("it is not known whether it is the marked object: no answer")


class Forgetful(LocalStore):
    """Keeps nothing today; what it kept earlier comes back, if it is asked."""

    def recovery(self) -> Recovery:
        return Recovery("nothing", None, "as the test says")

    def undelete_many(self, objects: Sequence[Lost]) -> Sequence[UndeleteOutcome]:
        for one in objects:
            self.put(one.key, CONTENT[::-1])
        return [UndeleteOutcome(one.key, "restored") for one in objects]


def test_a_store_that_keeps_nothing_is_asked_for_what_has_no_copy(
    lake: Path, tmp_path: Path
) -> None:
    store = Forgetful(lake, "file:///lake")
    objects = [Lost(key, len(CONTENT), "e") for key in ("data/b", KEY, "data/c")]
    found = bring_back(store, objects, copies(tmp_path))
    assert [(one.key, one.outcome, one.source) for one in found] == [
        ("data/b", "restored", "store"),
        (KEY, "restored", "backup"),
        ("data/c", "restored", "store"),
    ]


def test_what_a_backup_is_said_to_give_back_it_gives_back(lake: Path, tmp_path: Path) -> None:
    store = LocalStore(lake, "file:///lake")
    known = copies(tmp_path)
    backup = known.proof.store
    etags = {key: backup.put(key, CONTENT) for key in (KEY, "changed", "cut", "gone")}
    backup.put("changed", CONTENT[::-1])
    backup.put("cut", CONTENT[:-1])
    backup.delete_many(["gone"])
    objects = [Lost(key, len(CONTENT), "e") for key in (*etags, "never copied")]
    told = forecast(store, objects, BackupCopies(etags, known.proof))
    lacks = "its copy in the backup is"
    assert [(one.verdict, one.why) for one in told] == [
        ("backup", ""),
        ("lost", f"{lacks} not the one that was verified"),
        ("lost", f"{lacks} not the one that was verified"),
        ("lost", f"{lacks} gone"),
        ("lost", "it is not in the trash: it was pruned, or never moved there"),
    ]
    silent = Unseen(tmp_path / "backup", "file:///backup")
    asked = forecast(store, objects, BackupCopies(etags, CopyVerifier(silent)))
    assert [one.verdict for one in asked] == ["not_known"] * 4 + ["lost"]
    assert asked[0].why.startswith("the backup could not be read: ")
    found = bring_back(store, objects, BackupCopies(etags, known.proof))
    assert [one.outcome == "restored" for one in found] == [one.verdict == "backup" for one in told]
