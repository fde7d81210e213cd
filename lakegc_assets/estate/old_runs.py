"""Old runs of repositories, as a process has read them before: hardly any of them changes any more.

What is kept is a few values of each, so that a repository may have thousands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, NamedTuple
from zlib import crc32

from lakegc_assets.estate.run_state import RunState
from lakegc_assets.sweep.status import Restoring

#: A run is read again after once to twice this time, so that not all of them are at once.
_AGAIN: Final = timedelta(hours=1)


class OldRun(NamedTuple):
    """The values that are kept of a run.

    Attributes:
        attempt: the id of the present one.
        state: how far its sweep came; None where none was begun.
        restoring: what was restored through it; None where nothing was.
    """

    attempt: str
    state: RunState | None
    restoring: Restoring | None


@dataclass(frozen=True)
class OldRuns:
    """The old runs that a process knows, each with the time at which it is to be read again."""

    _known: dict[str, Mapping[str, tuple[OldRun, datetime]]] = field(default_factory=dict)

    def of(self, repository: str, now: datetime) -> dict[str, OldRun]:
        """Those of a repository that need not be read again yet."""
        known = self._known.get(repository, {})
        return {run: one for run, (one, until) in known.items() if now < until}

    def keep(self, repository: str, old: Mapping[str, OldRun], now: datetime) -> None:
        """Keep these runs of a repository, and no others."""
        before = self._known.get(repository, {})

        def until(run: str, one: OldRun) -> datetime:
            if run in before and before[run][0] is one:
                return before[run][1]
            return now + _AGAIN * (1 + crc32(f"{repository}/{run}".encode()) / 2**32)

        self._known[repository] = {run: (one, until(run, one)) for run, one in old.items()}
