"""Keys as paths below a directory, and errors of the operating system as those of a store.

Keys are reached through directory descriptors that are opened one by one without following symbolic
links, so no key leads out of the root, whatever changes meanwhile.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from operator import itemgetter
from os import scandir
from pathlib import Path
from typing import IO, Final

from lakegc_assets.storage.errors import (
    AccessDeniedError,
    InvalidKeyError,
    ObjectNotFoundError,
    StorageError,
    StoreFullError,
)
from lakegc_assets.storage.files import (
    TEMPORARY,
    etag_of,
    is_utf8,
    open_directories,
    path_problem,
)
from lakegc_assets.storage.values import KeyRange, ObjectInfo

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class LocalRoot:
    """A directory whose files are objects; it need not exist. ``url`` is that of its store."""

    path: Path
    url: str

    def at(self, key: str) -> str:
        """The words for an object in messages."""
        return f"{self.url}: the object {key!r}"

    def segments(self, key: str) -> Sequence[str]:
        """The path components of a key that names exactly one file. Raises InvalidKeyError."""
        if problem := path_problem(key):
            raise InvalidKeyError(f"{self.url}: the key {key!r} cannot name a file: {problem}")
        return key.split("/")

    @contextmanager
    def errors(self, key: str) -> Iterator[None]:
        """Turn what the operating system says into the store's errors."""
        try:
            yield
        except OSError as error:
            where = f"{self.at(key)}: {error.strerror or error}"
            if isinstance(error, PermissionError):
                raise AccessDeniedError(
                    f"{where}: let user {os.geteuid()} read and write it"
                ) from error
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                raise StoreFullError(
                    f"{where}: make room there, or choose another place"
                ) from error
            if error.errno == errno.ENAMETOOLONG:
                raise InvalidKeyError(f"{where}: this file system cannot hold it") from error
            if isinstance(error, IsADirectoryError):
                raise InvalidKeyError(
                    f"{where}: a file cannot be an object and hold others"
                ) from error
            if isinstance(error, NotADirectoryError):
                raise InvalidKeyError(
                    f"{where}: a part of its path is an object or a symbolic link, not a directory"
                ) from error
            if error.errno == errno.EFBIG:
                raise StorageError(f"{where}: choose another place") from error
            raise StorageError(where) from error

    def open(self, key: str) -> IO[bytes]:
        """Open an object for reading; what is no regular file is no object.

        Raises:
            ObjectNotFoundError: there is none.
        """
        *parents, name = self.segments(key)
        with ExitStack() as stack, self.errors(key):
            try:
                directory = open_directories(stack, self.path, parents, create=False)[-1]
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
                descriptor = os.open(name, flags, dir_fd=directory)
            except (FileNotFoundError, NotADirectoryError):
                descriptor = -1
            except OSError as error:
                if error.errno not in {errno.ELOOP, errno.ENXIO}:
                    raise
                descriptor = -1
            if descriptor >= 0 and not stat.S_ISREG(os.fstat(descriptor).st_mode):
                os.close(descriptor)
                descriptor = -1
        if descriptor < 0:
            raise ObjectNotFoundError(f"{self.at(key)} does not exist")
        return os.fdopen(descriptor, "rb")

    def entries(self, directory: str, wanted: KeyRange) -> Sequence[tuple[str, ObjectInfo | None]]:
        """The entries of one directory in a range, in the byte order of the keys below it.

        The ``/`` at the end of a subdirectory's key is what puts ``a-b`` before ``a/b``. Whatever
        vanishes meanwhile was deleted, and is left out.
        """
        found: list[tuple[str, ObjectInfo | None]] = []
        segments = self.segments(directory[:-1]) if directory else []
        with ExitStack() as stack, self.errors(directory):
            try:
                descriptor = open_directories(stack, self.path, segments, create=False)[-1]
            except (FileNotFoundError, NotADirectoryError):
                if segments or not self.path.exists():
                    return []
                raise
            for entry in stack.enter_context(scandir(descriptor)):
                name = entry.name
                if name.startswith(TEMPORARY):
                    continue
                if not is_utf8(name):
                    raise StorageError(
                        f"{self.url}: the file name {os.fsencode(directory + name)!r} is not "
                        "UTF-8, so it cannot be a key: rename or remove it"
                    )
                if entry.is_dir(follow_symlinks=False):
                    if wanted.may_hold_below(f"{directory}{name}/"):
                        found.append((f"{directory}{name}/", None))
                elif entry.is_file(follow_symlinks=False) and f"{directory}{name}" in wanted:
                    with suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        found.append((f"{directory}{name}", info_of(f"{directory}{name}", status)))
        return sorted(found, key=itemgetter(0))

    def walk(self, directory: str, wanted: KeyRange) -> Iterator[ObjectInfo]:
        """The objects of a directory, and of those below it, in a range, in byte order."""
        for key, info in self.entries(directory, wanted):
            if info is None:
                yield from self.walk(key, wanted)
            else:
                yield info


def time_of(status: os.stat_result) -> datetime:
    """The time of the last change of a file, to the microsecond, UTC."""
    return _EPOCH + timedelta(microseconds=status.st_mtime_ns // 1000)


def info_of(key: str, status: os.stat_result) -> ObjectInfo:
    """Size, time and etag of the object that is a file."""
    return ObjectInfo(key, status.st_size, time_of(status), etag_of(status))
