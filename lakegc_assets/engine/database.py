"""The DuckDB of this process: its named queries, and the cached SQL of relations.

SQLFrame copies and hashes the plan of a frame at each operation, which takes some ten milliseconds.
A relation is a pure function: its SQL depends only on the columns of its frames and on its other
arguments. So the SQL for equal arguments is used again, with other names of queries and other
times, since each run has its own cutoff.

A query names other queries. DuckDB gets all of them in the ``WITH`` clause of one statement. With
views in its catalog, each view would bind all views below it again.
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

#: Names of queries.
_NAME: Final = re.compile(r"\blakegc_\d+\b")
#: Placeholders for times in cached SQL, and the microseconds of the first placeholder.
_MOMENT: Final = re.compile(r"9998-01-01 00:00:00\.1(\d{5})\+00:00")
_FIRST: Final = 100_000
#: Types of relation arguments that are equal if their texts are.
_PLAIN: Final = (str, int, float, bool, datetime, type(None))
#: Memory limit in bytes for each thread. Each thread holds its own part of a join or an aggregate
#: that cannot spill, so many threads run out of memory that is enough for a few.
THREAD_MEMORY: Final = 512 << 20
#: The oldest DuckDB whose answers are right. Versions 1.5.0 to 1.5.2 omit rows from some queries
#: with ORDER BY and LIMIT, so that lakeFS would be asked about fewer candidates than it serves.
OLDEST_DUCKDB: Final = Version("1.5.3")
#: The optimizers of DuckDB that are on; without the others a mark takes as long. All others are
#: off, also those of later versions. Two of them were wrong in several releases: filters made of
#: one side of a join for the other side omitted rows, or let wrong rows through below a LIMIT; and
#: a part of a plan that was computed once for two places gave one place the columns of the other.
OPTIMIZERS: Final = frozenset(
    (
        *("expression_rewriter", "common_subexpressions", "common_aggregate", "regex_range"),
        *("filter_pullup", "filter_pushdown", "reorder_filter", "in_clause", "limit_pushdown"),
        *("join_order", "build_side_probe_side", "unused_columns", "column_lifetime", "top_n"),
        *("statistics_propagation", "compressed_materialization", "row_group_pruner"),
        "cte_inlining",
    )
)


class _OwnFrame(DuckDBDataFrame):
    """A frame whose plan parts are identified by their whole SQL.

    SQLFrame identifies them by the eight digits of a CRC: it would take one live set for another in
    one of forty million pairs.
    """

    def _create_hash_from_expression(self, expression: exp.Expression) -> str:
        text = expression.sql(dialect="duckdb").encode()
        return f"t{hashlib.sha256(text).hexdigest()[:32]}"


class _OwnSession(DuckDBSession):
    """A session of its own, since SQLFrame keeps one shared session for each class."""

    _df = _OwnFrame
    database: Database

    @property
    def _random_id(self) -> str:
        """A random id in SQLFrame's form; SQLFrame parses each as SQL: most of a frame's work."""
        name = f"r{uuid4().hex}"
        self.known_ids.add(name)
        return name

    def apply(self, rule: Callable[..., Any], *args: object, **kwargs: object) -> DuckDBDataFrame:
        """Apply a relation; see ``Database``."""
        return self.database.apply(rule, args, kwargs)


class _UnknownArgumentError(Exception):
    """An argument of a relation that cannot be compared with the argument of another call."""


def _refuse(*_: object) -> Any:  # noqa: ANN401 - it never returns
    raise _UnknownArgumentError


class _AnyMoment(datetime):
    """A placeholder for a time argument of a relation, which can only be used as a literal.

    Attributes:
        given: the time of the argument.
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
        """Return the placeholder of a number for a given time."""
        moment = cls(9998, 1, 1, microsecond=_FIRST + number, tzinfo=timezone.utc)
        moment.given = given
        return moment


def require_right_answers(version: str) -> None:
    """Raise ConfigurationError if a version of DuckDB is older than ``OLDEST_DUCKDB``."""
    if Version(version) < OLDEST_DUCKDB:
        raise ConfigurationError(
            f"DuckDB {version} omits rows from some sorted queries, so its results "
            f"cannot be trusted. Install duckdb>={OLDEST_DUCKDB}, or run with --engine spark"
        )


