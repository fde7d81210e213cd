"""Marked DF - Journal DF: the remaining work of a backup or a restore, and its outcomes.

Marked DF has the objects that a mark names, each address once. Journal DF has the records of tasks
(``OUTCOMES`` of a backup, ``RESTORED`` of a restore); an address may occur more than once.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame

from lakegc_assets.engine.relation import F, Window, relation

_OBJECT = ["address", "size", "etag"]


@relation
def newest(records: DataFrame) -> DataFrame:
    """Return the newest row of each address."""
    return first_of_each(records, F.lit(0))


def first_of_each(records: DataFrame, rank: Column) -> DataFrame:
    """Return the row of each address with the least rank, and the newest of equal rank."""
    order = Window.partitionBy("address").orderBy("rank", F.col("at").desc())
    ranked = records.withColumn("rank", rank)
    first = ranked.withColumn("place", F.row_number().over(order)).where("place = 1")
    return first.select(*records.columns)


@relation
def verified(journal: DataFrame, marked: DataFrame, shown: DataFrame) -> DataFrame:
    """Return the copies common to Journal DF, Marked DF and a listing, one row for each address.

    Args:
        journal: the records of tasks; only the outcome ``copied`` counts.
        marked: address, size and etag; the copy of another object is not a copy of a marked one.
        shown: address, size and copy_etag of the copies in the backup now.
    """
    same = claimed(journal).join(marked.select(*_OBJECT), _OBJECT, "left_semi")
    there = ["address", "size", "copy_etag"]
    return newest(same.join(shown.select(*there), there, "left_semi"))


@relation
def without(marked: DataFrame, others: DataFrame) -> DataFrame:
    """Return Marked DF without the addresses of another frame, ordered by address."""
    return marked.join(others.select("address"), "address", "left_anti").orderBy("address")


@relation
def lacking(rows: DataFrame, others: DataFrame) -> DataFrame:
    """Count the addresses that another frame lacks: one row with their number and the first."""
    gone = rows.select("address").distinct().join(others.select("address"), "address", "left_anti")
    return gone.agg(F.count(F.lit(1)).alias("objects"), F.min("address").alias("first"))


@relation
def outcomes(copied: DataFrame, tried: DataFrame) -> DataFrame:
    """Return one row for each marked object: its copy, else its failure; ordered by address.

    Args:
        copied: the result of ``verified``.
        tried: the records of this try.
    """
    others = newest(tried.where(F.col("outcome") != "copied"))
    without = others.join(copied.select("address"), "address", "left_anti")
    return copied.unionByName(without).orderBy("address")


@relation
def claimed(journal: DataFrame) -> DataFrame:
    """Return the copied rows of Journal DF; an address may occur more than once."""
    return journal.where(F.col("outcome") == "copied")


# Prunes


@relation
def held(copied: DataFrame, listed: DataFrame, *, finished: bool) -> DataFrame:
    """Return address and size of the objects that a backup can restore, ordered by address.

    Args:
        copied: address and size of recorded copies; an address may occur more than once.
        listed: address and size of the copies in a listing. A truncated copy is smaller than its
            object, so the recorded size takes precedence.
        finished: True if recorded copies that the listing lacks count, too.
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
    """Add the size of the recorded copy, or null, to Needed DF (address, why), ordered."""
    sizes = copied.groupBy("address").agg(F.max("size").alias("recorded"))
    return needed.select("address", "why").join(sizes, "address", "left").orderBy("address")


@relation
def each_once(found: DataFrame) -> DataFrame:
    """Return the addresses of the trash, each once, with their size, ordered.

    If an address occurs with several sizes, nobody knows which size is needed. Its size is then -1,
    which no object of the store has.
    """
    sizes = found.groupBy("address").agg(F.min("size").alias("least"), F.max("size").alias("most"))
    size = F.when(F.col("least") == F.col("most"), F.col("least")).otherwise(F.lit(-1))
    return sizes.select("address", size.cast("bigint").alias("size")).orderBy("address")


