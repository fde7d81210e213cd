"""Small files of rows that tasks write each on their own: no manifest has a digest of them.

So their pages have checksums, which show damage that a reader of Parquet would not notice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.datasets import Part, write_tables
from lakegc_assets.engine.tasks import Tasks, thread_map
from lakegc_assets.errors import IntegrityError
from lakegc_assets.run import strings
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.hashing import address_hashes
from lakegc_assets.storage import parquet
from lakegc_assets.storage.base import ObjectStore

_SUFFIX: Final = ".parquet"
#: Requests of one task at a time, tasks of one process, and work for a page of files, in seconds.
_THREADS: Final = 16
_TASKS: Final = 4
_PAGE_S: Final = 5.0


@dataclass(frozen=True)
class RecordFiles:
    """Files that are written for each batch, so that their number grows with that of objects.

    What else lies below the prefix does not count, as where people read a ledger by other tools.
    """

    connections: Connections
    #: Of the store that holds them.
    url: str
    #: Of their keys.
    prefix: str
    schema: pa.Schema
    #: Whether a damaged file counts as absent, in place of raising an error.
    skip_damaged: bool

    def gather(self, tasks: Tasks, url: str, folder: str) -> list[Part]:
        """Copy the rows to larger files: a dataset. This process gets a page of keys at a time.

        ``folder``: of the store at ``url``, with a slash at its end.

        Raises:
            IntegrityError: a file is damaged, unless these are skipped.
            StorageError: a store did not answer.
        """
        pages = (page["key"].to_pylist() for page in self._store().list(self.prefix))
        spans = [(keys[0], keys[-1]) for keys in pages if keys]
        task = partial(_gather, self, url, folder)
        seconds = len(spans) * _PAGE_S
        written = tasks.run_or_call("read what was recorded", task, spans, seconds, _TASKS)
        return [part for parts in written for part in parts]

    def _store(self) -> ObjectStore:
        return self.connections.open(self.url)

    def keys(self, span: tuple[str, str]) -> list[str]:
        """The keys of files of rows, from the first to the last key of a span."""
        first, last = span
        # All keys in between begin like the first one.
        pages = self._store().list(self.prefix, start_after=first[:-1], end_before=f"{last}\0")
        keys = [key for page in pages for key in page["key"].to_pylist() if first <= key <= last]
        return [key for key in keys if key.endswith(_SUFFIX)]

    def read(self, key: str) -> pa.Table:
        """The rows of one of the files."""
        read = read_whole if self.skip_damaged else read_rows
        return read(self._store(), key, self.schema)


def _gather(files: RecordFiles, url: str, folder: str, span: tuple[str, str]) -> list[Part]:
    tables = thread_map(files.read, files.keys(span), _THREADS)
    return write_tables(files.connections.open(url), folder, files.schema, tables)


def best_of_each(rows: pa.Table, rank: Callable[[pa.Table], pa.ChunkedArray]) -> pa.Table:
    """The row of each address (``address``, ``at``) with the least rank, and the last of these.

    Hardly any address is recorded twice, so only rows whose addresses share a hash are ordered.
    """
    _, which, counts = np.unique(
        address_hashes(rows["address"]), return_inverse=True, return_counts=True
    )
    often = pa.array(counts[which] > 1)
    several = rows.filter(often)
    if not several.num_rows:
        return rows
    order = [("address", "ascending"), ("rank", "ascending"), ("at", "descending")]
    ranked = strings.in_order(several.append_column("rank", rank(several)), order)
    best = ranked.filter(strings.first_of_each(ranked["address"])).drop_columns(["rank"])
    return pa.concat_tables([rows.filter(pc.invert(often)), best])


def write_rows(store: ObjectStore, key: str, rows: pa.Table) -> None:
    """Write rows: they are all in the file when this returns, or there is none.

    Raises:
        StorageError: it is not known to be written.
    """
    store.put(key, parquet.encode(rows, "snappy"))


def write_values(
    store: ObjectStore, key: str, rows: Sequence[Sequence[Any]], schema: pa.Schema
) -> None:
    """As ``write_rows``, of a few rows that are plain values, in the order of the columns.

    Raises:
        StorageError: it is not known to be written.
    """
    store.put(key, parquet.encode_values(rows, schema))


def read_rows(store: ObjectStore, key: str, schema: pa.Schema) -> pa.Table:
    """The rows of a file.

    Raises:
        IntegrityError: it is damaged, or of another schema.
        ObjectNotFoundError: there is none.
        StorageError: the store did not answer.
    """
    data = store.get(key)
    try:
        rows = parquet.decode(data, verify=True)
        return rows if rows.schema.equals(schema) else rows.cast(schema)
    except (pa.ArrowException, ValueError, OSError) as error:
        raise IntegrityError(f"{store.url}/{key} is damaged ({error})") from error


def read_whole(store: ObjectStore, key: str, schema: pa.Schema) -> pa.Table:
    """As ``read_rows``, of a file of which nothing is known if it is damaged: then no rows."""
    try:
        return read_rows(store, key, schema)
    except IntegrityError:
        return schema.empty_table()
