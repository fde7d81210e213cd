"""The notes of a sweep's tasks: their common rate limit, and requests that may be in flight.

Tasks share nothing but notes: small objects below ``swept_set/tasks/<sweep>/<round>/``, which each
task lists before every batch.

* ``<partition>.begun`` and ``.ended``: the tasks that delete now share the limits equally. A
  partition belongs to the attempt that began it. Another attempt of the same task (a retry or a
  speculative copy) does nothing, and the next round takes the remaining objects. The ``.ended``
  note of a failed attempt holds the error, since Spark reports only the last attempt.
* ``slow-<n>``: the store asked for a lower rate for the n-th time; the note holds the share of the
  limits that remains. Tasks that are throttled at the same time want to write the same number, and
  only one of them can. So the rate is halved once, not once for each task.
* ``<partition>.unanswered``: a request had no answer, so the store may carry it out later.
* ``stop``: a task met an error that every task would meet (access denied): all tasks stop.

After some time without a ``slow`` note the rate rises again, a little with every success.
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
from lakegc_assets.sweep.batch_guard import CHECK_LIFETIME

_TASKS: Final = "swept_set/tasks/"
_SLOW: Final = "slow-"
_UNANSWERED: Final = ".unanswered"
#: Least share of the limits.
LEAST: Final = 1 / 64
#: Seconds of success in which the rate rises from zero to the limits.
_RECOVERY_S: Final = 600.0
#: Most seconds of deletes in one batch.
_BATCH_S: Final = 10.0
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 30.0


@dataclass(frozen=True)
class Limits:
    """Limits of all tasks of a sweep together, per second."""

    keys: float
    requests: float


def round_folder(sweep: str, number: int) -> str:
    """Return the folder of the notes of the tasks of one round, relative to the attempt."""
    return f"{_TASKS}{sweep}/{number:04d}/"


def share_after(artifacts: ObjectStore, folder: str, share: float) -> float:
    """Return the share of the limits with which the next round begins.

    ``folder``: folder of the notes of the round that has ended; ``share``: its share at its begin.
    """
    storms = [n for n in _names(artifacts, folder) if n.startswith(f"{folder}{_SLOW}")]
    return _share_in(artifacts, max(storms)) if storms else min(1.0, 2 * share)


def in_flight(artifacts: ObjectStore, sweep: str) -> bool:
    """Return True if a request may be in flight: unanswered, or of a task that has not ended."""
    notes = artifacts.infos_to_the_end(f"{_TASKS}{sweep}/")
    return bool(_unsettled({info.key for info in notes}))


def killed_since(artifacts: ObjectStore) -> datetime | None:
    """Return the start of the first task that was killed or got no answer; None if all ended.

    Such a task may not have recorded its last deletes: a later task finds these objects missing.
    """
    notes = {info.key: info.last_modified for info in artifacts.infos_to_the_end(_TASKS)}
    begun = (notes.get(f"{task}.begun") for task in _unsettled(notes))
    return min((at for at in begun if at is not None), default=None)


def _unsettled(notes: Collection[str]) -> set[str]:
    """Return the tasks that have begun and not ended, or that have an unanswered request."""
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
    """The notes and the rate of one attempt of a task.

    ``folder``: folder of the notes of this round. ``limits``: limits of the whole job. ``share``:
    share of the limits at the begin.
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
        #: Tasks that share the limits, as of the last look.
        self.tasks = 1
        self._storms = 0
        #: The share of the limits that the store can take now, as far as this task knows.
        self.share = share
        self._succeeded = self._free = self._clock()
        self._failures = 0

    def begin(self) -> str:
        """Take the partition; return the reason if another attempt of this task has taken it."""
        try:
            self._artifacts.create(f"{self._mine}.begun", secrets.token_hex(8).encode())
        except PreconditionFailedError:
            error = self._recorded_error()
            return "another attempt of this task has begun" + (error and f", and failed: {error}")
        return ""

    def _recorded_error(self) -> str:
        with suppress(ObjectNotFoundError):
            return self._artifacts.get(f"{self._mine}.ended").decode()
        return ""

    def end(self, failure: str = "") -> None:
        """Give the limits to the other tasks, and record the error for the next attempt."""
        self._artifacts.put(f"{self._mine}.ended", failure.encode())

    def look(self) -> str:
        """Read the notes of the other tasks; return the reason if all must stop, else nothing."""
        names = _names(self._artifacts, self._folder)
        if f"{self._folder}stop" in names:
            return self._artifacts.get(f"{self._folder}stop").decode()
        begun, ended = (sum(n.endswith(end) for n in names) for end in (".begun", ".ended"))
        self.tasks = max(1, begun - ended)
        storms = [name for name in names if name.startswith(f"{self._folder}{_SLOW}")]
        if len(storms) > self._storms:
            self._storms = len(storms)
            self.share = _share_in(self._artifacts, max(storms))
            self._succeeded = self._clock()
        return ""

    def most(self, batch: int) -> int:
        """Return the number of keys to delete next: at most a batch, or some seconds of deletes."""
        return max(1, min(batch, int(self._rate(self._limits.keys) * _BATCH_S)))

    def wait(self) -> None:
        """Wait until the next request may be sent."""
        pause = self._free - self._clock()
        if pause > 0:
            self._pause(pause)

    def sent(self, keys: int) -> None:
        """Count a request with a number of keys."""
        cost = max(keys / self._rate(self._limits.keys), 1 / self._rate(self._limits.requests))
        self._free = max(self._free, self._clock()) + cost

    def succeeded(self) -> None:
        """Count a successful request: the rate rises a little."""
        now = self._clock()
        self.share = min(1.0, self.share + (now - self._succeeded) / _RECOVERY_S)
        self._succeeded = now
        self._failures = 0

    def failed(self, code: str, *, slow: bool) -> None:
        """Count a failed request: the next request waits, longer each time.

        ``slow``: the store asks for a lower rate, so that the rate of the whole job is halved.
        """
        pause = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**self._failures)
        self._failures += 1
        self._free = max(self._free, self._clock()) + pause
        if not slow:
            return
        note = {"share": max(LEAST, self.share / 2), "code": code}
        try:
            key = f"{self._folder}{_SLOW}{self._storms + 1:06d}"
            self._artifacts.put_if_absent(key, json.dumps(note).encode())
        except (PreconditionFailedError, StoreUnavailableError):
            # Another task has written the note, or this task has; if not, the next failure will.
            return

    def unanswered(self) -> None:
        """Record that the store may carry out a request later."""
        # A store that locks the note has it already.
        with suppress(ObjectLockedError):
            self._artifacts.put(f"{self._mine}{_UNANSWERED}", b"")

    def stop(self, why: str) -> None:
        """Make all tasks of this sweep stop before their next batch."""
        with suppress(ObjectLockedError):
            self._artifacts.put(f"{self._folder}stop", why.encode())

    def _rate(self, limit: float) -> float:
        return limit * self.share / self.tasks


def settle(artifacts: ObjectStore, sweep: str, clocks: Clocks = SYSTEM_CLOCKS) -> None:
    """Wait, if necessary, for the longest time that a request that was allowed before may take.

    Call this when no task may send another batch. If the store keeps deadlines, no request is
    carried out afterwards; else only a request that the network delayed for longer.
    """
    begun = clocks.elapsed()
    try:
        if not in_flight(artifacts, sweep):
            return
    except LakegcError:
        # If the notes cannot be read, a request may be in flight.
        pass
    while (remaining := CHECK_LIFETIME - (clocks.elapsed() - begun)) > 0:
        clocks.sleep(remaining)
