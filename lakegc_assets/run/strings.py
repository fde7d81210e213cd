"""Columns of text of any size: Arrow's ``string`` holds 2 GiB in one chunk, 46.7 M addresses.

Larger ``string`` columns cannot be combined, indexed or looked up, so this module casts to
``large_string``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.datasets import ROWS_EACH

Strings: TypeAlias = pa.Array | pa.ChunkedArray
_LARGE: Final = pa.large_string()


def among(values: Strings, some: Strings) -> Strings:
    """Return a mask of the texts that are among others."""
    return pc.is_in(values.cast(_LARGE), some.cast(_LARGE))


def taken(column: pa.ChunkedArray, at: Strings) -> pa.ChunkedArray:
    """Return the values of a column at given indices, in chunks; null for a null index."""
    whole = column.cast(_LARGE) if column.type == pa.string() else column
    whole = whole.combine_chunks()
    pieces = [at.slice(begin, ROWS_EACH) for begin in range(0, len(at), ROWS_EACH)]
    return pa.chunked_array([whole.take(piece).cast(column.type) for piece in pieces], column.type)


def in_order(rows: pa.Table, order: str | Sequence[tuple[str, str]]) -> pa.Table:
    """Sort rows as ``sort_by`` does, in chunks."""
    if rows.num_rows < 2:  # noqa: PLR2004 - one row is in order
        return rows
    by = [(order, "ascending")] if isinstance(order, str) else list(order)
    at = pc.sort_indices(rows, by)
    return pa.table([taken(column, at) for column in rows.columns], schema=rows.schema)


def first_of_each(ordered: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a mask of the first of each group of equal texts in a sorted column."""
    begins = pc.not_equal(ordered.slice(1), ordered.slice(0, max(0, len(ordered) - 1)))
    first = pa.array([True] * min(1, len(ordered)), pa.bool_())
    return pa.chunked_array([first, *begins.chunks], pa.bool_())
