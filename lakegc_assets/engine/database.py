"""The one DuckDB of this process: its views, and the SQL of relations, which is made once.

SQLFrame copies and hashes the plan of a frame at each operation: some ten milliseconds for each. A
relation is a pure function, so its SQL depends on nothing but the columns of its frames and its
other arguments. What it was for these is used again, with other views, and with other moments: each
run has a cutoff of its own.
"""

from __future__ import annotations

import atexit
import os
import re
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import count
from typing import Any, Final, TypeGuard
from weakref import WeakKeyDictionary

import duckdb
import pyarrow as pa
from sqlframe.duckdb import DuckDBDataFrame, DuckDBSession
from sqlglot import exp

from lakegc_assets.engine.spill import SpillFolder

#: The names of views.
_VIEW: Final = re.compile(r"\blakegc_\d+\b")
#: Moments in the SQL of relations that is used again, and the microsecond of the first.
_MOMENT: Final = re.compile(r"9998-01-01 00:00:00\.1(\d{5})\+00:00")
_FIRST: Final = 100_000
#: Arguments of relations that are equal where their texts are.
_PLAIN: Final = (str, int, float, bool, datetime, type(None))
#: Relations are forgotten beyond so many.
_MOST: Final = 1_000


class _OwnSession(DuckDBSession):
    """SQLFrame keeps one session of each class: this one is nobody else's."""

    database: Database

    def apply(self, rule: Callable[..., Any], *args: object, **kwargs: object) -> DuckDBDataFrame:
        """Apply a relation; see ``Database``."""
        return self.database.apply(rule, args, kwargs)


@dataclass(frozen=True)
class _View:
    """A query that DuckDB knows by a name.

    Attributes:
        name: of the view.
        query: what it stands for, which may name other views.
        columns: names and DuckDB's types.
    """

    name: str
    query: str
    columns: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class _Planned:
    """A relation that was planned for some arguments: its SQL and its columns.

    Attributes:
        inputs: the names of the views of its frames.
        views: those that it made, in order.
        result: the name of that which it gave.
    """

    inputs: Sequence[str]
    views: Sequence[_View]
    result: str


class _UnknownArgumentError(Exception):
    """Nobody knows whether an argument of a relation is the same as at another time."""


def _refuse(*_: object) -> Any:  # noqa: ANN401 - it never returns
    raise _UnknownArgumentError


class _AnyMoment(datetime):
    """A moment in place of that which a relation is given: good for a literal, and nothing else.

    Attributes:
        given: the moment that was given.
    """

    given: datetime
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __add__ = __radd__ = __sub__ = __rsub__ = _refuse
    __str__ = __format__ = strftime = ctime = timestamp = date = time = timetz = _refuse
    timetuple = utctimetuple = toordinal = weekday = isoweekday = isocalendar = _refuse
    replace = _refuse  # type: ignore[assignment]
    year = month = day = hour = minute = second = microsecond = property(_refuse)
    __hash__ = datetime.__hash__

    @classmethod
    def number(cls, number: int, given: datetime) -> _AnyMoment:
        """One for each number, in place of a given moment."""
        moment = cls(9998, 1, 1, microsecond=_FIRST + number, tzinfo=timezone.utc)
        moment.given = given
        return moment


