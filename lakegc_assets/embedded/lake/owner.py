"""Liveness of the processes that share one state: each holds a file lock while it runs."""

from __future__ import annotations

import fcntl
import os
import secrets
from contextlib import suppress
from pathlib import Path


class Owner:
    """One server process, as others on the same state know it: by a file that it keeps locked.

    The kernel gives the lock back when the process ends, however it ends.

    Args:
        folder: where the files of all processes on one state are; made when it is missing.

    Attributes:
        name: of this process; never used again.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.name = f"{os.getpid()}-{secrets.token_hex(8)}"
        # Locked before others can see it under its name.
        hidden = folder / f".{self.name}"
        self._file = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX)
        hidden.rename(folder / self.name)
        for path in folder.iterdir():
            if not path.name.startswith("."):
                self.is_alive(path.name)

    def is_alive(self, name: str) -> bool:
        """Return whether the process of this name still runs."""
        try:
            file = os.open(self._folder / name, os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(file)
        with suppress(FileNotFoundError):
            (self._folder / name).unlink()
        return False

    def close(self) -> None:
        """Give up: whatever this process has not finished has failed."""
        with suppress(FileNotFoundError):
            (self._folder / self.name).unlink()
        os.close(self._file)
