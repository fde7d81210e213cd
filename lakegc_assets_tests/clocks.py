"""Clocks that a test moves, or by which it notices who waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lakegc_assets.run.clocks import SystemClocks


@dataclass(frozen=True)
class StubClocks(SystemClocks):
    """The clocks as they are, but for how somebody waits, and the seconds since boot."""

    pause: Callable[[float], None] | None = None
    since_boot: Callable[[], float] | None = None

    def elapsed(self) -> float:
        return super().elapsed() if self.since_boot is None else self.since_boot()

    def sleep(self, seconds: float) -> None:
        if self.pause is None:
            super().sleep(seconds)
        else:
            self.pause(seconds)
