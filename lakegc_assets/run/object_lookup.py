"""Looks objects up in a store: by one listing where they lie close together, else one by one.

A listing goes on from batch to batch by its continuation tokens. Some stores answer these with what
they had when the listing was begun, so that counts as the time of all that it shows. A listing that
the store ends early looks like a whole one, so what it lacks is asked for by itself.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import ObjectNotFoundError
from lakegc_assets.storage.pages import shared_prefix
from lakegc_assets.storage.values import KeyRange, ObjectInfo, infos_in

#: A listing that was begun longer ago is not gone on with, in seconds.
_LISTING_LIFETIME: Final = 30.0
#: One object in so many is wanted, where a listing costs less than asking for each of them.
SPARSE: Final = 20
#: How many objects are listed before it shows how close together the wanted ones lie.
GLANCE: Final = 1000
#: So many objects are asked for one by one where a listing shows few of them; twice as many where
#: the next one does, too.
SINGLES: Final = GLANCE // SPARSE
_MOST_SINGLES: Final = 1000
#: Fewer objects are asked for one by one.
FEW: Final = 4
_THREADS: Final = 16


class Found(NamedTuple):
    """The object at a key.

    Attributes:
        info: None where there is none.
        asked: no later than the store was asked for what tells it, in seconds of the clock.
        listed: whether a listing showed it.
    """

    info: ObjectInfo | None
    asked: float
    listed: bool


class Lookup:
    """Finds the objects of a stretch in the store, some at a time, by one listing.

    ``clock``: seconds, as ``Clocks.elapsed`` counts them. ``end``: the last key of the stretch.
    """

    def __init__(self, store: ObjectStore, clock: Callable[[], float], end: str) -> None:
        self._store, self._end = store, end
        #: A monotonic clock, in seconds.
        self.clock = clock
        self._pages: Iterator[pa.RecordBatch] | None = None
        self._begun = 0.0
        #: The last key that was looked for in the listing, and what of a page lies behind it.
        self._passed = ""
        self._rest: pa.RecordBatch | None = None
        self._singles = SINGLES
        self._cancelled = False

    def cancel(self) -> None:
        """Let what runs in another thread send no other request: it raises CancelledError."""
        self._cancelled = True

    def find(self, keys: Sequence[str]) -> Mapping[str, Found]:
        """The objects at the next keys, which are in order.

        Raises:
            StorageError: the store did not answer.
            CancelledError: it was cancelled.
        """
        found = self._listed(keys) if len(keys) > FEW else {}
        unlisted = [key for key in keys if key not in found]
        asked = thread_map(self._asked, unlisted, _THREADS) if unlisted else []
        return found | dict(zip(unlisted, asked, strict=True))

    def _listed(self, keys: Sequence[str]) -> dict[str, Found]:
        """Objects of a part of the store by one listing, where that is worth it."""
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
                # What lies between may be long: the next listing begins behind it.
                self._pages = None
                if is_new:
                    at += self._singles
                    self._singles = min(2 * self._singles, _MOST_SINGLES)
            elif rows >= GLANCE:
                self._singles = SINGLES
        return found

    def _go_on(self, first: str) -> bool:
        """Be ready to list from a key on; whether a listing was begun for that."""
        now = self.clock()
        is_fresh = self._pages is not None and now - self._begun < _LISTING_LIFETIME
        if is_fresh and first > self._passed:
            return False
        # All keys in between begin like both: a store that reads on by itself reads no others.
        prefix, start = shared_prefix(KeyRange("", first, self._end)), first[:-1]
        self._pages = self._store.list(
            prefix,
            start_after=start if start.startswith(prefix) and start else None,
            end_before=self._end + "\0",
        )
        self._begun, self._passed, self._rest = now, start, None
        return True

    def _next(self, last: str) -> pa.RecordBatch | None:
        """Listed objects, none behind a key; None where the listing has ended."""
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
    """The objects at some keys, None for none.

    Raises:
        StorageError: the store did not answer.
    """
    ordered = sorted(set(keys))
    if not ordered:
        return {}
    found = Lookup(store, time.monotonic, ordered[-1]).find(ordered)
    return {key: one.info for key, one in found.items()}
