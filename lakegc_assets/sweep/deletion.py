"""Deletes marked objects in Spark tasks, batch by batch, each recorded before the next begins.

Before every batch the task itself asks lakeFS for HEADs and rules, and the store for the lease. If
HEADs and rules are not those of the delta mark, or that is too old, it stops, and the sweep takes a
new one. If the lease is lost, it stops, and so does the sweep.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from lakegc_assets.errors import ConfigurationError, LakegcError
from lakegc_assets.mark.ranges import spread
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.run.context import Connections, RunContext
from lakegc_assets.storage.base import DeleteOutcome
from lakegc_assets.storage.codes import error_class
from lakegc_assets.storage.errors import (
    AccessDeniedError,
    StoreThrottledError,
    StoreUnavailableError,
)
from lakegc_assets.storage.opening import open_store
from lakegc_assets.sweep import ledger
from lakegc_assets.sweep.conditions import Condition
from lakegc_assets.sweep.delta import DeltaMark, fingerprint
from lakegc_assets.sweep.hold import read_hold
from lakegc_assets.sweep.lease import lost, sweep_of
from lakegc_assets.sweep.ledger import DONE, Outcome
from lakegc_assets.sweep.moment import Moment, elapsed
from lakegc_assets.sweep.pace import Limits, Pace, round_folder

#: No delete is sent later than this after the delta mark, in seconds.
DELTA_LIFETIME: Final = 600.0
#: The request of a batch ends within this time after HEADs and rules were read, in seconds.
CHECK_LIFETIME: Final = 60.0
#: Of these, what reading them may take; the rest is for the request, with what it takes to renew
#: credentials, and to connect.
_CHECK_TIME: Final = 15.0
_CONNECT_TIMEOUT: Final = 5.0
_REQUEST_TIMEOUT: Final = CHECK_LIFETIME - _CHECK_TIME - 2 * _CONNECT_TIMEOUT
#: Requests with one key each have less time, so that many of them follow one look.
_SINGLE_TIMEOUT: Final = 10.0
_SINGLES_TIME: Final = CHECK_LIFETIME - _SINGLE_TIMEOUT - 2 * _CONNECT_TIMEOUT
#: How often a key is sent before its failure counts, where the store may yet take it.
_TRIES: Final = 8
#: Answers after which a key is sent again although the store did not ask for less.
_AGAIN: Final = frozenset({"409", "ConditionalRequestConflict", "NotSent"})
#: Answers that ask for less without saying so.
_LATE: Final = frozenset(
    {"408", "504", "GatewayTimeout", "OperationTimedOut", "RequestTimeout", "Timeout"}
)
#: Failures that no other task gets past.
_HOPELESS: Final = {
    AccessDeniedError,
    ConfigurationError,
    StoreThrottledError,
    StoreUnavailableError,
}
#: What a task says instead of an outcome when it stops early.
STALE: Final = "stale"
LOST: Final = "lost"
STOPPED: Final = "stopped"
TAKEN: Final = "taken"

_COUNTS = "outcome string, objects long, bytes long, error_code string, detail string"


@dataclass(frozen=True)
class Orders:
    """What a deleting task needs to know; picklable, and holds no secrets.

    Attributes:
        connections: how to reach lakeFS and the store.
        repository: lakeFS repository.
        artifacts_url: where the attempt's artifacts are.
        delta: fingerprint of the delta mark that allows the deletes.
        taken: when that was begun.
        protect_tags: whether the fingerprint covers tags.
        lease: token of the lease.
        number: of the round; the lease names it too.
        condition: which calls carry the etag that was listed.
        batch: the most objects in one request.
        limits: of all tasks together.
        share: of the limits, to begin with.
    """

    connections: Connections
    repository: str
    artifacts_url: str
    delta: str
    taken: Moment
    protect_tags: bool
    lease: str
    number: int
    condition: Condition
    batch: int
    limits: Limits
    share: float = 1.0

    @property
    def notes(self) -> str:
        """Where the tasks of this round leave their notes."""
        return round_folder(sweep_of(self.lease), self.number)


@dataclass(frozen=True)
class Progress:
    """What one pass over the survivors did.

    Attributes:
        deleted: objects that are gone, those that were missing already among them.
        failed: objects that the store did not delete.
        ended_early: what tasks said that stopped early, with the reason: stale, lost, stopped or
            taken.
        error: code, address and message of one failure; empty without any.
    """

    deleted: int
    failed: int
    ended_early: dict[str, str]
    error: str = ""


class Marked(NamedTuple):
    """An object to delete; ``tries`` counts the requests that it was in."""

    address: str
    size: int
    etag: str
    tries: int = 0


def delete(ctx: RunContext, orders: Orders, survivors: DataFrame) -> Progress:
    """Delete objects in Spark tasks.

    Args:
        ctx: the run.
        orders: of the tasks.
        survivors: what the delta mark left over (address, size, etag).
    """
    columns = survivors.select("address", "size", "etag")
    rows = (
        spread(columns, ctx.settings.sweep_num_partitions, orders.batch)
        .mapInArrow(partial(_delete_batches, orders), _COUNTS)
        .collect()
    )
    return progress_of([row.asDict() for row in rows])


def progress_of(rows: Sequence[Mapping[str, Any]]) -> Progress:
    """Add up what tasks have counted."""
    totals: dict[str, int] = {}
    for row in rows:
        totals[row["outcome"]] = totals.get(row["outcome"], 0) + row["objects"]
    errors = [f"{row['error_code']}: {row['detail']}" for row in rows if row["outcome"] == "failed"]
    return Progress(
        deleted=totals.get("deleted", 0) + totals.get("already_missing", 0),
        failed=totals.get("failed", 0),
        ended_early={
            row["outcome"]: row["detail"]
            for row in rows
            if row["outcome"] in (STALE, LOST, STOPPED, TAKEN)
        },
        error=errors[0] if errors else "",
    )


def orders_of(
    ctx: RunContext,
    connections: Connections,
    attempt: AttemptArtifacts,
    delta: DeltaMark,
    *,
    lease: str,
    number: int,
    condition: Condition,
    share: float,
) -> Orders:
    """The orders of one round."""
    settings = ctx.settings
    return Orders(
        connections=connections,
        repository=ctx.repository,
        artifacts_url=attempt.url,
        delta=delta.fingerprint,
        taken=delta.taken,
        protect_tags=settings.protect_tags,
        lease=lease,
        number=number,
        condition=condition,
        batch=min(settings.sweep_batch, connections.store().keys_per_delete),
        limits=Limits(settings.sweep_keys_per_second, settings.sweep_requests_per_second),
        share=share,
    )


def _delete_batches(orders: Orders, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    yield from _Task(orders, context.partitionId() if context else 0).run(_marked(batches))


class _Task:
    """One attempt of a deleting task."""

    def __init__(self, orders: Orders, partition: int) -> None:
        self.orders = orders
        self.partition = partition
        self.client = orders.connections.lakefs.connect()
        # One try for each request: a client that repeats it could send it too late.
        once = dataclasses.replace(
            orders.connections.stores,
            max_attempts=1,
            connect_timeout_s=_CONNECT_TIMEOUT,
            read_timeout_s=(_SINGLE_TIMEOUT if orders.condition == "single" else _REQUEST_TIMEOUT),
        )
        self.store = open_store(orders.connections.namespace_url, once)
        self.asking = orders.connections.store()
        self.artifacts = open_store(orders.artifacts_url, orders.connections.stores)
        self.pace = Pace(self.artifacts, orders.notes, partition, orders.limits, share=orders.share)
        self.checked = 0.0

    def run(self, objects: Iterator[Marked]) -> Iterator[pa.RecordBatch]:
        """Delete, and count what became of the objects."""
        if taken := self.pace.begin():
            yield _ended(TAKEN, taken)
            return
        failure = ""
        try:
            yield from self._batches(objects)
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
            raise
        finally:
            with suppress(LakegcError):
                self.pace.end(failure)

    def _batches(self, objects: Iterator[Marked]) -> Iterator[pa.RecordBatch]:
        again: list[Marked] = []
        number = 0
        while True:
            if reason := self.pace.look():
                yield _ended(STOPPED, reason)
                return
            batch = again[: (most := self.pace.most(self.orders.batch))]
            again = again[most:]
            batch += islice(objects, most - len(batch))
            if not batch:
                return
            self.pace.wait()
            if ended := self._may_not_send():
                yield ended
                return
            outcomes, repeat = self._sort(batch, self._send(batch))
            if outcomes:
                sweep = sweep_of(self.orders.lease)
                name = f"{sweep}-{self.orders.number:04d}-{self.partition:05d}"
                ledger.record(self.artifacts, f"{name}-{number:06d}", outcomes)
                number += 1
                yield _counts(outcomes)
            again = repeat + again
            if hopeless := _hopeless(outcomes):
                self.pace.stop(f"{hopeless.error_code}: {hopeless.address}: {hopeless.detail}")
                return

    def _may_not_send(self) -> pa.RecordBatch | None:
        """Ask whether a batch may still be sent; what to say if not."""
        orders = self.orders
        for _ in range(3):
            self.checked = elapsed()
            seen = fingerprint(self.client, orders.repository, protect_tags=orders.protect_tags)
            # The store's time comes after all that may take long, and before the lease.
            now = Moment.now(self.asking)
            if reason := lost(self.asking, orders.lease, orders.number, now.store_time):
                return _ended(LOST, reason)
            if read_hold(self.asking) is not None:
                return _ended(LOST, "an alarm holds all sweeps")
            if orders.taken.age(now) >= DELTA_LIFETIME - CHECK_LIFETIME:
                return _ended(STALE, "the delta mark is too old")
            if seen != orders.delta:
                return _ended(STALE, "HEADs or rules have changed")
            if elapsed() - self.checked < _CHECK_TIME:
                return None
        return _ended(STALE, "lakeFS and the store take too long to answer")

    def _send(self, batch: list[Marked]) -> list[DeleteOutcome]:
        """Send the request of a batch; where conditions need it, one for each key, while it may."""
        etags = None
        if self.orders.condition != "none":
            etags = {marked.address: marked.etag for marked in batch}
        if self.orders.condition != "single":
            self.pace.sent(len(batch))
            return list(self.store.delete_many([m.address for m in batch], etags))
        outcomes: list[DeleteOutcome] = []
        for marked in batch:
            self.pace.wait()
            if elapsed() - self.checked >= _SINGLES_TIME:
                break
            self.pace.sent(1)
            outcomes += self.store.delete_many([marked.address], etags, singly=True)
            if outcomes[-1].outcome == "failed":
                break
        return outcomes

    def _sort(
        self, batch: list[Marked], answers: list[DeleteOutcome]
    ) -> tuple[list[Outcome], list[Marked]]:
        """What is to be recorded, and what is to be sent again."""
        told = {answer.key: answer for answer in answers}
        outcomes, again = [], []
        for marked in batch:
            answer = told.get(marked.address)
            if answer is None:
                again.append(marked)
                continue
            marked = marked._replace(tries=marked.tries + 1)  # noqa: PLW2901 - the same object
            if marked.tries < _TRIES and _worth_another_try(answer):
                again.append(marked)
            else:
                outcomes.append(_outcome(marked, answer))
        failed = [a for a in answers if a.outcome == "failed" and _worth_another_try(a)]
        if failed:
            slow = [a for a in failed if _asks_for_less(a)]
            code = (slow or failed)[0].error_code or ""
            self.pace.failed(code, slow=bool(slow))
        elif answers:
            self.pace.succeeded()
        return outcomes, again


def _outcome(marked: Marked, answer: DeleteOutcome) -> Outcome:
    detail = answer.detail
    if answer.outcome == "spared":
        detail = f"it was written again since it was listed: {detail}"
    return Outcome(marked.address, marked.size, answer.outcome, answer.error_code, detail)


def _kind(answer: DeleteOutcome | Outcome) -> type[LakegcError] | None:
    return error_class(answer.error_code) if answer.error_code else None


def _worth_another_try(answer: DeleteOutcome) -> bool:
    return answer.outcome == "failed" and (
        _kind(answer) in {StoreThrottledError, StoreUnavailableError} or answer.error_code in _AGAIN
    )


def _hopeless(outcomes: Sequence[Outcome]) -> Outcome | None:
    """One of some outcomes after which no other batch fares better."""
    failed = [outcome for outcome in outcomes if outcome.outcome == "failed"]
    if len(failed) == len(outcomes) > 1:
        return failed[0]
    return next((outcome for outcome in failed if _kind(outcome) in _HOPELESS), None)


def _asks_for_less(answer: DeleteOutcome) -> bool:
    return _kind(answer) is StoreThrottledError or answer.error_code in _LATE


def _marked(batches: Iterable[pa.RecordBatch]) -> Iterator[Marked]:
    for batch in batches:
        columns = (batch[name].to_pylist() for name in ("address", "size", "etag"))
        yield from map(Marked, *columns)


def _ended(how: str, why: str) -> pa.RecordBatch:
    return _counts([Outcome("", 0, how, None, why)])


def _counts(outcomes: list[Outcome]) -> pa.RecordBatch:
    """Objects and bytes by outcome, with code and detail of the first that is none of the done."""
    totals: dict[str, list[int]] = {}
    errors: dict[str, tuple[str | None, str | None]] = {}
    for outcome in outcomes:
        total = totals.setdefault(outcome.outcome, [0, 0])
        total[0] += 1
        total[1] += outcome.size
        if outcome.outcome not in DONE:
            detail = f"{outcome.address}: {outcome.detail}" if outcome.address else outcome.detail
            errors.setdefault(outcome.outcome, (outcome.error_code, detail))
    names = list(totals)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(names, pa.string()),
            pa.array([totals[name][0] for name in names], pa.int64()),
            pa.array([totals[name][1] for name in names], pa.int64()),
            *(
                pa.array([errors.get(n, (None, None))[field] for n in names], pa.string())
                for field in (0, 1)
            ),
        ],
        names=["outcome", "objects", "bytes", "error_code", "detail"],
    )
