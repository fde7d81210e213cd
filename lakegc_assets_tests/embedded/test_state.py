"""The state: each request sees what was written before it began, whatever failed before."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from lakegc_assets.embedded.lake.state import State

PUT = "INSERT INTO tags VALUES ('repo', ?, 'commit')"


def tags(db: sqlite3.Connection) -> list[str]:
    return [name for (name,) in db.execute("SELECT name FROM tags ORDER BY name")]


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
