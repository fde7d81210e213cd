"""Converts rows of a report into rows of a listing of one namespace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.storage.inventory.report import damaged
from lakegc_assets.storage.values import LISTING_SCHEMA

_TIME: Final = LISTING_SCHEMA.field("last_modified").type
_QUOTES: Final = '"'


@dataclass(frozen=True)
class Columns:
    """The columns of a report that have the values of a listing, by their plain names.

    Attributes:
        key: of the object.
        size: in bytes.
        last_modified: when it was written.
        etag: that a listing of the store would show.
    """

    key: str
    size: str
    last_modified: str
    etag: str


def listing_batch(
    rows: pa.RecordBatch, columns: Columns, keys: pa.Array, prefix: str, url: str
) -> pa.RecordBatch | None:
    """Rows as a listing of a namespace has them, in the order of their keys.

    Args:
        rows: of a report, of objects that are there.
        columns: of the report.
        keys: of the objects, decoded, as long as ``rows``.
        prefix: of the namespace, ending in a slash; empty for a whole bucket.
        url: of the file, for messages.

    Returns:
        A batch of ``LISTING_SCHEMA``; None where the namespace has none of them.

    Raises:
        IntegrityError: a row lacks a value, or has one that makes no sense.
    """
    mine = pc.fill_null(pc.starts_with(keys, prefix), True)
    rows, keys = rows.filter(mine), keys.filter(mine)
    if not rows.num_rows:
        return None
    try:
        found = [
            pc.utf8_slice_codeunits(keys, len(prefix)) if prefix else keys,
            rows[columns.size].cast(pa.int64()),
            _times(rows[columns.last_modified]),
            pc.utf8_trim(rows[columns.etag].cast(pa.string()), _QUOTES),
        ]
    except pa.ArrowException as error:
        raise damaged(url, f"a value makes no sense ({error})") from error
    for field, values in zip(LISTING_SCHEMA, found, strict=True):
        missing = pc.is_null(values)
        if field.name == "etag":
            missing = pc.or_(missing, pc.fill_null(pc.equal(values, ""), True))
        if pc.any(missing).as_py():
            key = keys.filter(missing)[0].as_py()
            raise damaged(url, f"it does not say the {field.name} of {key!r}")
    batch = pa.RecordBatch.from_arrays(found, schema=LISTING_SCHEMA)
    batch = batch.filter(pc.not_equal(batch["key"], ""))
    return batch.sort_by("key") if batch.num_rows else None


def truth(values: pa.Array) -> pa.Array:
    """Values as booleans, whatever their case; null where they are neither true nor false."""
    if pa.types.is_boolean(values.type):
        return values
    lower = pc.utf8_lower(values.cast(pa.string()))
    known = pc.is_in(lower, pa.array(["true", "false"]))
    return pc.if_else(known, pc.equal(lower, "true"), pa.scalar(None, pa.bool_()))


def _times(values: pa.Array) -> pa.Array:
    """Times in whole seconds, UTC, which what is typed and has no zone means.

    Services round what they report, and a listing may be finer: what has whole seconds is compared
    by these.
    """
    if pa.types.is_timestamp(values.type):
        zoned = values if values.type.tz else values.cast(pa.timestamp(values.type.unit, "UTC"))
    else:
        texts = pc.replace_substring_regex(values.cast(pa.string()), " UTC$", "Z")
        # What is finer than microseconds cannot be read, and is cut below in any case.
        texts = pc.replace_substring_regex(texts, r"(:\d{2})\.\d+", r"\1")
        zoned = texts.cast(_TIME)
    return pc.floor_temporal(zoned, unit="second").cast(_TIME, safe=False)
