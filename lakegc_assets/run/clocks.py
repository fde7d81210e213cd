"""The clocks of a run: the servers' clocks, and a clock of this machine that counts suspensions.

A signal, a debugger or the suspension of the machine can suspend a process. Every second a thread
reads a clock that counts suspension too. If two readings differ by more than any thread of a
running process waits, the process was suspended between them.
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

#: Seconds of the shortest suspension; a shorter gap is taken for a busy machine.
SUSPENSION: Final = 30.0
NEVER: Final = float("-inf")
_TICK_S: Final = 1.0
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
#: Seconds by which the clocks of a store's servers may differ from each other.
_STORE_SKEW: Final = 60.0


class Clocks:
    """The real clocks of a run, and its waits; tests replace them.

    They are this machine's clock and the ``Date`` headers of the servers; times are UTC.
    """

    #: The module ``threading``, or a replacement with ``Thread``, ``Lock`` and ``Event``.
    threads: Any = threading

    def now(self) -> datetime:
        """Return this machine's time."""
        return datetime.now(timezone.utc)

    def of_lakefs(self, client: LakeFSClient) -> datetime:
        """Return the lakeFS server's time."""
        return client.server_time()

    def of_store(self, store: ObjectStore) -> datetime:
        """Return the object store's time."""
        return store.server_time()

    def readings(self, client: LakeFSClient, store: ObjectStore) -> tuple[datetime, ...]:
        """Return the times of this machine, of the lakeFS server and of the object store."""
        return self.now(), self.of_lakefs(client), self.of_store(store)

    def elapsed(self) -> float:
        """Return seconds of a machine clock that is never set, and that counts suspension."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def boot_id(self) -> str:
        """Return the boot id of this machine, which changes when it starts again."""
        return _BOOT_ID.read_text().strip()

    def resumed(self) -> float:
        """Return the end of the last suspension of this process, in ``elapsed`` time; or ``NEVER``.

        Suspensions count from the first call in this process.
        """
        return watch_of(os.getpid()).resumed()

    def watched_since(self) -> float:
        """Return the ``elapsed`` time from which this process notices suspensions."""
        return watch_of(os.getpid()).since

    def sleep(self, seconds: float) -> None:
        """Wait for a number of seconds."""
        time.sleep(seconds)


SYSTEM_CLOCKS: Final = Clocks()


class Watch:
    """The readings of a clock by all threads, in seconds of ``Clocks.elapsed``.

    Attributes:
        since: the first reading.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.since = self._last = clock()
        self._resumed = NEVER
        self._reading = threading.Lock()

    def resumed(self) -> float:
        """Return the end of the last suspension, in seconds of the clock; or ``NEVER``.

        The first caller after a suspension notices it, so no thread can miss it.
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
    """Return the watch of this process; a fork has no thread of its parent, and gets its own."""
    watch = Watch(SYSTEM_CLOCKS.elapsed)
    threading.Thread(target=watch.run, name="lakegc-suspension", daemon=True).start()
    return watch


@dataclass(frozen=True)
class Moment:
    """The time of an event; neither a stepped clock nor a suspended machine shortens its age."""

    #: ``Clocks.boot_id`` and ``Clocks.elapsed`` of the machine, and the store's time, UTC.
    boot: str
    elapsed: float
    store_time: datetime

    @classmethod
    def now(cls, store: ObjectStore, clocks: Clocks = SYSTEM_CLOCKS) -> Moment:
        """Return the present moment, or a little earlier."""
        elapsed = clocks.elapsed()
        return cls(clocks.boot_id(), elapsed, store.server_time())

    def stood_still(self, now: Moment) -> bool:
        """Return True if the machine's clock stopped between this moment and a later one.

        This happens to a virtual machine that is paused from outside; only the store shows it.
        """
        by_store = (now.store_time - self.store_time).total_seconds()
        by_machine = now.elapsed - self.elapsed
        return now.boot == self.boot and by_store - by_machine > _STORE_SKEW

    def age(self, now: Moment) -> float:
        """Return the seconds from this moment to another one, by the clock with the longest time.

        Infinite if the other moment cannot be later than this one.
        """
        by_store = (now.store_time - self.store_time).total_seconds()
        if now.boot != self.boot:
            return by_store if by_store > -_STORE_SKEW else float("inf")
        by_machine = now.elapsed - self.elapsed
        return max(by_machine, by_store) if by_machine >= 0 else float("inf")
