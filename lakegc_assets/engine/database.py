"""The one DuckDB of this process: its named queries, and the SQL of relations, which is made once.

SQLFrame copies and hashes the plan of a frame at each operation: some ten milliseconds for each. A
relation is a pure function, so its SQL depends on nothing but the columns of its frames and its
other arguments. What it was for these is used again, with other names, and with other moments: each
run has a cutoff of its own.

A query names those that it reads. DuckDB gets them together, as the ``WITH`` of what is computed: a
view in its catalog would be bound again, with all that lies below it, for each view on top of it.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, timezone
from itertools import count
from typing import Any, Final, TypeGuard
from uuid import uuid4
from weakref import WeakKeyDictionary

import duckdb
import pyarrow as pa
from packaging.version import Version
from sqlframe.duckdb import DuckDBDataFrame, DuckDBSession
from sqlglot import exp

from lakegc_assets.engine.folders import SpillFolder
from lakegc_assets.engine.plans import Plan, PlanCache, Query, plans_file
from lakegc_assets.errors import ConfigurationError

#: The names of queries.
_NAME: Final = re.compile(r"\blakegc_\d+\b")
#: Moments in the SQL of relations that is used again, and the microsecond of the first.
_MOMENT: Final = re.compile(r"9998-01-01 00:00:00\.1(\d{5})\+00:00")
_FIRST: Final = 100_000
#: Arguments of relations that are equal where their texts are.
_PLAIN: Final = (str, int, float, bool, datetime, type(None))
#: Bytes of the limit for each thread: what a join or an aggregate cannot spill, it holds once for
#: each thread, so that many threads run out of memory with which a few get along.
THREAD_MEMORY: Final = 512 << 20
#: The oldest DuckDB whose answers are right. Versions 1.5.0 to 1.5.2 omit rows from some queries
#: with ORDER BY and LIMIT, so that lakeFS would be asked about fewer candidates than it serves.
OLDEST_DUCKDB: Final = Version("1.5.3")


class _OwnFrame(DuckDBDataFrame):
    """A frame whose parts are one only where their SQL is.

    SQLFrame takes parts of a plan for one another that have the same eight digits of a CRC: one
    live set for another, once in forty million pairs.
    """

    def _create_hash_from_expression(self, expression: exp.Expression) -> str:
        text = expression.sql(dialect="duckdb").encode()
        return f"t{hashlib.sha256(text).hexdigest()[:32]}"


class _OwnSession(DuckDBSession):
    """SQLFrame keeps one session of each class: this one is nobody else's."""

    _df = _OwnFrame
    database: Database

    @property
    def _random_id(self) -> str:
        """As SQLFrame makes it, which parses each as SQL: most of the work of a frame."""
        name = f"r{uuid4().hex}"
        self.known_ids.add(name)
        return name

    def apply(self, rule: Callable[..., Any], *args: object, **kwargs: object) -> DuckDBDataFrame:
        """Apply a relation; see ``Database``."""
        return self.database.apply(rule, args, kwargs)


class _UnknownArgumentError(Exception):
    """An argument of a relation that cannot be compared with one of another call."""


def _refuse(*_: object) -> Any:  # noqa: ANN401 - it never returns
    raise _UnknownArgumentError


