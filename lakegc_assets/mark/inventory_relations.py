"""Checks of an inventory report, by itself and beside a listing, as relations."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from pyspark.sql import DataFrame

from lakegc_assets.engine.relation import F, relation

TWICE: Final = "the inventory report names it more than once"


@relation
def named_twice(rows: DataFrame) -> DataFrame:
    """Hashes that stand in more than one row: of objects that are named more than once.

    Two objects with one hash look like one that is named twice, and stay.

    Args:
        rows: hash of each row of a report.
    """
    times = rows.groupBy("hash").agg(F.count(F.lit(1)).alias("times"))
    return times.where("times > 1").select("hash")


@relation
def named_once(unreferenced: DataFrame, twice: DataFrame) -> DataFrame:
    """Candidates so far (``LISTING``) but for those with some hashes."""
    return unreferenced.join(twice, "hash", "left_anti")


@relation
def spared(unreferenced: DataFrame, twice: DataFrame) -> DataFrame:
    """Of the candidates so far those with some hashes: address and why each is spared, once."""
    found = unreferenced.select("address", "hash").join(twice, "hash", "left_semi")
    return found.select("address", F.lit(TWICE).alias("why")).distinct()


@relation
def lacked(rows: DataFrame, others: DataFrame, before: datetime) -> DataFrame:
    """Number and bytes of rows written before a time that are missing from other rows.

    Args:
        rows: ``LISTING``; an object that stands there more than once counts as often.
        others: the same.
        before: a time.

    Returns:
        One row: objects, bytes, and the first address as an example, which is null without any.
    """
    old = rows.where(F.col("last_modified") < F.lit(before)).select("address", "size")
    found = old.join(others.select("address"), "address", "left_anti")
    return found.agg(
        F.count(F.lit(1)).alias("objects"),
        F.coalesce(F.sum("size"), F.lit(0)).cast("bigint").alias("bytes"),
        F.min("address").alias("example"),
    )
