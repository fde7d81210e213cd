"""Stage 7, ``swept_set``: verify again, delete, and record one outcome for each marked object.

The gate trusts no earlier check: chain, count and digest of the mark, its summary in the namespace
and every invariant are looked at again, and a delta mark takes out what came back to life. A killed
sweep is run again: what the ledger has is done, the rest passes the gate once more.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from lakegc_assets.artifacts import AttemptArtifacts, Manifest
from lakegc_assets.errors import IntegrityError, RefusedError
from lakegc_assets.mark.context import Connections, RunContext
from lakegc_assets.mark.evaluation import evaluate, require_passed
from lakegc_assets.mark.listing import listed_objects
from lakegc_assets.mark.publication import instant, mark_folder, read_summary
from lakegc_assets.mark.ranges import spread
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import ObjectNotFoundError, StorageError
from lakegc_assets.sweep import ledger
from lakegc_assets.sweep.deletion import delete
from lakegc_assets.sweep.delta import certainly_alive, take_delta_mark
from lakegc_assets.sweep.ledger import ASSET, DONE, Outcome

HOLD = "hold.json"
#: How often a delta mark may become stale before the sweep gives up, to be run again later.
_ROUNDS = 50
#: A delta mark older than this when the invariants have been evaluated is taken again, in seconds.
_FRESH = 120.0
_SAME = ("size", "last_modified", "etag")
#: How many objects a task looks up after a sweep, at least.
_LOOKUPS_EACH = 100


def sweep(ctx: RunContext) -> Manifest:
    """Delete what a published mark names, and write the ``swept_set`` asset.

    Raises:
        RefusedError: the mark is unknown, failed, not published or swept already; a check fails;
            or a hold stops all sweeps of the repository.
        IntegrityError: the mark is not what its manifests say; or, after the sweep, something is
            needed that is gone: then a hold is written.
        StorageError: the store refused deletes; what was done is in the ledger.
    """
    started = ctx.clocks.now()
    _, connections = ctx.connect()
    require_no_hold(ctx)
    attempt, chain = _published(ctx, connections)
    candidates = attempt.read_verified(ctx.spark, chain["deletion_candidates"])
    if chain["deletion_candidates"].settings["protect_tags"]:
        # What the mark protected stays protected, whoever sweeps it.
        ctx = dataclasses.replace(
            ctx, settings=dataclasses.replace(ctx.settings, protect_tags=True)
        )
    try:
        rounds = _delete_all(ctx, connections, attempt, chain, candidates)
    except Exception:
        # Whatever went wrong, in a task too: what was deleted is looked at before it is told.
        if not ledger.read(ctx.spark, attempt).where("outcome = 'deleted'").isEmpty():
            _raise_alarm_if_needed(ctx, connections, attempt, chain, candidates)
        raise

    swept = ledger.read(ctx.spark, attempt)
    attempt.write(swept, ASSET)
    swept = attempt.read(ctx.spark, ASSET)
    unknown = swept.join(candidates, "address", "left_anti").count()
    if unknown or swept.count() != chain["deletion_candidates"].rows:
        raise IntegrityError(
            f"the ledger of mark {ctx.run!r} has {swept.count()} outcomes, {unknown} of them for "
            f"objects that were not marked, and the mark has {chain['deletion_candidates'].rows}: "
            "the ledger is damaged. Nothing more was deleted",
        )
    _raise_alarm_if_needed(ctx, connections, attempt, chain, candidates)
    counts = swept.groupBy("outcome").agg({"*": "count", "size": "sum"}).collect()
    facts: dict[str, object] = {
        "outcomes": {
            r["outcome"]: {"objects": r["count(1)"], "bytes": int(r["sum(size)"] or 0)}
            for r in counts
        },
        "rounds": rounds,
    }
    return ctx.frame_manifest(ASSET, chain["gc_report"], started, facts)


def require_no_hold(ctx: RunContext) -> None:
    """Refuse to sweep while an alarm has not been looked at.

    Raises:
        RefusedError: there is a hold, with what it says.
    """
    store = ctx.root.open(ctx.repository)
    try:
        hold = store.get(HOLD).decode()
    except ObjectNotFoundError:
        return
    raise RefusedError(
        f"sweeps of {ctx.repository!r} are on hold: {hold}. Look at what happened, restore what is "
        f"needed, then remove {store.url}/{HOLD}",
    )


def _published(
    ctx: RunContext, connections: Connections
) -> tuple[AttemptArtifacts, Mapping[str, Manifest]]:
    """The frozen mark, with its summary in the namespace compared."""
    store = connections.store()
    summary = read_summary(store, ctx.run)
    if summary is not None and not summary.success:
        raise RefusedError(f"mark {ctx.run!r} of {ctx.repository!r} failed: mark again")
    attempt = ctx.root.attempt(ctx.repository, ctx.run)
    if not attempt.has("gc_report"):
        raise RefusedError(
            f"mark {ctx.run!r} of {ctx.repository!r} did not finish ({attempt.url}/gc_report has "
            "no manifest): mark again under a new id",
        )
    if attempt.has(ASSET):
        raise RefusedError(f"mark {ctx.run!r} of {ctx.repository!r} was swept already")
    chain = attempt.chain("gc_report", connections.namespace_url)
    start = datetime.fromisoformat(str(chain["store_listing"].facts["start"]))
    found = {
        "run_id": ctx.run,
        "start_time": instant(start),
        "cutoff_time": instant(chain["gc_report"].cutoff),
        "num_deleted_objects": chain["deletion_candidates"].rows,
    }
    if summary is None or not found.items() <= summary.__dict__.items():
        raise IntegrityError(
            f"{store.url}/{mark_folder(ctx.run)}summary.json does not say what the mark found: "
            "something changed it. Mark again under a new id",
        )
    return attempt, chain


def _delete_all(
    ctx: RunContext,
    connections: Connections,
    attempt: AttemptArtifacts,
    chain: Mapping[str, Manifest],
    candidates: DataFrame,
) -> int:
    """Delete until every candidate has its outcome; the number of delta marks it took."""
    evaluated = False
    for number in range(1, _ROUNDS + 1):
        done = ledger.read(ctx.spark, attempt).where(f"outcome in {DONE}")
        keep = partial(_keep, ctx, attempt, f"delta-{number:03d}")
        remaining = keep(candidates.join(done, "address", "left_anti"), "remaining")
        if remaining.isEmpty():
            return number - 1
        delta = take_delta_mark(ctx, chain, attempt, remaining, keep)
        rewritten = keep(_rewritten(ctx, connections, remaining), "rewritten")
        spared = keep(delta.spared.union(rewritten).dropDuplicates(["address"]), "all_spared")
        _record_spared(connections, attempt, remaining, spared)
        survivors = keep(remaining.join(spared, "address", "left_anti"), "survivors")
        if survivors.isEmpty():
            continue
        if not evaluated:
            require_passed(evaluate(ctx, survivors))
            evaluated = True
            if time.time() - delta.taken > _FRESH:
                continue
        progress = delete(ctx, connections, attempt, survivors, delta)
        ctx.log.info("swept %d objects of %s", progress.deleted, ctx.repository)
        if progress.failed:
            raise StorageError(
                f"{progress.failed} objects of {connections.namespace_url} could not be deleted, "
                f"for example {progress.error}. {progress.deleted} were deleted; what was done is "
                f"recorded. Sweep {ctx.run!r} again when this is mended",
            )
    raise RefusedError(
        f"{ctx.repository!r} changes so fast that no delta mark holds; what was done is recorded. "
        f"Sweep {ctx.run!r} again at a quieter time",
    )


def _rewritten(ctx: RunContext, connections: Connections, remaining: DataFrame) -> DataFrame:
    """Marked objects that were written again since they were listed: ``address`` and ``why``."""
    now = listed_objects(ctx, connections).select(
        "address", *(F.col(name).alias(f"{name}_now") for name in _SAME)
    )
    changed = F.lit(False)
    for name in _SAME:
        changed |= F.col(name) != F.col(f"{name}_now")
    found = remaining.join(now, "address").where(changed)
    return found.select("address", F.lit("it was written again since it was listed").alias("why"))


def _keep(
    ctx: RunContext, attempt: AttemptArtifacts, folder: str, frame: DataFrame, part: str
) -> DataFrame:
    return attempt.keep(ctx.spark, ASSET, frame, f"{folder}/{part}")


def _record_spared(
    connections: Connections, attempt: AttemptArtifacts, remaining: DataFrame, spared: DataFrame
) -> None:
    rows = remaining.select("address", "size").join(spared, "address")
    record = partial(_record, connections, attempt.url)
    rows.mapInArrow(record, "rows long").agg({"rows": "sum"}).collect()


def _record(
    connections: Connections, url: str, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    artifacts = connections.stores.open(url)
    for batch in batches:
        outcomes = [
            Outcome(row["address"], row["size"], "spared", detail=row["why"])
            for row in batch.to_pylist()
        ]
        if outcomes:
            ledger.record(artifacts, outcomes)
        yield pa.RecordBatch.from_arrays([pa.array([len(outcomes)], pa.int64())], names=["rows"])


def _raise_alarm_if_needed(
    ctx: RunContext,
    connections: Connections,
    attempt: AttemptArtifacts,
    chain: Mapping[str, Manifest],
    candidates: DataFrame,
) -> None:
    """Compute the live set once more, and hold all sweeps if it needs what is gone.

    All candidates are looked at, not only those that the ledger calls deleted: a sweep that was
    killed between a delete and its record may have found the object alive when it was run again.
    """
    keep = partial(_keep, ctx, attempt, "after")
    alive = certainly_alive(take_delta_mark(ctx, chain, attempt, candidates, keep).spared)
    partitions = ctx.settings.sweep_num_partitions
    missing = spread(alive, partitions, _LOOKUPS_EACH).mapInArrow(
        partial(_missing, connections), "address string, why string"
    )
    missing = keep(missing, "missing")
    count = missing.count()
    if count == 0:
        return
    examples = [f"{r['address']} ({r['why']})" for r in missing.orderBy("address").take(20)]
    message = f"{count} objects of mark {ctx.run!r} are gone, and are needed: {examples}"
    hold = json.dumps({"run": ctx.run, "at": ctx.clocks.now().isoformat(), "alarm": message})
    ctx.root.open(ctx.repository).put(HOLD, hold.encode())
    raise IntegrityError(
        f"{message}. Restore them from a backup or from object versions; no sweep of "
        f"{ctx.repository!r} starts until {HOLD} is removed",
    )


def _missing(
    connections: Connections, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Of some objects, those that the store does not have."""
    store = connections.store()
    for batch in batches:
        gone = [not _exists(store, address) for address in batch["address"].to_pylist()]
        yield batch.filter(pa.array(gone, pa.bool_()))


def _exists(store: ObjectStore, address: str) -> bool:
    try:
        store.head(address)
    except ObjectNotFoundError:
        return False
    return True
