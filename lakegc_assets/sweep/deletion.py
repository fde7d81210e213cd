"""Deletes marked objects in Spark tasks, batch by batch, each recorded before the next begins.

Before every batch the task itself asks lakeFS for HEADs and rules: if they are not those of the
delta mark, or the delta mark is too old, it stops, and the sweep takes a new one.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame

from lakegc_assets.artifacts import AttemptArtifacts
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.mark.context import Connections, RunContext
from lakegc_assets.mark.ranges import spread
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.codes import error_class
from lakegc_assets.storage.errors import AccessDeniedError
from lakegc_assets.sweep import ledger
from lakegc_assets.sweep.delta import DeltaMark, fingerprint
from lakegc_assets.sweep.ledger import Outcome

#: No delete is sent later than this after the delta mark, in seconds.
DELTA_LIFETIME = 600.0
#: The request of a batch ends within this time after HEADs and rules were read, in seconds.
CHECK_LIFETIME = 60.0
#: Of these, what reading them may take; the rest is for the request, connecting included.
_CHECK_TIME = 15.0
_CONNECT_TIMEOUT = 5.0
_REQUEST_TIMEOUT = CHECK_LIFETIME - _CHECK_TIME - _CONNECT_TIMEOUT

_COUNTS = "outcome string, objects long, bytes long, error_code string, detail string"


@dataclass(frozen=True)
class Orders:
    """What a deleting task needs to know; picklable, and holds no secrets.

    Attributes:
        connections: how to reach lakeFS and the store.
        repository: lakeFS repository.
        artifacts_url: where the attempt's artifacts are.
        fingerprint: of the delta mark that allows the deletes.
        taken: wall-clock seconds since the epoch when that was begun.
        protect_tags: whether the fingerprint covers tags.
        batch: objects in one request.
    """

    connections: Connections
    repository: str
    artifacts_url: str
    fingerprint: str
    taken: float
    protect_tags: bool
    batch: int


@dataclass(frozen=True)
class Progress:
    """What one pass over the survivors did.

    Attributes:
        deleted: objects that are gone, those that were missing already among them.
        failed: objects that the store did not delete.
        stale: batches that were not sent, since the delta mark no longer held.
        error: code, address and message of one failure; empty without any.
    """

    deleted: int
    failed: int
    stale: int
    error: str


def delete(
    ctx: RunContext,
    connections: Connections,
    attempt: AttemptArtifacts,
    survivors: DataFrame,
    delta: DeltaMark,
) -> Progress:
    """Delete objects in Spark tasks.

    Args:
        ctx: the run.
        connections: how tasks reach lakeFS and the store.
        attempt: whose ledger records the outcomes.
        survivors: what the delta mark left over (address, size).
        delta: the delta mark.
    """
    orders = Orders(
        connections=connections,
        repository=ctx.repository,
        artifacts_url=attempt.url,
        fingerprint=delta.fingerprint,
        taken=delta.taken,
        protect_tags=ctx.settings.protect_tags,
        batch=ctx.settings.sweep_batch,
    )
    partitions = ctx.settings.sweep_num_partitions
    rows = (
        spread(survivors.select("address", "size"), partitions, orders.batch)
        .mapInArrow(partial(_delete_batches, orders), _COUNTS)
        .collect()
    )
    errors = [f"{row['error_code']}: {row['detail']}" for row in rows if row["outcome"] == "failed"]
    return Progress(
        deleted=sum(r["objects"] for r in rows if r["outcome"] in ("deleted", "already_missing")),
        failed=sum(r["objects"] for r in rows if r["outcome"] == "failed"),
        stale=sum(1 for r in rows if r["outcome"] == "stale"),
        error=errors[0] if errors else "",
    )


def _delete_batches(orders: Orders, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    client = orders.connections.lakefs.connect()
    # One try for each request: a client that repeats it on its own could send it too late.
    stores = dataclasses.replace(
        orders.connections.stores,
        max_attempts=1,
        connect_timeout_s=_CONNECT_TIMEOUT,
        read_timeout_s=_REQUEST_TIMEOUT,
    )
    store = stores.open(orders.connections.namespace_url)
    artifacts = orders.connections.stores.open(orders.artifacts_url)
    for sizes in _batched(batches, orders.batch):
        if not _still_allowed(orders, client):
            yield _counts([Outcome("", 0, "stale")])
            return
        outcomes = _delete_batch(store, sizes)
        ledger.record(artifacts, outcomes)
        yield _counts(outcomes)
        if any(o.error_code and error_class(o.error_code) is AccessDeniedError for o in outcomes):
            return


def _delete_batch(store: ObjectStore, sizes: dict[str, int]) -> list[Outcome]:
    answers = store.delete_many(list(sizes))
    return [Outcome(a.key, sizes[a.key], a.outcome, a.error_code, a.detail) for a in answers]


def _still_allowed(orders: Orders, client: LakeFSClient) -> bool:
    """Whether the delta mark still holds: young enough, and HEADs and rules as it saw them."""
    for _ in range(3):
        age = time.time() - orders.taken
        if not -DELTA_LIFETIME < age < DELTA_LIFETIME - CHECK_LIFETIME:
            return False
        begun = _elapsed()
        seen = fingerprint(client, orders.repository, protect_tags=orders.protect_tags)
        if seen != orders.fingerprint:
            return False
        if _elapsed() - begun < _CHECK_TIME:
            return True
    return False


def _elapsed() -> float:
    """Seconds on a clock that also counts while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _batched(batches: Iterable[pa.RecordBatch], most: int) -> Iterator[dict[str, int]]:
    sizes: dict[str, int] = {}
    for batch in batches:
        for address, size in zip(
            batch["address"].to_pylist(), batch["size"].to_pylist(), strict=True
        ):
            sizes[address] = size
            if len(sizes) == most:
                yield sizes
                sizes = {}
    if sizes:
        yield sizes


def _counts(outcomes: list[Outcome]) -> pa.RecordBatch:
    """Objects and bytes by outcome, with code and detail of the first that failed."""
    totals: dict[str, list[int]] = {}
    errors: dict[str, tuple[str | None, str]] = {}
    for outcome in outcomes:
        total = totals.setdefault(outcome.outcome, [0, 0])
        total[0] += 1
        total[1] += outcome.size
        if outcome.outcome == "failed":
            detail = f"{outcome.address}: {outcome.detail}"
            errors.setdefault("failed", (outcome.error_code, detail))
    names = list(totals)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(names, pa.string()),
            pa.array([totals[name][0] for name in names], pa.int64()),
            pa.array([totals[name][1] for name in names], pa.int64()),
            *(
                pa.array([errors[n][field] if n in errors else None for n in names], pa.string())
                for field in (0, 1)
            ),
        ],
        names=["outcome", "objects", "bytes", "error_code", "detail"],
    )
