"""Answers of Google Cloud Storage about objects, read into Arrow, or refused."""

from __future__ import annotations

import json
from datetime import timezone
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.storage.base import LISTING_SCHEMA, ObjectInfo
from lakegc_assets.storage.errors import StorageError
from lakegc_assets.storage.pages import Page, require_prefix


def read_page(body: bytes, prefix: str, where: str) -> Page:
    """Read a page of a listing.

    Raises:
        StorageError: it is not a listing, contradicts itself, or holds what was not asked for.
    """
    try:
        page = json.loads(body)
        objects = _objects(page.get("items", []))
        prefixes = list(map(str, page.get("prefixes", [])))
        found = Page(objects, prefixes, page.get("nextPageToken") or None)
    except (ValueError, LookupError, TypeError, AttributeError, pa.ArrowInvalid) as error:
        raise StorageError(f"{where}: the store answered with a damaged page: {error!r}") from error
    require_prefix(found, prefix, where)
    return found


def read_object(body: bytes, where: str) -> ObjectInfo:
    """What the store says about one object, with its full key.

    Raises:
        StorageError: it is not about an object.
    """
    try:
        (row,) = _objects([json.loads(body)]).to_pylist()
    except (ValueError, LookupError, TypeError, pa.ArrowInvalid) as error:
        raise StorageError(f"{where}: the store's answer is damaged: {error!r}") from error
    return ObjectInfo(**row | {"last_modified": row["last_modified"].astimezone(timezone.utc)})


def _objects(items: list[Any]) -> pa.RecordBatch:
    columns = [[item[name] for item in items] for name in ("name", "size", "updated", "generation")]
    names, sizes, times, generations = (pa.array(column, pa.string()) for column in columns)
    return pa.RecordBatch.from_arrays(
        [
            names,
            pc.cast(sizes, pa.int64()),
            pc.cast(times, LISTING_SCHEMA.field("last_modified").type),
            generations,
        ],
        schema=LISTING_SCHEMA,
    )
