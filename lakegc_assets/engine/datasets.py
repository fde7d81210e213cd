"""Datasets of artifacts: Parquet files with unique names, identified by size and SHA-256.

A repeated task, or a task that Spark has given up, writes files with other names. Readers only read
the files that a manifest names, and compare their bytes with it.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from lakegc_assets.errors import IntegrityError
from lakegc_assets.storage import parquet
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import ObjectNotFoundError
from lakegc_assets.storage.local import LocalStore

#: Rows in one file, which a reader holds in memory at a time.
ROWS_EACH: Final = 250_000
#: Bytes that are read from a file at a time, and files that are read in parallel.
_CHUNK: Final = 1 << 20
_THREADS: Final = 4
#: Least number of bytes for which threads save more than the time of their start.
_WORTH_THREADS: Final = 1 << 20


class Part(NamedTuple):
    """One file of rows.

    Attributes:
        key: key relative to its store.
        size: bytes.
    """

    key: str
    rows: int
    size: int
    sha256: str


def table_of(rows: Iterable[Sequence[object]], schema: pa.Schema) -> pa.Table:
    """Return a table of a few rows with values in the order of the columns."""
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def write_part(store: ObjectStore, folder: str, table: pa.Table, *, plain: bool = False) -> Part:
    """Write rows to a new file.

    ``folder``: relative to the store, with a slash at its end. ``plain``: write numbers unencoded,
    for columns that do not compress.
    """
    return write_file(store, folder, parquet.encode(table, plain=plain), table.num_rows)


def write_values(
    store: ObjectStore, folder: str, rows: Sequence[Sequence[Any]], schema: pa.Schema
) -> Part:
    """Write a few rows of plain values, in the order of the columns, as ``write_part`` does."""
    return write_file(store, folder, parquet.encode_values(rows, schema), len(rows))


def write_file(store: ObjectStore, folder: str, data: bytes, rows: int) -> Part:
    """Write the bytes of a file of rows under a unique name."""
    key = f"{folder}part-{secrets.token_hex(8)}.parquet"
    store.put(key, data)
    return Part(key, rows, len(data), hashlib.sha256(data).hexdigest())


def read_part(store: ObjectStore, part: Part, columns: Sequence[str] | None = None) -> pa.Table:
    """Read the rows of a file after a comparison of its bytes with its size and SHA-256.

    Raises:
        IntegrityError: the file is missing or changed.
    """
    return parquet.decode(fetch_part(store, part), columns)


def read_values(
    store: ObjectStore, part: Part, columns: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """Read a few rows as plain values, as ``read_part`` does."""
    return parquet.decode_values(fetch_part(store, part), columns)


def read_typed(store: ObjectStore, part: Part, schema: pa.Schema) -> pa.Table:
    """Read the columns of a schema from a file; they must have exactly its types.

    A hash that was written as another type of number would match no hash, and protect nothing.

    Raises:
        IntegrityError: the file is missing or changed, or has other columns.
    """
    file = pq.ParquetFile(pa.BufferReader(fetch_part(store, part)))
    if not has_types(file.schema_arrow, schema):
        raise other_columns(store, part)
    return file.read(schema.names).select(schema.names).cast(schema)


def has_types(written: pa.Schema, wanted: pa.Schema) -> bool:
    """Return True if a file has the columns and types of a schema, dictionary-encoded or not."""
    types = {
        field.name: field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        for field in written
    }
    return all(types.get(field.name) == field.type for field in wanted)


def fetch_part(store: ObjectStore, part: Part) -> bytes:
    """Read the bytes of a file after a comparison with its size and SHA-256.

    Raises:
        IntegrityError: the file is missing or changed.
    """
    try:
        data = store.get(part.key)
    except ObjectNotFoundError as error:
        raise missing_part(store, part) from error
    if len(data) != part.size or hashlib.sha256(data).hexdigest() != part.sha256:
        raise damaged_part(store, part)
    return data


class VerifiedFiles:
    """Local files that an engine reads by itself after a comparison of their bytes.

    A change between that comparison and the end of a computation shows in the inode number, the
    size or the modification time of the file.
    """

    def __init__(self) -> None:
        self._compared: dict[Path, tuple[LocalStore, Part, tuple[int, ...]]] = {}

    def paths(self, store: LocalStore, parts: Sequence[Part], schema: pa.Schema) -> list[Path]:
        """Return the paths of files after a comparison with their size and SHA-256.

        ``schema``: the columns to read, which each file must have with exactly these types.

        Raises:
            IntegrityError: a file is missing or changed, or has other columns.
        """
        path = partial(self._path, store, schema)
        if sum(part.size for part in parts) < _WORTH_THREADS:
            return [path(part) for part in parts]
        with ThreadPoolExecutor(_THREADS) as pool:
            return list(pool.map(path, parts))

    def _path(self, store: LocalStore, schema: pa.Schema, part: Part) -> Path:
        path = store.path_of(part.key)
        try:
            with path.open("rb") as file:
                found = (store, part, _identity(os.fstat(file.fileno())))
                # Several frames of a stage read columns of the same large files: compare them once.
                if self._compared.get(path, ())[1:] != found[1:]:
                    self._compare(store, part, file)
                    self._compared[path] = found
                if not has_types(pq.read_schema(file), schema):
                    raise other_columns(store, part)
        except FileNotFoundError as error:
            raise missing_part(store, part) from error
        return path

    @staticmethod
    def _compare(store: LocalStore, part: Part, file: BinaryIO) -> None:
        size, digest = 0, hashlib.sha256()
        while chunk := file.read(_CHUNK):
            size += len(chunk)
            digest.update(chunk)
        if (size, digest.hexdigest()) != (part.size, part.sha256):
            raise damaged_part(store, part)
        file.seek(0)

    def require_unchanged(self, *, there: bool = False) -> None:
        """Require that no file has changed since its comparison.

        Args:
            there: True if all files must still exist. Else a missing file is accepted: it was read
                before, or else the engine has failed.

        Raises:
            IntegrityError: a file was replaced or changed; or, with ``there``, it is missing.
        """
        for path, (store, part, identity) in self._compared.items():
            try:
                found = _identity(path.stat())
            except FileNotFoundError as error:
                if there:
                    raise missing_part(store, part) from error
                continue
            if found != identity:
                raise damaged_part(store, part)


def _identity(found: os.stat_result) -> tuple[int, ...]:
    # Without the time of the inode's change: a backup by hard links would change that.
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def missing_part(store: ObjectStore, part: Part) -> IntegrityError:
    """Return the error for a missing file."""
    return IntegrityError(
        f"{store.url}/{part.key} is missing: something removed it. Mark again under a new id"
    )


def other_columns(store: ObjectStore, part: Part) -> IntegrityError:
    """Return the error for a file in another form."""
    return IntegrityError(
        f"{store.url}/{part.key} has other columns than it should: another version wrote it. Mark "
        "again under a new id"
    )


def damaged_part(store: ObjectStore, part: Part) -> IntegrityError:
    """Return the error for a changed file."""
    return IntegrityError(
        f"{store.url}/{part.key} is not what its manifest says: something changed it. Mark "
        "again under a new id"
    )


def read_parts(
    store: ObjectStore, parts: Iterable[Part], columns: Sequence[str] | None = None
) -> Iterator[pa.Table]:
    """Yield the rows of several files, one file after the other."""
    return (read_part(store, part, columns) for part in parts)


class PartWriter:
    """Collects rows, and writes a file as soon as there are enough for it.

    Args:
        folder: relative to the store, with a slash at its end.

    Attributes:
        parts: the files so far.
        rows: the number of added rows.
    """

    def __init__(self, store: ObjectStore, folder: str, schema: pa.Schema) -> None:
        self.parts: list[Part] = []
        self._store, self._folder, self._schema = store, folder, schema
        self.rows = 0
        self._waiting: list[pa.RecordBatch] = []
        self._rows = 0

    def add(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Add rows."""
        batches = rows.to_batches() if isinstance(rows, pa.Table) else [rows]
        self._waiting += batches
        self.rows += rows.num_rows
        self._rows += rows.num_rows
        if self._rows >= ROWS_EACH:
            self._flush()

    def finish(self) -> list[Part]:
        """Write the remaining rows, and return all files; without any row one empty file."""
        if self._rows or not self.parts:
            self._flush()
        return self.parts

    def _flush(self) -> None:
        if self._waiting:
            table = pa.Table.from_batches(self._waiting)
            if not table.schema.equals(self._schema):
                table = table.cast(self._schema)
        else:
            table = self._schema.empty_table()
        self.parts.append(write_part(self._store, self._folder, table))
        self._waiting, self._rows = [], 0


def write_tables(
    store: ObjectStore,
    folder: str,
    schema: pa.Schema,
    tables: Iterable[pa.RecordBatch | pa.Table],
) -> list[Part]:
    """Write rows to non-empty files of a folder, with a slash at its end."""
    writer = PartWriter(store, folder, schema)
    for table in tables:
        writer.add(table)
    return writer.finish() if writer.rows else []
