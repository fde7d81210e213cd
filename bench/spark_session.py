"""Measures Spark's overhead on this machine: its start, small queries, and tasks in Python.

The session is local, as in a run. The figures are seconds until it is ready, of twelve small
queries with tasks in Python, of empty tasks of Spark (the floor) and in Python, and of an anti-join
with the JVM's slow compiler.

    python -m bench.spark_session
    python -m bench.spark_session --options "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import click
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from bench._floors import beside
from bench._run import Session, timed
from lakegc_assets.engine.class_archive import FAST
from lakegc_assets.engine.spark_jobs import begin_task
from lakegc_assets.engine.spark_session import OPTIONS, session_settings

_TASKS = 80


def _same(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    begin_task("")
    yield from batches


def _query(spark: SparkSession, number: int) -> None:
    some, others = (
        spark.range(0, rows + number, 1, 2).mapInArrow(_same, "id long") for rows in (1000, 500)
    )
    left = some.join(others, "id", "left_anti").groupBy((F.col("id") % 7).alias("key"))
    left.agg(F.count(F.lit(1)), F.max("id")).orderBy("key").collect()


def _queries(spark: SparkSession) -> None:
    for number in range(12):
        _query(spark, number)


def _join(spark: SparkSession, rows: int) -> None:
    key = F.hash("id").cast("long").alias("hash")
    address = F.md5(F.col("id").cast("string")).alias("address")
    store = spark.range(0, rows, 1, 40).select(key, address)
    live = spark.range(0, rows * 8 // 5, 2, 20).select(key)
    store.join(live, "hash", "left_anti").agg(F.count(F.lit(1)), F.max("address")).collect()


@click.command()
@click.option("--options", default=FAST, show_default=True, help="of the JVM, beside its archive")
@click.option("--rows", default=1_000_000, show_default=True, help="of the anti-join")
def main(options: str, rows: int) -> None:
    """Start a session, and run small work in it."""
    settings = session_settings()
    session = Session(**{OPTIONS: settings[OPTIONS].replace(FAST, options)})
    timed("start", session)
    spark = session()
    timed("twelve small queries", lambda: _queries(spark))
    numbers = spark.range(0, _TASKS, 1, _TASKS)
    floor = timed(f"{_TASKS} tasks of Spark", lambda: numbers.agg(F.sum("id")).collect())
    found = timed(f"{_TASKS} in Python", numbers.mapInArrow(_same, "id long").collect)
    beside("empty tasks in Python", found, floor)
    timed(f"anti-join of {rows:,} rows", lambda: _join(spark, rows))
    session.stop()


if __name__ == "__main__":
    main()
