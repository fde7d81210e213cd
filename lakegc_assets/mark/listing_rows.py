"""Rows of the store listing: what a store says of objects, and what relations compare them by."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from lakegc_assets.graveler.decode import etag_hashes
from lakegc_assets.mark.addresses import in_data
from lakegc_assets.run.artifacts import LISTING
from lakegc_assets.run.hashing import address_hashes, signed

#: An etag of an upload in parts.
MULTIPART: Final = r"^[0-9a-fA-F]{32}-[0-9]+$"


def listing_rows(page: pa.RecordBatch | pa.Table) -> pa.RecordBatch:
    """Convert a page of a store into rows of ``LISTING``.

    Args:
        page: key (or address), size in bytes, last_modified and etag of each object, in this order.
    """
    address, size, last_modified, etag = (_one_piece(column) for column in page.columns)
    columns = {
        "address": address,
        "hash": signed(address_hashes(address)),
        "size": size,
        "last_modified": last_modified,
        "etag": etag,
        "etag_hash": etag_hashes(etag),
        "in_place": in_data(address),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in LISTING.names], schema=LISTING)


def _one_piece(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