class Database:
    """DuckDB, in memory, and the folder into which it spills.

    Args:
        memory: bytes that it may use; beyond them it spills.
    """

    def __init__(self, memory: int) -> None:
        self.spill = SpillFolder()
        self.connection = duckdb.connect(
            config={
                "memory_limit": f"{memory}B",
                "temp_directory": str(self.spill.path / "duckdb"),
                "autoinstall_known_extensions": "false",
                "autoload_known_extensions": "false",
                "allow_community_extensions": "false",
                # Rows have no order but the one that a relation gives them.
                "preserve_insertion_order": "false",
            }
        )
        self.connection.execute("SET TimeZone = 'UTC'")
        self.names = count()
        self.lock = threading.RLock()
        self._process = os.getpid()
        self._memory = memory
        self._sessions = 0
        self._frames: Any = _OwnSession(conn=self.connection)
        self._frames.database = self
        self._existing: list[str] = []
        self._views: WeakKeyDictionary[DuckDBDataFrame, _View] = WeakKeyDictionary()
        self._described: dict[pa.Schema, tuple[tuple[str, str], ...]] = {}
        self._planned: dict[Hashable, _Planned] = {}
        self._made: ContextVar[list[_View] | None] = ContextVar("made", default=None)

    def limit(self, memory: int) -> None:
        """Let it use so many bytes; what another thread computes is waited for."""
        with self.lock:
            if memory != self._memory:
                self.connection.execute(f"SET memory_limit = '{memory}B'")
                self._memory = memory

    def close(self) -> None:
        """End it, and remove what it has spilled; in a fork this is its parent's affair."""
        if os.getpid() != self._process:
            return
        self.connection.close()
        self.spill.remove()
        # Frames that are still there hold the session; DuckDB complains about what outlives it.
        vars(self._frames).clear()
        vars(self).clear()

    # Sessions

    def enter(self) -> None:
        """Let one more session use it."""
        with self.lock:
            self._sessions += 1

    def leave(self) -> None:
        """Forget all views when the last session ends: views of one may name those of another."""
        with self.lock:
            self._sessions -= 1
            if self._sessions:
                return
            for name in reversed(self._existing):
                self.connection.execute(f'DROP VIEW IF EXISTS "{name}"')
                self.connection.unregister(f"{name}_rows")
            self._existing.clear()

    # Views

    def read(self, query: str, schema: pa.Schema | None = None) -> DuckDBDataFrame:
        """A frame of what a query gives: it is planned here, and computed later.

        Args:
            query: in DuckDB's SQL.
            schema: of its rows, where it is known: DuckDB is asked once for its types.
        """
        return self._create(self._new_name(), query, schema)

    def register(self, rows: pa.Table) -> DuckDBDataFrame:
        """A frame of rows of this process."""
        name = self._new_name()
        columns = ", ".join(f'"{column}"' for column in rows.schema.names)
        with self.lock:
            self.connection.register(f"{name}_rows", rows)
        query = f'SELECT {columns} FROM "{name}_rows"'  # noqa: S608 - names of our own
        return self._create(name, query, rows.schema)

    def query(self, frame: Any, columns: Sequence[str]) -> str:  # noqa: ANN401 - PySpark's or ours
        """The SQL that gives some columns of a frame.

        SQLFrame takes some milliseconds for it, which a frame that is nothing but a view needs not.
        """
        if view := self._views.get(frame):
            listed = ", ".join(f'"{column}"' for column in columns)
            return f'SELECT {listed} FROM "{view.name}"'  # noqa: S608 - names of our own
        query: str = frame.select(*columns).sql(dialect="duckdb", optimize=False)
        return query

    def _new_name(self) -> str:
        name = f"lakegc_{next(self.names)}"
        self._existing.append(name)
        return name

    def _create(self, name: str, query: str, schema: pa.Schema | None = None) -> DuckDBDataFrame:
        with self.lock:
            self.connection.execute(f'CREATE TEMP VIEW "{name}" AS {query}')
            columns = self._described.get(schema)
            if columns is None:
                described = self.connection.execute(f'DESCRIBE "{name}"').fetchall()
                columns = tuple((row[0], row[1]) for row in described)
            if schema is not None:
                self._described[schema] = columns
        view = _View(name, query, columns)
        self._note(view)
        return self._frame_of(view)

    def _frame_of(self, view: _View) -> DuckDBDataFrame:
        """The frame of a view that DuckDB knows.

        ``table`` of the session gives the same, after it has parsed the names as SQL, and keeps
        each view in a catalog of its own.
        """
        columns = [exp.column(name) for name, _type in view.columns]
        query = exp.Select(expressions=columns).from_(exp.to_table(view.name), copy=False)
        frame = DuckDBDataFrame(self._frames, query)
        self._views[frame] = view
        return frame

    def _note(self, view: _View) -> None:
        made = self._made.get()
        if made is not None:
            made.append(view)

    def _as_view(self, frame: DuckDBDataFrame) -> DuckDBDataFrame:
        """The same frame, whose plan is nothing but the name of a view."""
        if frame in self._views:
            return frame
        return self.read(frame.sql(dialect="duckdb", optimize=False))

    # Relations

    def apply(
        self, rule: Callable[..., Any], args: Sequence[object], kwargs: dict[str, object]
    ) -> DuckDBDataFrame:
        """Apply a relation, with cached SQL where the same arguments were planned before.

        Args:
            rule: the relation.
            args: its arguments.
            kwargs: more of them.
        """
        frames: list[DuckDBDataFrame] = []
        moments: list[_AnyMoment] = []
        given = [self._as_given(value, frames) for value in args]
        more = {name: self._as_given(value, frames) for name, value in kwargs.items()}
        inputs = [self._views[frame] for frame in frames]
        try:
            others = tuple(_as_key(value, frames) for value in [*given, *more.items()])
            key = (rule, others, tuple(view.columns for view in inputs))
            known = self._planned.get(key)
            any_given = [_at_any_moment(value, moments) for value in given]
            any_more = {name: _at_any_moment(value, moments) for name, value in more.items()}
            if known is None:
                with self._noting(outside=not moments) as made:
                    result = self._as_view(rule(*any_given, **any_more))
                _require_literals(made, moments)
        except _UnknownArgumentError:
            return self._as_view(rule(*given, **more))
        if known is None:
            if len(self._planned) >= _MOST:
                self._planned.clear()
            name = self._views[result].name
            known = self._planned[key] = _Planned([view.name for view in inputs], made, name)
            if not moments:
                return result
        return self._repeat(known, frames, moments)

    def _as_given(self, value: object, frames: list[DuckDBDataFrame]) -> object:
        """An argument whose frames are views, each of which is added to ``frames`` once."""
        if isinstance(value, DuckDBDataFrame):
            view = self._as_view(value)
            if not any(view is frame for frame in frames):
                frames.append(view)
            return view
        if isinstance(value, (list, tuple)):
            return [self._as_given(one, frames) for one in value]
        return value

    def _repeat(
        self, known: _Planned, frames: Sequence[DuckDBDataFrame], moments: Sequence[_AnyMoment]
    ) -> DuckDBDataFrame:
        """The frame of a relation whose SQL is known, for other frames and moments."""
        given = dict(zip(known.inputs, frames, strict=True))
        views = {name: self._views[frame] for name, frame in given.items()}
        texts = [moment.given.astimezone(timezone.utc).isoformat(sep=" ") for moment in moments]
        for view in known.views:
            query = _VIEW.sub(lambda name: views[name.group()].name, view.query)
            query = _MOMENT.sub(lambda number: texts[int(number.group(1))], query)
            views[view.name] = again = _View(self._new_name(), query, view.columns)
            with self.lock:
                self.connection.execute(f'CREATE TEMP VIEW "{again.name}" AS {query}')
            self._note(again)
        if known.result in given:
            return given[known.result]
        return self._frame_of(views[known.result])

    @contextmanager
    def _noting(self, *, outside: bool) -> Iterator[list[_View]]:
        """The views that are made meanwhile; whether those who note around this note them, too."""
        made: list[_View] = []
        outer = self._made.get()
        token = self._made.set(made)
        try:
            yield made
        finally:
            self._made.reset(token)
        if outside and outer is not None:
            outer.extend(made)


