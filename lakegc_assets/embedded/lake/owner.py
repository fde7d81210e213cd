"""Liveness of the processes that share one state: each holds a file lock while it runs."""

from __future__ import annotations

import fcntl
import os
import secrets
from contextlib import suppress
from pathlib import Path


class Owner:
    """One server process, identified to other processes on the same state by a locked file.

    The kernel releases the lock when the process ends, even after a crash.
    ``folder`` has the files of all processes on one state. The ``name`` is never used again.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.name = f"{os.getpid()}-{secrets.token_hex(8)}"
        # The file is locked before other processes can see it under its final name.
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
        """Release the lock; unfinished tasks of this process have failed from then on."""
        with suppress(FileNotFoundError):
            (self._folder / self.name).unlink()
        os.close(self._file)
