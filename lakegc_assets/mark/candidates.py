"""Stage 5, ``deletion_candidates``: listing - committed - uncommitted, older than the cutoff.

Only keys below ``data/`` and keys at the root without ``/`` can be candidates; everything else is
reported as unknown and left alone. What cannot be proven dead is spared, with the reason why.
"""

from __future__ import annotations

from datetime import datetime
from functools import partial

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from lakegc_assets.errors import LakegcError
from lakegc_assets.mark.ranges import entries_of, ranges_of
from lakegc_assets.mark.served import served_candidates
from lakegc_assets.run.artifacts import AttemptArtifacts, Manifest
from lakegc_assets.run.context import Connections, RunContext

ASSET = "deletion_candidates"
#: lakeFS's own object at the root, written when a repository is created.
DUMMY = "dummy"
_MULTIPART = r"^[0-9a-fA-F]{32}-[0-9]+$"
_ODD = r"(^|/)\.\.?(/|$)|://"
#: What breaks a list with one address a line, or what a bulk delete cannot name: such keys would be
#: deleted one by one, the last of a batch long after HEADs were read.
_UNNAMEABLE = r"[\x00-\x1f\x7f-\x9f\x{fffe}\x{ffff}]"


def in_data(address: Column) -> Column:
    """Whether an address is where lakeFS writes objects, now or in older versions.

    What the invariants would refuse whole marks for is left alone: names that lakeFS gives nothing.
    """
    flat = ~address.contains("/") & (address != DUMMY) & ~address.startswith("_lakefs")
    below = address.startswith("data/") & (address != "data/")
    return (below | flat) & ~address.rlike(_ODD)


def find_candidates(ctx: RunContext) -> Manifest:
    """Write the ``deletion_candidates`` asset, with what was spared beside it.

    Raises:
        IntegrityError: an input is not what its manifest says, or a range is damaged.
        LakeFSError: lakeFS did not say what it serves.
    """
    started = ctx.clocks.now()
    _, connections = ctx.connect()
    attempt = ctx.root.attempt(ctx.repository, ctx.run)
    chain = attempt.chain("committed_addresses", connections.namespace_url)
    listing = attempt.read_verified(ctx.spark, chain["store_listing"])
    uncommitted = attempt.read_verified(ctx.spark, chain["uncommitted_snapshot"])
    committed = attempt.read_verified(ctx.spark, chain["committed_addresses"])
    cutoff = chain["store_listing"].cutoff

    places = listing.dropDuplicates(["address"]).where(in_data(F.col("address")))
    unlisted = (
        places.where(F.col("last_modified") < F.lit(cutoff))
        .join(committed, "address", "left_anti")
        .join(uncommitted, "address", "left_anti")
    )
    keep = partial(attempt.keep, ctx.spark, ASSET)
    unlisted = keep(unlisted, "unlisted")
    spared = keep(_spared(ctx, attempt, unlisted, cutoff), "spared_before_asking")
    dead = unlisted.join(spared, "address", "left_anti")
    heads = attempt.read(ctx.spark, "active_commits", "heads")
    served = served_candidates(ctx, connections, dead, listing, heads, keep)
    spared = keep(spared.unionByName(served).distinct(), "spared")

    dead = unlisted.join(spared, "address", "left_anti")
    attempt.write(_with_reasons(ctx, connections, attempt, dead), ASSET)
    facts = _facts(attempt.read(ctx.spark, ASSET), listing, places, spared, cutoff)
    facts["skipped_slices"] = len(chain["store_listing"].facts.get("skipped_slices", ()))
    return ctx.frame_manifest(ASSET, chain["committed_addresses"], started, facts)


def _spared(
    ctx: RunContext, attempt: AttemptArtifacts, unlisted: DataFrame, cutoff: datetime
) -> DataFrame:
    """What is on no list, but cannot be proven dead: columns ``address`` and ``why``."""
    last_part = F.element_at(F.split("address", "/"), -1)
    live = attempt.read(ctx.spark, "committed_addresses").select("address", "resolved")
    live = live.union(attempt.read(ctx.spark, "uncommitted_snapshot").select("address", "resolved"))
    unresolved = live.where("not resolved").selectExpr("address as last_part").distinct()
    ambiguous = unlisted.withColumn("last_part", last_part).join(
        unresolved, "last_part", "left_semi"
    )
    newline = unlisted.where(F.col("address").rlike(_UNNAMEABLE))
    multipart = unlisted.where(F.col("etag").rlike(_MULTIPART))
    seen = _seen_before(ctx, attempt, cutoff)
    if seen is not None:
        multipart = multipart.join(seen, ["address", "etag"], "left_anti")
    return (
        ambiguous.selectExpr(
            "address", "'a full address that cannot be resolved ends like it' as why"
        )
        .unionByName(
            newline.selectExpr(
                "address", "'its name has a line break or another control character' as why"
            )
        )
        .unionByName(
            multipart.selectExpr(
                "address", "'uploaded in parts, and not seen before the cutoff' as why"
            )
        )
    )


