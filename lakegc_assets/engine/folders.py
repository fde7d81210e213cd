"""Folders of this machine: for data that is spilled to disk, and for caches.

The first are gone after the process that had them. One is locked (``flock``) as long as its process
lives. Who makes one removes those that nobody locks any more, which killed processes have left.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import gettempdir, mkdtemp
from typing import Final

from lakegc_assets.errors import ConfigurationError

_PREFIX: Final = "lakegc-spill-"
_LOCK: Final = "lock"


@contextmanager
def temporary_files() -> Iterator[None]:
    """Make temporary files within the block, and no others.

    Raises:
        ConfigurationError: that cannot be done: the disk is full, say, or not to be written.
    """
    try:
        yield
    except OSError as error:
        raise ConfigurationError(
            f"a temporary file cannot be made: {error}. Let TMPDIR name a folder in which user "
            f"{os.geteuid()} can write, and which has room"
        ) from error


class SpillFolder:
    """A folder of this process, below the system's temporary one, or that of ``TMPDIR``.

    Raises:
        ConfigurationError: it cannot be made.
    """

    def __init__(self) -> None:
        with temporary_files():
            self._make()

    def _make(self) -> None:
        _remove_abandoned()
        while True:
            self.path = Path(mkdtemp(prefix=_PREFIX))
            self._lock = os.open(self.path / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            # Another process may have taken it for abandoned before it was locked.
            if (self.path / _LOCK).exists():
                break
            os.close(self._lock)

    def remove(self) -> None:
        """Remove it with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _remove_abandoned() -> None:
    for folder in Path(gettempdir()).glob(f"{_PREFIX}*"):
        # What another user owns, or another process removes just now, is theirs.
        with suppress(OSError):
            descriptor = os.open(folder / _LOCK, os.O_RDWR)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)


def cache_folder() -> Path | None:
    """The user's folder for what can be made again; None where the user has none."""
    try:
        caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:
        return None
    return Path(caches, "lakegc").absolute()
