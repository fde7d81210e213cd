"""The Spark engine's data frames, with the same code for classic Spark and Spark Connect.

Tasks read and write datasets through ``storage``. They compare each file with its SHA-256 in the
same pass, and need neither a connector nor credentials of Hadoop. If both Spark and the artifacts
are on this machine, the files are compared here, and Spark reads them by itself.
"""

from __future__ import annotations

import logging
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import accumulate
from typing import Final, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from lakegc_assets.engine.datasets import Part, VerifiedFiles, read_typed, write_tables
from lakegc_assets.engine.session import Dataset, OpenStore, Session
from lakegc_assets.engine.spark_jobs import begin_task, run_job
from lakegc_assets.engine.spark_session import (
    REQUIRED,
    code_of_tasks,
    is_cluster,
    master_of,
)
from lakegc_assets.errors import IntegrityError, LakegcError
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.local import LocalStore

R = TypeVar("R")

#: Most rows that are read here and sent along, which costs less than tasks that read them.
_FEW_ROWS: Final = 20_000
#: Most tasks that read a dataset; each reads several of its files.
_MOST_TASKS: Final = 1_000
#: Largest hash table in bytes of a dataset that is broadcast to each task of a join. The other side
#: then needs no exchange: an exchange of ten million addresses takes longer than this join. The
#: driver holds the table as well, and again serialized, and a plan may have several.
SMALL_BYTES: Final = 128 << 20
#: Bytes of a row in such a table besides its values: header, pointers, and free slots.
_ROW_BYTES: Final = 64
#: Bytes of a value; and how often a text is there: in the key and in the row.
_VALUE_BYTES: Final = 8
_TEXTS: Final = 2
#: Settings that compute few rows in one job. Without them each broadcast, and with adaptive
#: execution each exchange, is a job. To compile code for few rows takes longer than to run without.
FOR_FEW_ROWS: Final = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
#: Settings for files that Spark reads by itself. Spark estimates a frame by their size. Addresses
#: compress well, so a small file can be a large table, which must not be broadcast.
_FOR_FILES: Final = {
    "spark.sql.sources.fileCompressionFactor": "16",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000000",
}
_READING: Final = {
    "parquet.page.verify-checksum.enabled": "true",
    # Folders of artifacts may look like Hive partitions, and are none.
    "recursiveFileLookup": "true",
    # Times before 1900 are read unchanged.
    "datetimeRebaseMode": "CORRECTED",
    # Independent of the session's settings: missing rows would make live objects look dead.
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
}
#: Paths that Spark reads literally: no pattern, and nothing that its JVM's locale changes.
_PLAIN: Final = re.compile(r"/[\w/.+@~=-]+", re.ASCII)
_PART: Final = "key string, rows long, size long, sha256 string"
#: The last row of such a result, in SQL; no file has an empty key.
_END: Final = ("'' AS key", "0L AS rows", "0L AS size", "'' AS sha256")


