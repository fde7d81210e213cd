"""Files of rows in memory in the place of Parquet, which takes much longer.

The bytes of a file only name its rows, which stay beside the store of a world: bytes that were cut,
or that something else wrote, name none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa

Rows = Sequence[Mapping[str, Any]]


class RowFiles:
    """The rows of the files that were written in a world.

    Args:
        tables: of the files that are there already, by their bytes.
    """

    def __init__(self, tables: Mapping[bytes, pa.Table] | None = None) -> None:
        self._tables = dict(tables or {})
        self._rows: dict[bytes, Rows] = {}
        #: Schemas of the files of which only the rows are known yet.
        self._schemas: dict[bytes, pa.Schema] = {}
        self._files = len(self._tables)

    def copy(self) -> RowFiles:
        """Others that begin with the same files."""
        for data in self._schemas:
            self.table(data)
        return RowFiles(self._tables)

    def encode(self, table: pa.Table) -> bytes:
        """The bytes of a new file with these rows."""
        data = self._named()
        self._tables[data] = table
        return data

    def encode_rows(self, rows: Rows, schema: pa.Schema) -> bytes:
        """The bytes of a new file with rows of plain values."""
        data = self._named()
        self._rows[data], self._schemas[data] = rows, schema
        return data

    def _named(self) -> bytes:
        self._files += 1
        return b"rows %012d" % self._files

    def table(self, data: bytes) -> pa.Table:
        """The rows of a file.

        Raises:
            ArrowInvalid: no file has these bytes.
        """
        found = self._tables.get(data)
        if found is None:
            schema = self._schemas.get(data)
            if schema is None:
                raise pa.ArrowInvalid("it is no file of rows")
            found = self._tables[data] = pa.Table.from_pylist(self._rows[data], schema=schema)
        return found

    def rows(self, data: bytes) -> Rows:
        """The rows of a file as plain values, which the caller does not change.

        Raises:
            ArrowInvalid: no file has these bytes.
        """
        found = self._rows.get(data)
        if found is None:
            found = self._rows[data] = self.table(data).to_pylist()
        return found


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
    table = _present[-1].table(data)
    return table if columns is None else table.select(list(columns))


def rows_of(data: bytes) -> Rows:
    """The rows of a file of the present world as plain values, which the caller does not change.

    Raises:
        ArrowInvalid: no file has these bytes.
    """
    return _present[-1].rows(data)
