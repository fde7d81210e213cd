"""The rounds of a sweep: each takes a delta mark, and deletes what it leaves while it is valid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from lakegc_assets.checks.invariants import evaluate, require_passed
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
from lakegc_assets.storage.values import NO_PROTECTION, DataProtection, Recovery
from lakegc_assets.sweep import ledger
from lakegc_assets.sweep.backup_guard import BackupGuard
from lakegc_assets.sweep.batch_guard import CHECK_LIFETIME
from lakegc_assets.sweep.deletion import delete_portion
from lakegc_assets.sweep.delta import DeltaMark, DeltaMarks
from lakegc_assets.sweep.hold import require_no_hold
from lakegc_assets.sweep.lease import Lease
from lakegc_assets.sweep.ledger import GONE
from lakegc_assets.sweep.ledger_state import LedgerState
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

#: Consecutive rounds without progress after which the sweep gives up, to be run again later.
IDLE_ROUNDS: Final = 20
#: Age in seconds after which a delta mark is taken again, once the invariants are evaluated.
_FRESH: Final = 120.0
#: Objects that one core deletes in a second; it mostly waits for the store.
_RATE: Final = 10_000.0
#: Least batches of a task, if there are several tasks: some seconds of work with one listing, in
#: which the task only waits for the comparison of its first batch.
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
        condition: the deletes that can be conditional.
        deadlines: True if the store refuses late deletes.
        recovery: recovery options of deleted objects.
        trash: key prefix below which the store moves deleted objects, if it can.
        protection: data protection of deleted objects, by the settings of the store.
        warnings: objects that its life-cycle rules remove and should not, in sentences.
    """

    condition: Condition
    deadlines: bool
    recovery: Recovery
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
    backup: BackupGuard
    _evaluated: bool = False
    _share: float = 1.0

    @property
    def ctx(self) -> RunContext:
        """The run."""
        return self.recorded.ctx

    def run(self) -> int:
        """Delete until every candidate has an outcome; return the number of rounds.

        Raises:
            RefusedError: a check fails, the lease is lost, rounds make no progress, or the store no
                longer keeps deleted objects as it did when the sweep began.
            StorageError: the store refused deletes; finished deletes are in the ledger.
        """
        number, idle, fewest, reasons = 0, 0, -1, ""
        while True:
            remaining = self.recorded.remaining(f"{_name(number + 1)}/remaining")
            count = remaining.rows
            self._require_recovery()
            if count == 0:
                return number
            # A task that died left its work only in the ledger, so the ledger decides.
            idle = idle + 1 if count == fewest else 0
            if idle == IDLE_ROUNDS:
                raise RefusedError(
                    f"{self.ctx.repository!r} changes so fast that no delta mark holds, or tasks "
                    f"end without a delete ({reasons}). All deletes are recorded. Sweep "
                    f"{self.ctx.run!r} again at a quieter time",
                )
            number, fewest = number + 1, count
            ended_early = self.run_round(number, remaining)
            reasons = "; ".join(f"{name}: {text}" for name, text in ended_early.items())

    def _require_recovery(self) -> None:
        """Stop before the next round, and after the last, if an undo would be promised in vain."""
        promised, store = self.means.recovery, self.recorded.space.connections.store()
        if promised.kind not in {"versions", "soft_delete"}:
            return
        found = store.recovery()
        if found.keeps_less_than(promised):
            raise RefusedError(
                "the store keeps deleted objects for a shorter time than when this sweep began, so "
                f"perhaps not all of them can be restored. At its begin: {promised.notice}. Now: "
                f"{found.notice}. Nothing more was deleted, and all deletes are recorded. Restore "
                "the earlier settings of the store if you want to undo for as long; then sweep "
                f"{self.ctx.run!r} again, which ends by the settings that it finds"
            )

    def run_round(self, number: int, remaining: Dataset) -> Mapping[str, str]:
        """Delete the objects that a delta mark leaves; return reasons of tasks that ended early."""
        # Suspensions from now on are noticed.
        self.ctx.clocks.resumed()
        self.lease.begin_round(number)
        # A sweep that lost its lease checks its deletes as well, and may have written a hold.
        require_no_hold(self.ctx, self.recorded.space.connections.store())
        delta = self.deltas.take(remaining, _name(number))
        self.record_spared(f"{self.lease.sweep}-{number:04d}-spared", delta)
        name = f"{_name(number)}/survivors"
        survivors = self.recorded.without_spared(remaining, delta.spared, name)
        if not survivors.rows:
            return {}
        with self.ctx.frames() as frames:
            delta.alive.require_dead(frames, survivors)
        self.backup.require_copies(self.recorded.space, survivors)
        if not self._evaluated:
            require_passed(evaluate(self.ctx, survivors.parts))
            self._evaluated = True
            if self.ctx.clocks.elapsed() - delta.taken.elapsed > _FRESH:
                return {STALE: "the delta mark aged while the invariants were evaluated"}
        return self._delete(number, delta, survivors)

    def record_spared(self, name: str, delta: DeltaMark) -> None:
        """Record the spared objects with the reasons."""
        space = self.recorded.space
        for number, rows in enumerate(space.tables(delta.spared)):
            ledger.record_spared(
                space.attempt.store(), f"{name}-{number:05d}", rows, self.ctx.clocks
            )

    def _delete(self, number: int, delta: DeltaMark, survivors: Dataset) -> Mapping[str, str]:
        self.lease.require()
        orders = self._orders(number, delta)
        portions = self._portions(survivors)
        # Check for a suspension last: tasks watch for suspensions once they run.
        if self.ctx.clocks.resumed() >= delta.taken.elapsed:
            return {STALE: SUSPENDED}
        results = {result.outcome: result for result in delete(self.ctx, orders, portions)}
        self._share = share_after(self.recorded.space.attempt.store(), orders.notes, self._share)
        gone = sum(results[outcome].objects for outcome in GONE if outcome in results)
        self.ctx.log.info("swept %s of %s", counted(gone, "object"), self.ctx.repository)
        if failed := results.get("failed"):
            raise self._failure(failed.objects, f"{failed.error_code}: {failed.detail}")
        early: dict[str, str] = {n: results[n].detail or "" for n in EARLY if n in results}
        if STOPPED in early:
            raise self._failure(0, early[STOPPED])
        return early

    def _orders(self, number: int, delta: DeltaMark) -> Orders:
        settings, connections = self.ctx.settings, self.recorded.space.connections
        store = connections.store()
        keys, requests = settings.sweep_keys_per_second, settings.sweep_requests_per_second
        # If a process is suspended within a batch of files, the batch must end there.
        ends = self.means.deadlines or store.watches_deadlines
        if ends and store.sends_deadlines_singly:
            keys = min(keys, requests)
        return Orders(
            # The reads of a task soon get too old, so its clients must not wait for retries.
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
            limits=Limits(keys, requests),
            share=self._share,
            known=delta.known() if delta.known else None,
            expires_s=CHECK_LIFETIME if ends else None,
            trash=self.means.trash,
            protection=self.means.protection,
            retain=settings.retained,
            awake=self.ctx.clocks.elapsed(),
            clocks=self.ctx.clocks,
        )

    def _portions(self, survivors: Dataset) -> list[Portion]:
        """Split the survivors for tasks, by consecutive addresses."""
        most, batch = self.ctx.settings.sweep_num_partitions, self.ctx.settings.sweep_batch
        batches = -(-survivors.rows // batch)
        tasks = max(1, min(most, batches // BATCHES_PER_TASK))
        # Only the last batch is smaller than the limit.
        pieces = stretches(survivors.parts, -(-batches // tasks) * batch)
        return [Portion(task, piece) for task, piece in enumerate(pieces)]

    def _failure(self, objects: int, error: str) -> LakegcError:
        to, run = self.recorded.space.connections.namespace_url, self.ctx.run
        kind = error_class(error.split(":", 1)[0])
        advice = f" {_ADVICE[kind]}." if kind in _ADVICE else ""
        raised = kind if issubclass(kind, StorageError) else StorageError
        return raised(
            f"{counted(objects, 'object')} of {to} could not be deleted, for example "
            f"{error}.{advice} All deletes are recorded. Correct the cause, then sweep {run!r} "
            "again",
        )


def _name(number: int) -> str:
    """Return the folder of a round, below that of its sweep, in which no other sweep writes."""
    return f"delta-{number:04d}"


def delete(ctx: RunContext, orders: Orders, portions: list[Portion]) -> list[TaskResult]:
    """Delete objects in tasks, one portion each; return the sums of their results by outcome."""
    seconds = sum(portion.rows for portion in portions) / _RATE
    task = partial(delete_portion, orders)
    # Half of the work is to parse pages of listings, for which one interpreter lock is too slow.
    results = ctx.tasks.run("delete", task, portions, seconds, _THREADS, in_processes=True)
    return summed(result for task in results for result in task)
