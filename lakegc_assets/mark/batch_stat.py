"""Looks at objects by name: by pages of a listing where many lie together, else one by one.

A page tells of all names up to its last key, those that are not there too, for about what ten
questions for single objects cost. What a page lacks because the store cut it short is taken for
missing: it is no candidate, and stays.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.mark.listing_rows import listing_rows
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import InvalidKeyError, ObjectNotFoundError
from lakegc_assets.storage.values import ObjectInfo, to_batch

#: What a page must tell of to be cheaper than to ask for each.
_WORTH: Final = 10
#: How many are asked for one by one before a page is tried again, at first and at most.
_ASKED: Final = 16
_MOST_ASKED: Final = 1024
_THREADS: Final = 16


def look_at(store: ObjectStore, keys: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Stat many keys: rows of ``LISTING``, in the order of the keys; absent objects have none.

    Args:
        store: rooted at the storage namespace.
        keys: of the objects, in order and each once.

    Raises:
        StorageError: the store did not answer.
    """
    at, asked = 0, _ASKED
    while at < len(keys):
        told = 0
        if len(keys) - at >= _WORTH:
            end, rows = _page(store, keys, at)
            told, at = end - at, end
            if rows.num_rows:
                yield rows
        if told >= _WORTH:
            asked = _ASKED
            continue
        some = keys[at : at + asked]
        found = [info for info in thread_map(partial(_asked, store), some, _THREADS) if info]
        if found:
            yield _rows(found)
        at, asked = at + len(some), min(2 * asked, _MOST_ASKED)


def _page(store: ObjectStore, keys: Sequence[str], at: int) -> tuple[int, pa.RecordBatch]:
    """Up to where one page from the next key on tells of the keys, and which of them are there."""
    # All keys in between begin like the first one.
    pages = store.list(start_after=keys[at][:-1] or None, end_before=keys[-1] + "\0")
    page = next(pages, None)
    if page is None:
        return len(keys), _rows([])
    to = bisect_right(keys, page["key"][-1].as_py(), at)
    known = pc.is_in(page["key"], pa.array(keys[at:to], pa.string()))
    return to, listing_rows(page.filter(known))


def _asked(store: ObjectStore, key: str) -> ObjectInfo | None:
    """None also for what cannot be a key there: no object has such a name."""
    try:
        return store.head(key)
    except (ObjectNotFoundError, InvalidKeyError):
        return None


def _rows(found: Sequence[ObjectInfo]) -> pa.RecordBatch:
    return listing_rows(to_batch(found))
