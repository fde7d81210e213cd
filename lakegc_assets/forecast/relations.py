"""Relations: the default retention that keeps an object, the days it has left, and the totals.

``days`` is the least default retention, in days, under which something holds an object. ``left`` is
the number of days for which today's rules hold it. A *range* has both values of the commit that
keeps it longest.
"""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import DataFrame

from lakegc_assets.engine.relation import F, relation
from lakegc_assets.forecast.commits import FOREVER, NEVER
from lakegc_assets.mark.relations import NOT_SEEN
from lakegc_assets.mark.signature_relations import SERVED, UNVERIFIED


@relation
def spared_by_lakefs(spared: DataFrame) -> DataFrame:
    """Objects that a mark spared (address, why) because lakeFS serves them, or may serve them."""
    return spared.where(F.col("why").isin(SERVED, UNVERIFIED))


@relation
def held_below(entries: DataFrame, ranges: DataFrame) -> DataFrame:
    """The spans of objects that ranges name below some paths (hash, days, left).

    Args:
        entries: range_id, hash, folder: entries of the ranges, with first folders of their paths.
        ranges: range_id, prefix, days, left: the prefix that a path must have, empty for any path.
    """
    held = entries.join(ranges, "range_id").where(F.col("folder").startswith(F.col("prefix")))
    return held.select("hash", "days", "left")


@relation
def outlook(
    judged: DataFrame,
    entries: DataFrame,
    ranges: DataFrame,
    doubtful: DataFrame,
    *below: DataFrame,
) -> DataFrame:
    """The objects that become free under some default retention, or on a later day.

    Args:
        judged: address, hash, size, last_modified, why: objects that are not staged and that only
            commits of the repository may hold; with the reason why a mark would spare them, or
            null.
        entries: range_id, hash: entries of the ranges.
        ranges: range_id, days, left: each once.
        doubtful: last_part, days, left: last path components of addresses that ranges name and that
            cannot be resolved; each once. An object with such a last component is kept as long.
        below: hash, days, left: objects that are held otherwise, as ``held_below`` returns them.

    Returns:
        address, size, last_modified, days, left, unseen. Objects that every default keeps, and that
        today's rules keep for ever, are left out. So are objects that are spared, unless the reason
        is an upload in parts that no earlier listing saw.
    """
    spared = F.col("why").isNotNull() & (F.col("why") != F.lit(NOT_SEEN))
    objects = judged.where(~spared)
    held = entries.join(ranges, "range_id").select("hash", "days", "left")
    for one in below:
        held = held.unionByName(one)
    held = held.join(objects.select("hash"), "hash", "left_semi")
    held = held.groupBy("hash").agg(
        F.min("days").alias("days_of_ranges"), F.max("left").alias("left_of_ranges")
    )
    of_parts = doubtful.select(
        "last_part", F.col("days").alias("days_of_part"), F.col("left").alias("left_of_part")
    )
    named = objects.withColumn("last_part", F.element_at(F.split("address", "/"), -1))
    joined = named.join(held, "hash", "left").join(of_parts, "last_part", "left")
    never, none = F.lit(NEVER).cast("bigint"), F.lit(0).cast("bigint")
    days = F.least(F.coalesce("days_of_ranges", never), F.coalesce("days_of_part", never))
    left = F.greatest(F.coalesce("left_of_ranges", none), F.coalesce("left_of_part", none))
    known = joined.select(
        "address",
        "size",
        "last_modified",
        days.alias("days"),
        left.alias("left"),
        F.col("why").isNotNull().alias("unseen"),
    )
    return known.where((F.col("days") > F.lit(0)) | (F.col("left") < F.lit(FOREVER)))


@relation
def totals_by_days(outlook: DataFrame, cutoff: datetime) -> DataFrame:
    """Totals of the objects that could be freed now, by the least default that keeps them.

    Args:
        outlook: as ``outlook`` returns it.
        cutoff: only objects written before it can be candidates.

    Returns:
        days, objects, bytes; and new_objects and new_bytes, the part that today's rules keep.
    """
    now = outlook.where(~F.col("unseen") & (F.col("last_modified") < F.lit(cutoff)))
    is_new = F.col("left") > F.lit(0)
    return now.groupBy("days").agg(
        F.count(F.lit(1)).alias("objects"),
        F.sum("size").cast("bigint").alias("bytes"),
        F.sum(F.when(is_new, F.lit(1)).otherwise(F.lit(0))).cast("bigint").alias("new_objects"),
        F.sum(F.when(is_new, F.col("size")).otherwise(F.lit(0))).cast("bigint").alias("new_bytes"),
    )


@relation
def total_later(outlook: DataFrame, cutoff: datetime, days: int) -> DataFrame:
    """The total that today's rules free after some days without writes.

    Args:
        outlook: as ``outlook`` returns it.
        cutoff: only objects written before it can be candidates then.
        days: 0 for now.

    Returns:
        One row: objects, and bytes, null without objects.
    """
    then = outlook.where((F.col("left") <= F.lit(days)) & (F.col("last_modified") < F.lit(cutoff)))
    # The next mark counts an upload that this listing saw as finished.
    if not days:
        then = then.where(~F.col("unseen"))
    return then.agg(F.count(F.lit(1)).alias("objects"), F.sum("size").cast("bigint").alias("bytes"))
