"""Compares marked objects with what the store has now, just before they are deleted.

Also where deletes are conditional: the same content written again has the same etag.

The next objects of a stretch are compared while those before them are deleted: by one thread, one
batch ahead, and only for as long as the task runs. What is compared is sent by nobody but the task,
which looks at its age first.
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
    return [Marked(*values) for values in listed_values(objects.select(Marked._fields[:4]))]


def compare(
    store: ObjectStore, batch: Sequence[Marked], clock: Callable[[], float]
) -> list[Compared]:
    """Compare some marked objects with the store, by a listing of their own; in any order.

    Raises:
        StorageError: the store did not answer.
    """
    ordered = sorted(batch)
    return Comparison(store, clock, ordered[-1].address).compare(ordered) if ordered else []


class Comparison(Lookup):
    """Compares the objects of a stretch with the store, some at a time, by one listing."""

    def compare(self, batch: Sequence[Marked]) -> list[Compared]:
        """Compare the next objects, in the order of their addresses.

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
    info, then = found.info, marked.last_modified
    if info is None:
        return "missing"
    now = info.last_modified
    # A mark that asked for an object by its name may know whole seconds only, and some stores
    # answer HEAD with these only.
    if not found.listed or not then.microsecond:
        now, then = now.replace(microsecond=0), then.replace(microsecond=0)
    same = (info.size, now, info.etag) == (marked.size, then, marked.etag)
    return "same" if same else "rewritten"


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
