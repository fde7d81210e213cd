"""Local files as objects below a directory: safe against crashes, other processes and users.

Keys are paths. They are reached through directory descriptors, opened one by one without following
symbolic links: so no key leads out of the root, even if directories change meanwhile.
"""

from __future__ import annotations

import errno
import json
import os
import random
import re
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from fcntl import LOCK_EX, LOCK_UN, flock
from operator import itemgetter
from os import copy_file_range, fsync, scandir
from pathlib import Path
from typing import IO, Any, Final

from lakegc_assets.errors import ConfigurationError
from lakegc_assets.graveler.namespace import is_utf8
from lakegc_assets.storage.errors import (
    AccessDeniedError,
    ChangedError,
    InvalidKeyError,
    ObjectNotFoundError,
    StorageError,
    StoreFullError,
)
from lakegc_assets.storage.streams import PIECE
from lakegc_assets.storage.values import KeyRange, ObjectInfo

TEMPORARY: Final = ".lakegc-tmp-"
#: Bytes that are copied at once, so that an interruption does not wait long.
_COPIED_AT_ONCE: Final = 2**26
# Errors if two file systems are involved, or one that cannot share bytes.
_CANNOT_SHARE: Final = frozenset({
    errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM,
})  # fmt: skip
#: Errors of the operating system, each with the store's error and advice.
_ERRORS: Final[Mapping[int, tuple[type[StorageError], str]]] = {
    errno.EACCES: (AccessDeniedError, f"let user {os.geteuid()} read and write it"),
    errno.EPERM: (AccessDeniedError, f"let user {os.geteuid()} read and write it"),
    errno.ENOSPC: (StoreFullError, "make room there, or choose another place"),
    errno.EDQUOT: (StoreFullError, "make room there, or choose another place"),
    errno.ENAMETOOLONG: (InvalidKeyError, "this file system cannot hold it"),
    errno.EISDIR: (InvalidKeyError, "a file cannot be an object and hold others"),
    errno.ENOTDIR: (
        InvalidKeyError, "a part of its path is an object or a symbolic link, not a directory"
    ),
    errno.EFBIG: (StorageError, "choose another place"),
    errno.EROFS: (StorageError, "mount it so that it can be written, or choose another place"),
    errno.EMFILE: (StorageError, "raise the limit of open files (`ulimit -n`)"),
    errno.ENFILE: (StorageError, "raise the limit of open files of this machine"),
}  # fmt: skip
#: The form of ``etag_of``: size and time, and the inode.
_ETAG: Final = re.compile(r"([0-9a-f]+-[0-9a-f]+)-[0-9a-f]+")
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)


def path_problem(key: str) -> str | None:
    """The reason that a key cannot name a file below a root, or None."""
    segments = key.split("/")
    if not key:
        return "it is empty"
    if not {"", ".", ".."}.isdisjoint(segments):
        return "it has an empty, '.' or '..' path component"
    if "\0" in key:
        return "it has a NUL"
    if not is_utf8(key):
        return "it is not UTF-8"
    if any(segment.startswith(TEMPORARY) for segment in segments):
        return f"names that start with {TEMPORARY!r} are those of unfinished writes"
    return None


def temporary_name() -> str:
    """A new name for an unfinished write; all of them start with ``TEMPORARY``."""
    return TEMPORARY + secrets.token_hex(8)


def flush(descriptor: int) -> None:
    """Return when a file, or the names in a directory, would survive a crash. Raises OSError."""
    fsync(descriptor)


def open_directories(
    stack: ExitStack, root: Path, segments: Sequence[str], *, create: bool
) -> Sequence[int]:
    """Open a root and each directory down from it. No link is followed below the root."""
    if create:
        _make_directories(root)
    descriptors = [os.open(root, os.O_RDONLY | os.O_DIRECTORY)]
    stack.callback(os.close, descriptors[0])
    for name in segments:
        parent, made = descriptors[-1], False
        try:
            descriptor = os.open(name, _DIRECTORY, dir_fd=parent)
        except FileNotFoundError:
            if not create:
                raise
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=parent)
                made = True
                flush(parent)
            descriptor = os.open(name, _DIRECTORY, dir_fd=parent)
        descriptors.append(descriptor)
        stack.callback(os.close, descriptor)
        if made:
            share(parent, descriptor)
    return descriptors


