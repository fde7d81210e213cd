"""Copies whose etags are not the recorded ones come back where something proves what they are."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from hashlib import md5
from pathlib import Path
from typing import Any

import pytest

from lakegc_assets.errors import RefusedError
from lakegc_assets.recovery import backup_task, journal
from lakegc_assets.recovery.backup_creation import make_backup
from lakegc_assets.recovery.journal import CopyVerifier, Outcome
from lakegc_assets.recovery.restore.restored_set import restore
from lakegc_assets.recovery.restore.selection import Choice
from lakegc_assets.recovery.undeletion import BackupCopies, bring_back
from lakegc_assets.storage.errors import StorageError
from lakegc_assets.storage.files import may_be_moved
from lakegc_assets.storage.local import LocalStore
from lakegc_assets.storage.values import Lost
from lakegc_assets_tests.lake import REPOSITORY, RUN, Marked
from lakegc_assets_tests.recovery.conftest import Place, before_copies

ALL = Choice(everything=True)


def lose(place: Place, marked: Marked) -> dict[str, bytes]:
    """Delete what is marked, as a sweep does that looked at the backup before."""
    before = place.lake.contents(marked.candidates)
    for address in before:
        (place.lake.objects / address).unlink()
    return before


def test_what_a_suspended_maker_replaced_in_a_finished_backup(
    place: Place, marked: Marked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It verified its copies, too, and recorded them: which ones are read once."""
    begun: list[str] = []

    def beside(key: str) -> None:
        begun.append(key)
        if len(begun) == 1:
            assert make_backup(place.context()) is not None

    with monkeypatch.context() as patch:
        before_copies(patch, beside)
        patch.setattr(backup_task, "THREADS", 1)
        with pytest.raises(RefusedError, match="another process has finished"):
            make_backup(place.context())
    etags = dict(zip(*(place.copied[n].to_pylist() for n in ("address", "copy_etag")), strict=True))
    assert any(place.store.head(address).etag != etag for address, etag in etags.items())
    before = lose(place, marked)
    facts = restore(place.context(), ALL).facts
    assert facts["sources"] == {
        "backup": {"objects": len(before), "bytes": sum(map(len, before.values()))}
    }
    assert place.lake.contents(marked.candidates) == before


def test_a_backup_that_was_moved_to_another_disk(
    place: Place, marked: Marked, tmp_path: Path
) -> None:
    make_backup(place.context())
    shutil.copytree(place.url, tmp_path / "moved")
    shutil.rmtree(place.url)
    damaged = min(marked.candidates)
    copy = tmp_path / "moved" / REPOSITORY / RUN / damaged
    content = copy.read_bytes()
    copy.write_bytes(content[::-1])
    before = lose(place, marked)
    ctx = place.context(backup_url=str(tmp_path / "moved"))
    with pytest.raises(StorageError, match="1 object could not be restored and 0 were not tri"):
        restore(ctx, ALL)
    assert not (place.lake.objects / damaged).exists()
    copy.write_bytes(content)
    with pytest.raises(StorageError, match="1 object could not be restored") as raised:
        restore(ctx, ALL)
    # As it says, where times were lost on the way.
    there = place.lake.objects / damaged
    assert f"{damaged}: CopyChanged: file://{tmp_path}/moved/" in str(raised.value)
    assert (
        "Nothing proves that it is the verified copy. If you know that it is right, for example "
        f"since its backup was moved to another disk, copy file://{copy} to "
        f"local://{REPOSITORY}/{damaged} by hand, then restore again"
    ) in str(raised.value)
    there.write_bytes(content)
    restore(ctx, ALL)
    assert place.lake.contents(marked.candidates) == before


