"""Work in the background: who does it is recorded, so that a dead process's tasks end as failed."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from lakegc_assets.embedded import errors

_INTERRUPTED = "the server that did this was stopped; start the task again"


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
        """Whether the process of this name still runs."""
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


def insert(db: sqlite3.Connection, owner: Owner, task: str, repository: str, now: str) -> None:
    """Record a task that this process is to do."""
    db.execute(
        "INSERT INTO prepare_tasks VALUES (?, ?, ?, ?, NULL)", (task, repository, owner.name, now)
    )


def outcome_of(work: Callable[[], object]) -> str:
    """Do the work; its result or its error, as it is recorded."""
    try:
        return json.dumps({"result": work()})
    except errors.ApiError as error:
        message = error.message
    except Exception as error:  # noqa: BLE001 - whatever it was, whoever asks for the task must know
        message = str(error) or type(error).__name__
    return json.dumps({"error": {"message": message}})


def finish(db: sqlite3.Connection, task: str, outcome: str, now: str) -> None:
    """Record how a task ended, unless it was given up before."""
    db.execute(
        "UPDATE prepare_tasks SET outcome = ?, updated = ? WHERE id = ? AND outcome IS NULL",
        (outcome, now, task),
    )


def end_interrupted(db: sqlite3.Connection, owner: Owner, now: str) -> None:
    """End the tasks whose process is gone."""
    open_tasks = db.execute("SELECT id, owner FROM prepare_tasks WHERE outcome IS NULL").fetchall()
    for task, name in open_tasks:
        if not owner.is_alive(name):
            finish(db, task, json.dumps({"error": {"message": _INTERRUPTED}}), now)


def status(db: sqlite3.Connection, task: str, repository: str) -> dict[str, Any]:
    """What is known of a task, as the API tells it; 404 for an unknown one."""
    row = db.execute(
        "SELECT updated, outcome FROM prepare_tasks WHERE id = ? AND repository = ?",
        (task, repository),
    ).fetchone()
    if row is None:
        raise errors.ApiError(404, "not found")
    updated, outcome = row
    known = {"task_id": task, "completed": outcome is not None, "update_time": updated}
    return {**known, **json.loads(outcome)} if outcome else known