class _AnyMoment(datetime):
    """A placeholder for a time that a relation is given, which can be used as a literal only.

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
        """The placeholder of a number, in place of a given time."""
        moment = cls(9998, 1, 1, microsecond=_FIRST + number, tzinfo=timezone.utc)
        moment.given = given
        return moment


def _require_right_answers() -> None:
    """Raise ConfigurationError where the installed DuckDB is older than ``OLDEST_DUCKDB``."""
    if Version(duckdb.__version__) < OLDEST_DUCKDB:
        raise ConfigurationError(
            f"DuckDB {duckdb.__version__} omits rows from some sorted queries, so its results "
            f"cannot be trusted. Install duckdb>={OLDEST_DUCKDB}, or run with --engine spark"
        )


class Database:
    """DuckDB, in memory, and the folder into which it spills.

    Args:
        memory: bytes that it may use; beyond them it spills.
        plans: of relations.

    Raises:
        ConfigurationError: the installed DuckDB is older than ``OLDEST_DUCKDB``.
    """

    def __init__(self, memory: int, plans: PlanCache) -> None:
        _require_right_answers()
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
                # What a query held goes back within seconds: tasks in processes may come next.
                "allocator_background_threads": "true",
            }
        )
        self.connection.execute("SET TimeZone = 'UTC'")
        # Some versions draw one into the output of a process without a script.
        self.connection.execute("SET enable_progress_bar = false")
        ((self.cores,),) = self.connection.execute("SELECT current_setting('threads')").fetchall()
        self._threads = 0
        self.use_threads(memory)
        self.names = count()
        self.lock = threading.RLock()
        self._process = os.getpid()
        self._memory = memory
        self._sessions = 0
        self._frames: Any = _OwnSession(conn=self.connection)
        self._frames.database = self
        self._queries: dict[str, Query] = {}
        self._query_of: WeakKeyDictionary[DuckDBDataFrame, Query] = WeakKeyDictionary()
        self._described: dict[pa.Schema, tuple[tuple[str, str], ...]] = {}
        self._plans = plans
        self._made: ContextVar[list[Query] | None] = ContextVar("made", default=None)

    def limit(self, memory: int) -> None:
        """Let it use so many bytes; what another thread computes is waited for."""
        with self.lock:
            if memory != self._memory:
                self.connection.execute(f"SET memory_limit = '{memory}B'")
                self._memory = memory
            # Whoever was interrupted at the end of ``one_thread`` may have left it there.
            self.use_threads(memory)

    def use_threads(self, memory: int) -> None:
        """Let queries have the threads that a memory limit has room for."""
        self.set_threads(max(1, min(self.cores, memory // THREAD_MEMORY)))

    def set_threads(self, threads: int) -> None:
        """Let queries have so many threads."""
        if threads != self._threads:
            # Whoever is interrupted in between leaves nothing known.
            self._threads = 0
            self.connection.execute(f"SET threads = {threads}")
            self._threads = threads

    @contextmanager
    def one_thread(self, memory: int) -> Iterator[None]:
        """Compute in one thread, which takes the least memory; no other thread of ours computes.

        ``memory``: bytes that it may use meanwhile.
        """
        with self.lock:
            usual = self._memory
            try:
                self.limit(memory)
                self.set_threads(1)
                yield
            finally:
                self.limit(usual)

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
        """Forget all queries when the last session ends: those of one may name those of another."""
        with self.lock:
            self._sessions -= 1
            if self._sessions:
                return
            for query in self._queries.values():
                if query.sql is None:
                    self.connection.unregister(query.name)
            self._queries.clear()
            self._plans.save()

    # Queries

    def read(self, sql: str, schema: pa.Schema | None = None) -> DuckDBDataFrame:
        """A frame of what a query gives, which is computed later.

        Args:
            sql: in DuckDB's SQL.
            schema: of its rows, where it is known: DuckDB is asked once for its types.
        """
        columns = self._described.get(schema)
        if columns is None:
            columns = self._describe(sql)
        if schema is not None:
            self._described[schema] = columns
        return self._frame_of(self._add(sql, columns))

    def register(self, rows: pa.Table) -> DuckDBDataFrame:
        """A frame of rows of this process."""
        if not rows.num_rows and rows.schema in self._described:
            # DuckDB takes longer to learn of a table than to see that there is nothing in it.
            known = self._described[rows.schema]
            nulls = ", ".join(f'NULL::{kind} AS "{name}"' for name, kind in known)
            return self._frame_of(self._add(f"SELECT {nulls} WHERE false", known))
        name = self._new_name()
        with self.lock:
            self.connection.register(name, rows)
        columns = self._described.get(rows.schema)
        if columns is None:
            columns = self._described[rows.schema] = self._describe(f'SELECT * FROM "{name}"')  # noqa: S608 - a name of our own
        query = self._queries[name] = Query(name, None, columns)
        return self._frame_of(query)

    def query(self, frame: Any, columns: Sequence[str]) -> str:  # noqa: ANN401 - PySpark's or ours
        """The SQL that gives some columns of a frame, with all the queries that it names.

        SQLFrame takes some milliseconds for it, which a frame that is one of them needs not.
        """
        if query := self._query_of.get(frame):
            listed = ", ".join(f'"{column}"' for column in columns)
            return self._with_named(f'SELECT {listed} FROM "{query.name}"')  # noqa: S608 - names of our own
        sql: str = frame.select(*columns).sql(dialect="duckdb", optimize=False)
        return self._with_named(f"FROM ({sql})")

    def _with_named(self, sql: str) -> str:
        """SQL without a ``WITH`` of its own, after one with the queries that it names."""
        found: dict[str, str] = {}
        unread = [sql]
        while unread:
            for name in _NAME.findall(unread.pop()):
                query = self._queries.get(name)
                if query is not None and query.sql is not None and name not in found:
                    found[name] = query.sql
                    unread.append(query.sql)
        # What a query names is older. As with a view, each use of one is planned for itself.
        named = [
            f'"{name}" AS NOT MATERIALIZED ({found[name]})' for name in sorted(found, key=_age)
        ]
        return f"WITH {', '.join(named)} {sql}" if named else sql

    def _describe(self, sql: str) -> tuple[tuple[str, str], ...]:
        with self.lock:
            described = self.connection.execute(
                f"DESCRIBE {self._with_named(f'FROM ({sql})')}"
            ).fetchall()
        return tuple((row[0], row[1]) for row in described)

    def _new_name(self) -> str:
        return f"lakegc_{next(self.names)}"

    def _add(self, sql: str, columns: tuple[tuple[str, str], ...]) -> Query:
        name = self._new_name()
        query = self._queries[name] = Query(name, sql, columns)
        made = self._made.get()
        if made is not None:
            made.append(query)
        return query

    def _frame_of(self, query: Query) -> DuckDBDataFrame:
        """The frame of a query.

        ``table`` of the session gives the same, after it has parsed the names as SQL, and keeps
        each in a catalog of its own.
        """
        columns = [exp.column(name) for name, _type in query.columns]
        plan = exp.Select(expressions=columns).from_(exp.table_(query.name), copy=False)
        frame = _OwnFrame(self._frames, plan)
        self._query_of[frame] = query
        return frame

    def _named(self, frame: DuckDBDataFrame) -> DuckDBDataFrame:
        """The frame as a named query, so that its plan is that name alone."""
        if frame in self._query_of:
            return frame
        _require_kept_keys(frame.expression)
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
        inputs = [self._query_of[frame] for frame in frames]
        try:
            others = tuple(_as_key(value, frames) for value in [*given, *more.items()])
            key = (others, tuple(query.columns for query in inputs))
            known = self._plans.get(rule, key)
            any_given = [_at_any_moment(value, moments) for value in given]
            any_more = {name: _at_any_moment(value, moments) for name, value in more.items()}
            if known is None:
                with self._noting(outside=not moments) as made:
                    result = self._named(rule(*any_given, **any_more))
                _require_literals(made, moments)
        except _UnknownArgumentError:
            return self._named(rule(*given, **more))
        if known is None:
            name = self._query_of[result].name
            known = Plan([query.name for query in inputs], made, name)
            self._plans.add(rule, key, known)
            if not moments:
                return result
        return self._repeat(known, frames, moments)

    def _as_given(self, value: object, frames: list[DuckDBDataFrame]) -> object:
        """An argument whose frames are named, each of which is added to ``frames`` once."""
        if isinstance(value, DuckDBDataFrame):
            named = self._named(value)
            if not any(named is frame for frame in frames):
                frames.append(named)
            return named
        if isinstance(value, (list, tuple)):
            return [self._as_given(one, frames) for one in value]
        return value

    def _repeat(
        self, known: Plan, frames: Sequence[DuckDBDataFrame], moments: Sequence[_AnyMoment]
    ) -> DuckDBDataFrame:
        """The frame of a relation by its cached SQL, with other frames and times put in."""
        given = dict(zip(known.inputs, frames, strict=True))
        queries = {name: self._query_of[frame] for name, frame in given.items()}
        texts = [moment.given.astimezone(timezone.utc).isoformat(sep=" ") for moment in moments]
        for query in known.queries:
            sql = _NAME.sub(lambda name: queries[name.group()].name, str(query.sql))
            sql = _MOMENT.sub(lambda number: texts[int(number.group(1))], sql)
            queries[query.name] = self._add(sql, query.columns)
        if known.result in given:
            return given[known.result]
        return self._frame_of(queries[known.result])

    @contextmanager
    def _noting(self, *, outside: bool) -> Iterator[list[Query]]:
        """The queries that are made meanwhile; ``outside`` if an outer list gets them, too."""
        made: list[Query] = []
        outer = self._made.get()
        token = self._made.set(made)
        try:
            yield made
        finally:
            self._made.reset(token)
        if outside and outer is not None:
            outer.extend(made)


def _require_kept_keys(plan: exp.Expression) -> None:
    """Require that no key of an outer join is read from a side that may have no row for it.

    In PySpark the key by whose name two frames were joined is one column. SQLFrame takes the second
    use of its name in one expression for the column of the second frame, which is null where that
    has no row; behind a full outer join the first one for that of the first frame.

    Raises:
        ValueError: one is. The relation has to name what it needs before it joins, or once.
    """
    for select in plan.find_all(exp.Select):
        joins = select.args.get("joins") or []
        for join in joins:
            on = join.args.get("on")
            if not join.side or join.kind in {"SEMI", "ANTI"} or on is None:
                continue
            keys = {
                (column.table, column.name)
                for column in on.find_all(exp.Column)
                if join.side != "LEFT" or column.table == join.alias_or_name
            }
            others = [other.args.get("on") for other in joins if other is not join]
            read = [select.args.get(part) for part in ("where", "group", "having", "order")]
            for expression in filter(None, [*select.expressions, *read, *others]):
                for column in expression.find_all(exp.Column):
                    united = column.find_ancestor(exp.Coalesce)
                    if (column.table, column.name) in keys and not united:
                        raise ValueError(
                            f"behind an outer join {column.name} is read from the side that may "
                            f"lack it, in {expression.sql()}: name it before the join"
                        )


def _age(name: str) -> int:
    """The sort key of names: those that came first have the smaller ones."""
    return int(name.rpartition("_")[2])


def _as_key(value: object, frames: Sequence[DuckDBDataFrame]) -> Hashable:
    """A key that is equal for arguments with which a relation gives the same query."""
    if isinstance(value, DuckDBDataFrame):
        return "frame", next(at for at, frame in enumerate(frames) if frame is value)
    if isinstance(value, (list, tuple)):
        return tuple(_as_key(one, frames) for one in value)
    if _is_moment(value):
        return datetime, "any"
    if type(value) in _PLAIN and not any(p.search(repr(value)) for p in (_NAME, _MOMENT)):
        return type(value), repr(value)
    raise _UnknownArgumentError


def _is_moment(value: object) -> TypeGuard[datetime]:
    return isinstance(value, datetime) and value.tzinfo is not None


def _require_literals(made: Sequence[Query], moments: Sequence[_AnyMoment]) -> None:
    """Require that each moment is a literal of the SQL that was made.

    Raises:
        _UnknownArgumentError: one is not: it may be there as something else.
    """
    literals = {int(found.group(1)) for query in made for found in _MOMENT.finditer(str(query.sql))}
    if literals != set(range(len(moments))):
        raise _UnknownArgumentError


def _at_any_moment(value: object, moments: list[_AnyMoment]) -> object:
    """An argument with a placeholder for each time in it; the placeholders are added to a list."""
    if _is_moment(value):
        moments.append(_AnyMoment.number(len(moments), value))
        return moments[-1]
    if isinstance(value, (list, tuple)):
        return [_at_any_moment(one, moments) for one in value]
    return value


_databases: dict[int, Database] = {}
_opening: Final = threading.Lock()


def open_database(memory: int) -> Database:
    """The database of this process; a forked process opens one of its own.

    Args:
        memory: bytes that it may use from now on.
    """
    with _opening:
        process = os.getpid()
        if process not in _databases:
            _databases.clear()
            _databases[process] = made = Database(memory, PlanCache(plans_file()))
            atexit.register(made.close)
        found = _databases[process]
    found.limit(memory)
    return found