# Restores


@relation
def chosen(marked: DataFrame, addresses: DataFrame) -> DataFrame:
    """Return the rows of Marked DF with given addresses, ordered by address."""
    return marked.join(addresses.select("address"), "address", "left_semi").orderBy("address")


@relation
def lost_objects(chosen: DataFrame, swept: DataFrame, copies: DataFrame) -> DataFrame:
    """Return chosen objects with the data needed to restore them, ordered by address.

    Args:
        chosen: address, size and etag.
        swept: address and version of deleted objects, each address once.
        copies: address, etag and copy_etag of the copies in a backup, each address once; the copy
            of another object than the marked one does not count.

    Returns:
        address, size, etag, version and copy_etag; the last two may be null.
    """
    versions = swept.select("address", "version")
    held = copies.select("address", "etag", "copy_etag")
    known = chosen.select(*_OBJECT).join(versions, "address", "left")
    return known.join(held, ["address", "etag"], "left").orderBy("address")


@relation
def restored(ledger: DataFrame) -> DataFrame:
    """Return the decisive outcome of each address, ordered by address.

    ``restored`` takes precedence, since a later try finds the object already there. Other outcomes,
    for example if another object is there, are tried again, so the newest of them counts.
    """
    rank = F.when(F.col("outcome") == "restored", F.lit(0)).otherwise(
        F.when(_same(), F.lit(1)).otherwise(F.lit(2))
    )
    return first_of_each(ledger, rank).orderBy("address")


def _same() -> Column:
    """Return a column that is true if the object at the key is the marked one."""
    return (F.col("outcome") == "already_there") & F.col("detail").isNull()


@relation
def settled(outcomes: DataFrame) -> DataFrame:
    """Return the final outcomes, ordered by address.

    A new try may improve all other outcomes: another object may have been moved away.
    """
    return outcomes.where((F.col("outcome") == "restored") | _same()).orderBy("address")


@relation
def totals(outcomes: DataFrame, another: str, archived: str) -> DataFrame:
    """Return objects and bytes by outcome, source, and ``noted``: if a detail begins as given.

    Args:
        outcomes: the decisive outcome of each address.
        another: prefix of the detail if another object is at the key.
        archived: prefix of the detail if the object is the right one, but cannot be read.
    """
    detail = F.coalesce(F.col("detail"), F.lit(""))
    noted = detail.startswith(another) | detail.startswith(archived)
    by = outcomes.withColumn("noted", noted).groupBy("outcome", "source", "noted")
    return by.agg(F.count(F.lit(1)).alias("objects"), F.sum("size").cast("bigint").alias("bytes"))


@relation
def examples(outcomes: DataFrame, outcome: str, begin: str, most: int) -> DataFrame:
    """Return the first rows of one outcome.

    Args:
        outcomes: the decisive outcome of each address.
        outcome: the outcome of the rows.
        begin: prefix of their detail; empty for any detail, and for null.
        most: number of rows.
    """
    matches = outcomes.where(F.col("outcome") == outcome)
    matches = matches.where(F.coalesce(F.col("detail"), F.lit("")).startswith(begin))
    return matches.orderBy("address").limit(most)


@relation
def smallest_held(
    candidates: DataFrame, chosen: DataFrame, most_bytes: int, most: int
) -> DataFrame:
    """Return the smallest chosen objects that a commit holds: address, size and commit_id.

    Args:
        candidates: address, size and commit_id of the objects that the mark names.
        chosen: addresses of the chosen objects.
        most_bytes: larger objects are omitted.
        most: number of rows.
    """
    held = candidates.where(F.col("commit_id").isNotNull() & (F.col("size") <= most_bytes))
    matches = held.join(chosen.select("address"), "address", "left_semi")
    return matches.select("address", "size", "commit_id").orderBy("size", "address").limit(most)