@pytest.mark.parametrize("named", [True, False])
def test_the_etag_of_the_object_proves_the_copy_where_it_is_its_md5(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, named: bool
) -> None:
    for folder in ("lake", "backup"):
        (tmp_path / folder).mkdir()
    store = LocalStore(tmp_path / "lake", "file:///lake")
    backup = LocalStore(tmp_path / "backup", "file:///backup")
    if named:
        monkeypatch.setattr(
            LocalStore, "checksums", lambda self, key: {"md5": md5(self.get(key)).hexdigest()}
        )
    content = b"what was marked"
    for key in ("same", "other", "longer"):
        backup.put(key, content)
    backup.put("other", b"WHAT WAS MARKED")
    backup.put("longer", content + b"!")
    checksum = md5(content).hexdigest()
    lost = [Lost(key, len(content), checksum) for key in ("same", "other", "longer", "none")]
    recorded = dict.fromkeys(("same", "other", "longer", "none"), "another")
    found = bring_back(store, lost, BackupCopies(recorded, CopyVerifier(backup)))
    told = [(one.outcome, one.error_code) for one in found]
    changed = ("failed", "CopyChanged")
    assert told == [("restored", None), changed, changed, ("failed", "CopyMissing")]
    assert store.get("same") == content
    assert [key for page in store.list() for key in page["key"].to_pylist()] == ["same"]


def _with_zeros(content: bytes) -> bytes:
    return content[:4] + bytes(100) + content[104:]


def _with_no_text(content: bytes) -> bytes:
    assert b"other" in content
    return content.replace(b"other", b"\xffther")


@pytest.mark.parametrize("damaged", [_with_zeros, _with_no_text])
def test_what_is_damaged_in_the_journal_proves_nothing(
    tmp_path: Path, damaged: Callable[[bytes], bytes]
) -> None:
    """Nor does it keep anything else from coming back."""
    for folder in ("lake", "backup"):
        (tmp_path / folder).mkdir()
    store = LocalStore(tmp_path / "lake", "file:///lake")
    backup = LocalStore(tmp_path / "backup", "file:///backup")
    etags = {key: backup.put(key, b"content") for key in ("same", "other")}
    told = [Outcome(key, 7, "etag", etag, "size", "copied") for key, etag in etags.items()]
    for batch in ("first", "second"):
        journal.record(backup, batch, told)
        file = tmp_path / f"backup/_lakegc/ledger/{batch}.parquet"
        file.write_bytes(damaged(file.read_bytes()))
    lost = [Lost(key, 7, "etag") for key in etags]
    copies = BackupCopies({**etags, "other": "another"}, CopyVerifier(backup))
    found = bring_back(store, lost, copies)
    results_of = [(one.outcome, one.error_code) for one in found]
    assert results_of == [("restored", None), ("failed", "CopyChanged")]


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"address": "other"},
        {"size": 8},
        {"etag": "another"},
        {"copy_etag": "another"},
        {"outcome": "failed"},
    ],
)
def test_only_a_record_of_this_very_copy_proves_it(tmp_path: Path, other: dict[str, Any]) -> None:
    backup = LocalStore(tmp_path, "file:///backup")
    etag = backup.put("same", b"content")
    told = Outcome("same", 7, "etag", etag, "size", "copied")
    beside = [told._replace(address=name, copy_etag="another") for name in ("a", "z")]
    journal.record(backup, "first", [beside[0], told._replace(**other), beside[1]])
    found = CopyVerifier(backup).etag(Lost("same", 7, "etag"), "recorded")
    assert found == (None if other else etag)


def test_only_files_of_one_size_and_time_may_be_moved_ones(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, "file:///x")
    etag = store.put("a", b"1")
    status = (tmp_path / "a").stat()
    shutil.copy2(tmp_path / "a", tmp_path / "b")
    moved = store.head("b").etag
    assert moved != etag
    assert may_be_moved(etag, moved)
    os.utime(tmp_path / "b", ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert not may_be_moved(etag, store.head("b").etag)
    (tmp_path / "b").write_bytes(b"12")
    os.utime(tmp_path / "b", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert not may_be_moved(etag, store.head("b").etag)
    for other in ("d41d8cd98f00b204e9800998ecf8427e-2", "0x8D", "17"):
        assert not may_be_moved(other, other)
