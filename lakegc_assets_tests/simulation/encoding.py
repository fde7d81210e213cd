"""Files of rows in place of parquet, which takes much longer.

Bytes only name the rows, which stay in memory beside the store of a world: bytes that were cut, or
written by something else, name none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from lakegc_assets_tests.simulation import rows as pa


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
        table = pa.table_of(table)
        alone = None
        if len(table.columns) == 1 and table.metadata is None:
            alone = (table.column_names[0], *table.columns[0].values)
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


_present: Final[list[Files]] = []


@contextmanager
def among(files: Files) -> Iterator[None]:
    """Write to some files, and read them."""
    _present.append(files)
    try:
        yield
    finally:
        _present.pop()


def encoded(table: pa.Table) -> bytes:
    """The bytes of a file of the present world."""
    return _present[-1].encoded(table)


def write_table(table: pa.Table, sink: Any, **_how: object) -> None:
    """As ``pyarrow.parquet.write_table``."""
    sink.write(encoded(table))


def read_metadata(source: Any) -> pa.Table:
    """As ``pyarrow.parquet.read_metadata``, as far as rows are counted.

    Raises:
        ArrowInvalid: it is none.
    """
    return _present[-1].rows(source.read())


def read_table(source: Any, columns: Sequence[str] | None = None, **_how: object) -> pa.Table:
    """As ``pyarrow.parquet.read_table``.

    Raises:
        ArrowInvalid: it is none.
    """
    table = _present[-1].rows(source.read())
    return table if columns is None else table.select(list(columns))
