"""Marked DF - ledger: the remaining objects of a sweep, and its outcomes.

Marked DF is the marked objects (``LISTING``), each address once. The ledger is the records of tasks
(``SWEPT``), in which an address may occur more than once. Addresses are compared byte by byte.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame

from lakegc_assets.engine.relation import F, relation
from lakegc_assets.recovery.relations import first_of_each, without
from lakegc_assets.sweep.ledger import DONE, GONE, PUT_BACK


@relation
def remaining(marked: DataFrame, ledger: DataFrame) -> DataFrame:
    """Marked DF - ledger: the objects without a final outcome, ordered by address."""
    done = ledger.where(F.col("outcome").isin(*DONE))
    return without(marked, done)


@relation
def outcomes(ledger: DataFrame) -> DataFrame:
    """The outcome that counts of each address of the ledger, ordered by address.

    Put back counts before deleted, deleted before the other final outcomes, and these before a
    failure; among equal outcomes the last counts.
    """
    outcome = F.col("outcome")
    rank = (
        F.when(outcome == PUT_BACK, F.lit(0))
        .when(outcome == "deleted", F.lit(1))
        .when(outcome.isin(*DONE), F.lit(2))
        .otherwise(F.lit(3))
    )
    return first_of_each(ledger, rank).orderBy("address")


@relation
def compared(ledger: DataFrame, marked: DataFrame) -> DataFrame:
    """Compare marked objects with recorded outcomes: each must have one, and no other object any.

    Returns:
        One row: the number of addresses with outcomes, the number of these that were not marked
        (``strangers``), and the number of marked addresses without an outcome (``untold``).
    """
    rows = ledger.select("address", F.lit(True).alias("told")).distinct()
    join = rows.join(marked.select("address", F.lit(True).alias("marked")), "address", "full_outer")

    def count(condition: Column) -> Column:
        return F.count(F.when(condition, F.lit(1)))

    return join.agg(
        count(F.col("told").isNotNull()).alias("recorded"),
        count(F.col("marked").isNull()).alias("strangers"),
        count(F.col("told").isNull()).alias("untold"),
    )


@relation
def totals(outcomes: DataFrame) -> DataFrame:
    """Objects and bytes by outcome, and by the state of deleted objects in the store.

    Args:
        outcomes: the outcome that counts of each address.

    Returns:
        outcome, ``kept``: true if the store returned the version that it kept, ``space``: state of
        the space of deleted objects, objects, bytes, and ``first``: time of the first record.
    """
    deleted = F.col("outcome") == "deleted"
    parts = outcomes.withColumn("kept", F.col("version").isNotNull()).withColumn(
        "space", F.when(deleted, F.col("detail"))
    )
    return parts.groupBy("outcome", "kept", "space").agg(
        F.count(F.lit(1)).alias("objects"),
        F.sum("size").cast("bigint").alias("bytes"),
        F.min("at").alias("first"),
    )


@relation
def put_back(outcomes: DataFrame, most: int) -> DataFrame:
    """The first objects that were put back: address and detail, at most ``most`` rows."""
    back = outcomes.where(F.col("outcome") == PUT_BACK)
    return back.select("address", "detail").orderBy("address").limit(most)


@relation
def thought_gone(outcomes: DataFrame, alive: DataFrame, missing: DataFrame) -> DataFrame:
    """Objects that the ledger records as gone although they are alive and in the store.

    A sweep was killed after it had put them back, or another process has restored them.

    Args:
        outcomes: the outcome that counts of each address.
        alive: address, size, why and certain, as ``came_back`` returns it.
        missing: addresses that the store does not have.
    """
    gone = outcomes.where(F.col("outcome").isin(*GONE))
    there = alive.where("certain").join(missing.select("address"), "address", "left_anti")
    return there.join(gone.select("address"), "address", "left_semi")


@relation
def not_backed_up(marked: DataFrame, held: DataFrame, told: DataFrame) -> DataFrame:
    """Marked DF - verified copies in its backup: address, size and why.

    ``held``: address, size and etag of the copies that are there now. ``told``: address, outcome
    and error_code of the objects that were to be copied, each once.
    """
    lacking = marked.select("address", "size", "etag").join(
        held, ["address", "size", "etag"], "left_anti"
    )
    rows = lacking.join(told.select("address", "outcome", "error_code"), "address", "left")
    copied = F.col("outcome") == "copied"
    outcome = F.when(copied, F.lit("the copy is gone or another")).otherwise(
        F.coalesce(F.col("outcome"), F.lit("no outcome is recorded"))
    )
    code = F.coalesce(F.col("error_code"), F.lit(""))
    reason = F.trim(F.concat(F.lit("not in the backup: "), outcome, F.lit(" "), code))
    return rows.select("address", "size", reason.alias("why"))


@relation
def backed_up(objects: DataFrame, held: DataFrame) -> DataFrame:
    """Count the copies of a backup (address, size and etag) that are of objects: one row."""
    keys = ["address", "size", "etag"]
    copies = held.select(*keys).join(objects.select(*keys), keys, "left_semi")
    return copies.agg(F.count(F.lit(1)).alias("objects"))
