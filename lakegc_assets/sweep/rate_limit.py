"""The notes of the tasks of a sweep: their common rate limit, and which requests may be in flight.

Tasks share nothing but notes: small objects below ``swept_set/tasks/<sweep>/<round>/``, which each
lists before every batch.

* ``<partition>.begun`` and ``.ended``: who deletes now. The limits are divided by their
  number. A partition that has begun belongs to the attempt that began it: another attempt of the
  same task, a retry or a speculative copy, leaves it alone, and the next round takes what is left.
  The end of one that failed says why, since Spark tells only of the last attempt.
* ``slow-<n>``: the store asked for less the n-th time; the note holds what share of the limits
  remains. Tasks that meet one storm want to write the same number, and only one can, so that a
  storm halves the rate once, however many tasks it hits.
* ``<partition>.unanswered``: a request had no answer, so the store may carry it out later.
* ``stop``: a task met what no task can get past (access denied): all stop.

After a time without such a note the rate rises again, a little with every success.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from lakegc_assets.errors import IntegrityError, LakegcError
from lakegc_assets.run.clocks import SYSTEM_CLOCKS, Clocks
from lakegc_assets.run.json_record import DAMAGE
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import (
    ObjectLockedError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreUnavailableError,
)
from lakegc_assets.sweep.liveness_look import CHECK_LIFETIME

_TASKS: Final = "swept_set/tasks/"
_SLOW: Final = "slow-"
_UNANSWERED: Final = ".unanswered"
#: The share of the limits that is never gone below.
LEAST: Final = 1 / 64
#: Seconds of success after which the rate has risen from nothing to the limits.
_RECOVERY_S: Final = 600.0
#: A batch is no larger than what may be deleted in so many seconds.
_BATCH_S: Final = 10.0
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 30.0


@dataclass(frozen=True)
class Limits:
    """Limits of all tasks of a sweep together, per second.

    Attributes:
        keys: objects.
        requests: calls.
    """

    keys: float
    requests: float


def round_folder(sweep: str, number: int) -> str:
    """The folder of the notes of the tasks of one round, relative to the attempt."""
    return f"{_TASKS}{sweep}/{number:04d}/"


def share_after(artifacts: ObjectStore, folder: str, share: float) -> float:
    """With which share of the limits the round after this one begins.

    ``folder``: of the notes of the round that has ended; ``share``: with which that began.
    """
    storms = [n for n in _names(artifacts, folder) if n.startswith(f"{folder}{_SLOW}")]
    return _share_in(artifacts, max(storms)) if storms else min(1.0, 2 * share)


def in_flight(artifacts: ObjectStore, sweep: str) -> bool:
    """Return whether a request may be in flight: unanswered, or of a task that has not ended."""
    notes = artifacts.infos_to_the_end(f"{_TASKS}{sweep}/")
    return bool(_unsettled({info.key for info in notes}))


def killed_since(artifacts: ObjectStore) -> datetime | None:
    """The start of the first deleting task that was killed or unanswered; None if all ended.

    What such a task deleted last it may not have recorded: a later one finds it missing.
    """
    notes = {info.key: info.last_modified for info in artifacts.infos_to_the_end(_TASKS)}
    begun = (notes.get(f"{task}.begun") for task in _unsettled(notes))
    return min((at for at in begun if at is not None), default=None)


def _unsettled(notes: Collection[str]) -> set[str]:
    """The tasks that have begun and not ended, or of which a request had no answer."""
    begun = {name.removesuffix(".begun") for name in notes if name.endswith(".begun")}
    unanswered = {n.removesuffix(_UNANSWERED) for n in notes if n.endswith(_UNANSWERED)}
    return unanswered | {task for task in begun if f"{task}.ended" not in notes}


def _names(artifacts: ObjectStore, folder: str) -> list[str]:
    return [info.key for info in artifacts.infos(folder)]


def _share_in(artifacts: ObjectStore, note: str) -> float:
    try:
        return float(json.loads(artifacts.get(note))["share"])
    except DAMAGE as error:
        raise IntegrityError(
            f"{artifacts.url}/{note} is damaged ({error}): remove it by hand, and sweep again"
        ) from error


class RateLimiter:
    """The notes and the pace of one attempt of a task.

    ``folder``: of the notes of this round. ``limits``: of the whole job. ``share``: of these, to
    begin with.
    """

    def __init__(
        self,
        artifacts: ObjectStore,
        folder: str,
        partition: int,
        limits: Limits,
        share: float = 1.0,
        clocks: Clocks = SYSTEM_CLOCKS,
    ) -> None:
        self._artifacts = artifacts
        self._folder = folder
        self._mine = f"{folder}{partition:05d}"
        self._limits = limits
        self._clock, self._pause = clocks.elapsed, clocks.sleep
        #: Tasks that share the limits, as the last look found them.
        self.tasks = 1
        self._storms = 0
        self._share = share
        self._succeeded = self._free = self._clock()
        self._failures = 0

    def begin(self) -> str:
        """Take the partition; nothing, or why not, if another attempt of this task took it."""
        try:
            self._artifacts.create(f"{self._mine}.begun", secrets.token_hex(8).encode())
        except PreconditionFailedError:
            said = self._said()
            return "another attempt of this task has begun" + (said and f", and failed: {said}")
        return ""

    def _said(self) -> str:
        with suppress(ObjectNotFoundError):
            return self._artifacts.get(f"{self._mine}.ended").decode()
        return ""

    def end(self, failure: str = "") -> None:
        """Leave the limits to the others, and say what went wrong to who tries again."""
        self._artifacts.put(f"{self._mine}.ended", failure.encode())

    def look(self) -> str:
        """Read the others' notes; why all must stop, or nothing."""
        names = _names(self._artifacts, self._folder)
        if f"{self._folder}stop" in names:
            return self._artifacts.get(f"{self._folder}stop").decode()
        begun, ended = (sum(n.endswith(end) for n in names) for end in (".begun", ".ended"))
        self.tasks = max(1, begun - ended)
        storms = [name for name in names if name.startswith(f"{self._folder}{_SLOW}")]
        if len(storms) > self._storms:
            self._storms = len(storms)
            self._share = _share_in(self._artifacts, max(storms))
            self._succeeded = self._clock()
        return ""

    @property
    def share(self) -> float:
        """The share of the limits that the store bears now, by all that is known here."""
        return self._share

    def most(self, batch: int) -> int:
        """The number of keys to delete next: a batch, or as many as take a few seconds."""
        return max(1, min(batch, int(self._rate(self._limits.keys) * _BATCH_S)))

    def wait(self) -> None:
        """Wait until the next request may be sent."""
        pause = self._free - self._clock()
        if pause > 0:
            self._pause(pause)

    def sent(self, keys: int) -> None:
        """Count a request with so many keys."""
        cost = max(keys / self._rate(self._limits.keys), 1 / self._rate(self._limits.requests))
        self._free = max(self._free, self._clock()) + cost

    def succeeded(self) -> None:
        """The store took a request: the rate rises a little."""
        now = self._clock()
        self._share = min(1.0, self._share + (now - self._succeeded) / _RECOVERY_S)
        self._succeeded = now
        self._failures = 0

    def failed(self, code: str, *, slow: bool) -> None:
        """The store did not take a request: the next one waits, longer each time.

        ``slow``: it asks for less, so that the rate of the whole job is halved.
        """
        pause = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**self._failures)
        self._failures += 1
        self._free = max(self._free, self._clock()) + pause
        if not slow:
            return
        note = {"share": max(LEAST, self._share / 2), "code": code}
        try:
            key = f"{self._folder}{_SLOW}{self._storms + 1:06d}"
            self._artifacts.put_if_absent(key, json.dumps(note).encode())
        except (PreconditionFailedError, StoreUnavailableError):
            # Another has noted it; or this one has, maybe, and what else meets the storm will.
            return

    def unanswered(self) -> None:
        """Tell the sweep that the store may yet carry out a request."""
        # What is locked there is there already.
        with suppress(ObjectLockedError):
            self._artifacts.put(f"{self._mine}{_UNANSWERED}", b"")

    def stop(self, why: str) -> None:
        """Let all tasks of this sweep stop before their next batch."""
        with suppress(ObjectLockedError):
            self._artifacts.put(f"{self._folder}stop", why.encode())

    def _rate(self, limit: float) -> float:
        return limit * self._share / self.tasks


def settle(artifacts: ObjectStore, sweep: str, clocks: Clocks = SYSTEM_CLOCKS) -> None:
    """Wait, if need be, as long as a request that was allowed before now may take.

    To be called when no task may send another batch. Where the store keeps deadlines, nothing is
    carried out afterwards; where it keeps none, only what the network held back for longer.
    """
    begun = clocks.elapsed()
    try:
        if not in_flight(artifacts, sweep):
            return
    except LakegcError:
        # Who cannot be asked may have something under way.
        pass
    while (left := CHECK_LIFETIME - (clocks.elapsed() - begun)) > 0:
        clocks.sleep(left)
