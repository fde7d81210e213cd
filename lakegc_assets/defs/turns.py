"""The repositories that a tick of a sensor looks at: as many as there is time for, in turn.

Dagster ends a tick after a minute and keeps nothing of it, so that one which looks at hundreds of
repositories with a thousand runs each would fail for ever. Each tick goes on behind the last one.
A look that takes longer than a tick has goes on in a thread, and a later tick takes what it gave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sized
from concurrent.futures import Future, wait
from contextvars import copy_context
from datetime import datetime, timedelta
from itertools import zip_longest
from threading import Thread
from time import monotonic
from typing import Any, Final, TypeVar

import dagster as dg

from lakegc_assets.defs.names import OWN_REPOSITORY_TAG, REPOSITORY_TAG
from lakegc_assets.errors import LakegcError
from lakegc_assets.wording import counted

T = TypeVar("T")

#: No look is begun later in a tick; the rest of its minute is for those that are under way.
BUDGET_S: Final = 20.0
#: No look is waited for beyond this: notices have to be delivered in the same minute.
LIMIT_S: Final = 30.0
#: Repositories that are looked at at a time.
AT_ONCE: Final = 8
#: Runs that are asked for again, since some storages compare whole seconds.
_OVERLAP: Final = timedelta(seconds=2)
#: Changed runs that are looked at in a tick; behind an outage there may be more.
_CHANGES: Final = 2000
_CHANGED: Final = "changed"
_LOOKED: Final = "looked"
#: Looks that took longer than their tick, by sensor and repository.
_LATE: Final[dict[tuple[str, str], Future[Any]]] = {}


class Turns:
    """The time of the last look at each repository, as the cursor of a sensor keeps it.

    Attributes:
        looked: seconds since 1970, by name; a repository without an entry was never looked at.
            Negative where a run on the repository has changed since.
        changed: when runs have changed last by Dagster's records, by their ids: of those that
            changed last. The clock of its database may be another one, of another time zone.
        late: the repositories whose look has taken longer than this tick has.
    """

    def __init__(self, sensor: str, memory: Mapping[str, Any], now: datetime) -> None:
        """Take what the cursor of a sensor has; ``now`` is the time of this tick."""
        self._sensor = sensor
        self.late: list[str] = []
        kept = memory.get(_LOOKED)
        # Older versions have one time for all, or none.
        self.looked: dict[str, int] = dict(kept) if isinstance(kept, dict) else {}
        self.changed: dict[str, str] = dict(memory.get(_CHANGED, {}))
        self._now = now

    def put_changed_first(self, instance: dg.DagsterInstance) -> None:
        """Let those repositories come first of which a run has changed since the last tick."""
        last = max(map(datetime.fromisoformat, self.changed.values()), default=None)
        filters = dg.RunsFilter(updated_after=last - _OVERLAP if last else None)
        records = instance.get_run_records(filters, limit=_CHANGES)
        for record in records:
            run = record.dagster_run
            if self.changed.get(run.run_id) == str(record.update_timestamp):
                continue
            key = run.tags.get("dagster/partition", "").partition("|")[0]
            for name in (run.tags.get(REPOSITORY_TAG), run.tags.get(OWN_REPOSITORY_TAG), key):
                if name:
                    self.looked[name] = -max(self._last(name), 1)
        times = {one.dagster_run.run_id: one.update_timestamp for one in records}
        if times:
            newest = max(times.values()) - _OVERLAP
            self.changed = {run: str(time) for run, time in times.items() if time >= newest}

    def due(self, names: Iterable[str], every: timedelta) -> list[str]:
        """Those repositories that nobody has looked at for some time."""
        before = (self._now - every).timestamp()
        return [name for name in names if self.looked.get(name, 0) <= before]

    def look(self, names: Iterable[str], look: Callable[[str], T]) -> dict[str, T]:
        """Look at repositories, those first that have waited for longest, while there is time.

        Those on which a run has changed come before others, with which they take turns: where more
        change in each tick than there is time for, no other one would ever be looked at.

        Returns:
            What ``look``, which several threads call, gave of each that its turn has come. One that
            takes longer than a tick has is left out, and stays the first: it goes on, and a later
            tick takes what it gave.
        """
        waiting = self._in_turn(names)
        late: dict[str, Future[T]] = {}
        found: dict[str, T] = {}
        begun = monotonic()
        while waiting and monotonic() - begun < (BUDGET_S if found else LIMIT_S):
            some, waiting = waiting[:AT_ONCE], waiting[AT_ONCE:]
            looks = {name: self._look(name, look) for name in some}
            wait(looks.values(), max(begun + LIMIT_S - monotonic(), 0))
            late |= {name: one for name, one in looks.items() if not one.done()}
            found |= {name: one.result() for name, one in looks.items() if name not in late}
        _LATE.update({(self._sensor, name): one for name, one in late.items()})
        self.late = sorted(late)
        self.looked |= dict.fromkeys(found, int(self._now.timestamp()))
        return found

    def require_any(self, looked: Sized) -> None:
        """Refuse a tick that has looked at nothing, since all takes longer than it has."""
        if self.late and not looked:
            raise LakegcError(
                f"{', '.join(self.late)} could not be looked at in {LIMIT_S:g} s: what is asked is "
                "slow, or has too many old runs, which gc_prune removes"
            )

    def _look(self, name: str, look: Callable[[str], T]) -> Future[T]:
        """A look in a thread, which an earlier tick may have begun."""
        begun = _LATE.pop((self._sensor, name), None)
        if begun is not None:
            return begun
        # What messages say depends on the context: which commands they print.
        made, context = Future[T](), copy_context()

        def work() -> None:
            try:
                made.set_result(context.run(look, name))
            except BaseException as error:  # noqa: BLE001 - whoever takes the result raises it
                made.set_exception(error)

        Thread(target=work, daemon=True).start()
        return made

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
        return {_CHANGED: self.changed, _LOOKED: kept}


def looked_at(looked: Sized, some: Sized) -> str:
    """A sentence about how many of some repositories a tick has looked at."""
    of = counted(len(some), "repository", "repositories")
    return of if len(looked) == len(some) else f"{len(looked)} of {of} were looked at"
