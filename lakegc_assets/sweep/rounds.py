"""The rounds of a sweep: each takes a delta mark, and deletes what it leaves while it holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from lakegc_assets.checks.evaluation import evaluate, require_passed
from lakegc_assets.errors import LakegcError, RefusedError
from lakegc_assets.run.artifacts import AttemptArtifacts, Manifest
from lakegc_assets.run.context import Connections, RunContext
from lakegc_assets.storage.codes import error_class
from lakegc_assets.storage.errors import (
    AccessDeniedError,
    StorageError,
    StoreThrottledError,
    StoreUnavailableError,
)
from lakegc_assets.storage.opening import open_store
from lakegc_assets.sweep import ledger
from lakegc_assets.sweep.conditions import Condition
from lakegc_assets.sweep.deletion import STOPPED, Progress, delete, orders_of
from lakegc_assets.sweep.delta import DeltaMark, take_delta_mark
from lakegc_assets.sweep.hold import require_no_hold
from lakegc_assets.sweep.lease import Lease
from lakegc_assets.sweep.ledger import ASSET, DONE, Outcome
from lakegc_assets.sweep.moment import elapsed
from lakegc_assets.sweep.pace import share_after
from lakegc_assets.sweep.rewritten import find_rewritten

#: How many rounds in a row may do nothing before the sweep gives up, to be run again later.
_IDLE_ROUNDS = 20
#: A delta mark older than this when the invariants have been evaluated is taken again, in seconds.
_FRESH = 120.0
_ADVICE: dict[type[LakegcError], str] = {
    AccessDeniedError: "Let the credentials delete there (on S3 s3:DeleteObject, and s3:GetObject "
    "for conditional deletes), or renew them if they have expired",
    StoreThrottledError: "The store asks for less: sweep later, or with lower limits "
    "(sweep_keys_per_second, sweep_requests_per_second)",
    StoreUnavailableError: "The store did not answer",
}


@dataclass
class Rounds:
    """The rounds of one sweep.

    Attributes:
        ctx: the run.
        connections: how to reach lakeFS and the store.
        attempt: the artifacts of the mark, and of its sweep.
        chain: the manifests of the mark.
        candidates: what the mark names.
        lease: that of this sweep.
        condition: which deletes are conditional.
    """

    ctx: RunContext
    connections: Connections
    attempt: AttemptArtifacts
    chain: Mapping[str, Manifest]
    candidates: DataFrame
    lease: Lease
    condition: Condition
    _evaluated: bool = False
    _share: float = 1.0

    def run(self) -> int:
        """Delete until every candidate has its outcome; the number of rounds that it took.

        Raises:
            RefusedError: a check fails, the lease is lost, or no round gets anything done.
            StorageError: the store refused deletes; what was done is in the ledger.
        """
        number, idle, fewest, why = 0, 0, -1, ""
        while True:
            remaining = self._remaining(number + 1)
            left = remaining.count()
            if left == 0:
                return number
            # What tasks did that died is in the ledger only, so that is what counts.
            idle = idle + 1 if left == fewest else 0
            if idle == _IDLE_ROUNDS:
                raise RefusedError(
                    f"{self.ctx.repository!r} changes so fast that no delta mark holds, or tasks "
                    f"end without doing anything ({why}); what was done is recorded. Sweep "
                    f"{self.ctx.run!r} again at a quieter time",
                )
            number, fewest = number + 1, left
            ended_early = self._round(number, remaining)
            why = "; ".join(f"{name}: {text}" for name, text in ended_early.items())

    def _keep(self, number: int, frame: DataFrame, part: str) -> DataFrame:
        # A sweep that has lost its lease and does not know it yet must not change another's files.
        folder = f"{self.lease.sweep}/delta-{number:04d}"
        return self.attempt.keep(self.ctx.spark, ASSET, frame, f"{folder}/{part}")

    def _remaining(self, number: int) -> DataFrame:
        done = ledger.read(self.ctx.spark, self.attempt).where(f"outcome in {DONE}")
        left = self.candidates.join(done, "address", "left_anti")
        return self._keep(number, left, "remaining")

    def _round(self, number: int, remaining: DataFrame) -> Mapping[str, str]:
        """Delete what a delta mark leaves; what tasks said that ended early."""
        self.lease.begin_round(number)
        # A sweep that has lost its lease looks at what it did, too, and may have found a loss.
        require_no_hold(self.connections.store())
        keep = partial(self._keep, number)
        delta = take_delta_mark(self.ctx, self.chain, self.attempt, remaining, keep)
        rewritten = keep(find_rewritten(self.ctx, self.connections, remaining, keep), "rewritten")
        spared = keep(delta.spared.union(rewritten).dropDuplicates(["address"]), "all_spared")
        name = f"{self.lease.sweep}-{number:04d}-spared"
        _record_spared(self.connections, self.attempt, name, remaining, spared)
        survivors = keep(remaining.join(spared, "address", "left_anti"), "survivors")
        if survivors.isEmpty():
            return {}
        if not self._evaluated:
            require_passed(evaluate(self.ctx, survivors))
            self._evaluated = True
            if elapsed() - delta.taken.elapsed > _FRESH:
                return {"stale": "the delta mark aged while the invariants were evaluated"}
        return self._delete(number, delta, survivors)

    def _delete(self, number: int, delta: DeltaMark, survivors: DataFrame) -> Mapping[str, str]:
        self.lease.require()
        orders = orders_of(
            self.ctx,
            self.connections,
            self.attempt,
            delta,
            lease=self.lease.token,
            number=number,
            condition=self.condition,
            share=self._share,
        )
        progress = delete(self.ctx, orders, survivors)
        self._share = share_after(self.attempt.store(), orders.notes, self._share)
        self.ctx.log.info("swept %d objects of %s", progress.deleted, self.ctx.repository)
        if progress.failed or STOPPED in progress.ended_early:
            raise self._failure(progress)
        return progress.ended_early

    def _failure(self, progress: Progress) -> LakegcError:
        error = progress.error or progress.ended_early[STOPPED]
        kind = error_class(error.split(":", 1)[0])
        advice = f" {_ADVICE[kind]}." if kind in _ADVICE else ""
        raised = kind if issubclass(kind, StorageError) else StorageError
        done = ledger.read(self.ctx.spark, self.attempt)
        deleted = done.where("outcome in ('deleted', 'already_missing')").count()
        return raised(
            f"{progress.failed} objects of {self.connections.namespace_url} could not be deleted, "
            f"for example {error}.{advice} {deleted} were deleted; what was done is "
            f"recorded. Sweep {self.ctx.run!r} again when this is mended",
        )


def _record_spared(
    connections: Connections,
    attempt: AttemptArtifacts,
    name: str,
    remaining: DataFrame,
    spared: DataFrame,
) -> None:
    """Record what is spared, with the reasons."""
    rows = remaining.select("address", "size").join(spared, "address")
    record = partial(_record, connections, attempt.url, name)
    rows.mapInArrow(record, "rows long").agg({"rows": "sum"}).collect()


def _record(
    connections: Connections, url: str, name: str, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    artifacts = open_store(url, connections.stores)
    context = TaskContext.get()
    partition = context.partitionId() if context else 0
    for number, batch in enumerate(batches):
        outcomes = [
            Outcome(row["address"], row["size"], "spared", detail=row["why"])
            for row in batch.to_pylist()
        ]
        if outcomes:
            ledger.record(artifacts, f"{name}-{partition:05d}-{number:06d}", outcomes)
        yield pa.RecordBatch.from_arrays([pa.array([len(outcomes)], pa.int64())], names=["rows"])