class SparkBackedSession(Session):
    """Data frames of Spark.

    Args:
        spark: returns the session when it is needed.
        open_store: opens the stores of datasets; picklable.
        log: gets a line on the computation every few seconds.
    """

    def __init__(
        self,
        spark: Callable[[], SparkSession],
        open_store: OpenStore,
        log: logging.Logger | None = None,
    ) -> None:
        self._start, self._open = spark, open_store
        self._most_rows = 0
        self._verified = VerifiedFiles()
        self._log = log or logging.getLogger("lakegc")
        #: The values for many rows of the settings in ``FOR_FEW_ROWS``; and those that are set.
        self._usual: Mapping[str, str] = {}
        self._chosen: Mapping[str, str] | None = None

    @cached_property
    def _spark(self) -> SparkSession:
        spark = self._start()
        # Other users of the session must not get these settings; a new one is expensive on Connect.
        if not _is_classic(spark):
            return spark
        own = spark.newSession()
        # It inherits the settings of the context, but not the settings of the other session.
        for name, value in (REQUIRED | _FOR_FILES).items():
            own.conf.set(name, value)
        self._usual = {name: str(own.conf.get(name)) for name in FOR_FEW_ROWS}
        return own

    @cached_property
    def _code(self) -> str:
        return code_of_tasks(self._spark)

    @property
    def _has_few_rows(self) -> bool:
        """True if no frame of this session has more than a few rows."""
        return self._most_rows <= _FEW_ROWS

    @property
    def _is_on_this_machine(self) -> bool:
        return _is_classic(self._spark) and not is_cluster(master_of(self._spark))

    def compares_late(self, url: str) -> bool:
        """See ``Session``; if Spark and the files are on this machine, ``read`` compares them."""
        return not (isinstance(self._open(url), LocalStore) and self._is_on_this_machine)

    def is_small(self, dataset: Dataset) -> bool:
        """See ``Session``; a dataset with texts may be large."""
        return _is_small(dataset)

    def read(self, dataset: Dataset) -> DataFrame:
        """See ``Session``; files are compared with their SHA-256 here, or where they are read."""
        schema, parts = dataset.schema, [part for part in dataset.parts if part.rows]
        self._most_rows = max(self._most_rows, dataset.rows)
        store = self._open(dataset.url)
        if dataset.rows <= _FEW_ROWS:
            tables = [read_typed(store, part, schema) for part in parts]
            return self.create(pa.concat_tables([schema.empty_table(), *tables]))
        if isinstance(store, LocalStore) and self._is_on_this_machine:
            self._verified.paths(store, parts, schema)
            paths = [str(store.path_of(part.key).absolute()) for part in parts]
            if all(map(_PLAIN.fullmatch, paths)):
                reader = self._spark.read.schema(from_arrow_schema(schema)).options(**_READING)
                frame = reader.parquet(*(f"file://{path}" for path in paths))
                # Spark silently omits hidden files, duplicate paths, and files that a filter of
                # Hadoop's refuses: live objects would look dead.
                if len(frame.inputFiles()) == len(paths):
                    return frame.hint("broadcast") if _is_small(dataset, store) else frame
        return self._read_by_tasks(dataset, parts)

    def _read_by_tasks(self, dataset: Dataset, parts: Sequence[Part]) -> DataFrame:
        schema = dataset.schema
        task = partial(_read_parts, self._code, self._open, dataset.url, parts, schema)
        # Spark estimates the result of a task by its input rows. It must not take a large dataset
        # for a small one, and broadcast it to every task of a join.
        numbers = self._spark.range(0, dataset.rows, 1, min(len(parts), _MOST_TASKS))
        frame = numbers.mapInArrow(task, from_arrow_schema(schema))
        return frame.hint("broadcast") if _is_small(dataset) else frame

    def create(self, rows: pa.Table) -> DataFrame:
        """See ``Session``."""
        self._most_rows = max(self._most_rows, rows.num_rows)
        frame = self._spark.createDataFrame(rows, from_arrow_schema(rows.schema))
        # Rows in one partition need no exchange before a join, a sort or an aggregate.
        return frame.coalesce(1)

    def write(
        self, frame: DataFrame, url: str, folder: str, schema: pa.Schema, what: str
    ) -> list[Part]:
        """See ``Session``; few rows are written here, as that takes less than a task in Python."""
        selected = frame.select(*schema.names)
        if self._has_few_rows and self._is_on_this_machine:
            # A join of few rows may have many.
            found = self._answer(selected.limit(_FEW_ROWS + 1), what)
            if found.num_rows <= _FEW_ROWS:
                return write_tables(self._open(url), folder, schema, [found])
        task = partial(_write_parts, self._code, self._open, url, folder, schema)
        written = selected.mapInArrow(task, _PART)
        # Classic PySpark takes a broken connection to its JVM for the end of the rows.
        end = self._spark.range(0, 1, 1, 1).selectExpr(*_END)
        rows = self._run(what, written.union(end).collect)
        parts = [Part(row["key"], row["rows"], row["size"], row["sha256"]) for row in rows]
        if not parts or parts.pop().key:
            raise _early_end(what)
        return parts

    def step(
        self,
        frame: DataFrame,
        url: str,  # noqa: ARG002 - as in Session
        folder: str,  # noqa: ARG002
        schema: pa.Schema,
        what: str,  # noqa: ARG002
    ) -> DataFrame:
        """See ``Session``; Spark spills, and an unwritten frame may need no second exchange."""
        return frame.select(*schema.names)

    def collect(self, frame: DataFrame, schema: pa.Schema, what: str) -> pa.Table:
        """See ``Session``."""
        return self._answer(frame.select(*schema.names), what).cast(schema)

    def _answer(self, frame: DataFrame, what: str) -> pa.Table:
        try:
            return self._run(what, frame.toArrow)
        except (pa.ArrowInvalid, EOFError, OSError) as error:
            raise _early_end(what) from error

    def _run(self, what: str, job: Callable[[], R]) -> R:
        if _is_classic(self._spark):
            # An unset setting has Spark's own default, not the value of the context.
            wanted = FOR_FEW_ROWS if self._has_few_rows else self._usual
            if wanted is not self._chosen:
                for name, value in wanted.items():
                    self._spark.conf.set(name, value)
                self._chosen = wanted
        try:
            found = run_job(self._spark, what, job, self._log)
        except LakegcError:
            raise
        except Exception:
            # An error that names the file says more than Java's stack trace.
            self._verified.require_unchanged(there=True)
            raise
        self._verified.require_unchanged()
        return found


