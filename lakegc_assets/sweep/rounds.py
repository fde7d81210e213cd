"""The rounds of a sweep: each takes a delta mark, and deletes what it leaves while it holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from lakegc_assets.checks.evaluation import evaluate, require_passed
from lakegc_assets.engine.session import Dataset
from lakegc_assets.errors import LakegcError, RefusedError
from lakegc_assets.mark.marked_objects import stretches
from lakegc_assets.run.context import RunContext
from lakegc_assets.storage.errors import (
    AccessDeniedError,
    StorageError,
    StoreThrottledError,
    StoreUnavailableError,
    error_class,
)
from lakegc_assets.storage.probes import Condition
from lakegc_assets.storage.values import NO_PROTECTION, DataProtection
from lakegc_assets.sweep import ledger
from lakegc_assets.sweep.deletion import delete_portion
from lakegc_assets.sweep.delta import DeltaMark, DeltaMarks
from lakegc_assets.sweep.hold import require_no_hold
from lakegc_assets.sweep.lease import Lease
from lakegc_assets.sweep.ledger import GONE
from lakegc_assets.sweep.ledger_state import LedgerState
from lakegc_assets.sweep.liveness_look import CHECK_LIFETIME
from lakegc_assets.sweep.rate_limit import Limits, share_after
from lakegc_assets.sweep.task_orders import (
    EARLY,
    STALE,
    STOPPED,
    SUSPENDED,
    Orders,
    Portion,
    TaskResult,
    summed,
)
from lakegc_assets.wording import counted

#: How many rounds in a row may do nothing before the sweep gives up, to be run again later.
IDLE_ROUNDS: Final = 20
#: A delta mark older than this when the invariants have been evaluated is taken again, in seconds.
_FRESH: Final = 120.0
#: Objects that are deleted in a second by one core, which mostly waits for the store.
_RATE: Final = 10_000.0
#: A task has so many batches at least, where there are several: some seconds of work, of which the
#: comparison of the first one is the only one that is waited for, and one listing.
BATCHES_PER_TASK: Final = 4
#: Tasks that run on this machine at a time.
_THREADS: Final = 8
_ADVICE: Final[dict[type[LakegcError], str]] = {
    AccessDeniedError: "Let the credentials delete there (on S3 s3:DeleteObject, and s3:GetObject "
    "for conditional deletes), or renew them if they have expired",
    StoreThrottledError: "The store asks for less: sweep later, or with lower limits "
    "(sweep_keys_per_second, sweep_requests_per_second)",
    StoreUnavailableError: "The store did not answer",
}


@dataclass(frozen=True)
class StoreCapabilities:
    """Capabilities of the store for deletes, as probed.

    Attributes:
        condition: which deletes are conditional.
        deadlines: whether it refuses deletes that come late.
        trash: key prefix below which it moves what is deleted, if it can.
        protection: what it holds of what is deleted, by its settings.
        warnings: what its rules remove by themselves and should not, in sentences.
    """

    condition: Condition
    deadlines: bool
    trash: str | None = None
    protection: DataProtection = NO_PROTECTION
    warnings: Sequence[str] = ()


@dataclass
class Rounds:
    """The rounds of one sweep."""

    recorded: LedgerState
    deltas: DeltaMarks
    lease: Lease
    means: StoreCapabilities
    _evaluated: bool = False
    _share: float = 1.0

    @property
    def ctx(self) -> RunContext:
        """The run."""
        return self.recorded.ctx

    def run(self) -> int:
        """Delete until every candidate has its outcome; the number of rounds that it took.

        Raises:
            RefusedError: a check fails, the lease is lost, or no round gets anything done.
            StorageError: the store refused deletes; what was done is in the ledger.
        """
        number, idle, fewest, why = 0, 0, -1, ""
        while True:
            remaining = self.recorded.remaining(f"{_name(number + 1)}/remaining")
            left = remaining.rows
            if left == 0:
                return number
            # What tasks did that died is in the ledger only, so that is what counts.
            idle = idle + 1 if left == fewest else 0
            if idle == IDLE_ROUNDS:
                raise RefusedError(
                    f"{self.ctx.repository!r} changes so fast that no delta mark holds, or tasks "
                    f"end without doing anything ({why}); what was done is recorded. Sweep "
                    f"{self.ctx.run!r} again at a quieter time",
                )
            number, fewest = number + 1, left
            ended_early = self.run_round(number, remaining)
            why = "; ".join(f"{name}: {text}" for name, text in ended_early.items())

    def run_round(self, number: int, remaining: Dataset) -> Mapping[str, str]:
        """Delete what a delta mark leaves; what tasks said that ended early."""
        # From now on suspensions are noticed.
        self.ctx.clocks.resumed()
        self.lease.begin_round(number)
        # A sweep that has lost its lease looks at what it did, too, and may have found a loss.
        require_no_hold(self.ctx, self.recorded.space.connections.store())
        delta = self.deltas.take(remaining, _name(number))
        self.record_spared(f"{self.lease.sweep}-{number:04d}-spared", delta)
        name = f"{_name(number)}/survivors"
        survivors = self.recorded.without_spared(remaining, delta.spared, name)
        if not survivors.rows:
            return {}
        if not self._evaluated:
            require_passed(evaluate(self.ctx, survivors.parts))
            self._evaluated = True
            if self.ctx.clocks.elapsed() - delta.taken.elapsed > _FRESH:
                return {STALE: "the delta mark aged while the invariants were evaluated"}
        return self._delete(number, delta, survivors)

    def record_spared(self, name: str, delta: DeltaMark) -> None:
        """Record what is spared, with the reasons."""
        space = self.recorded.space
        for number, rows in enumerate(space.tables(delta.spared)):
            ledger.record_spared(
                space.attempt.store(), f"{name}-{number:05d}", rows, self.ctx.clocks
            )

    def _delete(self, number: int, delta: DeltaMark, survivors: Dataset) -> Mapping[str, str]:
        self.lease.require()
        orders = self._orders(number, delta)
        portions = self._portions(survivors)
        # The last thing before tasks begin, which notice for themselves.
        if self.ctx.clocks.resumed() >= delta.taken.elapsed:
            return {STALE: SUSPENDED}
        told = {one.outcome: one for one in delete(self.ctx, orders, portions)}
        self._share = share_after(self.recorded.space.attempt.store(), orders.notes, self._share)
        gone = sum(told[outcome].objects for outcome in GONE if outcome in told)
        self.ctx.log.info("swept %s of %s", counted(gone, "object"), self.ctx.repository)
        if failed := told.get("failed"):
            raise self._failure(failed.objects, f"{failed.error_code}: {failed.detail}")
        early: dict[str, str] = {n: told[n].detail or "" for n in EARLY if n in told}
        if STOPPED in early:
            raise self._failure(0, early[STOPPED])
        return early

    def _orders(self, number: int, delta: DeltaMark) -> Orders:
        settings, connections = self.ctx.settings, self.recorded.space.connections
        store = connections.store()
        return Orders(
            # What a task has seen is soon too old to delete by.
            connections=connections.without_waiting(),
            repository=self.ctx.repository,
            artifacts_url=self.recorded.space.attempt.url,
            delta=delta.seen,
            taken=delta.taken,
            protect_tags=settings.protect_tags,
            lease=self.lease.token,
            number=number,
            condition=self.means.condition,
            batch=min(settings.sweep_batch, store.keys_per_delete),
            limits=Limits(settings.sweep_keys_per_second, settings.sweep_requests_per_second),
            share=self._share,
            known=delta.known() if delta.known else None,
            # A process that is suspended within a batch of files is to end there.
            expires_s=CHECK_LIFETIME if self.means.deadlines or store.watches_deadlines else None,
            trash=self.means.trash,
            protection=self.means.protection,
            retain=settings.retained,
            awake=self.ctx.clocks.elapsed(),
            clocks=self.ctx.clocks,
        )

    def _portions(self, survivors: Dataset) -> list[Portion]:
        """The survivors for tasks, each with those of one stretch of addresses."""
        most, batch = self.ctx.settings.sweep_num_partitions, self.ctx.settings.sweep_batch
        batches = -(-survivors.rows // batch)
        tasks = max(1, min(most, batches // BATCHES_PER_TASK))
        # No batch but the last one is smaller than it may be.
        pieces = stretches(survivors.parts, -(-batches // tasks) * batch)
        return [Portion(task, piece) for task, piece in enumerate(pieces)]

    def _failure(self, objects: int, error: str) -> LakegcError:
        to, run = self.recorded.space.connections.namespace_url, self.ctx.run
        kind = error_class(error.split(":", 1)[0])
        advice = f" {_ADVICE[kind]}." if kind in _ADVICE else ""
        raised = kind if issubclass(kind, StorageError) else StorageError
        return raised(
            f"{counted(objects, 'object')} of {to} could not be deleted, for example "
            f"{error}.{advice} What was done is recorded. Sweep {run!r} again when this is mended",
        )


def _name(number: int) -> str:
    """The folder of a round, in that of its sweep: no other sweep changes its files."""
    return f"delta-{number:04d}"


def delete(ctx: RunContext, orders: Orders, portions: list[Portion]) -> list[TaskResult]:
    """Delete objects in tasks, a portion in each; the sums of their results by outcome."""
    seconds = sum(portion.rows for portion in portions) / _RATE
    task = partial(delete_portion, orders)
    # Half of the work is to read the pages of listings, which one interpreter lock would hold up.
    told = ctx.tasks.run("delete", task, portions, seconds, _THREADS, in_processes=True)
    return summed(one for task in told for one in task)
