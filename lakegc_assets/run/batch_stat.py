"""Stats many objects: by pages of a listing for neighbouring keys, else by single requests.

A page answers for all keys up to its last one, including absent keys, and costs about as much as
ten single requests. If the store ends a page early, the objects that it lacks count as missing:
they are no candidates for deletion, and a backup may be asked for them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import InvalidKeyError, ObjectNotFoundError
from lakegc_assets.storage.values import ObjectInfo, to_batch

#: Least number of keys that a page must answer to be cheaper than single requests.
WORTH: Final = 10
#: Single requests between two tries of a page: the first number, and the largest.
ASKED: Final = 16
_MOST_ASKED: Final = 1024
_THREADS: Final = 16
#: Objects that one thread looks up.
_STRETCH: Final = 1000


def stat_many(store: ObjectStore, keys: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Stat objects: yields the rows of a listing of the store, ordered by key.

    ``keys``: ordered, each key once. The store may hold many others.

    Raises:
        StorageError: the store did not answer.
    """
    at, asked = 0, ASKED
    while at < len(keys):
        answered = 0
        if len(keys) - at >= WORTH:
            end, rows = _page(store, keys, at)
            answered, at = end - at, end
            if rows.num_rows:
                yield rows
        if answered >= WORTH:
            asked = ASKED
            continue
        asked_keys = keys[at : at + asked]
        found = [info for info in thread_map(partial(_head, store), asked_keys, _THREADS) if info]
        if found:
            yield to_batch(found)
        at, asked = at + len(asked_keys), min(2 * asked, _MOST_ASKED)


def missing(store: ObjectStore, objects: pa.Table, threads: int) -> pa.ChunkedArray:
    """Return the addresses of objects that a store lacks, or holds with another size.

    ``objects``: address and size (bytes), ordered by address, each address once.

    Raises:
        StorageError: the store did not answer.
    """
    stretches = [objects.slice(at, _STRETCH) for at in range(0, objects.num_rows, _STRETCH)]
    return pa.chunked_array(thread_map(partial(_missing, store), stretches, threads), pa.string())


def _missing(store: ObjectStore, objects: pa.Table) -> pa.Array:
    wanted, sizes = (objects[name].combine_chunks() for name in ("address", "size"))
    there: list[pa.Array] = [pa.array([], pa.string())]
    for rows in stat_many(store, wanted.to_pylist()):
        same = pc.equal(rows["size"], sizes.take(pc.index_in(rows["key"], wanted)))
        there.append(rows["key"].filter(same))
    return wanted.filter(pc.invert(pc.is_in(wanted, pa.concat_arrays(there))))


def _page(store: ObjectStore, keys: Sequence[str], at: int) -> tuple[int, pa.RecordBatch]:
    """Read one page from the next key on: the end of the answered keys, and the rows found."""
    # ``start_after`` is exclusive. The extra keys begin with it, and the filter drops them.
    pages = store.list(start_after=keys[at][:-1] or None, end_before=keys[-1] + "\0")
    page = next(pages, None)
    if page is None:
        return len(keys), to_batch([])
    to = bisect_right(keys, page["key"][-1].as_py(), at)
    return to, page.filter(pc.is_in(page["key"], pa.array(keys[at:to], pa.string())))


def _head(store: ObjectStore, key: str) -> ObjectInfo | None:
    """Stat one object; None also for an invalid key, since no object has such a name."""
    try:
        return store.head(key)
    except (ObjectNotFoundError, InvalidKeyError):
        return None
