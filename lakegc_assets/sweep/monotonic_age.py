"""Ages that neither a stepped clock nor a suspended machine can shorten."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from lakegc_assets.storage.base import ObjectStore

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
#: By how many seconds the clocks of a store's servers may differ among each other.
_STORE_SKEW: Final = 60.0


def elapsed() -> float:
    """Seconds on this machine's clock that nobody sets, and that counts suspension too."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True)
class Moment:
    """The time of an event, by the store's clock and by that of the machine.

    Attributes:
        boot: of the machine; another machine, or this one started again, has another.
        elapsed: seconds on its clock.
        store_time: the store's time, UTC.
    """

    boot: str
    elapsed: float
    store_time: datetime

    @classmethod
    def now(cls, store: ObjectStore, clock: Callable[[], float] | None = None) -> Moment:
        """The present moment, or a little earlier."""
        since_boot = (clock or elapsed)()
        return cls(_boot_id(), since_boot, store.server_time())

    @property
    def here(self) -> bool:
        """Return whether it was taken since the last start of this machine."""
        return self.boot == _boot_id()

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


def _boot_id() -> str:
    return _BOOT_ID.read_text().strip()
