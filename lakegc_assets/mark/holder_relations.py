"""Holders of objects among commits, as relations: the last holder, and set O of expired ranges.

A *range* is a row (range_id, rank): of the commits that hold it the last one's rank. An *entry* is
a row (range_id, hash): an address that a range names.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from lakegc_assets.engine.relation import F, relation

#: Why an object is a candidate.
EXPIRED = "expired"
UNREFERENCED = "unreferenced"


@relation
def last_holders(
    objects: DataFrame, entries: DataFrame, ranges: DataFrame, commits: DataFrame
) -> DataFrame:
    """The last of some commits that held each object: that of the highest rank.

    Args:
        objects: hash, ...: those that are asked for.
        entries: range_id, hash: what ranges name, those of other commits too.
        ranges: range_id, rank: those of the commits, each once.
        commits: rank, commit_id, branch.

    Returns:
        hash, commit_id, branch: of each object that one of the commits held.
    """
    held = entries.join(ranges.select("range_id", "rank"), "range_id")
    held = held.join(objects.select("hash"), "hash", "left_semi")
    last = held.groupBy("hash").agg(F.max("rank").alias("rank"))
    return last.join(commits, "rank").select("hash", "commit_id", "branch")


@relation
def with_holders(objects: DataFrame, holders: DataFrame) -> DataFrame:
    """Objects with the commit and the branch that held each; null where none did."""
    return objects.join(holders.select("hash", "commit_id", "branch"), "hash", "left")


@relation
def with_reasons(dead: DataFrame, holders: DataFrame) -> DataFrame:
    """Candidates with their reason: ``expired`` where a commit held one, else ``unreferenced``.

    Args:
        dead: hash, address, ...: the candidates.
        holders: hash, commit_id, branch: as ``last_holders`` gives them.

    Returns:
        The columns of ``dead``, and commit_id, branch, reason; in the order of the addresses.
    """
    held = dead.join(holders.select("hash", "commit_id", "branch"), "hash", "left")
    reason = F.when(F.col("commit_id").isNull(), F.lit(UNREFERENCED)).otherwise(F.lit(EXPIRED))
    return held.withColumn("reason", reason).orderBy("address")


@relation
def totals_by_reason(candidates: DataFrame) -> DataFrame:
    """Objects and bytes by reason and by the branch that held them last, on which the rule depends.

    Args:
        candidates: size, reason, branch, ...

    Returns:
        reason, branch, objects, bytes.
    """
    return candidates.groupBy("reason", "branch").agg(
        F.count(F.lit(1)).alias("objects"), F.sum("size").cast("bigint").alias("bytes")
    )


@relation
def held_by_expired(entries: DataFrame, active: DataFrame) -> DataFrame:
    """Objects in ranges of B and in none of A: the set O of lakeFS #1932.

    Args:
        entries: range_id, hash: of all ranges below ``_lakefs/``.
        active: range_id, ...: A, the ranges of active commits. B are all others.

    Returns:
        hash, range_id: each address once, with one of the ranges of B that name it.
    """
    ids = active.select("range_id")
    named_by_a = entries.join(ids, "range_id", "left_semi").select("hash")
    named_by_b = entries.join(ids, "range_id", "left_anti")
    only_b = named_by_b.join(named_by_a, "hash", "left_anti")
    return only_b.groupBy("hash").agg(F.min("range_id").alias("range_id"))


@relation
def with_hashes(rows: DataFrame, objects: DataFrame) -> DataFrame:
    """Rows whose hash is that of one of some objects.

    Args:
        rows: hash, ...: a live set, or what ranges name.
        objects: hash, ...
    """
    return rows.join(objects.select("hash"), "hash", "left_semi")


@relation
def ranges_of_held(held: DataFrame) -> DataFrame:
    """The ranges that are to be read for the names of what they hold (range_id, each once)."""
    return held.select("range_id").distinct()


@relation
def named_by_expired(named: DataFrame, held: DataFrame) -> DataFrame:
    """The addresses of O, each once and in order.

    Args:
        named: address, hash: what ranges name, as often as they do.
        held: hash, ...: O, as ``held_by_expired`` gives it.
    """
    only_b = named.join(held.select("hash"), "hash", "left_semi")
    return only_b.select("address").distinct().orderBy("address")
