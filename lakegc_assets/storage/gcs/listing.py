"""Answers of Google Cloud Storage about objects, read into Arrow, or refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timezone
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.storage.errors import StorageError
from lakegc_assets.storage.pages import Page, require_whole
from lakegc_assets.storage.values import LISTING_SCHEMA, ObjectInfo


def read_page(body: bytes, where: str) -> Page:
    """Read a page of a listing.

    Raises:
        StorageError: it is not a listing, or contradicts itself.
    """
    try:
        return _page(json.loads(body))
    except (ValueError, LookupError, TypeError, AttributeError, pa.ArrowInvalid) as error:
        raise StorageError(f"{where}: the store answered with a damaged page: {error!r}") from error


def _page(page: Any) -> Page:  # noqa: ANN401 - any JSON
    # An empty listing is nothing but its kind: anything else is somebody else's answer.
    if page["kind"] != "storage#objects":
        raise ValueError(f"its kind is {page['kind']!r}")
    prefixes = pa.array(page.get("prefixes", []), pa.string()).to_pylist()
    token = page.get("nextPageToken")
    if token is not None and not (token and isinstance(token, str)):
        raise ValueError(f"its token for the next page is {token!r}")
    return Page(_objects(page.get("items", [])), prefixes, token)


def read_object(body: bytes, where: str) -> tuple[ObjectInfo, Mapping[str, Any]]:
    """One object with its full key, as an answer of the store describes it, and all that it says.

    Raises:
        StorageError: it is not about an object.
    """
    try:
        found = json.loads(body)
        (row,) = _objects([found]).to_pylist()
    except (ValueError, LookupError, TypeError, pa.ArrowInvalid) as error:
        raise StorageError(f"{where}: the store's answer is damaged: {error!r}") from error
    row["last_modified"] = row["last_modified"].astimezone(timezone.utc)
    return ObjectInfo(**row), found


def _objects(items: list[Any]) -> pa.RecordBatch:
    columns = [[item[name] for item in items] for name in ("name", "size", "updated", "generation")]
    names, sizes, times, generations = (pa.array(column, pa.string()) for column in columns)
    objects = pa.RecordBatch.from_arrays(
        [
            names,
            pc.cast(sizes, pa.int64()),
            pc.cast(times, LISTING_SCHEMA.field("last_modified").type),
            generations,
        ],
        schema=LISTING_SCHEMA,
    )
    require_whole(objects)
    return objects
