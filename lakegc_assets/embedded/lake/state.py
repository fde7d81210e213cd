"""The durable state of the server, in one SQLite database that survives kill -9.

SQLite synchronises the write-ahead log at every commit (``synchronous=FULL``), so every answered
change is on disk. Writers queue on a lock in this process and on SQLite's lock between processes.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from queue import Empty, LifoQueue
from sqlite3 import connect
from threading import Lock
from typing import Any
from weakref import WeakSet

from lakegc_assets.storage.files import locked, open_directories

#: SQLite's setting for the wait for the disk at a commit.
SYNCHRONOUS = "FULL"
_BUSY_SECONDS = 30.0

_SCHEMA = """
CREATE TABLE IF NOT EXISTS repositories (
    id TEXT PRIMARY KEY, namespace TEXT NOT NULL, default_branch TEXT NOT NULL,
    creation_date INTEGER NOT NULL, read_only INTEGER NOT NULL, rules TEXT
);
CREATE TABLE IF NOT EXISTS branches (
    uid INTEGER PRIMARY KEY AUTOINCREMENT, repository TEXT NOT NULL, name TEXT NOT NULL,
    commit_id TEXT NOT NULL, hidden INTEGER NOT NULL, version INTEGER NOT NULL DEFAULT 0,
    UNIQUE (repository, name)
);
CREATE TABLE IF NOT EXISTS tags (
    repository TEXT NOT NULL, name TEXT NOT NULL, commit_id TEXT NOT NULL,
    PRIMARY KEY (repository, name)
);
CREATE TABLE IF NOT EXISTS commits (
    repository TEXT NOT NULL, id TEXT NOT NULL, committer TEXT NOT NULL, message TEXT NOT NULL,
    metarange_id TEXT NOT NULL, creation_date INTEGER NOT NULL, metadata TEXT NOT NULL,
    parents TEXT NOT NULL, generation INTEGER NOT NULL,
    PRIMARY KEY (repository, id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS staged (
    branch INTEGER NOT NULL, key BLOB NOT NULL, identity BLOB, value BLOB, seq INTEGER NOT NULL,
    PRIMARY KEY (branch, key)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS sequence (next INTEGER NOT NULL);
INSERT INTO sequence SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM sequence);
CREATE TABLE IF NOT EXISTS prepare_tasks (
    id TEXT PRIMARY KEY, repository TEXT NOT NULL, owner TEXT NOT NULL, updated TEXT NOT NULL,
    outcome TEXT
);
CREATE TABLE IF NOT EXISTS copies (
    repository TEXT NOT NULL, address TEXT NOT NULL, created INTEGER NOT NULL,
    copied REAL NOT NULL, PRIMARY KEY (repository, address)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS copies_by_time ON copies (copied);
CREATE TABLE IF NOT EXISTS link_tokens (
    address TEXT PRIMARY KEY, repository TEXT NOT NULL, branch INTEGER NOT NULL,
    path TEXT NOT NULL, expires INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS link_tokens_by_time ON link_tokens (expires);
CREATE TABLE IF NOT EXISTS link_key (key BLOB NOT NULL);
INSERT INTO link_key SELECT randomblob(32) WHERE NOT EXISTS (SELECT 1 FROM link_key);
CREATE TABLE IF NOT EXISTS layouts (
    repository TEXT PRIMARY KEY, layout TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS protected_branches (
    repository TEXT NOT NULL, pattern TEXT NOT NULL, PRIMARY KEY (repository, pattern)
) WITHOUT ROWID;
"""


class State:
    """The database of one server; safe to use from many threads and processes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writing = Lock()
        self._idle: LifoQueue[_Connection] = LifoQueue()
        with ExitStack() as stack:
            directory = open_directories(stack, path.parent, (), create=False)[-1]
            # If two processes set the journal mode of a new file at the same time, SQLite does not
            # let one of them wait, but refuses it.
            stack.enter_context(locked(directory, required=False))
            db = stack.enter_context(self._connection())
            db.execute("PRAGMA journal_mode=WAL")
            db.executescript(_SCHEMA)

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """A consistent view of the state until the end of the block."""
        with self._connection() as db:
            db.execute("BEGIN")
            try:
                yield db
            finally:
                db.execute("ROLLBACK")

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """A transaction: all on disk at the end of the block, or nothing after an exception."""
        with self._writing, self._connection() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Close the idle connections; call it when no request is running."""
        with suppress(Empty):
            while True:
                self._idle.get_nowait().close()

    @contextmanager
    def _connection(self) -> Iterator[_Connection]:
        try:
            db = self._idle.get_nowait()
        except Empty:
            db = connect(
                self._path,
                timeout=_BUSY_SECONDS,
                isolation_level=None,
                check_same_thread=False,
                factory=_Connection,
            )
            db.execute(f"PRAGMA synchronous={SYNCHRONOUS}")
        try:
            yield db
        finally:
            db.close_cursors()
            self._idle.put(db)


class _Connection(sqlite3.Connection):
    """A connection that can close its cursors.

    A cursor that is not at its end, in a frame that an error holds, would keep its old view of the
    state for the next request on the connection.
    """

    def __init__(self, *where: Any, **options: Any) -> None:  # noqa: ANN401 - SQLite's own
        super().__init__(*where, **options)
        self._cursors: WeakSet[sqlite3.Cursor] = WeakSet()

    def execute(self, *statement: Any) -> sqlite3.Cursor:  # noqa: ANN401 - SQLite's own
        """A new cursor for one statement."""
        cursor = self.cursor()
        self._cursors.add(cursor)
        return cursor.execute(*statement)

    def close_cursors(self) -> None:
        """Close all cursors that are still in use."""
        for cursor in list(self._cursors):
            cursor.close()


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
