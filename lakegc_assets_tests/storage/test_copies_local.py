"""Copies between local files: who copies, what they share, and what changes meanwhile."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lakegc_assets.storage import files
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.copies import copy_object
from lakegc_assets.storage.errors import AccessDeniedError, ChangedError, StorageError
from lakegc_assets.storage.opening import open_store

_DATA = b"0123456789" * 1000


@pytest.fixture
def stores(tmp_path: Path) -> tuple[ObjectStore, ObjectStore]:
    one, other = open_store(str(tmp_path / "one")), open_store(str(tmp_path / "other"))
    one.put("k", _DATA)
    return one, other


def copy(stores: tuple[ObjectStore, ObjectStore], *, if_absent: bool = False) -> None:
    source, target = stores
    info = source.head("k")
    copy_object(source, "k", target, "k", size=info.size, etag=info.etag, if_absent=if_absent)


def refusing(number: int) -> Callable[..., int]:
    def call(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    return call


@pytest.mark.parametrize("if_absent", [False, True])
def test_a_copy_survives_a_change_of_the_source_in_place(
    stores: tuple[ObjectStore, ObjectStore], tmp_path: Path, *, if_absent: bool
) -> None:
    copy(stores, if_absent=if_absent)
    with (tmp_path / "one" / "k").open("r+b") as file:
        file.write(b"changed")
    assert stores[1].get("k") == _DATA
    assert (tmp_path / "other" / "k").stat().st_nlink == 1


@pytest.mark.parametrize("number", [errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL])
def test_where_files_cannot_share_bytes_they_are_sent(
    stores: tuple[ObjectStore, ObjectStore], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(files, "copy_file_range", refusing(number))
    copy(stores)
    assert stores[1].get("k") == _DATA


@pytest.mark.parametrize(
    ("number", "kind", "told"),
    [
        (errno.ENOSPC, StorageError, "other.*make room"),
        (errno.EDQUOT, StorageError, "other.*make room"),
        (errno.EROFS, StorageError, "other.*mount it"),
        (errno.EMFILE, StorageError, "other.*ulimit -n"),
        (errno.EIO, StorageError, "other"),
        (errno.EACCES, AccessDeniedError, "other"),
    ],
)
def test_what_the_target_refuses_leaves_nothing(
    stores: tuple[ObjectStore, ObjectStore],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    number: int,
    kind: type[StorageError],
    told: str,
) -> None:
    monkeypatch.setattr(files, "copy_file_range", refusing(number))
    with pytest.raises(kind, match=told):
        copy(stores)
    assert not stores[1].exists("k")
    assert list((tmp_path / "other").iterdir()) == []


@pytest.mark.parametrize("change", [b"y", None])
def test_a_source_that_changes_while_it_is_copied_is_found_out(
    stores: tuple[ObjectStore, ObjectStore],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    change: bytes | None,
) -> None:
    path, share = tmp_path / "one" / "k", os.copy_file_range

    def changing(source: int, target: int, count: int) -> int:
        if change is None:
            os.truncate(path, 10)
        else:
            with path.open("r+b") as file:
                file.write(change)
        return share(source, target, count)

    monkeypatch.setattr(files, "copy_file_range", changing)
    with pytest.raises(ChangedError, match="one"):
        copy(stores)
    assert list((tmp_path / "other").iterdir()) == []


def test_a_copy_that_is_cut_short_is_none(
    stores: tuple[ObjectStore, ObjectStore], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(files, "copy_file_range", lambda *_: 0)
    with pytest.raises(StorageError, match="could not be copied"):
        copy(stores)
    assert list((tmp_path / "other").iterdir()) == []


def test_a_source_that_changes_while_it_is_read_is_found_out(
    stores: tuple[ObjectStore, ObjectStore], tmp_path: Path
) -> None:
    source = stores[0]
    path = tmp_path / "one" / "k"
    with source.stream("k") as pieces:
        next(pieces)
        with path.open("ab") as file:
            file.write(b"more")
        with pytest.raises(ChangedError, match="one"):
            list(pieces)


def test_a_target_that_cannot_be_written_is_named(
    stores: tuple[ObjectStore, ObjectStore],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "fsync", refusing(errno.EDQUOT))
        with pytest.raises(StorageError, match=r"other.*make room"):
            stores[1].put_stream("x", [b"1"], 1)
    assert not stores[1].exists("x")
    stores[1].put_stream("x", [b"1"], 1)
