"""The state: each request sees what was written before it began, whatever failed before."""

from __future__ import annotations

import concurrent.futures
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from lakegc_assets.embedded.lake.state import State
from lakegc_assets.storage.files import locked, open_directories

PUT = "INSERT INTO tags VALUES ('repo', ?, 'commit')"


def tags(db: sqlite3.Connection) -> list[str]:
    return [name for (name,) in db.execute("SELECT name FROM tags ORDER BY name")]


def test_first_starts_wait_for_each_other(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with ThreadPoolExecutor(1) as pool, ExitStack() as stack:
        directory = open_directories(stack, tmp_path, (), create=False)[-1]
        with locked(directory, required=False):
            started = pool.submit(State, path)
            with pytest.raises(concurrent.futures.TimeoutError):
                started.result(0.2)
            assert not path.exists()
        started.result(30).close()


def test_a_failed_read_leaves_no_old_view(tmp_path: Path) -> None:
    """The caught error holds the frame of a cursor that is not at its end."""
    state, other = State(tmp_path / "state.db"), State(tmp_path / "state.db")
    with state.write() as db:
        db.executemany(PUT, [("a",), ("b",)])

    def fail() -> None:
        with state.read() as db:
            rows = db.execute("SELECT name FROM tags")
            assert rows.fetchone()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        fail()
    with other.write() as db:
        db.execute(PUT, ("c",))
    with state.read() as db:
        assert tags(db) == ["a", "b", "c"]
    with state.write() as db:
        db.execute(PUT, ("d",))
    with other.read() as db:
        assert tags(db) == ["a", "b", "c", "d"]
    assert caught.traceback
    state.close()
    other.close()
