"""Relations: the default from which on an object is kept, the days for which it is, and totals.

``days`` is the least default retention, in days, under which something holds an object; ``left``
is the number of days for which today's rules hold it. A *range* has both, those of the commit that
keeps it longest.
"""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import DataFrame

from lakegc_assets.engine.relation import F, relation
from lakegc_assets.mark.relations import NOT_SEEN
from lakegc_assets.mark.signature_relations import SERVED, UNVERIFIED
from lakegc_assets.retention.thresholds import FOREVER, NEVER


@relation
def spared_by_lakefs(spared: DataFrame) -> DataFrame:
    """Objects that a mark spared (address, why) since lakeFS serves them, or may serve them."""
    return spared.where(F.col("why").isin(SERVED, UNVERIFIED))


@relation
def held_below(entries: DataFrame, ranges: DataFrame) -> DataFrame:
    """The spans of objects that ranges name below some paths (hash, days, left).

    Args:
        entries: range_id, hash, folder: what ranges name, and the folders that paths begin with.
        ranges: range_id, prefix, days, left: what such a path must begin with, empty for any.
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
    """The objects that are freed under some default retention, or at some later day.

    Args:
        judged: address, hash, size, last_modified, why: what is not staged, and that nothing but
            commits of the repository may hold; with the reason why a mark would spare it, or null.
        entries: range_id, hash: what ranges name.
        ranges: range_id, days, left: each once.
        doubtful: last_part, days, left: last path components of addresses that ranges name and
            that nobody can place; each once. What ends like one of them is held like it.
        below: hash, days, left: what else holds objects, as ``held_below`` gives it.

    Returns:
        address, size, last_modified, days, left, unseen: what is spared for another reason than
        that an upload in parts was not seen before is left out, and so is what is kept for ever
        under every default.
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
    both = named.join(held, "hash", "left").join(of_parts, "last_part", "left")
    never, none = F.lit(NEVER).cast("bigint"), F.lit(0).cast("bigint")
    days = F.least(F.coalesce("days_of_ranges", never), F.coalesce("days_of_part", never))
    left = F.greatest(F.coalesce("left_of_ranges", none), F.coalesce("left_of_part", none))
    known = both.select(
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
    """Totals of what could be freed now, by the least default that keeps it.

    Args:
        outlook: as ``outlook`` gives it.
        cutoff: only what was written before it can be a candidate.

    Returns:
        days, objects, bytes; and of these those that today's rules keep: new_objects, new_bytes.
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
    """The total that today's rules free after some days in which nobody writes.

    Args:
        outlook: as ``outlook`` gives it.
        cutoff: only what was written before it can be a candidate then.
        days: 0 for now.

    Returns:
        One row: objects, and bytes, null where there are none.
    """
    then = outlook.where((F.col("left") <= F.lit(days)) & (F.col("last_modified") < F.lit(cutoff)))
    # What a listing has seen is known by the next mark as an upload that was finished.
    if not days:
        then = then.where(~F.col("unseen"))
    return then.agg(F.count(F.lit(1)).alias("objects"), F.sum("size").cast("bigint").alias("bytes"))
