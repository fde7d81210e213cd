from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.pool import NullPool

from lakegc_assets.cli.jobs import kept_connections
from lakegc_assets_tests.cli.calling import lakegc, say
from lakegc_assets_tests.site import Site


def _engine(path: Path) -> Engine:
    """One as Dagster makes it for each question."""
    return create_engine(f"sqlite:///{path}", poolclass=NullPool)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Path]:
    found = tmp_path / "history" / "runs.db"
    found.parent.mkdir()
    with kept_connections(tmp_path):
        with _engine(found).begin() as connection:
            connection.execute(text("CREATE TABLE runs (id INTEGER)"))
        yield found


def _dbapi(connection: Connection) -> object:
    return connection.connection.dbapi_connection


def _rows(path: Path) -> int:
    with _engine(path).connect() as connection:
        return int(connection.execute(text("SELECT count(*) FROM runs")).scalar_one())


def test_who_comes_next_gets_the_connection_of_who_went(database: Path) -> None:
    with _engine(database).connect() as first:
        of_first = _dbapi(first)
        with _engine(database).connect() as second:
            of_second = _dbapi(second)
    assert of_second is not of_first, "it was in use"
    with _engine(database).connect() as third:
        assert _dbapi(third) is of_first


def test_what_was_not_committed_is_gone(database: Path) -> None:
    with _engine(database).connect() as connection:
        connection.execute(text("INSERT INTO runs VALUES (1)"))
    assert _rows(database) == 0


def test_an_answer_that_nobody_read_to_its_end_holds_up_nobody(database: Path) -> None:
    with _engine(database).connect() as connection:
        unread = connection.execute(text("PRAGMA journal_mode=WAL"))
    with _engine(database).begin() as connection:
        connection.execute(text("INSERT INTO runs VALUES (1)"))
    assert _rows(database) == 1
    assert not unread.closed, "SQLAlchemy would go on reading"


def test_what_other_processes_write_is_seen(database: Path) -> None:
    assert _rows(database) == 0
    other = sqlite3.connect(database)
    other.execute("INSERT INTO runs VALUES (1)")
    other.commit()
    other.close()
    assert _rows(database) == 1


def test_none_is_kept_beyond_the_end_nor_elsewhere(tmp_path: Path) -> None:
    inside, outside = tmp_path / "home" / "runs.db", tmp_path / "runs.db"
    inside.parent.mkdir()
    found = []
    with kept_connections(inside.parent):
        for path in (inside, outside):
            with _engine(path).connect() as connection:
                found.append(_dbapi(connection))
    for each in found:
        assert isinstance(each, sqlite3.Connection)
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            each.execute("SELECT 1")
    with _engine(inside).connect() as connection:
        assert type(_dbapi(connection)) is sqlite3.Connection


def test_a_command_opens_few_connections_however_often_dagster_asks_and_none_in_memory(
    site: Site,
) -> None:
    """It takes half a second to make the tables of an instance in memory."""
    site.tell("often")
    asked, opened, places = [], set(), list[str]()
    listening = True

    def note(connection: object, _record: object) -> None:
        asked.append(connection)
        opened.add(id(connection))

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if listening and event == "sqlite3.connect":
            places.append(str(arguments[0]))

    sys.addaudithook(hook)
    event.listen(Engine, "connect", note)
    try:
        say(lakegc("mark", "often", "--run", "a"), 0)
        say(lakegc("report", "often", "--run", "a"), 0)
    finally:
        listening = False
        event.remove(Engine, "connect", note)
    assert len(asked) > 100
    assert len(opened) < 10
    assert places
    assert [name for name in places if "memory" in name.partition("?")[2]] == []
