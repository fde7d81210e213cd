"""Connections to Dagster's SQLite databases, which are kept for as long as a command runs.

A run reads and writes them some five hundred times. Dagster opens and closes a connection each
time, and no setting changes that. Each new connection reads the whole schema, and closing the last
one checkpoints the database's log. That took longer than the stages of a small run.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from weakref import WeakSet

from sqlalchemy import Engine, event
from sqlalchemy.engine import Dialect


class _Connection(sqlite3.Connection):
    """A connection that ``close`` returns to the pool, so that SQLAlchemy can reuse it."""

    def __init__(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - those of its base
        super().__init__(*arguments, **options)
        self._cursors: WeakSet[sqlite3.Cursor] = WeakSet()
        self.ready: list[_Connection] | None = None

    def cursor(self, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - those of its base
        made = super().cursor(*arguments, **options)
        self._cursors.add(made)
        return made

    def close(self) -> None:
        """Roll back, close all cursors, and return the connection to the pool."""
        if self.ready is None:
            super().close()
            return
        for cursor in list(self._cursors):
            cursor.close()
        self.rollback()
        self.ready.append(self)


@contextmanager
def kept_connections(folder: Path) -> Iterator[None]:
    """Keep this process's connections to SQLite databases below a folder open in the context."""
    ready: dict[str, list[_Connection]] = defaultdict(list)

    def connect(
        dialect: Dialect, _record: object, arguments: list[Any], options: dict[str, Any]
    ) -> _Connection | None:
        if dialect.name != "sqlite" or not Path(arguments[0]).is_relative_to(folder):
            return None
        free = ready[arguments[0]]
        with suppress(IndexError):
            return free.pop()
        made = sqlite3.connect(*arguments, **options, factory=_Connection)
        made.ready = free
        return made

    event.listen(Engine, "do_connect", connect)
    try:
        yield
    finally:
        event.remove(Engine, "do_connect", connect)
        for connection in [one for free in ready.values() for one in free]:
            connection.ready = None
            connection.close()