def _seen_before(ctx: RunContext, present: AttemptArtifacts, cutoff: datetime) -> DataFrame | None:
    """Objects of the latest earlier listing of this namespace that was finished before the cutoff.

    Objects of multipart uploads carry the time at which the upload began, so they age from the
    first finished listing that saw them.
    """
    namespace = present.manifest("store_listing").namespace
    found: list[tuple[datetime, AttemptArtifacts]] = []
    for run in ctx.root.runs(ctx.repository):
        try:
            attempt = ctx.root.attempt(ctx.repository, run)
            listing = attempt.manifest("store_listing")
        except LakegcError:
            continue
        if run != ctx.run and listing.namespace == namespace and listing.finished < cutoff:
            found.append((listing.finished, attempt))
    if not found:
        return None
    latest = max(found, key=lambda pair: pair[0])[1]
    return latest.read(ctx.spark, "store_listing").select("address", "etag")


def _with_reasons(
    ctx: RunContext, connections: Connections, attempt: AttemptArtifacts, dead: DataFrame
) -> DataFrame:
    """Candidates with the reason, and the expired commit and branch that held them last.

    Ranges of expired commits that active commits hold as well cannot name a candidate (B without A
    of lakeFS #1932), so they are not read.
    """
    expired = attempt.read(ctx.spark, "active_commits", "expired").where("metarange_id != ''")
    active_ranges = attempt.read(ctx.spark, "committed_addresses", "ranges").select("range_id")
    pairs = ranges_of(
        connections,
        expired.select("metarange_id").distinct(),
        ctx.settings.range_num_partitions,
    ).join(active_ranges, "range_id", "left_anti")
    pairs = attempt.keep(ctx.spark, ASSET, pairs, "expired_ranges")
    ranges = pairs.groupBy("range_id").agg(F.max("entries").alias("entries"))
    holders = F.struct("creation_date", "commit_id", "branch")
    last_of_range = (
        pairs.join(expired, "metarange_id").groupBy("range_id").agg(F.max(holders).alias("held"))
    )
    last = (
        entries_of(connections, ranges, ctx.settings.address_num_partitions)
        .where("resolved")
        .select("range_id", "address")
        .join(dead.select("address"), "address", "left_semi")
        .join(last_of_range, "range_id")
        .groupBy("address")
        .agg(F.max("held").alias("held"))
    )
    return dead.join(last, "address", "left").select(
        "address",
        "size",
        "last_modified",
        "etag",
        F.when(F.col("held").isNull(), "unreferenced").otherwise("expired").alias("reason"),
        F.col("held.commit_id").alias("commit_id"),
        F.col("held.branch").alias("branch"),
    )


def _facts(
    candidates: DataFrame,
    listing: DataFrame,
    places: DataFrame,
    spared: DataFrame,
    cutoff: datetime,
) -> dict[str, object]:
    by_reason = candidates.groupBy("reason").agg(F.count("*"), F.sum("size")).collect()
    total, size = _count_and_bytes(listing)
    placed, _ = _count_and_bytes(places)
    young, young_size = _count_and_bytes(places.where(F.col("last_modified") >= F.lit(cutoff)))
    return {
        "listed": total,
        "listed_bytes": size,
        "outside_data": total - placed,
        "too_young": young,
        "too_young_bytes": young_size,
        "by_reason": {r[0]: {"objects": r[1], "bytes": int(r[2] or 0)} for r in by_reason},
        "spared": {row[0]: row[1] for row in spared.groupBy("why").count().collect()},
    }


def _count_and_bytes(frame: DataFrame) -> tuple[int, int]:
    row = frame.agg(F.count("*"), F.sum("size")).first()
    return (0, 0) if row is None else (int(row[0]), int(row[1] or 0))
