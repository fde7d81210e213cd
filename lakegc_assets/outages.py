"""Outages of servers, so that all calls of this process wait together for a server that is away.

Without this, the waits of calls would add up if their errors are suppressed one by one. Times are
readings of ``time.monotonic``.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final

#: Seconds without a failed call after which an earlier outage of a server no longer counts.
_FORGOTTEN_S: Final = 60.0
#: Seconds between two log lines about one server.
QUIET_S: Final = 10.0


@dataclass
class _Outage:
    """Times of the first failed call, of the last one, and of the last log line."""

    since: float
    last: float
    logged: float


_outages: dict[str, _Outage] = {}
_changing = threading.Lock()


def note_away(server: str, now: float) -> tuple[float, bool]:
    """Record a call that failed because a server is away.

    Returns the seconds of the outage so far, and True if a log line is due.
    """
    with _changing:
        known = _outages.get(server)
        if known is None or now - known.last > _FORGOTTEN_S:
            known = _outages[server] = _Outage(now, now, now - 2 * QUIET_S)
        known.last = now
        due = now - known.logged >= QUIET_S
        known.logged = now if due else known.logged
        return now - known.since, due


def note_answer(server: str, now: float) -> float:
    """Record an answered call; return the seconds that the server was away, 0 if it was not."""
    # Most calls change nothing here, and need not wait for the lock.
    if server not in _outages:
        return 0.0
    with _changing:
        known = _outages.pop(server, None)
        return 0.0 if known is None else now - known.since
