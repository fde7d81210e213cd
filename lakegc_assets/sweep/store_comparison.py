"""Compares marked objects with the store, just before they are deleted.

This is also needed for conditional deletes: the same content written again has the same etag.

The next objects of a stretch are compared while the objects before them are deleted: in one thread,
one batch ahead, and only while the task runs. Only the task sends compared objects, after it has
checked the age of the comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import copy_context
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple

import pyarrow as pa

from lakegc_assets.run.clocks import Clocks
from lakegc_assets.run.object_lookup import Found, Lookup
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.values import listed_values

REWRITTEN: Final = "it was written again since it was listed"
State = Literal["same", "rewritten", "missing"]
_NAME: Final = "lakegc-compare"


class Marked(NamedTuple):
    """An object to delete; ``tries``: number of requests that included it."""

    address: str
    size: int
    last_modified: datetime
    etag: str
    tries: int = 0


class Compared(NamedTuple):
    """A marked object with its state in the store.

    Attributes:
        asked: a time, in seconds of the clock, not later than the request to the store.
    """

    marked: Marked
    state: State
    asked: float


def rows_of(objects: pa.Table) -> list[Marked]:
    """Convert objects (address, size, last_modified, etag) to rows."""
    return [Marked(*values) for values in listed_values(objects.select(Marked._fields[:4]))]


def compare(
    store: ObjectStore, batch: Sequence[Marked], clock: Callable[[], float]
) -> list[Compared]:
    """Compare marked objects, in any order, with the store by a listing of their own.

    Raises:
        StorageError: the store did not answer.
    """
    ordered = sorted(batch)
    return Comparison(store, clock, ordered[-1].address).compare(ordered) if ordered else []


class Comparison(Lookup):
    """Compares the objects of a stretch with the store, batch by batch, in one listing."""

    def compare(self, batch: Sequence[Marked]) -> list[Compared]:
        """Compare the next objects, ordered by address.

        Raises:
            StorageError: the store did not answer.
            CancelledError: it was cancelled.
        """
        found = self.find([one.address for one in batch])
        return [
            Compared(one, _state(one, found[one.address]), found[one.address].asked)
            for one in batch
        ]


def _state(marked: Marked, found: Found) -> State:
    info, marked_at = found.info, marked.last_modified
    if info is None:
        return "missing"
    now = info.last_modified
    # Marks in the mode ``committed`` and marks by an inventory report may have times in whole
    # seconds only, and some stores answer HEAD requests with whole seconds.
    if not found.listed or not marked_at.microsecond:
        now, marked_at = now.replace(microsecond=0), marked_at.replace(microsecond=0)
    same = (info.size, now, info.etag) == (marked.size, marked_at, marked.etag)
    return "same" if same else "rewritten"


class Prefetch:
    """The objects of one stretch, compared with the store in order.

    ``objects``: address, size, last_modified and etag; batches are ordered by address.
    """

    def __init__(self, store: ObjectStore, objects: pa.Table, clocks: Clocks) -> None:
        self._objects, self._at = objects, 0
        self._threads = clocks.threads
        # If the mark is a single batch, its objects are in no order.
        end = max(objects["address"].to_pylist(), default="")
        self._comparison = Comparison(store, clocks.elapsed, end)
        self._ready: list[Compared] = []
        self._thread: Any = None
        self._answer: list[Compared] | Exception | None = None

    def begin(self, most: int) -> None:
        """Start to compare the next objects, unless a batch is compared, or in progress."""
        if self._ready or self._thread is not None:
            return
        batch = sorted(rows_of(self._objects.slice(self._at, most)))
        if batch:
            self._at += len(batch)
            self._answer = None
            # Messages depend on the context: it decides which commands they print.
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
        """Return the next objects, at most ``most``; none at the end of the stretch.

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
                raise RuntimeError(
                    "a comparison with the store ended without an answer: please report it"
                )
            self._ready = self._answer
        taken, self._ready = self._ready[:most], self._ready[most:]
        return taken

    def __enter__(self) -> Prefetch:  # noqa: PYI034 - typing has no Self in Python 3.10
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        """Send no other request; wait for the current one, unless this is an interrupt."""
        self._comparison.cancel()
        waits = kind is None or issubclass(kind, (Exception, GeneratorExit))
        if self._thread is not None and waits:
            self._thread.join()