def _as_key(value: object, frames: Sequence[DuckDBDataFrame]) -> Hashable:
    """A key that is equal for arguments with which a relation gives the same query."""
    if isinstance(value, DuckDBDataFrame):
        return "frame", next(at for at, frame in enumerate(frames) if frame is value)
    if isinstance(value, (list, tuple)):
        return tuple(_as_key(one, frames) for one in value)
    if _is_moment(value):
        return datetime, "any"
    if type(value) in _PLAIN and not any(p.search(repr(value)) for p in (_VIEW, _MOMENT)):
        return type(value), repr(value)
    raise _UnknownArgumentError


def _is_moment(value: object) -> TypeGuard[datetime]:
    return isinstance(value, datetime) and value.tzinfo is not None


def _require_literals(made: Sequence[_View], moments: Sequence[_AnyMoment]) -> None:
    """Require that each moment is a literal of the SQL that was made.

    Raises:
        _UnknownArgumentError: one is not: it may be there as something else.
    """
    literals = {int(found.group(1)) for view in made for found in _MOMENT.finditer(view.query)}
    if literals != set(range(len(moments))):
        raise _UnknownArgumentError


def _at_any_moment(value: object, moments: list[_AnyMoment]) -> object:
    """An argument with another moment in place of each that it has, which is added to these."""
    if _is_moment(value):
        moments.append(_AnyMoment.number(len(moments), value))
        return moments[-1]
    if isinstance(value, (list, tuple)):
        return [_at_any_moment(one, moments) for one in value]
    return value


_databases: dict[int, Database] = {}
_opening: Final = threading.Lock()


def open_database(memory: int) -> Database:
    """That of this process: a fork has none of its parent's.

    Args:
        memory: bytes that it may use from now on.
    """
    with _opening:
        process = os.getpid()
        if process not in _databases:
            _databases.clear()
            _databases[process] = made = Database(memory)
            atexit.register(made.close)
        found = _databases[process]
    found.limit(memory)
    return found
