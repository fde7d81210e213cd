"""Stage 4, ``committed_addresses``: every address that an active commit holds.

Read by ranges: a range that several commits share is decoded once, and once in the life of the
repository. Without retention rules every range below ``_lakefs/`` counts as active, since the log
does not reach the commits that only a deleted branch, a tag or a reset held.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from lakegc_assets.errors import IntegrityError
from lakegc_assets.graveler.sstable import table_kind
from lakegc_assets.mark.commits import ACTIVE_KEY
from lakegc_assets.mark.ranges import decode_ranges, entries_of, ranges_of
from lakegc_assets.run.artifacts import AttemptArtifacts, Manifest
from lakegc_assets.run.context import Connections, RunContext
from lakegc_assets.storage.base import ObjectStore

_TABLE_ID = re.compile(r"_lakefs/([0-9a-f]{64})")


def read_committed_addresses(ctx: RunContext) -> Manifest:
    """Write the ``committed_addresses`` asset, with the ranges it was read from beside it.

    Raises:
        IntegrityError: a metarange or range is missing or damaged.
    """
    started = ctx.clocks.now()
    _, connections = ctx.connect()
    attempt = ctx.root.attempt(ctx.repository, ctx.run)
    chain = attempt.chain("active_commits", connections.namespace_url)
    active = attempt.read_verified(ctx.spark, chain["active_commits"], ACTIVE_KEY)
    rules = chain["active_commits"].facts["rules"]
    metaranges, more_ranges = live_tables(ctx, connections, active, has_rules=rules is not None)
    facts = write_committed(ctx, connections, attempt, metaranges, more_ranges)
    return ctx.frame_manifest("committed_addresses", chain["active_commits"], started, facts)


def live_tables(
    ctx: RunContext, connections: Connections, active: DataFrame, *, has_rules: bool
) -> tuple[DataFrame, DataFrame | None]:
    """The metaranges whose ranges are live, and more live ranges (range_id, entries) if any.

    Args:
        ctx: the run.
        connections: how tasks reach the store.
        active: the active commits (commit_id, metarange_id).
        has_rules: whether the repository has retention rules; else all that is there is live.

    Raises:
        IntegrityError: without rules, the store's listing lacks what is there.
    """
    metaranges = active.select("metarange_id")
    if has_rules:
        return metaranges, None
    tables = all_tables(ctx, connections, metaranges)
    return (
        metaranges.union(tables.where("kind = 'metaranges'").select("table_id")),
        tables.where("kind = 'ranges'").selectExpr(
            "table_id as range_id", "cast(null as long) as entries"
        ),
    )


def write_committed(
    ctx: RunContext,
    connections: Connections,
    attempt: AttemptArtifacts,
    metaranges: DataFrame,
    more_ranges: DataFrame | None = None,
) -> dict[str, object]:
    """Read metaranges down to addresses; what was read and what came from the cache.

    Args:
        ctx: the run.
        connections: how tasks reach the store and the cache.
        attempt: where ``metaranges``, ``ranges`` and the addresses are written, below
            ``committed_addresses``.
        metaranges: one column ``metarange_id``; empty ids and repetitions are dropped.
        more_ranges: ranges (range_id, entries) that count beside those of the metaranges.
    """
    asset = "committed_addresses"
    ids = metaranges.where("metarange_id != ''").distinct()
    pairs = ranges_of(connections, ids, ctx.settings.range_num_partitions)
    attempt.write(pairs, asset, "metaranges")
    pairs = attempt.read(ctx.spark, asset, "metaranges")
    ranges = pairs.select("range_id", "entries")
    if more_ranges is not None:
        ranges = ranges.unionByName(more_ranges)
    ranges = ranges.groupBy("range_id").agg(F.max("entries").alias("entries"))
    partitions = ctx.settings.address_num_partitions
    attempt.write(decode_ranges(connections, ranges, partitions), asset, "ranges")
    ranges = attempt.read(ctx.spark, asset, "ranges")
    entries = entries_of(connections, ranges, partitions)
    written = attempt.keep(ctx.spark, asset, entries.select("address", "resolved"), "data").count()

    counts = ranges.agg(
        F.count("*"),
        F.sum(F.col("from_cache").cast("long")),
        F.sum("entries"),
    ).first()
    metarange_counts = (
        pairs.select("metarange_id", "from_cache")
        .distinct()
        .agg(F.count("*"), F.sum(F.col("from_cache").cast("long")))
        .first()
    )
    total, cached, count = (int(value or 0) for value in counts or (0, 0, 0))
    if written < count:
        # Every entry has at least one row.
        raise IntegrityError(
            f"{written} rows of {attempt.data_url(asset)} can be read back for {count} entries of "
            f"{total} ranges: the store of the artifacts lost some. Mark again",
        )
    metarange_total, metarange_cached = (int(value or 0) for value in metarange_counts or (0, 0))
    return {
        "ranges": total,
        "ranges_from_cache": cached,
        "ranges_decoded": total - cached,
        "metaranges": metarange_total,
        "metaranges_from_cache": metarange_cached,
        "metaranges_decoded": metarange_total - metarange_cached,
        "entries": count,
    }


def all_tables(ctx: RunContext, connections: Connections, active: DataFrame) -> DataFrame:
    """Every range and metarange below ``_lakefs/``: columns ``table_id`` and ``kind``.

    Raises:
        IntegrityError: the store does not list all metaranges that are active.
    """
    ids = [
        match.group(1)
        for key in _keys(connections.store(), "_lakefs/")
        if (match := _TABLE_ID.fullmatch(key))
    ]
    listed = ctx.spark.createDataFrame([(table_id,) for table_id in ids], "table_id string")
    unlisted = active.where("metarange_id != ''").join(
        listed, F.col("metarange_id") == F.col("table_id"), "left_anti"
    )
    if missing := unlisted.first():
        raise IntegrityError(
            f"{connections.namespace_url}/_lakefs/{missing[0]}, the metarange of an active "
            "commit, is not listed: what a listing lacks would be taken for dead, since there are "
            "no retention rules. If it is in the store, run again",
        )
    partitions = max(1, min(ctx.settings.range_num_partitions, len(ids)))
    return listed.repartition(partitions).mapInArrow(
        partial(_kinds, connections), "table_id string, kind string"
    )


def _keys(store: ObjectStore, prefix: str) -> Iterator[str]:
    """The keys below a prefix, asked for again behind the last one until none follows.

    A listing that the store ends early looks like a whole one, and what this one lacks would be
    taken for dead.
    """
    last: str | None = None
    while True:
        before = last
        for batch in store.list(prefix, start_after=last):
            yield from batch["key"].to_pylist()
            last = batch["key"][-1].as_py()
        if last == before:
            return


def _kinds(connections: Connections, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    store = connections.store()
    for batch in batches:
        kinds = [
            table_kind(store.get(f"_lakefs/{table_id}"), table_id)
            for table_id in batch["table_id"].to_pylist()
        ]
        yield pa.RecordBatch.from_arrays(
            [batch["table_id"], pa.array(kinds, pa.string())], names=["table_id", "kind"]
        )