def share(directory: int, new: int) -> None:
    """Give a new file or directory the owner, group and access bits of its directory.

    lakeFS, which writes the other files, may run as another user than the restoring process. In a
    directory of this process's own user and group the umask decides.
    """
    above, own = os.fstat(directory), os.fstat(new)
    if (above.st_uid, above.st_gid) == (own.st_uid, own.st_gid):
        return
    # A change that the system or its file system refuses is skipped, so the umask decides.
    for owner in ((above.st_uid, -1), (-1, above.st_gid)):
        with suppress(OSError):
            os.fchown(new, *owner)
    allowed = 0o2777 if stat.S_ISDIR(own.st_mode) else 0o666
    with suppress(OSError):
        os.fchmod(new, stat.S_IMODE(own.st_mode) | (above.st_mode & allowed))


def remove_empty(directories: Sequence[int], segments: Sequence[str]) -> None:
    """Remove the empty directories of a path, by their names, from the last one up."""
    with suppress(OSError):
        for parent, child in zip(directories[-2::-1], reversed(segments), strict=True):
            os.rmdir(child, dir_fd=parent)


def make_unique(descriptor: int) -> None:
    """Give a new file a modification time, hence an etag, that no earlier file of its name had.

    File systems stamp files with a clock that ticks every few milliseconds, and reuse the inodes of
    deleted files. Random digits below the millisecond tell such files apart.
    """
    milliseconds = os.fstat(descriptor).st_mtime_ns // 1_000_000
    stamp = milliseconds * 1_000_000 + random.randrange(1_000_000)
    os.utime(descriptor, ns=(stamp, stamp))


def _make_directories(path: Path) -> None:
    """Make directories as ``mkdir -p``, so that they survive a crash of the machine."""
    if path.is_dir():
        return
    _make_directories(path.parent)
    path.mkdir(exist_ok=True)
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        flush(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(directory: int, *, required: bool) -> Iterator[None]:
    """Lock out every other writer of a directory, by its descriptor.

    filelock locks an extra file, which a directory of objects must not have. If a file system
    cannot lock directories, the operations that need a lock are refused, so the others need none.
    """
    try:
        flock(directory, LOCK_EX)
    except OSError as error:
        if required:
            raise ConfigurationError(
                f"this file system cannot lock a directory ({error.strerror}), as conditional "
                "writes need: keep the store on a local disk or in an object store"
            ) from error
        yield
        return
    try:
        yield
    finally:
        # Closing is not enough: a process forked meanwhile holds a copy of the descriptor.
        flock(directory, LOCK_UN)


def replace(directory: int, temporary: str, name: str) -> None:
    """Give an unfinished write its name, in place of the file that has it now."""
    os.replace(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)


def link_new(directory: int, temporary: str, name: str) -> None:
    """Give an unfinished write its name. Raises FileExistsError and IsADirectoryError."""
    try:
        os.link(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except FileExistsError:
        if stat.S_ISDIR(os.lstat(name, dir_fd=directory).st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR)) from None
        raise


@dataclass(frozen=True)
class Original:
    """An open file that is read while it has an etag; ``where`` names it in messages."""

    file: IO[bytes]
    etag: str
    where: str

    def require(self) -> os.stat_result:
        """Return its status. Raises ChangedError: it has another etag."""
        status = os.fstat(self.file.fileno())
        if etag_of(status) != self.etag:
            raise ChangedError(
                f"{self.where} has the etag {etag_of(status)}, {self.etag} was expected"
            )
        return status

    def pieces(self) -> Iterator[bytes]:
        """Yield its content. Raises ChangedError at the end, if it has changed meanwhile."""
        while piece := self.file.read(PIECE):
            yield piece
        self.require()

    def copy_to(self, target: int) -> None:
        """Copy it to a descriptor in the kernel, or share its bytes. Raises ChangedError."""
        source, left = self.file.fileno(), self.require().st_size
        copy: Callable[[int, int, int], int] = copy_file_range
        while left:
            try:
                done = copy(source, target, min(left, _COPIED_AT_ONCE))
            except OSError as error:
                if copy is _send or error.errno not in _CANNOT_SHARE:
                    raise
                copy = _send
                continue
            if not done:
                break
            left -= done
        self.require()
        if left:
            raise StorageError(f"{self.where}: {left} of its bytes could not be copied: run again")


def _send(source: int, target: int, count: int) -> int:
    return os.sendfile(target, source, None, count)


def etag_of(status: os.stat_result) -> str:
    """An etag that no two files at one key ever share."""
    return f"{status.st_size:x}-{status.st_mtime_ns:x}-{status.st_ino:x}"


def may_be_moved(etag: str, other: str) -> bool:
    """True if two etags are of files of one size and time, as after a move to another disk."""
    first, second = _ETAG.fullmatch(etag), _ETAG.fullmatch(other)
    return first is not None and second is not None and first[1] == second[1]


def remove_if_there(directory: int, temporary: str) -> None:
    """Remove the temporary file of a write, if it did not get its name."""
    with suppress(FileNotFoundError):
        os.unlink(temporary, dir_fd=directory)


def write_file(path: Path, content: bytes) -> None:
    """Write a file as a whole, or leave the old one. Raises ConfigurationError."""
    path = path.resolve()
    try:
        if path.exists() and not stat.S_ISREG(path.stat().st_mode):
            raise ConfigurationError(f"{path} is no file that could be replaced: name another path")
        # The usual mode of new files: other users may read it, if the umask allows.
        _write_atomically(path, content, 0o666)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error}") from error


