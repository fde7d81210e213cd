"""Compares marked objects with what the store has now, just before they are deleted.

Also where deletes are conditional: the same content written again has the same etag. Where marked
objects lie close together they are listed, which is one request for many; else each is asked for.
One listing goes on from batch to batch by its continuation tokens. Some stores answer these with
what they had when the listing was begun, so that counts as the time of all that it shows.
A listing that the store ends early looks like a whole one, so what it lacks is asked for by itself.

The next objects of a stretch are compared while those before them are deleted: by one thread, one
batch ahead, and only for as long as the task runs. What is compared is sent by nobody but the task,
which looks at its age first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextvars import copy_context
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple

import pyarrow as pa

from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.run.clocks import Clocks
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import ObjectNotFoundError
from lakegc_assets.storage.pages import shared_prefix
from lakegc_assets.storage.values import KeyRange, ObjectInfo

REWRITTEN: Final = "it was written again since it was listed"
#: A listing that was begun longer ago is not gone on with, in seconds.
_LISTING_LIFETIME: Final = 30.0
#: One object in so many is marked, where a listing costs less than asking for each of them.
_SPARSE: Final = 20
#: How many objects are listed before it shows how close together the marked ones lie.
_GLANCE: Final = 1000
#: So many marked objects are asked for one by one where a listing shows few of them; twice as many
#: where the next one does, too.
_SINGLES: Final = _GLANCE // _SPARSE
_MOST_SINGLES: Final = 1000
#: Fewer objects are asked for one by one.
_FEW: Final = 4
_THREADS: Final = 16

State = Literal["same", "rewritten", "missing"]
_NAME: Final = "lakegc-compare"


class Marked(NamedTuple):
    """An object to delete; ``tries`` counts the requests that it was in."""

    address: str
    size: int
    last_modified: datetime
    etag: str
    tries: int = 0


class Compared(NamedTuple):
    """A marked object beside what the store has.

    Attributes:
        marked: the object.
        state: what became of it since it was listed.
        asked: no later than the store was asked for what tells it, in seconds of the clock.
    """

    marked: Marked
    state: State
    asked: float


def rows_of(objects: pa.Table) -> list[Marked]:
    """Objects (address, size, last_modified, etag) as rows."""
    columns = (objects[name].to_pylist() for name in Marked._fields[:4])
    return list(map(Marked, *columns))


def compare(
    store: ObjectStore, batch: Sequence[Marked], clock: Callable[[], float]
) -> list[Compared]:
    """Compare some marked objects with the store, by a listing of their own; in any order.

    Raises:
        StorageError: the store did not answer.
    """
    ordered = sorted(batch)
    return Comparison(store, clock, ordered[-1].address).compare(ordered) if ordered else []


class Comparison:
    """Compares the objects of a stretch with the store, some at a time, by one listing.

    ``clock``: seconds, as ``Clocks.elapsed`` counts them. ``end``: the last address of the stretch.
    """

    def __init__(self, store: ObjectStore, clock: Callable[[], float], end: str) -> None:
        self._store, self._clock, self._end = store, clock, end
        self._pages: Iterator[pa.RecordBatch] | None = None
        self._begun = 0.0
        #: The last address that was looked for in the listing, and what of a page lies behind it.
        self._passed = ""
        self._rest: pa.RecordBatch | None = None
        self._singles = _SINGLES
        self._cancelled = False

    def cancel(self) -> None:
        """Let what runs in another thread send no other request: it raises CancelledError."""
        self._cancelled = True

    def compare(self, batch: Sequence[Marked]) -> list[Compared]:
        """Compare the next objects, in the order of their addresses.

        Raises:
            StorageError: the store did not answer.
            CancelledError: it was cancelled.
        """
        found = self._listed(batch) if len(batch) > _FEW else {}
        unlisted = [marked for marked in batch if marked.address not in found]
        asked = thread_map(self._asked, unlisted, _THREADS) if unlisted else []
        return [*found.values(), *asked]

    def _listed(self, batch: Sequence[Marked]) -> dict[str, Compared]:
        """Objects of a part of the store by one listing, where that is worth it."""
        keys = [one.address for one in batch]
        marked = dict(zip(keys, batch, strict=True))
        found: dict[str, Compared] = {}
        at = 0
        while at < len(keys):
            is_new = self._go_on(keys[at])
            rows, before = 0, len(found)
            while at < len(keys) and rows < _GLANCE:
                page = self._next(keys[-1])
                if page is None:
                    return found
                rows += page.num_rows
                self._take(page, marked, found)
                at = bisect_right(keys, self._passed, at)
            if rows >= _GLANCE and (len(found) - before) * _SPARSE < rows:
                # What lies between may be long: the next listing begins behind it.
                self._pages = None
                if is_new:
                    at += self._singles
                    self._singles = min(2 * self._singles, _MOST_SINGLES)
            elif rows >= _GLANCE:
                self._singles = _SINGLES
        return found

    def _go_on(self, first: str) -> bool:
        """Be ready to list from an address on; whether a listing was begun for that."""
        now = self._clock()
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
        """Listed objects, none behind an address; None where the listing has ended."""
        if self._cancelled:
            raise CancelledError
        page = self._rest if self._rest is not None else next(self._pages or iter(()), None)
        if page is None:
            self._pages = None
            return None
        keys = page["key"].to_pylist()
        within = bisect_right(keys, last)
        self._rest = page.slice(within) if within < len(keys) else None
        self._passed = last if self._rest is not None else keys[-1]
        return page.slice(0, within)

    def _take(
        self, page: pa.RecordBatch, marked: dict[str, Marked], found: dict[str, Compared]
    ) -> None:
        """Compare the marked ones among listed objects."""
        wanted = [key in marked for key in page["key"].to_pylist()]
        for now in page.filter(pa.array(wanted, pa.bool_())).to_pylist():
            one, at = marked[now["key"]], now["last_modified"]
            # A mark that asked for an object by its name may know whole seconds only.
            at = at if one.last_modified.microsecond else at.replace(microsecond=0)
            same = (now["size"], at, now["etag"]) == one[1:4]
            state: State = "same" if same else "rewritten"
            found[one.address] = Compared(one, state, self._begun)

    def _asked(self, marked: Marked) -> Compared:
        if self._cancelled:
            raise CancelledError
        asked = self._clock()
        try:
            info = self._store.head(marked.address)
        except ObjectNotFoundError:
            return Compared(marked, "missing", asked)
        return Compared(marked, "same" if _same(info, marked) else "rewritten", asked)


def _same(info: ObjectInfo, marked: Marked) -> bool:
    # Some stores answer HEAD with whole seconds only.
    now, then = (t.replace(microsecond=0) for t in (info.last_modified, marked.last_modified))
    return now == then and (info.size, info.etag) == (marked.size, marked.etag)


class Prefetch:
    """The objects of one stretch, compared with the store in their order.

    ``objects``: address, size, last_modified and etag; those of a batch come before the next ones.
    """

    def __init__(self, store: ObjectStore, objects: pa.Table, clocks: Clocks) -> None:
        self._objects, self._at = objects, 0
        self._threads = clocks.threads
        # What a mark names that is one batch only is in no order.
        end = max(objects["address"].to_pylist(), default="")
        self._comparison = Comparison(store, clocks.elapsed, end)
        self._ready: list[Compared] = []
        self._thread: Any = None
        self._answer: list[Compared] | Exception | None = None

    def begin(self, most: int) -> None:
        """Begin to compare the next objects, unless some are compared already, or are now."""
        if self._ready or self._thread is not None:
            return
        batch = sorted(rows_of(self._objects.slice(self._at, most)))
        if batch:
            self._at += len(batch)
            self._answer = None
            # What messages say depends on it: which commands they print.
            context = copy_context()
            self._thread = self._threads.Thread(
                target=lambda: context.run(self._compare, batch), name=_NAME, daemon=True
            )
            self._thread.start()

    def _compare(self, batch: Sequence[Marked]) -> None:
        try:
            self._answer = self._comparison.compare(batch)
        except Exception as error:  # noqa: BLE001 - the task raises it
            self._answer = error

    def take(self, most: int) -> list[Compared]:
        """The next objects, at most so many; none at the end of the stretch.

        Raises:
            StorageError: the store did not answer when they were compared.
        """
        self.begin(most)
        if self._thread is not None and most:
            self._thread.join()
            self._thread = None
            if isinstance(self._answer, Exception):
                raise self._answer
            if self._answer is None:
                raise RuntimeError("a comparison with the store ended without an answer")
            self._ready = self._answer
        taken, self._ready = self._ready[:most], self._ready[most:]
        return taken

    def __enter__(self) -> Prefetch:  # noqa: PYI034 - typing has no Self in Python 3.10
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        """Send no other request, and wait for the one that is on its way, but for an interrupt."""
        self._comparison.cancel()
        waits = kind is None or issubclass(kind, (Exception, GeneratorExit))
        if self._thread is not None and waits:
            self._thread.join()
