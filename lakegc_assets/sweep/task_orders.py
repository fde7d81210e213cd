"""Orders and results of deleting tasks: plain values that can be pickled."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from lakegc_assets.mark.marked_objects import Stretch
from lakegc_assets.retention.retain_rules import NO_RETAIN, Retain
from lakegc_assets.run.clocks import SYSTEM_CLOCKS, Clocks, Moment
from lakegc_assets.run.connections import Connections
from lakegc_assets.storage.probes import Condition
from lakegc_assets.storage.values import NO_PROTECTION, DataProtection
from lakegc_assets.sweep.batch_guard import Fingerprint
from lakegc_assets.sweep.delta_extension import CommitFiles
from lakegc_assets.sweep.lease_record import sweep_of
from lakegc_assets.sweep.ledger import DONE, Outcome
from lakegc_assets.sweep.rate_limit import Limits, round_folder

#: Results of a task that stops early, instead of an outcome.
STALE: Final = "stale"
LOST: Final = "lost"
STOPPED: Final = "stopped"
TAKEN: Final = "taken"
EARLY: Final = (STALE, LOST, STOPPED, TAKEN)
#: Reason why a delta mark is outdated after a suspension.
SUSPENDED: Final = "this process was suspended since the delta mark"


@dataclass(frozen=True)
class Orders:
    """The order of a deleting task; picklable, without secrets.

    Attributes:
        delta: fingerprint of the delta mark that allows the deletes.
        taken: time at which that delta mark began.
        awake: time, by the clock of its machine, until which the process that took the delta mark
            has noticed no suspension since then.
        number: number of the round, which is also in the lease.
        condition: the calls that carry the listed etag.
        batch: most objects in one request.
        limits: limits of all tasks together.
        share: share of the limits at the begin.
        known: known commits of the delta mark; None if it cannot be extended, so that it is
            outdated as soon as a branch moves.
        expires_s: seconds after the look at HEADs and rules after which the store must refuse a
            delete, or the task must not begin one; None if neither is possible.
        trash: key prefix below which the store moves deleted objects, if it can.
    """

    connections: Connections
    repository: str
    artifacts_url: str
    delta: Fingerprint
    taken: Moment
    protect_tags: bool
    lease: str
    number: int
    condition: Condition
    batch: int
    limits: Limits
    share: float = 1.0
    known: CommitFiles | None = None
    expires_s: float | None = None
    trash: str | None = None
    protection: DataProtection = NO_PROTECTION
    retain: Retain = NO_RETAIN
    awake: float = float("inf")
    clocks: Clocks = SYSTEM_CLOCKS

    @property
    def notes(self) -> str:
        """The folder of the notes of the tasks of this round."""
        return round_folder(sweep_of(self.lease), self.number)


class Portion(NamedTuple):
    """The work of one task.

    Attributes:
        number: number of the task in its round, from 0; a retry has the same number.
        stretches: objects (``LISTING``), ordered by address.
    """

    number: int
    stretches: Sequence[Stretch]

    @property
    def rows(self) -> int:
        """The number of objects."""
        return sum(stretch.rows for stretch in self.stretches)


class TaskResult(NamedTuple):
    """The result of a batch, or of the task at its end.

    Attributes:
        outcome: an outcome of objects; or stale, lost, stopped or taken.
        error_code: error code of one of them, if the outcome is not final.
        detail: detail of one of them; or the reason why the task stopped.
    """

    outcome: str
    objects: int = 0
    size: int = 0
    error_code: str | None = None
    detail: str | None = None


def results_of(outcomes: Iterable[Outcome]) -> list[TaskResult]:
    """Sum outcomes by kind; kinds that are not final have code and detail of their first object."""
    by_outcome: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_outcome.setdefault(outcome.outcome, []).append(outcome)
    return [_result_of(name, outcomes_of_kind) for name, outcomes_of_kind in by_outcome.items()]


def _result_of(name: str, outcomes: Sequence[Outcome]) -> TaskResult:
    first, size = outcomes[0], sum(outcome.size for outcome in outcomes)
    if name in DONE:
        return TaskResult(name, len(outcomes), size)
    detail = f"{first.address}: {first.detail}"
    return TaskResult(name, len(outcomes), size, first.error_code, detail)


def summed(told: Iterable[TaskResult]) -> list[TaskResult]:
    """Sum the results by outcome."""
    totals: dict[str, TaskResult] = {}
    for result in told:
        total = totals.get(result.outcome, result._replace(objects=0, size=0))
        totals[result.outcome] = total._replace(
            objects=total.objects + result.objects, size=total.size + result.size
        )
    return list(totals.values())
