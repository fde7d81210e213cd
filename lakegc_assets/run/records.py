"""Small files of rows, each written by one task, without a digest in a manifest.

Their pages have checksums, which show damage that a reader of Parquet would not notice.
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
#: Parallel requests of a task, parallel tasks of a process, and seconds for a page of files.
_THREADS: Final = 16
_TASKS: Final = 4
_PAGE_S: Final = 5.0


@dataclass(frozen=True)
class RecordFiles:
    """Files of rows, one for each batch, so their number grows with the number of objects.

    Other files below the prefix are ignored, for example from other tools that read a ledger.
    """

    connections: Connections
    #: URL of their store.
    url: str
    #: Prefix of their keys.
    prefix: str
    schema: pa.Schema
    #: True if a damaged file counts as absent; else it raises an error.
    skip_damaged: bool

    def gather(self, tasks: Tasks, url: str, folder: str) -> list[Part]:
        """Copy the rows to the larger files of a dataset. This process holds one page of keys.

        ``folder``: folder in the store at ``url``, with a slash at its end.

        Raises:
            IntegrityError: a file is damaged, unless ``skip_damaged`` is set.
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
        """Return the keys of files of rows, from the first to the last key of a span."""
        first, last = span
        # ``start_after`` is exclusive. The extra keys begin with it, and the filter drops them.
        pages = self._store().list(self.prefix, start_after=first[:-1], end_before=f"{last}\0")
        keys = [key for page in pages for key in page["key"].to_pylist() if first <= key <= last]
        return [key for key in keys if key.endswith(_SUFFIX)]

    def read(self, key: str) -> pa.Table:
        """Read the rows of one file."""
        read = read_whole if self.skip_damaged else read_rows
        return read(self._store(), key, self.schema)


def _gather(files: RecordFiles, url: str, folder: str, span: tuple[str, str]) -> list[Part]:
    tables = thread_map(files.read, files.keys(span), _THREADS)
    return write_tables(files.connections.open(url), folder, files.schema, tables)


def best_of_each(rows: pa.Table, rank: Callable[[pa.Table], pa.ChunkedArray]) -> pa.Table:
    """Return the row of each address (``address``, ``at``) with the least rank, then the newest.

    Few addresses are recorded twice, so only rows whose addresses share a hash are sorted.
    """
    _, which, counts = np.unique(
        address_hashes(rows["address"]), return_inverse=True, return_counts=True
    )
    is_repeated = pa.array(counts[which] > 1)
    repeated = rows.filter(is_repeated)
    if not repeated.num_rows:
        return rows
    order = [("address", "ascending"), ("rank", "ascending"), ("at", "descending")]
    ranked = strings.in_order(repeated.append_column("rank", rank(repeated)), order)
    best = ranked.filter(strings.first_of_each(ranked["address"])).drop_columns(["rank"])
    return pa.concat_tables([rows.filter(pc.invert(is_repeated)), best])


def write_rows(store: ObjectStore, key: str, rows: pa.Table) -> None:
    """Write a file: when this returns it has all rows; after an error it has all or none.

    Raises:
        StorageError: the write is not confirmed.
    """
    store.put(key, parquet.encode(rows, "snappy"))


def write_values(
    store: ObjectStore, key: str, rows: Sequence[Sequence[Any]], schema: pa.Schema
) -> None:
    """Write a few rows of plain values, in the order of the columns, as ``write_rows`` does.

    Raises:
        StorageError: the write is not confirmed.
    """
    store.put(key, parquet.encode_values(rows, schema))


def read_rows(store: ObjectStore, key: str, schema: pa.Schema) -> pa.Table:
    """Read the rows of a file.

    Raises:
        IntegrityError: it is damaged, or of another schema.
        ObjectNotFoundError: it does not exist.
        StorageError: the store did not answer.
    """
    data = store.get(key)
    try:
        rows = parquet.decode(data, verify=True)
        return rows if rows.schema.equals(schema) else rows.cast(schema)
    except (pa.ArrowException, ValueError, OSError) as error:
        raise IntegrityError(f"{store.url}/{key} is damaged ({error})") from error


def read_whole(store: ObjectStore, key: str, schema: pa.Schema) -> pa.Table:
    """Read rows as ``read_rows`` does; no rows from a damaged file."""
    try:
        return read_rows(store, key, schema)
    except IntegrityError:
        return schema.empty_table()
