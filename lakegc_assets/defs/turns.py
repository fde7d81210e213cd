"""The repositories that a tick of a sensor looks at: as many as there is time for, in turn.

Dagster ends a tick after a minute and keeps nothing of it, so that one which looks at hundreds of
repositories with a thousand runs each would fail for ever. Each tick goes on behind the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from itertools import zip_longest
from time import monotonic
from typing import Any, Final, TypeVar

import dagster as dg

from lakegc_assets.defs.names import OWN_REPOSITORY_TAG, REPOSITORY_TAG
from lakegc_assets.engine.tasks import thread_map

T = TypeVar("T")

#: No look is begun later in a tick; the rest of its minute is for those that are under way.
BUDGET_S: Final = 20.0
#: Repositories that are looked at at a time.
AT_ONCE: Final = 8
#: Whoever was not asked for so long looks at everything anyway.
_BACK: Final = timedelta(hours=1)
#: Runs that are found again, since some storages compare whole seconds.
_OVERLAP: Final = timedelta(seconds=2)
_SEEN: Final = "seen"
_LOOKED: Final = "looked"


class Turns:
    """The time of the last look at each repository, as the cursor of a sensor keeps it.

    Attributes:
        looked: seconds since 1970, by name; a repository without an entry was never looked at.
            Negative where a run on the repository has changed since.
    """

    def __init__(self, memory: Mapping[str, Any], now: datetime) -> None:
        """Take what the cursor has; ``now`` is the time of this tick."""
        kept = memory.get(_LOOKED)
        # Older versions have one time for all, or none.
        self.looked: dict[str, int] = dict(kept) if isinstance(kept, dict) else {}
        self._seen = datetime.fromisoformat(memory[_SEEN]) if _SEEN in memory else None
        self._now = now

    def put_changed_first(self, instance: dg.DagsterInstance) -> None:
        """Let those repositories come first of which a run has changed since the last tick."""
        if self._seen is None or self._now - self._seen >= _BACK:
            return
        changed = dg.RunsFilter(updated_after=self._seen - _OVERLAP)
        for record in instance.get_run_records(changed):
            tags = record.dagster_run.tags
            key = tags.get("dagster/partition", "").partition("|")[0]
            for name in (tags.get(REPOSITORY_TAG), tags.get(OWN_REPOSITORY_TAG), key):
                if name:
                    self.looked[name] = -max(self._last(name), 1)

    def due(self, names: Iterable[str], every: timedelta) -> list[str]:
        """Those repositories that nobody has looked at for some time."""
        before = (self._now - every).timestamp()
        return [name for name in names if self.looked.get(name, 0) <= before]

    def look(self, names: Iterable[str], look: Callable[[str], T]) -> dict[str, T]:
        """Look at repositories, those first that have waited for longest, while there is time.

        Those on which a run has changed come before others, with which they take turns: where more
        change in each tick than there is time for, no other one would ever be looked at.

        Returns:
            What ``look``, which several threads call, gave of each that its turn has come.
        """
        waiting = self._in_turn(names)
        found: dict[str, T] = {}
        deadline = monotonic() + BUDGET_S
        while waiting and (not found or monotonic() < deadline):
            some, waiting = waiting[:AT_ONCE], waiting[AT_ONCE:]
            found |= zip(some, thread_map(look, some, AT_ONCE), strict=True)
        self.looked |= dict.fromkeys(found, int(self._now.timestamp()))
        return found

    def _in_turn(self, names: Iterable[str]) -> list[str]:
        waiting = sorted(names, key=lambda name: (self._last(name), name))
        changed = [name for name in waiting if self.looked.get(name, 0) < 0]
        others = [name for name in waiting if self.looked.get(name, 0) >= 0]
        return [name for pair in zip_longest(changed, others) for name in pair if name is not None]

    def _last(self, name: str) -> int:
        return abs(self.looked.get(name, 0))

    def to_json(self, names: Iterable[str]) -> dict[str, Any]:
        """As the cursor keeps it, of those repositories that are still there."""
        kept = {name: self.looked[name] for name in names if name in self.looked}
        return {_SEEN: self._now.isoformat(), _LOOKED: kept}
