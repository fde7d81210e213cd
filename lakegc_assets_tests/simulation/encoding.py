"""Files of rows in place of parquet, which takes much longer.

Where a world has ``Files``, bytes only name the rows, which stay in memory beside the store: bytes
that were cut or written by something else name none. A world without them has files in Arrow's own
form, which can be read without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa


class Files:
    """The rows of the files that were written in a world.

    Args:
        rows: of those that are there already, by their bytes.
    """

    def __init__(self, rows: dict[bytes, pa.Table] | None = None) -> None:
        self._rows = dict(rows or {})
        self._alone: dict[tuple[object, ...], bytes] = {}

    def copy(self) -> Files:
        """Others that begin with the same."""
        return Files(self._rows)

    def encoded(self, table: pa.Table) -> bytes:
        """The bytes of a file with these rows.

        No other has them but files of one column that are equal: what a process keeps of sets, it
        knows by their bytes.
        """
        alone = None
        if table.num_columns == 1:
            alone = (*table.column_names, *table.column(0).to_pylist())
            if alone in self._alone:
                return self._alone[alone]
        data = b"rows %012d" % len(self._rows)
        self._rows[data] = table
        if alone is not None:
            self._alone[alone] = data
        return data

    def rows(self, data: bytes) -> pa.Table:
        """The rows of a file.

        Raises:
            ArrowInvalid: it is none.
        """
        if data not in self._rows:
            raise pa.ArrowInvalid("it is no file of rows")
        return self._rows[data]


_present: Final[list[Files | None]] = [None]


@contextmanager
def among(files: Files | None) -> Iterator[None]:
    """Write to some files, and read them; None for those in Arrow's own form."""
    _present.append(files)
    try:
        yield
    finally:
        _present.pop()


def encoded(table: pa.Table) -> bytes:
    """The bytes of a file of the present world."""
    if (files := _present[-1]) is not None:
        return files.encoded(table)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def rows_of(files: Files | None, data: bytes) -> pa.Table:
    """The rows of a file of a world.

    Raises:
        ArrowInvalid: it is none.
    """
    return pa.ipc.open_stream(data).read_all() if files is None else files.rows(data)


def write_table(table: pa.Table, sink: Any, **_how: object) -> None:
    """As ``pyarrow.parquet.write_table``."""
    sink.write(encoded(table))


def read_table(source: Any, columns: Sequence[str] | None = None, **_how: object) -> pa.Table:
    """As ``pyarrow.parquet.read_table``."""
    table = rows_of(_present[-1], source.read())
    return table if columns is None else table.select(list(columns))
