"""Rows of the store listing, made by hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import pyarrow as pa

from lakegc_assets.mark.listing_pages import listing_rows
from lakegc_assets.run.artifacts import LISTING

_NAMES = ("address", "size", "last_modified", "etag")


def listing(rows: Iterable[tuple[str, int, datetime, str]]) -> pa.Table:
    """Objects as ``LISTING``, of their address, size, time and etag."""
    return listing_of(dict(zip(_NAMES, row, strict=True)) for row in rows)


def listing_of(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Objects as ``LISTING``, of rows that have at least address, size, last_modified and etag."""
    given = list(rows)
    columns = [pa.array([row[name] for row in given], LISTING.field(name).type) for name in _NAMES]
    return pa.Table.from_batches([listing_rows(pa.RecordBatch.from_arrays(columns, _NAMES))])
