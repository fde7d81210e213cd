"""The repositories that a tick of a sensor reads: as many as its time allows, in turn.

Dagster ends a tick after a minute and discards its results. So a tick that reads hundreds of
repositories with a thousand runs each would always fail. Each tick continues after the last one.
A read that takes longer than a tick continues in a thread. A later tick takes its result, unless
that is out of date by then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sized
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextvars import copy_context
from dataclasses import dataclass
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

#: Seconds after which a tick begins no read; the rest of its minute is for reads in progress.
BUDGET_S: Final = 20.0
#: Seconds after which a tick waits for no read: it must still deliver notices in its minute.
LIMIT_S: Final = 30.0
#: Repositories that are read at the same time, including reads that an earlier tick began.
AT_ONCE: Final = 8
#: Overlap of two queries for changed runs, since some storages compare whole seconds.
_OVERLAP: Final = timedelta(seconds=2)
#: Most changed runs that a tick reads; after an outage there may be more.
_CHANGES: Final = 2000
_CHANGED: Final = "changed"
_LOOKED: Final = "looked"
#: Age of an answer that no tick has requested, after which it is dropped: its sensor was off.
_KEPT: Final = timedelta(hours=2)


@dataclass
class _Look:
    """A read of a repository in a thread.

    Attributes:
        answer: the result, once the read has ended.
        changed: ``changed`` of the ``RoundRobin`` that began it.
        asked: time of the last tick that requested the answer.
        outdated: True if a run on the repository has changed since the read began.
    """

    answer: Future[Any]
    changed: Mapping[str, str]
    asked: datetime
    outdated: bool = False


#: Reads whose answers no tick has taken yet, by sensor and repository.
_LOOKS: Final[dict[tuple[str, str], _Look]] = {}


class RoundRobin:
    """The time of the last read of each repository, as the cursor of a sensor keeps it.

    Attributes:
        looked: seconds since 1970, by name; no entry for a repository that was never read.
            Negative if a run on the repository has changed since.
        changed: times of change of the runs that changed last, by run id, from Dagster's records.
            The clock of its database may differ from this one, also in its time zone.
        late: repositories whose read takes longer than this tick.
    """

    def __init__(self, sensor: str, memory: Mapping[str, Any], now: datetime) -> None:
        """Take the state from the cursor of a sensor; ``now`` is the time of this tick."""
        self._sensor = sensor
        self.late: list[str] = []
        self.looked: dict[str, int] = dict(memory.get(_LOOKED, {}))
        self.changed: dict[str, str] = dict(memory.get(_CHANGED, {}))
        self._now = now

    def put_changed_first(self, instance: dg.DagsterInstance) -> None:
        """Put repositories first of which a run has changed since the last tick."""
        last = _latest(self.changed)
        filters = dg.RunsFilter(updated_after=last - _OVERLAP if last else None)
        records = instance.get_run_records(filters, limit=_CHANGES)
        for record in records:
            tags = record.dagster_run.tags
            key = tags.get("dagster/partition", "").partition("|")[0]
            is_new = _is_later(record, self.changed)
            for name in (tags.get(REPOSITORY_TAG), tags.get(OWN_REPOSITORY_TAG), key):
                look = _LOOKS.get((self._sensor, name or ""))
                if look is not None and _is_later(record, look.changed):
                    look.outdated = True
                if name and is_new:
                    self.looked[name] = -max(self._last(name), 1)
        times = {one.dagster_run.run_id: one.update_timestamp for one in records}
        if times:
            newest = max(times.values()) - _OVERLAP
            self.changed = {run: str(time) for run, time in times.items() if time >= newest}

    def due(self, names: Iterable[str], every: timedelta) -> list[str]:
        """The repositories that were not read for some time."""
        before = (self._now - every).timestamp()
        return [name for name in names if self.looked.get(name, 0) <= before]

    def look(self, names: Iterable[str], look: Callable[[str], T]) -> dict[str, T]:
        """Read repositories while there is time; the longest waiting ones first.

        Repositories with a changed run take turns with all others. If they always came first, and
        more of them changed in each tick than it has time for, no other one would ever be read.

        Returns:
            The results of ``look``, which several threads call, by repository. A repository whose
            read takes longer than the tick is omitted and stays first: its thread continues, takes
            no time from others, and a later tick takes its result.
        """
        turns = self._in_turn(names)
        self._forget_others(turns)
        under_way = {name: one for name in turns if (one := self._begun(name)) is not None}
        waiting = [name for name in turns if name not in under_way]
        begun_here, found = set[str](), dict[str, T]()
        begun = monotonic()
        while True:
            past = monotonic() - begun
            if past < (BUDGET_S if found else LIMIT_S):
                some = waiting[: max(AT_ONCE - len(under_way), 0)]
                del waiting[: len(some)]
                under_way |= {name: self._begin(name, look) for name in some}
                begun_here.update(some)
            awaited = [
                one.answer for name, one in under_way.items() if name in begun_here or not found
            ]
            if not awaited or past >= LIMIT_S:
                break
            wait(awaited, LIMIT_S - past, FIRST_COMPLETED)
            for name in [name for name, one in under_way.items() if one.answer.done()]:
                one = under_way.pop(name)
                _LOOKS.pop((self._sensor, name), None)
                if one.outdated:
                    waiting.insert(0, name)
                else:
                    found[name] = one.answer.result()
        self.late = sorted(under_way)
        self.looked |= dict.fromkeys(found, int(self._now.timestamp()))
        return {name: found[name] for name in turns if name in found}

    def require_any(self, looked: Sized) -> None:
        """Refuse a tick that has read nothing, because every read takes longer than a tick."""
        if self.late and not looked:
            raise LakegcError(
                f"{', '.join(self.late)} could not be read within {LIMIT_S:g} s: lakeFS or the "
                "store is slow, or there are too many old runs, which `lakegc prune` removes. The "
                "next tick continues"
            )

    def _forget_others(self, names: Collection[str]) -> None:
        """Drop reads of repositories that are not requested now; a later request needs new ones."""
        for sensor, name in list(_LOOKS):
            if sensor == self._sensor and name not in names:
                _LOOKS.pop((sensor, name), None)

    def _begun(self, name: str) -> _Look | None:
        """The read that an earlier tick began, unless its answer is out of date."""
        one = _LOOKS.get((self._sensor, name))
        if one is None:
            return None
        if one.answer.done() and (one.outdated or self._now - one.asked > _KEPT):
            _LOOKS.pop((self._sensor, name), None)
            return None
        one.asked = self._now
        return one

    def _begin(self, name: str, look: Callable[[str], T]) -> _Look:
        """Begin a read in a thread."""
        # The context determines which commands messages print.
        made, context = Future[T](), copy_context()

        def work() -> None:
            try:
                made.set_result(context.run(look, name))
            except BaseException as error:  # noqa: BLE001 - whoever takes the result raises it
                made.set_exception(error)

        found = _LOOKS[self._sensor, name] = _Look(made, self.changed, self._now)
        Thread(target=work, daemon=True).start()
        return found

    def _in_turn(self, names: Iterable[str]) -> list[str]:
        waiting = sorted(names, key=lambda name: (self._last(name), name))
        changed = [name for name in waiting if self.looked.get(name, 0) < 0]
        others = [name for name in waiting if self.looked.get(name, 0) >= 0]
        return [name for pair in zip_longest(changed, others) for name in pair if name is not None]

    def _last(self, name: str) -> int:
        return abs(self.looked.get(name, 0))

    def to_json(self, names: Iterable[str]) -> dict[str, Any]:
        """JSON for the cursor, of the repositories that still exist."""
        kept = {name: self.looked[name] for name in names if name in self.looked}
        return {_CHANGED: self.changed, _LOOKED: kept}


def _latest(changed: Mapping[str, str]) -> datetime | None:
    return max(map(datetime.fromisoformat, changed.values()), default=None)


def _is_later(record: dg.RunRecord, changed: Mapping[str, str]) -> bool:
    """True if the change of a run is new: not recorded, and not before the last recorded ones."""
    last, at = _latest(changed), record.update_timestamp
    known = changed.get(record.dagster_run.run_id) == str(at)
    return not known and (last is None or at >= last - _OVERLAP)


def looked_at(looked: Sized, some: Sized) -> str:
    """A sentence about the number of repositories that a tick has read."""
    of = counted(len(some), "repository", "repositories")
    return of if len(looked) == len(some) else f"{len(looked)} of {of} were read"
