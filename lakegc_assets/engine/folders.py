"""Local folders for spilled data and for caches.

A spill folder is removed at the end of its process, which holds a lock (``flock``) on it. A process
that makes such a folder removes the unlocked ones, which killed processes have left.
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
    """Convert errors in a block that makes temporary files, and does nothing else.

    Raises:
        ConfigurationError: a file cannot be made, for example on a full or read-only disk.
    """
    try:
        yield
    except OSError as error:
        raise ConfigurationError(
            f"a temporary file cannot be made: {error}. Set TMPDIR to a folder with free space in "
            f"which user {os.geteuid()} can write"
        ) from error


class SpillFolder:
    """A folder of this process, below the system's temporary folder or ``TMPDIR``.

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
            # Another process may have found it unlocked, and removed it.
            if (self.path / _LOCK).exists():
                break
            os.close(self._lock)

    def remove(self) -> None:
        """Remove the folder and its content."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _remove_abandoned() -> None:
    for folder in Path(gettempdir()).glob(f"{_PREFIX}*"):
        # Leave folders of other users, and folders that another process removes now.
        with suppress(OSError):
            descriptor = os.open(folder / _LOCK, os.O_RDWR)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)


def cache_folder() -> Path | None:
    """Return the user's cache folder; None if the user has none."""
    try:
        caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:
        return None
    return Path(caches, "lakegc").absolute()
