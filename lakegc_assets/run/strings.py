"""Columns of text of any size: Arrow's ``string`` holds 2 GiB in one piece, 46.7 M addresses.

Beyond that it cannot be put together, taken from or looked up, so here that is ``large_string``.
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
    """Mark the texts that are among others."""
    return pc.is_in(values.cast(_LARGE), some.cast(_LARGE))


def places(values: Strings, some: Strings) -> Strings:
    """The first index of each text among others; null where it does not occur."""
    return pc.index_in(values.cast(_LARGE), some.cast(_LARGE))


def taken(column: pa.ChunkedArray, at: Strings) -> pa.ChunkedArray:
    """The values of a column at some indices, in chunks; null where an index is null."""
    whole = column.cast(_LARGE) if column.type == pa.string() else column
    whole = whole.combine_chunks()
    pieces = [at.slice(begin, ROWS_EACH) for begin in range(0, len(at), ROWS_EACH)]
    return pa.chunked_array([whole.take(piece).cast(column.type) for piece in pieces], column.type)


def in_order(rows: pa.Table, order: str | Sequence[tuple[str, str]]) -> pa.Table:
    """Rows as ``sort_by`` orders them, in pieces."""
    if rows.num_rows < 2:  # noqa: PLR2004 - one row is in order
        return rows
    by = [(order, "ascending")] if isinstance(order, str) else list(order)
    at = pc.sort_indices(rows, by)
    return pa.table([taken(column, at) for column in rows.columns], schema=rows.schema)


def first_of_each(ordered: pa.ChunkedArray) -> pa.ChunkedArray:
    """Mark the first of each group of equal texts in a sorted column."""
    begins = pc.not_equal(ordered.slice(1), ordered.slice(0, max(0, len(ordered) - 1)))
    first = pa.array([True] * min(1, len(ordered)), pa.bool_())
    return pa.chunked_array([first, *begins.chunks], pa.bool_())
