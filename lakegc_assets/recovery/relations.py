"""Marked DF - Journal DF: what a backup or a restore has left to do, and what it did in the end.

Marked DF is what a mark names, each address once. Journal DF is what tasks have recorded
(``OUTCOMES`` of a backup, ``RESTORED`` of a restore), where an address may stand more than once.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame

from lakegc_assets.engine.relation import F, Window, relation

_OBJECT = ["address", "size", "etag"]


@relation
def newest(records: DataFrame) -> DataFrame:
    """The row of each address that was recorded last."""
    return first_of_each(records, F.lit(0))


def first_of_each(records: DataFrame, rank: Column) -> DataFrame:
    """The row of each address with the least rank, and the last of these."""
    order = Window.partitionBy("address").orderBy("rank", F.col("at").desc())
    ranked = records.withColumn("rank", rank)
    first = ranked.withColumn("place", F.row_number().over(order)).where("place = 1")
    return first.select(*records.columns)


@relation
def verified(journal: DataFrame, marked: DataFrame, shown: DataFrame) -> DataFrame:
    """Journal DF, Marked DF and a listing of the backup in common: one row for each whole copy.

    Args:
        journal: what was recorded; only what was copied counts.
        marked: address, size and etag; a copy of another object is none of what is to be deleted.
        shown: address, size and copy_etag of what the backup holds now.
    """
    same = claimed(journal).join(marked.select(*_OBJECT), _OBJECT, "left_semi")
    there = ["address", "size", "copy_etag"]
    return newest(same.join(shown.select(*there), there, "left_semi"))


@relation
def without(marked: DataFrame, others: DataFrame) -> DataFrame:
    """Marked DF but for the objects with some addresses, in order."""
    return marked.join(others.select("address"), "address", "left_anti").orderBy("address")


@relation
def lacking(rows: DataFrame, others: DataFrame) -> DataFrame:
    """Addresses of some rows that others have not: one row with their number and the first one."""
    gone = rows.select("address").distinct().join(others.select("address"), "address", "left_anti")
    return gone.agg(F.count(F.lit(1)).alias("objects"), F.min("address").alias("first"))


@relation
def outcomes(copied: DataFrame, tried: DataFrame) -> DataFrame:
    """One row for each marked object: its copy, else why it has none; in order.

    Args:
        copied: what ``verified`` gives.
        tried: what this try has recorded.
    """
    others = newest(tried.where(F.col("outcome") != "copied"))
    without = others.join(copied.select("address"), "address", "left_anti")
    return copied.unionByName(without).orderBy("address")


@relation
def claimed(journal: DataFrame) -> DataFrame:
    """Journal DF where the outcome is a copy; an address may stand there more than once."""
    return journal.where(F.col("outcome") == "copied")


# Prunes


@relation
def held(copied: DataFrame, listed: DataFrame, *, finished: bool) -> DataFrame:
    """Objects that a backup can give back: address and size, in order.

    Args:
        copied: address and size of recorded copies; an address may stand there more than once.
        listed: address and size of the copies that a listing shows. One that was cut short has not
            the size of the object, so what was recorded counts first.
        finished: whether recorded copies that the listing lacks count, too.
    """
    size, none = F.col("size"), F.lit(None).cast("bigint")
    rows = copied.select("address", size.alias("recorded"), none.alias("shown")).unionByName(
        listed.select("address", none.alias("recorded"), size.alias("shown"))
    )
    both = rows.groupBy("address").agg(
        F.max("recorded").alias("recorded"), F.max("shown").alias("shown")
    )
    there = both if finished else both.where(F.col("shown").isNotNull())
    return there.select("address", F.coalesce("recorded", "shown").alias("size")).orderBy("address")


@relation
def with_recorded(needed: DataFrame, copied: DataFrame) -> DataFrame:
    """Needed DF (address, why) and the size of the recorded copy, or null; in order."""
    sizes = copied.groupBy("address").agg(F.max("size").alias("recorded"))
    return needed.select("address", "why").join(sizes, "address", "left").orderBy("address")


@relation
def each_once(found: DataFrame) -> DataFrame:
    """The addresses of the trash in order, each once, with their size.

    Of what is there with several sizes nobody knows which one is needed: its size is -1, which no
    object of the store has.
    """
    sizes = found.groupBy("address").agg(F.min("size").alias("least"), F.max("size").alias("most"))
    size = F.when(F.col("least") == F.col("most"), F.col("least")).otherwise(F.lit(-1))
    return sizes.select("address", size.cast("bigint").alias("size")).orderBy("address")


# Restores


@relation
def chosen(marked: DataFrame, addresses: DataFrame) -> DataFrame:
    """Marked DF where the address is among some, in order."""
    return marked.join(addresses.select("address"), "address", "left_semi").orderBy("address")


@relation
def lost_objects(chosen: DataFrame, swept: DataFrame, copies: DataFrame) -> DataFrame:
    """Chosen objects with all that helps to bring them back, in order.

    Args:
        chosen: address, size and etag.
        swept: address and version of what was deleted, each once.
        copies: address, etag and copy_etag of what a backup holds, each once; a copy of another
            object than was marked does not count.

    Returns:
        address, size, etag, version and copy_etag; the last two may be null.
    """
    versions = swept.select("address", "version")
    held = copies.select("address", "etag", "copy_etag")
    known = chosen.select(*_OBJECT).join(versions, "address", "left")
    return known.join(held, ["address", "etag"], "left").orderBy("address")


@relation
def restored(ledger: DataFrame) -> DataFrame:
    """The outcome that counts of each address, in order.

    That it was restored counts, since for a later try the object is there already. What did not
    end well, as where another object is there, is tried again, so the last counts.
    """
    rank = F.when(F.col("outcome") == "restored", F.lit(0)).otherwise(
        F.when(_same(), F.lit(1)).otherwise(F.lit(2))
    )
    return first_of_each(ledger, rank).orderBy("address")


def _same() -> Column:
    """A column that is true where the object at the key is the one that was marked."""
    return (F.col("outcome") == "already_there") & F.col("detail").isNull()


@relation
def settled(outcomes: DataFrame) -> DataFrame:
    """Outcomes of objects that are not asked for again, in order.

    Of all others a new try may do better: another object may have been moved away.
    """
    return outcomes.where((F.col("outcome") == "restored") | _same()).orderBy("address")


@relation
def totals(outcomes: DataFrame, another: str, archived: str) -> DataFrame:
    """Objects and bytes by outcome, source, and whether another object is there, or an archived.

    Args:
        outcomes: the one that counts of each address.
        another: how the detail begins where another object is at the key.
        archived: how it begins where it is the right one, and cannot be read.
    """
    detail = F.coalesce(F.col("detail"), F.lit(""))
    noted = detail.startswith(another) | detail.startswith(archived)
    by = outcomes.withColumn("noted", noted).groupBy("outcome", "source", "noted")
    return by.agg(F.count(F.lit(1)).alias("objects"), F.sum("size").cast("bigint").alias("bytes"))


@relation
def examples(outcomes: DataFrame, outcome: str, begin: str, most: int) -> DataFrame:
    """The first rows of one outcome.

    Args:
        outcomes: the one that counts of each address.
        outcome: of the rows.
        begin: how their detail begins; empty for any, also for null.
        most: rows.
    """
    some = outcomes.where(F.col("outcome") == outcome)
    some = some.where(F.coalesce(F.col("detail"), F.lit("")).startswith(begin))
    return some.orderBy("address").limit(most)


@relation
def smallest_held(
    candidates: DataFrame, chosen: DataFrame, most_bytes: int, most: int
) -> DataFrame:
    """The smallest of the chosen objects that a commit holds: address, size and commit_id.

    Args:
        candidates: address, size and commit_id of what the mark names.
        chosen: their addresses.
        most_bytes: larger ones are left out.
        most: rows.
    """
    held = candidates.where(F.col("commit_id").isNotNull() & (F.col("size") <= most_bytes))
    some = held.join(chosen.select("address"), "address", "left_semi")
    return some.select("address", "size", "commit_id").orderBy("size", "address").limit(most)