def write_private_file(path: str | os.PathLike[str], content: str) -> None:
    """Write a file that only its owner can read, atomically. Raises OSError."""
    _write_atomically(Path(path), content.encode(), 0o600)


def _write_atomically(path: Path, content: bytes, mode: int) -> None:
    temporary = path.with_name(temporary_name())
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            flush(descriptor)
        temporary.replace(path)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def read_private_fields(path: str | os.PathLike[str], writer: str) -> dict[str, Any]:
    """Read the JSON object in a file of credentials that ``writer`` wrote.

    Raises ConfigurationError: it is damaged, cannot be read, or other users can read it.
    """
    path = Path(path)
    try:
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise ConfigurationError(f"others can read the credentials file {path}: chmod 600 it")
        text = path.read_text()
    except OSError as error:
        raise ConfigurationError(f"cannot read the credentials file {path}: {error}") from error
    with suppress(ValueError):
        content = json.loads(text)
        if isinstance(content, dict):
            return content
    # No error is chained: it could quote the content of the file.
    raise ConfigurationError(
        f"the credentials file {path} is damaged: write it again with {writer}"
    )


@dataclass(frozen=True)
class LocalRoot:
    """A directory whose files are objects; it need not exist. ``url`` is the URL of its store."""

    path: Path
    url: str

    def at(self, key: str) -> str:
        """The name of an object in messages."""
        return f"{self.url}: the object {key!r}"

    def segments(self, key: str) -> Sequence[str]:
        """The path components of a key that names exactly one file. Raises InvalidKeyError."""
        if problem := path_problem(key):
            raise InvalidKeyError(f"{self.url}: the key {key!r} cannot name a file: {problem}")
        return key.split("/")

    @contextmanager
    def errors(self, key: str) -> Iterator[None]:
        """Convert errors of the operating system into the store's errors."""
        try:
            yield
        except OSError as error:
            kind, advice = _ERRORS.get(
                error.errno or 0, (StorageError, "check the disk, its mount and the system's log")
            )
            raise kind(f"{self.at(key)}: {error.strerror or error}: {advice}") from error

    def open(self, key: str) -> IO[bytes]:
        """Open an object, which is a regular file, for reading. Raises ObjectNotFoundError."""
        *parents, name = self.segments(key)
        with ExitStack() as stack, self.errors(key):
            try:
                directory = open_directories(stack, self.path, parents, create=False)[-1]
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
                descriptor = os.open(name, flags, dir_fd=directory)
            except OSError as error:
                if error.errno not in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO}:
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

        A subdirectory's key ends in ``/``, which sorts ``a-b`` before ``a/b``. An entry that
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
    """Size, time and etag of the object in a file."""
    return ObjectInfo(key, status.st_size, time_of(status), etag_of(status))
