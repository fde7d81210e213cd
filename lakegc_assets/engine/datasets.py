"""Datasets of artifacts: Parquet files with unique names, known by size and SHA-256.

A task that is repeated, or that Spark has given up, writes other files than the attempt that
counts: only what a manifest names is ever read, and its bytes are compared when they are.
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

#: Rows in one file: what a reader holds in memory at a time.
ROWS_EACH: Final = 250_000
#: Bytes of a file that are read at a time, and files that are read at once.
_CHUNK: Final = 1 << 20
_THREADS: Final = 4
#: Bytes from which threads earn what it takes to start them.
_WORTH_THREADS: Final = 1 << 20


class Part(NamedTuple):
    """One file of rows.

    Attributes:
        key: relative to the store that it was written to.
        rows: number of rows.
        size: bytes.
        sha256: of its bytes, in hex.
    """

    key: str
    rows: int
    size: int
    sha256: str


def table_of(rows: Iterable[Sequence[object]], schema: pa.Schema) -> pa.Table:
    """A table of a few rows, whose values are in the order of the columns."""
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def write_part(store: ObjectStore, folder: str, table: pa.Table, *, plain: bool = False) -> Part:
    """Write rows to a new file.

    Args:
        store: to write to.
        folder: relative to the store, with a slash at its end.
        table: the rows.
        plain: write numbers as they are, for columns that do not compress.
    """
    return write_file(store, folder, parquet.encode(table, plain=plain), table.num_rows)


def write_values(
    store: ObjectStore, folder: str, rows: Sequence[Sequence[Any]], schema: pa.Schema
) -> Part:
    """As ``write_part``, of a few rows that are plain values, in the order of the columns."""
    return write_file(store, folder, parquet.encode_values(rows, schema), len(rows))


def write_file(store: ObjectStore, folder: str, data: bytes, rows: int) -> Part:
    """Write the bytes of a file with so many rows, under a name that no other has."""
    key = f"{folder}part-{secrets.token_hex(8)}.parquet"
    store.put(key, data)
    return Part(key, rows, len(data), hashlib.sha256(data).hexdigest())


def read_part(store: ObjectStore, part: Part, columns: Sequence[str] | None = None) -> pa.Table:
    """The rows of a file, after its bytes were compared with what is known of them.

    Raises:
        IntegrityError: it is missing, or not what it was.
    """
    return parquet.decode(fetch_part(store, part), columns)


def read_values(
    store: ObjectStore, part: Part, columns: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """As ``read_part``, of a few rows, as plain values."""
    return parquet.decode_values(fetch_part(store, part), columns)


def read_typed(store: ObjectStore, part: Part, schema: pa.Schema) -> pa.Table:
    """The columns of a schema of a file, which must have their very types.

    A hash that was written as another kind of number would equal none, and keep nothing alive.

    Raises:
        IntegrityError: the file is missing, not what it was, or has other columns.
    """
    file = pq.ParquetFile(pa.BufferReader(fetch_part(store, part)))
    if not has_types(file.schema_arrow, schema):
        raise other_columns(store, part)
    return file.read(schema.names).select(schema.names).cast(schema)


def has_types(written: pa.Schema, wanted: pa.Schema) -> bool:
    """True if a file has the columns and types of a schema, dictionary-encoded or not."""
    types = {
        field.name: field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        for field in written
    }
    return all(types.get(field.name) == field.type for field in wanted)


def fetch_part(store: ObjectStore, part: Part) -> bytes:
    """The bytes of a file, after they were compared with what is known of them.

    Raises:
        IntegrityError: it is missing, or not what it was.
    """
    try:
        data = store.get(part.key)
    except ObjectNotFoundError as error:
        raise missing_part(store, part) from error
    if len(data) != part.size or hashlib.sha256(data).hexdigest() != part.sha256:
        raise damaged_part(store, part)
    return data


class VerifiedFiles:
    """Files of this machine that an engine reads by itself, after their bytes were compared.

    What changes between that comparison and the end of a computation is noticed by the number and
    the time that the kernel gives a file.
    """

    def __init__(self) -> None:
        self._compared: dict[Path, tuple[LocalStore, Part, tuple[int, ...]]] = {}

    def paths(self, store: LocalStore, parts: Sequence[Part], schema: pa.Schema) -> list[Path]:
        """The paths of files that hold what is known of them.

        Args:
            store: of files of this machine.
            parts: the files.
            schema: the columns that are read, which each must have with their very types.

        Raises:
            IntegrityError: a file is missing, not what it was, or has other columns.
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
                # Several frames of a stage read some columns each, of files large together.
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
        """Require that all files are what they were when they were compared.

        Args:
            there: whether they must be there, too: one that is gone was read by then, or else the
                engine has failed.

        Raises:
            IntegrityError: another file has taken the place of one, its bytes were changed, or it
                is missing.
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
    # Not when its entry changed: a backup by hard links would change that.
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def missing_part(store: ObjectStore, part: Part) -> IntegrityError:
    """The error where a file is not there."""
    return IntegrityError(
        f"{store.url}/{part.key} is missing: something removed it. Mark again under a new id"
    )


def other_columns(store: ObjectStore, part: Part) -> IntegrityError:
    """The error where a file was written in another form."""
    return IntegrityError(
        f"{store.url}/{part.key} has other columns than it should: another version wrote it. Mark "
        "again under a new id"
    )


def damaged_part(store: ObjectStore, part: Part) -> IntegrityError:
    """The error where a file is not what it was."""
    return IntegrityError(
        f"{store.url}/{part.key} is not what its manifest says: something changed it. Mark "
        "again under a new id"
    )


def read_parts(
    store: ObjectStore, parts: Iterable[Part], columns: Sequence[str] | None = None
) -> Iterator[pa.Table]:
    """The rows of several files, one after the other."""
    return (read_part(store, part, columns) for part in parts)


class PartWriter:
    """Collects rows and writes a file whenever there are enough for one.

    Args:
        store: to write to.
        folder: relative to the store, with a slash at its end.
        schema: of the rows.

    Attributes:
        parts: the files so far.
        rows: that were added.
    """

    def __init__(self, store: ObjectStore, folder: str, schema: pa.Schema) -> None:
        self.parts: list[Part] = []
        self._store, self._folder, self._schema = store, folder, schema
        self.rows = 0
        self._waiting: list[pa.RecordBatch] = []
        self._rows = 0

    def add(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Take some rows."""
        batches = rows.to_batches() if isinstance(rows, pa.Table) else [rows]
        self._waiting += batches
        self.rows += rows.num_rows
        self._rows += rows.num_rows
        if self._rows >= ROWS_EACH:
            self._flush()

    def finish(self) -> list[Part]:
        """The files, when all rows are in them; without any row there is an empty one."""
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
    store: ObjectStore, folder: str, schema: pa.Schema, tables: Iterable[pa.Table]
) -> list[Part]:
    """Write rows to files of a folder, with a slash at its end; none of them is empty."""
    writer = PartWriter(store, folder, schema)
    for table in tables:
        writer.add(table)
    return writer.finish() if writer.rows else []
