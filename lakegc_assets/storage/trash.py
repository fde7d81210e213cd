"""The trash of local stores: deleted files, moved aside on their file system until a prune.

``TRASH`` holds one folder for each sweep, named after the sweep's start; below it each file keeps
its key. A move is one rename, so a file is always either at its key or in the trash. A restore
makes a hard link, which never replaces a file. A file that this user may not link is therefore not
moved.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from datetime import datetime, timedelta, timezone
from os import geteuid, link, rename, unlink
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import AccessDeniedError, StorageError
from lakegc_assets.storage.files import (
    LocalRoot,
    etag_of,
    flush,
    locked,
    may_be_moved,
    open_directories,
    remove_empty,
    temporary_name,
)
from lakegc_assets.storage.removal import remove_objects
from lakegc_assets.storage.values import Lost, Recovery, Retained, UndeleteOutcome

#: The most attempts to move a file into the trash, or to restore it.
_TRIES: Final = 1000
#: Key prefix of all trash, below the storage namespace.
TRASH: Final = "_lakefs/retention/gc/lakegc/trash/"
_STAMP: Final = "%Y%m%dT%H%M%SZ"
_FOLDER: Final = re.compile(rf"{TRASH}(\d{{8}}T\d{{6}}Z)-(?:(\d{{1,7}})h-)?[^/]+/")
_HOUR: Final = timedelta(hours=1)


def trash_folder(sweep: str, now: datetime, stays: timedelta = timedelta(0)) -> str:
    """The key prefix for the deletes of a sweep that began ``now``, by the store's clock.

    It promises to keep them for ``stays``, also from a prune with another setting.
    """
    hours = -(-stays // _HOUR)
    return f"{TRASH}{now.astimezone(timezone.utc).strftime(_STAMP)}-{hours}h-{sweep}/"


def old_trash(store: ObjectStore, older_than: timedelta, now: datetime) -> list[str]:
    """The folders of sweeps that began ``older_than`` before ``now``, and whose promise is over."""
    folders = []
    for folder in store.list_prefixes(TRASH).prefixes:
        named = _FOLDER.fullmatch(folder)
        if named is None:
            continue
        began = datetime.strptime(named[1], _STAMP).replace(tzinfo=timezone.utc)
        if now - began >= max(older_than, int(named[2] or 0) * _HOUR):
            folders.append(folder)
    return folders


def remove_trash(
    store: ObjectStore,
    folder: str,
    stays: Callable[[pa.Array], pa.Array],
    require: Callable[[], None],
) -> int:
    """Remove a folder of the trash, except addresses for which ``stays`` is True; return the count.

    ``require`` raises if nothing may be removed; see ``remove_objects``.
    """
    removed = 0
    for batch in store.list(folder):
        addresses = addresses_in(batch, folder)
        keys = batch["key"].filter(pc.invert(stays(addresses))).to_pylist()
        remove_objects(store, keys, require)
        removed += len(keys)
    return removed


def addresses_in(batch: pa.RecordBatch, folder: str) -> pa.Array:
    """The original addresses of the objects in a listing of a folder of the trash."""
    return pc.utf8_slice_codeunits(batch["key"], len(folder))


class LocalTrash(ObjectStore):
    """The files below a directory, including the trash."""

    def __init__(self, root: Path, url: str) -> None:
        self._root = LocalRoot(root, url)
        self._url = url

    def recovery(self) -> Recovery:
        notice = f"{self._url}: deleted files are moved into {TRASH}, and take up space there until"
        return Recovery("trash", None, f"{notice} they are pruned")

    def retained(self, prefix: str = "") -> Retained:
        """See ``ObjectStore``: the files that were moved into the trash from below the prefix."""
        folders = self.list_prefixes(TRASH).prefixes
        pages = (page for folder in folders for page in self.list(f"{folder}{prefix}"))
        return Retained.counting(
            (size, False, None) for p in pages for size in p["size"].to_pylist()
        )

    def _bring_back(self, objects: Sequence[Lost], *, dry_run: bool) -> Sequence[UndeleteOutcome]:
        """Restore the names and etags of files."""
        return [self.undelete_file(one, dry_run=dry_run) for one in objects]

    def undelete_file(self, lost: Lost, *, dry_run: bool) -> UndeleteOutcome:
        """Restore one file from the trash. See ``ObjectStore.undelete_many``."""
        try:
            with self._root.errors(lost.key):
                return self._one_back(lost, dry_run=dry_run)
        except StorageError as error:
            return UndeleteOutcome(lost.key, "failed", code_of(error), str(error))

    def take(self, directory: int, name: str, trash_key: str) -> None:
        """Move a file of a locked directory into the trash; after any error it stays at its key."""
        for _ in range(_TRIES):
            os.lstat(name, dir_fd=directory)
            try:
                # A prune may remove empty directories of the trash.
                with suppress(FileNotFoundError):
                    self._move(directory, name, trash_key)
                    return
            except NotADirectoryError as error:
                raise StorageError(
                    f"{self._url}: {trash_key!r} cannot be in the trash: a part of its path is a "
                    "file there. Remove that file, or set trash_days to 0"
                ) from error
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                raise StorageError(
                    f"{self._url}: {TRASH} is on another file system than the objects: keep them "
                    "on one, or set trash_days to 0"
                ) from error
        raise self._removed_again(trash_key)

    def _move(self, directory: int, name: str, trash_key: str) -> None:
        *parents, target = self._root.segments(trash_key)
        foreign = os.lstat(name, dir_fd=directory).st_uid != geteuid()
        with ExitStack() as stack:
            folder = open_directories(stack, self._root.path, parents, create=True)[-1]
            with suppress(FileNotFoundError):
                os.lstat(target, dir_fd=folder)
                raise StorageError(
                    f"{self._url}: {trash_key!r} is in the trash already, so the file stays at "
                    "its key: the sweep of a later mark can move it"
                )
            if foreign:
                self._require_linkable(directory, name, folder)
            rename(name, target, src_dir_fd=directory, dst_dir_fd=folder)

    def _require_linkable(self, directory: int, name: str, folder: int) -> None:
        """Refuse a file of another user that this user may not link, so could not restore.

        A process that is killed here leaves a hidden second name of the file in the trash.
        """
        trial = temporary_name()
        try:
            link(name, trial, src_dir_fd=directory, dst_dir_fd=folder)
        except PermissionError as error:
            raise AccessDeniedError(
                f"{self._url}: {TRASH} could take {name!r}, which another user owns, but user "
                f"{geteuid()} could not restore it, since it may not link it "
                "(fs.protected_hardlinks). Collect as the user that owns the objects, or let this "
                "one write them; or set trash_days to 0"
            ) from error
        unlink(trial, dir_fd=folder)

    def _one_back(self, lost: Lost, *, dry_run: bool) -> UndeleteOutcome:
        """Restore a file at a free key, or check if it could be restored. Raises StorageError."""
        for _ in range(_TRIES):
            # Concurrent calls remove directories that a delete has emptied, and old trash.
            with suppress(FileNotFoundError):
                found, why = self._found(lost)
                if found is not None and not dry_run:
                    return self._link(lost.key, found)
                if self._status(lost.key) is not None:
                    return UndeleteOutcome(lost.key, "already_there")
                if found is not None:
                    return UndeleteOutcome(lost.key, "restored")
                return UndeleteOutcome(lost.key, "not_kept", None, why)
        raise self._removed_again(lost.key)

    def _removed_again(self, key: str) -> StorageError:
        return StorageError(
            f"{self._url}: another process removes the directory of {key!r} again and again: end "
            "that process, or run again later"
        )

    def _found(self, lost: Lost) -> tuple[str | None, str]:
        """The trash key of an object; or None, and the reason."""
        why = "it is not in the trash: it was pruned, or never moved there"
        moved: list[str] = []
        for trash_key in self._places(lost):
            found = self._etag(trash_key)
            if found == lost.etag:
                return trash_key, ""
            if found is None:
                continue
            why = f"{trash_key!r} has the etag {found}, {lost.etag} was expected"
            if may_be_moved(lost.etag, found):
                moved.append(trash_key)
        # The namespace was moved to another disk with its trash, so files have other inodes.
        return (moved[0], "") if len(moved) == 1 else (None, why)

    def _places(self, lost: Lost) -> list[str]:
        """The trash keys that may hold an object, the most probable ones first."""
        known = [lost.version] if lost.version and lost.version.endswith(f"/{lost.key}") else []
        folders: list[str] = []
        with ExitStack() as stack, suppress(FileNotFoundError):
            trash = open_directories(
                stack, self._root.path, TRASH.rstrip("/").split("/"), create=False
            )
            with os.scandir(trash[-1]) as entries:
                folders = sorted((entry.name for entry in entries), reverse=True)
        return list(dict.fromkeys([*known, *(f"{TRASH}{name}/{lost.key}" for name in folders)]))

    def _status(self, key: str) -> os.stat_result | None:
        *parents, name = self._root.segments(key)
        with ExitStack() as stack:
            try:
                folder = open_directories(stack, self._root.path, parents, create=False)[-1]
                return os.lstat(name, dir_fd=folder)
            except (FileNotFoundError, NotADirectoryError):
                return None

    def _etag(self, key: str) -> str | None:
        status = self._status(key)
        return etag_of(status) if status and stat.S_ISREG(status.st_mode) else None

    def _link(self, key: str, trash_key: str) -> UndeleteOutcome:
        *parents, name = self._root.segments(key)
        *trash_parents, trash_name = self._root.segments(trash_key)
        with ExitStack() as stack:
            folders = open_directories(stack, self._root.path, trash_parents, create=False)
            directory = open_directories(stack, self._root.path, parents, create=True)[-1]
            try:
                with locked(directory, required=False):
                    link(trash_name, name, src_dir_fd=folders[-1], dst_dir_fd=directory)
                flush(directory)
                outcome = UndeleteOutcome(key, "restored")
            except FileExistsError:
                present = os.lstat(name, dir_fd=directory)
                if stat.S_ISDIR(present.st_mode):
                    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR)) from None
                outcome = UndeleteOutcome(key, "already_there")
                # A killed call may have left the second name of a file that it restored.
                if present.st_ino != os.lstat(trash_name, dir_fd=folders[-1]).st_ino:
                    return outcome
            unlink(trash_name, dir_fd=folders[-1])
            remove_empty(folders, trash_parents)
            return outcome


def code_of(error: StorageError) -> str:
    """The code of an error for which no service gave a code."""
    return type(error).__name__.removesuffix("Error")
