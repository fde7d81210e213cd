"""A script for ``spark-submit``: small queries such as those of a run, so that their classes load.

The classes that it loads are in the archive of Spark's classes (``class_archive``). A run loads
other classes as usual. The script uses no code of this package.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.pandas.types import from_arrow_schema

_NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
_LISTED = pa.table(
    {
        "address": ["data/a", "data/b", "c"],
        "size": [1, 2, 3],
        "last_modified": pa.array([_NOW] * 3, pa.timestamp("us", "UTC")),
        "etag": ["0" * 32, f"{'0' * 32}-1", None],
        "in_place": [True, True, False],
        "hash": [1, 2, 3],
    }
)


def _same(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def _subtract(listed: DataFrame, live: DataFrame) -> DataFrame:
    old = listed.where(F.col("in_place") & (F.col("last_modified") <= F.lit(_NOW)))
    dead = old.join(live, "hash", "left_anti").select("hash")
    return old.join(dead, "hash", "left_semi")


def _judge(rows: DataFrame, live: DataFrame) -> DataFrame:
    named = rows.withColumn("last_part", F.element_at(F.split("address", "/"), -1))
    held = live.select("hash", F.lit(True).alias("held")).distinct()
    why = (
        F.when(F.col("held"), F.lit("held"))
        .when(F.col("address").rlike(r"[0-9a-f]{8}-x"), F.lit("named"))
        .when(F.col("etag").rlike(r"^[0-9a-f]{32}-[0-9]+\z") & ~F.lit(False), F.lit("parts"))
        .otherwise(F.coalesce(F.col("etag"), F.lit("")))
    )
    return named.join(held, "hash", "left").withColumn("why", why).where(F.col("why").isNotNull())


def _rank(rows: DataFrame) -> DataFrame:
    order = Window.partitionBy("why").orderBy(F.col("size").desc(), "address")
    first = rows.withColumn("place", F.row_number().over(order)).where("place = 1")
    both = first.select("address", "why").unionByName(rows.select("address", "why"))
    return both.where(F.col("why").isin("held", "parts")).distinct().orderBy("address").limit(2)


def _count(rows: DataFrame) -> DataFrame:
    each = F.explode(F.array(F.col("hash"), F.lit(0).cast("bigint"))).alias("number")
    return (
        rows.select("why", "size", "last_modified", each)
        .groupBy("why", "number")
        .agg(
            F.count(F.lit(1)).alias("objects"),
            F.sum("size").cast("bigint").alias("bytes"),
            F.sum(F.when(F.col("size") > 1, F.col("size")).otherwise(F.lit(0))).alias("large"),
            F.min("size").alias("least"),
            F.max("last_modified").alias("newest"),
            F.max_by("number", "size").alias("last"),
        )
        .withColumn("least", F.least("least", "last"))
    )


def _compare(some: DataFrame, others: DataFrame) -> DataFrame:
    both = some.join(others.select("hash", F.col("size").alias("other")), "hash", "full")
    differs = F.when(F.col("size") != F.col("other"), F.lit(1)).otherwise(F.lit(0))
    return both.groupBy("hash").agg(F.max(differs).alias("differs"))


def main() -> None:
    """Compute small queries, with the settings for few rows that are given, and as for many."""
    spark = SparkSession.builder.getOrCreate()
    spark.range(0, 4, 1, 4).mapInArrow(_same, "id long").collect()
    own = spark.newSession()
    own.addTag("training")
    schema = from_arrow_schema(_LISTED.schema)
    for settings in (json.loads(sys.argv[1]), {"spark.sql.shuffle.partitions": "1"}):
        for name, value in settings.items():
            own.conf.set(name, value)
        created = own.createDataFrame(_LISTED, schema)
        with tempfile.TemporaryDirectory(prefix="lakegc-") as folder:
            created.write.mode("overwrite").parquet(folder)
            read = own.read.schema(schema).parquet(folder)
            read.inputFiles()
            live = read.select("hash").where("hash = 1").hint("broadcast")
            for listed in (created, read):
                judged = _judge(_subtract(listed, live), live)
                for rows in (judged, _rank(judged), _count(judged), _compare(listed, read)):
                    rows.mapInArrow(_same, rows.schema).collect()
                    rows.toArrow()
        for name in settings:
            own.conf.unset(name)
    spark.stop()


if __name__ == "__main__":
    main()
