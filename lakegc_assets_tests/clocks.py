"""Clocks that a test moves, or by which it notices who waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lakegc_assets.run.clocks import NEVER, Clocks, Watch


@dataclass(frozen=True)
class StubClocks(Clocks):
    """The clocks as they are, but for waits, seconds since boot, and who notices suspensions."""

    pause: Callable[[float], None] | None = None
    since_boot: Callable[[], float] | None = None
    watch: Watch | None = None

    def elapsed(self) -> float:
        return super().elapsed() if self.since_boot is None else self.since_boot()

    def resumed(self) -> float:
        return super().resumed() if self.watch is None else self.watch.resumed()

    def watched_since(self) -> float:
        return NEVER if self.watch is None else self.watch.since

    def sleep(self, seconds: float) -> None:
        if self.pause is None:
            super().sleep(seconds)
        else:
            self.pause(seconds)
