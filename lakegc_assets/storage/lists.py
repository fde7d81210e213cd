"""Listings whose end must not be missed."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.values import ObjectInfo, infos_in


def list_to_the_end(store: ObjectStore, prefix: str = "") -> Iterator[pa.RecordBatch]:
    """As ``store.list``, asked for again behind the last key until none follows.

    A listing that the store ends early looks like a whole one. This takes one request more.
    """
    last: str | None = None
    while True:
        before = last
        for batch in store.list(prefix, start_after=last):
            yield batch
            last = batch["key"][-1].as_py()
        if last == before:
            return


def infos_to_the_end(store: ObjectStore, prefix: str = "") -> Iterator[ObjectInfo]:
    """As ``list_to_the_end``, one plain value for each object: for folders of few objects."""
    for batch in list_to_the_end(store, prefix):
        yield from infos_in(batch)
