"""The embedded engine: DuckDB behind the PySpark API (SQLFrame), in this process, without a JVM.

It spills data to disk beyond its memory limit. It downloads no extension. DuckDB itself reads only
local files; artifacts on other stores are fetched through ``storage``.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar, cast

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from lakegc_assets.engine.database import THREAD_MEMORY, Database, open_database
from lakegc_assets.engine.datasets import (
    Part,
    VerifiedFiles,
    fetch_part,
    has_types,
    other_columns,
    write_tables,
)
from lakegc_assets.engine.progress import elapsed, interruptible, report_progress
from lakegc_assets.engine.session import Dataset, OpenStore, Session
from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.errors import ConfigurationError
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.local import LocalStore

R = TypeVar("R")

#: DuckDB's largest share of the machine's memory, and its most bytes; the smaller limit counts.
_SHARE: Final = 4
_MOST: Final = 4 << 30
#: Rows in one batch of a result.
_BATCH: Final = 100_000
_THREADS: Final = 4
#: DuckDB's error classes by the prefix of their messages.
_ERRORS: Final[dict[str, type[duckdb.Error]]] = {
    "Out of Memory Error": duckdb.OutOfMemoryException,
    "IO Error": duckdb.IOException,
}
#: Files with the memory limit of a Linux container (cgroup version 2 and 1).
LIMITS: Final = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
#: Characters in a file name that DuckDB takes for a pattern.
_PATTERN: Final = frozenset("*?[]{}")


def default_memory() -> tuple[int, int]:
    """Return DuckDB's default memory limit in bytes, and the limit after it ran out of memory.

    The default is enough for all threads, but at most a quarter of the machine's memory and 4 GB.
    The container's limit counts as the machine's memory if it is smaller.
    """
    limits = [file.read_text("ascii").strip() for file in LIMITS if file.is_file()]
    of_machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    memory = min([of_machine, *(int(limit) for limit in limits if limit.isdecimal())])
    most = min(memory // _SHARE, _MOST)
    return min(THREAD_MEMORY * (os.cpu_count() or 1), most), most


class EmbeddedSession(Session):
    """Data frames of DuckDB.

    Args:
        open_store: opens the stores of datasets.
        memory: bytes that DuckDB may use before it spills; None for ``default_memory``.
        log: gets a line on the computation every few seconds.
    """

    def __init__(
        self, open_store: OpenStore, memory: int | None, log: logging.Logger | None = None
    ) -> None:
        self._open = open_store
        self._memory, self._most = (memory, memory) if memory else default_memory()
        self._log = log or logging.getLogger("lakegc")
        self._files: list[Path] = []
        self._copies: dict[tuple[str, Part], Path] = {}
        self._verified = VerifiedFiles()
        self._opened: Database | None = None

    @property
    def _database(self) -> Database:
        if self._opened is None:
            self._opened = open_database(self._memory)
            self._opened.enter()
        return self._opened

    def __exit__(self, *_: object) -> None:
        """See ``Session``."""
        if self._opened is not None:
            self._opened.leave()
            self._opened = None
        for file in self._files:
            file.unlink(missing_ok=True)
        self._files, self._copies = [], {}

    # Reading

    def read(self, dataset: Dataset) -> DataFrame:
        """See ``Session``; every file is compared with its SHA-256 here."""
        if not dataset.rows:
            return self.create(dataset.schema.empty_table())
        store, parts = self._open(dataset.url), _typical_first(dataset.parts)
        if isinstance(store, LocalStore):
            found = self._verified.paths(store, parts, dataset.schema)
            paths = [self._plainly_named(path) for path in found]
        else:
            fetched = partial(self._fetched, store, dataset.schema)
            paths = thread_map(fetched, parts, _THREADS)
        listed = ", ".join(_quoted(str(path)) for path in paths)
        columns = ", ".join(f'"{name}"' for name in dataset.schema.names)
        # Folders of artifacts may look like Hive partitions, and are none.
        files = f"read_parquet([{listed}], hive_partitioning = false)"
        query = f"SELECT {columns} FROM {files}"  # noqa: S608 - names of our own
        return cast("DataFrame", self._database.read(query, dataset.schema))

    def _fetched(self, store: ObjectStore, schema: pa.Schema, part: Part) -> Path:
        """Fetch a remote file once, verify it as ``VerifiedFiles.paths`` does; return its path."""
        path = self._copies.get((store.url, part))
        if path is None:
            data = fetch_part(store, part)
            path = self._new_file()
            path.write_bytes(data)
            self._copies[store.url, part] = path
        if not has_types(pq.read_schema(path), schema):
            raise other_columns(store, part)
        return path

    def _plainly_named(self, path: Path) -> Path:
        """Return a path of a file that DuckDB does not take for a pattern."""
        if _PATTERN.isdisjoint(str(path)):
            return path
        link = self._new_file()
        link.symlink_to(path.absolute())
        return link

    def _new_file(self) -> Path:
        path = self._database.spill.path / f"{next(self._database.names)}.parquet"
        self._files.append(path)
        return path

    def create(self, rows: pa.Table) -> DataFrame:
        """See ``Session``."""
        return cast("DataFrame", self._database.register(rows))

    # Computing

    def write(
        self, frame: DataFrame, url: str, folder: str, schema: pa.Schema, what: str
    ) -> list[Part]:
        """See ``Session``."""
        take = partial(write_tables, self._open(url), folder, schema)
        return self.compute(frame, schema, what, take)

    def collect(self, frame: DataFrame, schema: pa.Schema, what: str) -> pa.Table:
        """See ``Session``."""
        batches = self.compute(frame, schema, what, list[pa.RecordBatch])
        return pa.Table.from_batches(batches).cast(schema) if batches else schema.empty_table()

    def compute(
        self,
        frame: DataFrame,
        schema: pa.Schema,
        what: str,
        take: Callable[[Iterable[pa.RecordBatch]], R],
    ) -> R:
        """Compute a function over a frame's batches; again with one thread if memory runs out."""
        database = self._database
        query = database.query(frame, schema.names)

        def job() -> R:
            with database.lock, database.connection.sql(query).to_arrow_reader(_BATCH) as batches:
                return take(_batches(batches))

        def job_alone() -> R:
            with database.one_thread(self._most):
                return job()

        try:
            with report_progress(self._log, elapsed(f"{what}: in DuckDB")):
                enough = True
                try:
                    found = interruptible(job, database.connection.interrupt)
                except duckdb.OutOfMemoryException:
                    enough = False
                # After the handler, which holds the objects of the first try.
                if not enough:
                    self._log.info("%s: memory ran out, so it runs again in one thread", what)
                    found = interruptible(job_alone, database.connection.interrupt)
        except duckdb.IOException as error:
            self._verified.require_unchanged(there=True)
            raise ConfigurationError(
                f"{what}: the embedded engine cannot read or write a file of this machine: free "
                f"space in {database.spill.path.parent}, set TMPDIR to another folder, or use the "
                f"engine spark ({error})"
            ) from error
        except duckdb.OutOfMemoryException as error:
            raise ConfigurationError(
                f"{what}: the embedded engine needs more than {self._most >> 20:,} MB of memory, "
                f"or more space in {database.spill.path.parent}: raise embedded_memory, set TMPDIR "
                "to another folder, or use the engine spark "
                f"({error})"
            ) from error
        self._verified.require_unchanged()
        return found


def _typical_first(parts: Sequence[Part]) -> list[Part]:
    """Order the files of a dataset so that a file of about average size is first.

    DuckDB estimates all files by the first one. After a small or empty first file, it holds the
    large side of a join in memory in place of the small one.
    """
    filled = [part.rows for part in parts if part.rows]
    average = sum(filled) / len(filled)
    return sorted(parts, key=lambda part: (not part.rows, abs(part.rows - average)))


def _batches(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """Yield a query's batches; restores DuckDB's errors, which pyarrow converts after the first."""
    try:
        yield from reader
    except OSError as error:
        for begin, kind in _ERRORS.items():
            if str(error).startswith(begin):
                raise kind(str(error)) from error
        raise


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
