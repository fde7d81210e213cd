"""The clocks of a run: those of the servers, and this machine's, which also counts suspensions.

A process is suspended by a signal, by a debugger, or with its machine. A thread reads a clock every
second that counts suspension too: two readings that lie further apart than any thread of a live
process waits mean that the process did not run in between.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any, Final

from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.storage.base import ObjectStore

#: A shorter suspension is taken for a machine that is busy, in seconds.
SUSPENSION: Final = 30.0
NEVER: Final = float("-inf")
_TICK_S: Final = 1.0
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
#: By how many seconds the clocks of a store's servers may differ among each other.
_STORE_SKEW: Final = 60.0


class Clocks:
    """The clocks of a run as they are, and what waits by them; tests put their own in place.

    This machine's clock, and the servers' own ``Date``; times are UTC.
    """

    #: The module ``threading``, or what has its ``Thread``, ``Lock`` and ``Event``.
    threads: Any = threading

    def now(self) -> datetime:
        """This machine's time."""
        return datetime.now(timezone.utc)

    def of_lakefs(self, client: LakeFSClient) -> datetime:
        """The lakeFS server's time."""
        return client.server_time()

    def of_store(self, store: ObjectStore) -> datetime:
        """The object store's time."""
        return store.server_time()

    def elapsed(self) -> float:
        """Seconds on this machine's clock that nobody sets, and that counts suspension too."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def boot_id(self) -> str:
        """The id of this machine since it was started: started again, it has another."""
        return _BOOT_ID.read_text().strip()

    def resumed(self) -> float:
        """The end of the last suspension of this process, as ``elapsed`` counts; or ``NEVER``.

        Suspensions count from the first call in this process on.
        """
        return watch_of(os.getpid()).resumed()

    def watched_since(self) -> float:
        """The moment, as ``elapsed`` counts, from which on this process notices suspensions."""
        return watch_of(os.getpid()).since

    def sleep(self, seconds: float) -> None:
        """Wait for so many seconds."""
        time.sleep(seconds)


SYSTEM_CLOCKS: Final = Clocks()


class Watch:
    """Readings of a clock (seconds, as ``Clocks.elapsed`` counts them) by all threads.

    Attributes:
        since: the first reading.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.since = self._last = clock()
        self._resumed = NEVER
        self._reading = threading.Lock()

    def resumed(self) -> float:
        """The end of the last suspension, in seconds of the clock; or ``NEVER``.

        Whoever asks first notices: no thread goes on unnoticed after a suspension.
        """
        with self._reading:
            now = self._clock()
            if now - self._last > SUSPENSION:
                self._resumed = now
            self._last = now
            return self._resumed

    def run(self) -> None:
        """Read the clock for as long as the process lives."""
        while True:
            time.sleep(_TICK_S)
            self.resumed()


@cache
def watch_of(_process: int) -> Watch:
    """The watch of this process; a forked one has no thread of its parent's and gets its own."""
    watch = Watch(SYSTEM_CLOCKS.elapsed)
    threading.Thread(target=watch.run, name="lakegc-suspension", daemon=True).start()
    return watch


@dataclass(frozen=True)
class Moment:
    """The time of an event: no stepped clock, and no suspended machine, shortens its age."""

    #: ``Clocks.boot_id`` and ``Clocks.elapsed`` of the machine, and the store's time, UTC.
    boot: str
    elapsed: float
    store_time: datetime

    @classmethod
    def now(cls, store: ObjectStore, clocks: Clocks = SYSTEM_CLOCKS) -> Moment:
        """The present moment, or a little earlier."""
        elapsed = clocks.elapsed()
        return cls(clocks.boot_id(), elapsed, store.server_time())

    def stood_still(self, now: Moment) -> bool:
        """Return whether the machine's clock stopped between this moment and another one.

        So it is with a virtual machine that was paused from outside: only the store tells.
        """
        by_store = (now.store_time - self.store_time).total_seconds()
        by_machine = now.elapsed - self.elapsed
        return now.boot == self.boot and by_store - by_machine > _STORE_SKEW

    def age(self, now: Moment) -> float:
        """Seconds from this moment to another one: the longest that any clock tells.

        Infinite if the other moment cannot be later than this one.
        """
        by_store = (now.store_time - self.store_time).total_seconds()
        if now.boot != self.boot:
            return by_store if by_store > -_STORE_SKEW else float("inf")
        by_machine = now.elapsed - self.elapsed
        return max(by_machine, by_store) if by_machine >= 0 else float("inf")
