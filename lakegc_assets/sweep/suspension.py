"""Notices that this process was suspended: by a signal, a debugger, or with its machine.

A thread reads a clock every second that counts suspension too. Two readings that lie further apart
than any thread of a live process waits mean that the process did not run in between.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import Final

from lakegc_assets.sweep.monotonic_age import elapsed

#: A shorter suspension is taken for a machine that is busy, in seconds.
SUSPENSION: Final = 30.0
_TICK_S: Final = 1.0
NEVER: Final = float("-inf")
#: Why a delta mark is over then.
SUSPENDED: Final = "this process was suspended since the delta mark"


class Watch:
    """Readings of a clock by all threads of a process.

    Args:
        clock: seconds, as ``elapsed`` counts them.
    """

    def __init__(self, clock: Callable[[], float] = elapsed) -> None:
        self._clock = clock
        self._last = clock()
        self._thawed = NEVER
        self._reading = threading.Lock()

    def thawed(self) -> float:
        """The end of the last suspension, in seconds of the clock; or ``NEVER``.

        Whoever asks first notices: no thread goes on unnoticed after a suspension.
        """
        with self._reading:
            now = self._clock()
            if now - self._last > SUSPENSION:
                self._thawed = now
            self._last = now
            return self._thawed

    def run(self) -> None:
        """Read the clock for as long as the process lives."""
        while True:
            time.sleep(_TICK_S)
            self.thawed()


def thawed() -> float:
    """The end of the last suspension of this process, as ``elapsed`` counts; ``NEVER`` for none.

    Suspensions count from the first call in this process on.
    """
    return _watch_of(os.getpid()).thawed()


@cache
def _watch_of(_process: int) -> Watch:
    """That of this process; one that was forked has none of its threads, so it gets its own."""
    watch = Watch()
    threading.Thread(target=watch.run, name="lakegc-suspension", daemon=True).start()
    return watch
