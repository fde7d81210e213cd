"""Local files as an object store: a crash or another process never leaves a partial write.

A key is a path below the root, see ``local_root``. A write goes to a hidden file in the same
directory, is synced, and gets its name by a rename or a hard link; directories are synced, too.
Each operation that replaces or removes a file holds an exclusive ``flock`` on its directory for
that moment.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from itertools import islice
from os import unlink
from pathlib import Path
from typing import IO, Final

import pyarrow as pa

from lakegc_assets.errors import ConfigurationError
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.bulk import Deadline
from lakegc_assets.storage.errors import (
    EXPIRED,
    ChangedError,
    PreconditionFailedError,
    StorageError,
    StoreUnavailableError,
)
from lakegc_assets.storage.files import (
    Original,
    etag_of,
    flush,
    info_of,
    link_new,
    locked,
    make_unique,
    open_directories,
    path_problem,
    remove_empty,
    remove_if_there,
    replace,
    share,
    temporary_name,
    time_of,
)
from lakegc_assets.storage.streams import Pieces, counted
from lakegc_assets.storage.trash import LocalTrash, code_of
from lakegc_assets.storage.values import (
    HELD_BY_LINKS,
    Copied,
    CopyRequest,
    DeleteOutcome,
    KeyRange,
    ObjectInfo,
    Prefixes,
    to_batch,
)

_BATCH_ROWS: Final = 10_000
# The most attempts of a put whose empty directory a concurrent delete removes.
_PUT_TRIES: Final = 1000


class LocalStore(LocalTrash):
    """The files below a directory, which need not exist until the first write.

    Symbolic links below it are neither followed nor listed. ``put_if_match`` is refused if the file
    system cannot lock directories, as on NFS.
    """

    watches_deadlines = True

    @property
    def url(self) -> str:
        return self._url

    def path_of(self, key: str) -> Path:
        """The file of a key, for callers that read it by other means."""
        return self._root.path / key

    def __repr__(self) -> str:
        return f"LocalStore({self._url!r}, root={str(self._root.path)!r})"

    def list(
        self, prefix: str = "", start_after: str | None = None, end_before: str | None = None
    ) -> Iterator[pa.RecordBatch]:
        """See ``ObjectStore``. Memory grows with the largest single directory."""
        parent = prefix[: prefix.rfind("/") + 1]
        if parent and path_problem(parent[:-1]):
            return
        found = self._root.walk(parent, KeyRange(prefix, start_after, end_before))
        while page := list(islice(found, _BATCH_ROWS)):
            yield to_batch(page)

    def list_prefixes(self, prefix: str = "", max_objects: int | None = None) -> Prefixes:
        """See ``ObjectStore``. Directories without an object do not count."""
        parent = prefix[: prefix.rfind("/") + 1]
        found = Prefixes([], [])
        if parent and path_problem(parent[:-1]):
            return found
        for key, info in self._root.entries(parent, KeyRange(prefix)):
            if info is not None:
                found.objects.append(info)
                if max_objects is not None and len(found.objects) > max_objects:
                    break
            elif key.startswith(prefix) and next(self._root.walk(key, KeyRange()), None):
                found.prefixes.append(key)
        return found

    def get(self, key: str) -> bytes:
        with self._root.open(key) as file:
            return file.read()

    def head(self, key: str) -> ObjectInfo:
        with self._root.open(key) as file:
            return info_of(key, os.fstat(file.fileno()))

    def put(self, key: str, data: bytes) -> str:
        return self._write(key, lambda file: file.write(data), replace)

    def put_if_absent(self, key: str, data: bytes) -> str:
        return self._write(key, lambda file: file.write(data), self._new(key))

    def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        def publish(directory: int, temporary: str, name: str) -> None:
            try:
                present = etag_of(os.lstat(name, dir_fd=directory))
            except FileNotFoundError:
                raise PreconditionFailedError(
                    f"{self._root.at(key)} does not exist, its etag was expected to be {etag}"
                ) from None
            if present != etag:
                raise PreconditionFailedError(
                    f"{self._root.at(key)} has the etag {present}, {etag} was expected"
                )
            replace(directory, temporary, name)

        return self._write(key, lambda file: file.write(data), publish, lock_required=True)

    def delete_many(
        self,
        keys: Iterable[str],
        etags: Mapping[str, str] | None = None,
        *,
        singly: bool = False,  # noqa: ARG002 - each file is deleted for itself
        expires_s: float | None = None,
        since: datetime | None = None,
        trash: str | None = None,
    ) -> Sequence[DeleteOutcome]:
        """See ``ObjectStore``. Directories that become empty are removed, too, but never the root.

        No store keeps the deadline: this process checks it before it removes a file. If the process
        is suspended between the two, it removes that file late.

        A writer without a lock on the directory, such as lakeFS, can write between the check of a
        file's etag and its removal, which follows at once.
        """
        deadline = None if expires_s is None else Deadline.after(expires_s, since)
        return [
            self.delete_file(key, None if etags is None else etags[key], deadline, trash)
            for key in dict.fromkeys(keys)
        ]

    @contextmanager
    def stream(self, key: str, etag: str | None = None) -> Iterator[Pieces]:
        """See ``ObjectStore``. If a file changes during the read, its end raises an error."""
        with self.opened(key, etag) as original:

            def pieces() -> Iterator[bytes]:
                with self._root.errors(key):
                    yield from original.pieces()

            yield Pieces(pieces())

    def put_stream(
        self, key: str, pieces: Iterable[bytes], size: int, *, if_absent: bool = False
    ) -> Copied:
        def fill(file: IO[bytes]) -> None:
            for piece in counted(pieces, size, self._root.at(key)):
                file.write(piece)

        return Copied(self._write(key, fill, self._new(key) if if_absent else replace), "size")

    def copy_from(
        self, source: ObjectStore, source_key: str, key: str, asked: CopyRequest
    ) -> Copied | None:
        """See ``ObjectStore``. The copy is independent of later changes to the source."""
        if not isinstance(source, LocalStore):
            return None
        with source.opened(source_key, asked.etag) as original:
            size = original.require().st_size
            if size != asked.size:
                raise ChangedError(f"{original.where} has {size} bytes, {asked.size} were expected")
            publish = self._new(key) if asked.if_absent else replace
            return Copied(
                self._write(key, lambda file: original.copy_to(file.fileno()), publish), "size"
            )

    @contextmanager
    def opened(self, key: str, etag: str | None) -> Iterator[Original]:
        """Open an object that must have an etag, or any object at the key."""
        with self._root.open(key) as file:
            original = Original(file, etag or etag_of(os.fstat(file.fileno())), self._root.at(key))
            original.require()
            yield original

    def _new(self, key: str) -> Callable[[int, str, str], None]:
        """The function that publishes a write under a name that no file has."""

        def publish(directory: int, temporary: str, name: str) -> None:
            try:
                link_new(directory, temporary, name)
            except FileExistsError:
                raise PreconditionFailedError(f"{self._root.at(key)} exists already") from None

        return publish

    def server_time(self) -> datetime:
        """See ``ObjectStore``: the clock by which the file system stamps files."""
        name = self._root.path / temporary_name()
        with self._root.errors(str(name)):
            try:
                descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            except FileNotFoundError:
                raise ConfigurationError(
                    f"{self._url}: the directory {self._root.path} does not exist: check the "
                    "URL, or mount its file system"
                ) from None
            try:
                return time_of(os.fstat(descriptor))
            finally:
                os.close(descriptor)
                name.unlink()

    def _write(
        self,
        key: str,
        fill: Callable[[IO[bytes]], object],
        publish: Callable[[int, str, str], None],
        *,
        lock_required: bool = False,
    ) -> str:
        """Write a hidden file and publish it under its name, all or nothing. Returns the etag."""
        *parents, name = self._root.segments(key)
        for _ in range(_PUT_TRIES):
            with ExitStack() as stack, self._root.errors(key):
                temporary = temporary_name()
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
                try:
                    directory = open_directories(stack, self._root.path, parents, create=True)[-1]
                    descriptor = os.open(temporary, flags, 0o666, dir_fd=directory)
                except FileNotFoundError:
                    continue
                # From here on the hidden file keeps a delete from removing the directory.
                stack.callback(remove_if_there, directory, temporary)
                with os.fdopen(descriptor, "wb") as file:
                    fill(file)
                    file.flush()
                    make_unique(descriptor)
                    # After ``make_unique``, which only the owner of a file may call.
                    share(directory, descriptor)
                    flush(descriptor)
                    etag = etag_of(os.fstat(descriptor))
                with locked(directory, required=lock_required):
                    publish(directory, temporary, name)
                flush(directory)
                return etag
        raise StoreUnavailableError(
            f"{self._root.at(key)}: another process removes its directory again and again: end "
            "that process, or run again later"
        )

    def delete_file(
        self, key: str, etag: str | None, deadline: Deadline | None, trash: str | None
    ) -> DeleteOutcome:
        """Delete one key. See ``ObjectStore.delete_many``."""
        if deadline is not None and deadline.passed:
            return _expired(key)
        version = None if trash is None else trash + key
        try:
            *parents, name = self._root.segments(key)
            with ExitStack() as stack, self._root.errors(key):
                try:
                    directories = open_directories(stack, self._root.path, parents, create=False)
                    with locked(directories[-1], required=False):
                        status = os.lstat(name, dir_fd=directories[-1])
                        if outcome := _kept(key, status, etag, deadline):
                            return outcome
                        if version is None:
                            unlink(name, dir_fd=directories[-1])
                        else:
                            self.take(directories[-1], name, version)
                except (FileNotFoundError, NotADirectoryError):
                    return DeleteOutcome(key, "already_missing")
                remove_empty(directories, parents)
            held = HELD_BY_LINKS if version is None and status.st_nlink > 1 else None
            return DeleteOutcome(key, "deleted", detail=held, version=version)
        except StorageError as error:
            return DeleteOutcome(key, "failed", code_of(error), str(error))


def _kept(
    key: str, status: os.stat_result, etag: str | None, deadline: Deadline | None
) -> DeleteOutcome | None:
    """The outcome that prevents the removal of a file, or None."""
    if stat.S_ISDIR(status.st_mode):
        return DeleteOutcome(key, "already_missing")
    if not stat.S_ISREG(status.st_mode):
        detail = "it is not a regular file: inspect it and remove it by hand"
        return DeleteOutcome(key, "failed", "InvalidKey", detail)
    if etag is not None and etag_of(status) != etag:
        detail = f"it has the etag {etag_of(status)}, {etag} was expected"
        return DeleteOutcome(key, "spared", None, detail)
    if deadline is not None and deadline.passed:
        return _expired(key)
    return None


def _expired(key: str) -> DeleteOutcome:
    return DeleteOutcome(
        key, "failed", EXPIRED, "its deadline is over, and it was not removed: run again"
    )
