"""Keeps what one task copies to its share of the bandwidth of all."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock


class Pace:
    """Lets objects begin one after the other, so that no more bytes than allowed ever went by.

    An object begins when its own bytes are paid for: however fast it is copied then, all that was
    copied since the beginning is within the rate.

    Args:
        rate: bytes in a second; None for no limit.
        clock: seconds.
        pause: waits for so many seconds.
    """

    def __init__(
        self,
        rate: float | None,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = rate
        self._clock = clock
        self._pause = pause
        self._lock = Lock()
        self._paid = clock()

    def wait(self, size: int) -> None:
        """Wait until so many bytes may be copied; may be called by several threads."""
        if self._rate is None:
            return
        with self._lock:
            self._paid = max(self._paid, self._clock()) + size / self._rate
            until = self._paid
        while (left := until - self._clock()) > 0:
            self._pause(left)
