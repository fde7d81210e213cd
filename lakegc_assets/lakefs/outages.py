"""For how long servers have been away: all clients of this process wait for one together.

A thousand calls to a server that is away wait for it as long as one does. In a process that Spark
starts for a task the count begins anew.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from time import monotonic
from typing import Final

#: After so many seconds without a failed call nobody knows whether a server was away meanwhile.
_FORGOTTEN_S: Final = 60.0
#: Seconds between two lines in the log about one server.
_QUIET_S: Final = 10.0


@dataclass
class _Outage:
    """Times by ``monotonic``: of the first failed call, of the last one, of the last line."""

    since: float
    last: float
    told: float


_outages: dict[str, _Outage] = {}
_changing = threading.Lock()


def note_away(endpoint: str) -> float:
    """Count a call that failed because a server is away; since how many seconds it is."""
    with _changing:
        now = monotonic()
        known = _outages.get(endpoint)
        if known is None or now - known.last > _FORGOTTEN_S:
            known = _outages[endpoint] = _Outage(now, now, now - 2 * _QUIET_S)
        known.last = now
        return now - known.since


def note_answer(endpoint: str) -> float:
    """Count a call that was answered; for how many seconds the server was away, 0 if it was not."""
    # Most calls have nothing to change, and need not wait for each other.
    if endpoint not in _outages:
        return 0.0
    with _changing:
        known = _outages.pop(endpoint, None)
        return 0.0 if known is None else monotonic() - known.since


def is_to_be_told(endpoint: str) -> bool:
    """True if a line about a server that is away is due; the next one then is not, for a while."""
    with _changing:
        known, now = _outages.get(endpoint), monotonic()
        if known is None or now - known.told < _QUIET_S:
            return False
        known.told = now
        return True
