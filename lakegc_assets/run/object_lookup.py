"""Looks up objects in a store: by listings for neighbouring keys, else by single requests.

``stat_many`` reads single pages of listings. A page answers for all keys up to its last one,
including absent keys, and costs about as much as ten single requests. If the store ends a page
early, the objects that it lacks count as missing: they are no candidates for deletion, and a backup
may be asked for them.

``Lookup`` reads one listing, which continues from batch to batch by its continuation tokens. Some
stores answer a token with the state at the listing's begin, so that time counts for all of its
objects. A listing that the store ends early looks complete, so each object that it lacks is
requested by itself.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import InvalidKeyError, ObjectNotFoundError
from lakegc_assets.storage.pages import shared_prefix
from lakegc_assets.storage.values import KeyRange, ObjectInfo, infos_in, to_batch

#: Seconds since its begin after which a listing is not continued.
_LISTING_LIFETIME: Final = 30.0
#: Listed objects per wanted object up to which a listing costs less than single requests.
SPARSE: Final = 20
#: Listed objects after which the density of wanted objects is judged.
GLANCE: Final = 1000
#: Single requests after a listing that shows few of the wanted objects; their number doubles
#: while the next listing shows few, too.
SINGLES: Final = GLANCE // SPARSE
_MOST_SINGLES: Final = 1000
#: Most objects that are looked up without a listing.
FEW: Final = 4
_THREADS: Final = 16
#: Least number of keys that a page must answer to be cheaper than single requests.
WORTH: Final = 10
#: Single requests between two tries of a page: the first number, and the largest.
ASKED: Final = 16
_MOST_ASKED: Final = 1024
#: Objects that one thread looks up.
_STRETCH: Final = 1000


class Found(NamedTuple):
    """The object at a key.

    Attributes:
        info: the object; None for none.
        asked: a time, by the clock in seconds, no later than the request that found it.
        listed: True if a listing showed it.
    """

    info: ObjectInfo | None
    asked: float
    listed: bool


class Lookup:
    """Looks up the objects of a key range, batch by batch, by one listing.

    ``clock``: seconds, as ``Clocks.elapsed`` counts them. ``end``: the last key of the range.
    """

    def __init__(self, store: ObjectStore, clock: Callable[[], float], end: str) -> None:
        self._store, self._end = store, end
        #: A monotonic clock, in seconds.
        self.clock = clock
        self._pages: Iterator[pa.RecordBatch] | None = None
        self._begun = 0.0
        #: The last key passed by the listing, and the rest of its page.
        self._passed = ""
        self._rest: pa.RecordBatch | None = None
        self._singles = SINGLES
        self._cancelled = False

    def cancel(self) -> None:
        """Stop look-ups in other threads before their next request: they raise CancelledError."""
        self._cancelled = True

    def find(self, keys: Sequence[str]) -> Mapping[str, Found]:
        """Return the objects at the next keys, which are ordered.

        Raises:
            StorageError: the store did not answer.
            CancelledError: ``cancel`` was called.
        """
        found = self._listed(keys) if len(keys) > FEW else {}
        unlisted = [key for key in keys if key not in found]
        asked = thread_map(self._asked, unlisted, _THREADS) if unlisted else []
        return found | dict(zip(unlisted, asked, strict=True))

    def _listed(self, keys: Sequence[str]) -> dict[str, Found]:
        """Look up neighbouring objects by one listing, where that is cheaper."""
        wanted, found = pa.array(keys, pa.string()), dict[str, Found]()
        at = 0
        while at < len(keys):
            is_new = self._go_on(keys[at])
            rows, before = 0, len(found)
            while at < len(keys) and rows < GLANCE:
                page = self._next(keys[-1])
                if page is None:
                    return found
                rows += page.num_rows
                for info in infos_in(page.filter(pc.is_in(page["key"], wanted))):
                    found[info.key] = Found(info, self._begun, listed=True)
                at = bisect_right(keys, self._passed, at)
            if rows >= GLANCE and (len(found) - before) * SPARSE < rows:
                # Many unwanted objects may follow: the next listing begins after them.
                self._pages = None
                if is_new:
                    at += self._singles
                    self._singles = min(2 * self._singles, _MOST_SINGLES)
            elif rows >= GLANCE:
                self._singles = SINGLES
        return found

    def _go_on(self, first: str) -> bool:
        """Continue or begin a listing at a key; return True for a new listing."""
        now = self.clock()
        is_fresh = self._pages is not None and now - self._begun < _LISTING_LIFETIME
        if is_fresh and first > self._passed:
            return False
        # The prefix of both ends: a store that reads ahead by itself then reads no other keys.
        prefix, start = shared_prefix(KeyRange("", first, self._end)), first[:-1]
        self._pages = self._store.list(
            prefix,
            start_after=start if start.startswith(prefix) and start else None,
            end_before=self._end + "\0",
        )
        self._begun, self._passed, self._rest = now, start, None
        return True

    def _next(self, last: str) -> pa.RecordBatch | None:
        """Return listed objects up to a key; None at the end of the listing."""
        if self._cancelled:
            raise CancelledError
        page = self._rest if self._rest is not None else next(self._pages or iter(()), None)
        if page is None:
            self._pages = None
            return None
        keys = page["key"]
        self._passed = keys[-1].as_py()
        if self._passed <= last:
            self._rest = None
            return page
        within = bisect_right(keys, last, key=pa.StringScalar.as_py)
        self._passed, self._rest = last, page.slice(within)
        return page.slice(0, within)

    def _asked(self, key: str) -> Found:
        if self._cancelled:
            raise CancelledError
        asked, info = self.clock(), None
        with suppress(ObjectNotFoundError):
            info = self._store.head(key)
        return Found(info, asked, listed=False)


def look_up(store: ObjectStore, keys: Sequence[str]) -> Mapping[str, ObjectInfo | None]:
    """Return the objects at given keys, None for none.

    Raises:
        StorageError: the store did not answer.
    """
    ordered = sorted(set(keys))
    if not ordered:
        return {}
    found = Lookup(store, time.monotonic, ordered[-1]).find(ordered)
    return {key: one.info for key, one in found.items()}


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
