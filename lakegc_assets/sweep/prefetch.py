"""Compares the next objects of a stretch with the store while those before them are deleted.

One thread, one batch ahead, and only for as long as the task runs: what is compared is sent by
nobody but the task, which looks at its age first.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import copy_context
from typing import Any, Final

import pyarrow as pa

from lakegc_assets.run.clocks import Clocks
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.sweep.store_comparison import Compared, Comparison, Marked, rows_of

_NAME: Final = "lakegc-compare"


class Prefetch:
    """The objects of one stretch, compared with the store in their order.

    Args:
        store: rooted at the storage namespace.
        objects: address, size, last_modified and etag; those of a batch come before the next ones.
        clocks: of the task.
    """

    def __init__(self, store: ObjectStore, objects: pa.Table, clocks: Clocks) -> None:
        self._objects, self._at = objects, 0
        self._threads = clocks.threads
        # What a mark names that is one batch only is in no order.
        end = max(objects["address"].to_pylist(), default="")
        self._comparison = Comparison(store, clocks.elapsed, end)
        self._ready: list[Compared] = []
        self._pending: _PendingComparison | None = None

    def begin(self, most: int) -> None:
        """Begin to compare the next objects, unless some are compared already, or are now."""
        if self._ready or self._pending is not None:
            return
        batch = sorted(rows_of(self._objects.slice(self._at, most)))
        if batch:
            self._at += len(batch)
            self._pending = _PendingComparison(self._comparison, batch, self._threads)

    def take(self, most: int) -> list[Compared]:
        """The next objects, at most so many; none at the end of the stretch.

        Raises:
            StorageError: the store did not answer when they were compared.
        """
        self.begin(most)
        if self._pending is not None and most:
            pending, self._pending = self._pending, None
            self._ready = pending.answer()
        taken, self._ready = self._ready[:most], self._ready[most:]
        return taken

    def __enter__(self) -> Prefetch:  # noqa: PYI034 - typing has no Self in Python 3.10
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        """Send no other request, and wait for the one that is on its way, but for an interrupt."""
        self._comparison.cancel()
        waits = kind is None or issubclass(kind, (Exception, GeneratorExit))
        if self._pending is not None and waits:
            self._pending.wait()


class _PendingComparison:
    """A comparison in a thread of its own."""

    def __init__(self, comparison: Comparison, batch: Sequence[Marked], threads: Any) -> None:  # noqa: ANN401 - a module
        self._comparison, self._batch = comparison, batch
        self._answer: list[Compared] | None = None
        self._error: Exception | None = None
        # What messages say depends on it: which commands they print.
        context = copy_context()
        self._thread = threads.Thread(
            target=lambda: context.run(self._run), name=_NAME, daemon=True
        )
        self._thread.start()

    def _run(self) -> None:
        try:
            self._answer = self._comparison.compare(self._batch)
        except Exception as error:  # noqa: BLE001 - the task raises it
            self._error = error

    def wait(self) -> None:
        self._thread.join()

    def answer(self) -> list[Compared]:
        """Wait for the comparisons and return them.

        Raises:
            Exception: what went wrong.
        """
        self.wait()
        if self._error is not None:
            raise self._error
        if self._answer is None:
            raise RuntimeError("a comparison with the store ended without an answer")
        return self._answer