class Database:
    """An in-memory DuckDB, and the folder into which it spills.

    Args:
        memory: bytes that it may use before it spills.

    Raises:
        ConfigurationError: the installed DuckDB is older than ``OLDEST_DUCKDB``.
    """

    def __init__(self, memory: int, plans: PlanCache, version: str = duckdb.__version__) -> None:
        require_right_answers(version)
        self.spill = SpillFolder()
        self.connection = duckdb.connect(
            config={
                "memory_limit": f"{memory}B",
                "temp_directory": str(self.spill.path / "duckdb"),
                "autoinstall_known_extensions": "false",
                "autoload_known_extensions": "false",
                "allow_community_extensions": "false",
                # Rows have no order, unless a relation sorts them.
                "preserve_insertion_order": "false",
                # Frees the memory of a query within seconds: processes with tasks may come next.
                "allocator_background_threads": "true",
            }
        )
        self._turn_optimizers_off()
        self.connection.execute("SET TimeZone = 'UTC'")
        # Some versions write a progress bar to the output of a process without a script.
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

    def _turn_optimizers_off(self) -> None:
        """Turn all optimizers off that are not in ``OPTIMIZERS``, whatever this DuckDB has."""
        names = self.connection.execute("SELECT name FROM duckdb_optimizers()").fetchall()
        unwanted = ",".join(name for (name,) in names if name not in OPTIMIZERS)
        self.connection.execute(f"SET disabled_optimizers = '{unwanted}'")

    def limit(self, memory: int) -> None:
        """Set the memory limit in bytes; waits for the computation of another thread."""
        with self.lock:
            if memory != self._memory:
                self.connection.execute(f"SET memory_limit = '{memory}B'")
                self._memory = memory
            # An interrupt at the end of ``one_thread`` may have left the limit of one thread.
            self.use_threads(memory)

    def use_threads(self, memory: int) -> None:
        """Set the number of threads for which a memory limit is enough."""
        self.set_threads(max(1, min(self.cores, memory // THREAD_MEMORY)))

    def set_threads(self, threads: int) -> None:
        """Set the number of threads of queries."""
        if threads != self._threads:
            # An interrupt in between must leave the number unknown.
            self._threads = 0
            self.connection.execute(f"SET threads = {threads}")
            self._threads = threads

    @contextmanager
    def one_thread(self, memory: int) -> Iterator[None]:
        """Compute in one thread, which needs the least memory; other threads of ours wait.

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
        """Close DuckDB, and remove its spilled files; a forked process leaves both alone."""
        if os.getpid() != self._process:
            return
        self.connection.close()
        self.spill.remove()
        # Remaining frames hold the session, and DuckDB complains about objects that outlive it.
        vars(self._frames).clear()
        vars(self).clear()

    # Sessions

    def enter(self) -> None:
        """Count one more session."""
        with self.lock:
            self._sessions += 1

    def leave(self) -> None:
        """Forget all queries at the end of the last session: sessions share queries."""
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
        """Return the lazy frame of a query.

        ``schema``: schema of its rows, if it is known: DuckDB is asked once for its types.
        """
        columns = self._described.get(schema)
        if columns is None:
            columns = self._describe(sql)
        if schema is not None:
            self._described[schema] = columns
        return self._frame_of(self._add(sql, columns))

    def register(self, rows: pa.Table) -> DuckDBDataFrame:
        """Return a frame of rows of this process."""
        if not rows.num_rows and rows.schema in self._described:
            # To register a table takes DuckDB longer than a query without rows.
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
        """Return the SQL for some columns of a frame, with all the queries that it names.

        A named query needs no SQLFrame, which would take some milliseconds.
        """
        if query := self._query_of.get(frame):
            listed = ", ".join(f'"{column}"' for column in columns)
            return self._with_named(f'SELECT {listed} FROM "{query.name}"')  # noqa: S608 - names of our own
        sql: str = frame.select(*columns).sql(dialect="duckdb", optimize=False)
        return self._with_named(f"FROM ({sql})")

    def _with_named(self, sql: str) -> str:
        """Put the queries that SQL names into a ``WITH`` clause before it; it must not have one."""
        found: dict[str, str] = {}
        unread = [sql]
        while unread:
            for name in _NAME.findall(unread.pop()):
                query = self._queries.get(name)
                if query is not None and query.sql is not None and name not in found:
                    found[name] = query.sql
                    unread.append(query.sql)
        # A query names older queries only. As with views, each use of one is planned separately.
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
        """Return the frame of a query.

        SQLFrame's ``session.table`` returns the same, but parses the names as SQL, and keeps each
        in its own catalog.
        """
        columns = [exp.column(name) for name, _type in query.columns]
        plan = exp.Select(expressions=columns).from_(exp.table_(query.name), copy=False)
        frame = _OwnFrame(self._frames, plan)
        self._query_of[frame] = query
        return frame

    def _named(self, frame: DuckDBDataFrame) -> DuckDBDataFrame:
        """Return the frame as a named query, so that its plan consists of the name."""
        if frame in self._query_of:
            return frame
        _require_kept_keys(frame.expression)
        return self.read(frame.sql(dialect="duckdb", optimize=False))

    # Relations

    def apply(
        self, rule: Callable[..., Any], args: Sequence[object], kwargs: dict[str, object]
    ) -> DuckDBDataFrame:
        """Apply a relation, with cached SQL if the same arguments were planned before."""
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
        """Name the frames in an argument, and add each to ``frames`` once."""
        if isinstance(value, DuckDBDataFrame):
            named = self._named(value)
            if not any(named is frame for frame in frames):
                frames.append(named)
            return named
        if isinstance(value, (list, tuple)):
            return [self._as_given(item, frames) for item in value]
        return value

    def _repeat(
        self, known: Plan, frames: Sequence[DuckDBDataFrame], moments: Sequence[_AnyMoment]
    ) -> DuckDBDataFrame:
        """Return the frame of a relation from its cached SQL, with these frames and times."""
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
        """Collect the queries that are made meanwhile; ``outside``: for an outer list, too."""
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
    """Require that no key of an outer join is read from a side that may lack its row.

    In PySpark the key of a join by name is one column. SQLFrame takes the second use of its name in
    an expression for the column of the second frame, which is null if that frame lacks the row.
    After a full outer join it takes the first use for the column of the first frame.

    Raises:
        ValueError: a key is read so. The relation has to rename it before the join, or use it once.
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
    """Return the sort key of a name: older names have smaller keys."""
    return int(name.rpartition("_")[2])


def _as_key(value: object, frames: Sequence[DuckDBDataFrame]) -> Hashable:
    """Return a key that is equal for arguments with which a relation makes the same query."""
    if isinstance(value, DuckDBDataFrame):
        return "frame", next(at for at, frame in enumerate(frames) if frame is value)
    if isinstance(value, (list, tuple)):
        return tuple(_as_key(item, frames) for item in value)
    if _is_moment(value):
        return datetime, "any"
    if type(value) in _PLAIN and not any(p.search(repr(value)) for p in (_NAME, _MOMENT)):
        return type(value), repr(value)
    raise _UnknownArgumentError


def _is_moment(value: object) -> TypeGuard[datetime]:
    return isinstance(value, datetime) and value.tzinfo is not None


def _require_literals(made: Sequence[Query], moments: Sequence[_AnyMoment]) -> None:
    """Require that each time is a literal of the new SQL.

    Raises:
        _UnknownArgumentError: a time is missing; the SQL may have it in another form.
    """
    literals = {int(found.group(1)) for query in made for found in _MOMENT.finditer(str(query.sql))}
    if literals != set(range(len(moments))):
        raise _UnknownArgumentError


def _at_any_moment(value: object, moments: list[_AnyMoment]) -> object:
    """Replace each time in an argument by a placeholder, and add it to the list."""
    if _is_moment(value):
        moments.append(_AnyMoment.number(len(moments), value))
        return moments[-1]
    if isinstance(value, (list, tuple)):
        return [_at_any_moment(item, moments) for item in value]
    return value


_databases: dict[int, Database] = {}
_opening: Final = threading.Lock()


def open_database(memory: int) -> Database:
    """Return the database of this process; a forked process opens its own.

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