def _early_end(what: str) -> IntegrityError:
    return IntegrityError(
        f"{what}: the answer of Spark ended early, so not all that it has found or written is "
        "known. Look into the log of Spark's driver, which may lack memory (spark.driver.memory), "
        "then run again"
    )


def _is_small(dataset: Dataset, store: ObjectStore | None = None) -> bool:
    """Return True if the hash table of a dataset has at most ``SMALL_BYTES``.

    ``store``: the store of its files, which are read for the length of texts; without it, a dataset
    with texts counts as large.
    """
    size = dataset.rows * (_ROW_BYTES + len(dataset.schema) * _VALUE_BYTES)
    if size > SMALL_BYTES or not any(map(pa.types.is_string, dataset.schema.types)):
        return size <= SMALL_BYTES
    if store is None:
        return False
    for part in dataset.parts:
        size += _TEXTS * read_typed(store, part, dataset.schema).nbytes
        if size > SMALL_BYTES:
            return False
    return True


def _is_classic(spark: object) -> bool:
    """Return True for a session of classic Spark; Spark Connect has another class."""
    return isinstance(spark, SparkSession)


def _read_parts(
    code: str,
    open_store: OpenStore,
    url: str,
    parts: Sequence[Part],
    schema: pa.Schema,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Read each file in the task that gets the number of its first row, so exactly once."""
    begin_task(code)
    store = open_store(url)
    first_rows = list(accumulate((part.rows for part in parts), initial=0))[:-1]
    for batch in batches:
        if not batch.num_rows:
            continue
        low, high = batch["id"][0].as_py(), batch["id"][-1].as_py()
        if high - low + 1 != batch.num_rows:
            raise IntegrityError(
                f"Spark gave a task the numbers {low} to {high} with gaps, so the files of {url} "
                "that it must read are not known. Please report it, with the version of Spark"
            )
        for part in parts[bisect_left(first_rows, low) : bisect_right(first_rows, high)]:
            yield from read_typed(store, part, schema).to_batches()


def _write_parts(
    code: str,
    open_store: OpenStore,
    url: str,
    folder: str,
    schema: pa.Schema,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    begin_task(code)
    if written := write_tables(open_store(url), folder, schema, batches):
        yield pa.RecordBatch.from_pylist([part._asdict() for part in written])
