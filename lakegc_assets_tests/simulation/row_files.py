"""Files of rows in memory in the place of Parquet, which takes much longer.

The bytes of a file only name its rows, which stay beside the store of a world: bytes that were cut,
or that something else wrote, name none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

Rows = Sequence[Mapping[str, Any]]


class RowFiles:
    """The rows of the files that were written in a world, as tables, as plain values, or both."""

    def __init__(self) -> None:
        self._tables: dict[bytes, pa.Table] = {}
        self._rows: dict[bytes, Rows] = {}
        self._schemas: dict[bytes, pa.Schema] = {}

    def copy(self) -> RowFiles:
        """Others that begin with the same files, of which this one has both forms."""
        for data in self._schemas:
            self.table(data)
            self.rows(data)
        copied = RowFiles()
        copied._tables, copied._rows = self._tables.copy(), self._rows.copy()
        copied._schemas = self._schemas.copy()
        return copied

    def encode(self, table: pa.Table) -> bytes:
        """The bytes of a new file with these rows."""
        data = self._named(table.schema)
        self._tables[data] = table
        return data

    def encode_rows(self, rows: Rows, schema: pa.Schema) -> bytes:
        """The bytes of a new file with rows of plain values."""
        data = self._named(schema)
        self._rows[data] = rows
        return data

    def _named(self, schema: pa.Schema) -> bytes:
        data = b"rows %012d" % (len(self._schemas) + 1)
        self._schemas[data] = schema
        return data

    def table(self, data: bytes, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of a file, or some of their columns.

        Raises:
            ArrowInvalid: no file has these bytes.
        """
        found = self._tables.get(data)
        if found is None:
            schema = self._schemas.get(data)
            if schema is None:
                raise pa.ArrowInvalid("it is no file of rows")
            found = self._tables[data] = table_of(self._rows[data], schema)
        return found if columns is None else found.select(columns)

    def rows(self, data: bytes) -> Rows:
        """The rows of a file as plain values, which the caller does not change.

        Raises:
            ArrowInvalid: no file has these bytes.
        """
        found = self._rows.get(data)
        if found is None:
            batches = self.table(data).to_batches()
            found = [row for one in batches for row in one.to_struct_array().to_pylist()]
            self._rows[data] = found
        return found


def batch_of(rows: Rows, schema: pa.Schema) -> pa.RecordBatch:
    """A few rows; most are those of other interleavings, too."""
    names = schema.names
    return _batch(tuple([tuple(map(row.get, names)) for row in rows]), schema)


def table_of(rows: Rows, schema: pa.Schema) -> pa.Table:
    """The same as a table."""
    table = pa.Table.from_batches([batch_of(rows, schema)])
    return table if schema.metadata is None else table.replace_schema_metadata(schema.metadata)


@lru_cache(maxsize=16_384)
def _batch(rows: tuple[tuple[Any, ...], ...], schema: pa.Schema) -> pa.RecordBatch:
    """To convert each column by itself would take twice as long."""
    return pa.RecordBatch.from_struct_array(pa.array(rows, pa.struct(list(schema))))


_present: Final[list[RowFiles]] = []


@contextmanager
def among(files: RowFiles) -> Iterator[None]:
    """Write to some files, and read them."""
    _present.append(files)
    try:
        yield
    finally:
        _present.pop()


def encode(rows: pa.Table, _compression: str = "", **_how: bool) -> bytes:
    """As ``parquet.encode``, in the present world."""
    return _present[-1].encode(rows)


def encode_values(rows: Sequence[Sequence[Any]], schema: pa.Schema) -> bytes:
    """As ``parquet.encode_values``, in the present world."""
    names = schema.names
    return encode_rows([dict(zip(names, row, strict=True)) for row in rows], schema)


def encode_rows(rows: Rows, schema: pa.Schema) -> bytes:
    """The bytes of a file of the present world with rows of plain values."""
    return _present[-1].encode_rows(rows, schema)


def decode(data: bytes, columns: Sequence[str] | None = None, **_how: bool) -> pa.Table:
    """As ``parquet.decode``, in the present world.

    Raises:
        ArrowInvalid: no file has these bytes.
    """
    return _present[-1].table(data, columns)


def decode_values(data: bytes, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """As ``parquet.decode_values``, in the present world."""
    rows: list[Any] = list(_present[-1].rows(data))
    return rows if columns is None else [{name: row[name] for name in columns} for row in rows]


def rows_of(data: bytes) -> Rows:
    """The rows of a file of the present world as plain values, which the caller does not change.

    Raises:
        ArrowInvalid: no file has these bytes.
    """
    return _present[-1].rows(data)
