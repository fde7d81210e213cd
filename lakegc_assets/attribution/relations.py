"""What each listed object is, and who holds it, as relations; and the totals of both.

Who holds an object is a set of *groups*. A group is the set of branches that keep some commit, so
there are few of them. Group n is bit ``n % WORD`` of the column ``word_<n // WORD>``: sets are
united by their bits, whatever number of commits they come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame

from lakegc_assets.engine.relation import F, relation

#: Bits of a word; all of them are positive numbers.
WORD: Final = 62
#: What an object is: each is of exactly one class, the first that fits.
SWEPT: Final = "swept since"
COMMITTED: Final = "live and committed"
STAGED: Final = "staged"
REFERENCED: Final = "named by other repositories"
GARBAGE: Final = "garbage"
SPARED: Final = "spared"
LAKEFS: Final = "lakeFS's own"
UNKNOWN: Final = "unknown"
TOO_YOUNG: Final = "too young"
NOT_ADOPTED: Final = "not named by the adopted mark"
UNEXPLAINED: Final = "unexplained"
#: What a commit holds and the listing lacks; no part of what is listed.
NOT_LISTED: Final = "not listed"
#: Upper ends of the classes of ages, in days, and of sizes, in bytes; -1 stands for all above.
AGES: Final = (1, 7, 30, 90, 180, 365, 730)
SIZES: Final = (1 << 10, 1 << 16, 1 << 20, 1 << 24, 1 << 27, 1 << 30, 1 << 34)
ABOVE: Final = -1
_CELL: Final = (
    *("class", "why", "holders", "also_needed", "folder"),
    *("age", "size_class", "oldest"),
)


def words_of(groups: int) -> list[str]:
    """The names of the columns that have room for so many groups."""
    return [f"word_{number}" for number in range(-(-groups // WORD))]


@relation
def range_holders(
    ranges: DataFrame, pairs: DataFrame, commits: DataFrame, words: Sequence[str]
) -> DataFrame:
    """Who holds each range: the groups of all commits that have it, and the oldest of these.

    Args:
        ranges: range_id: those that are live, each once.
        pairs: metarange_id, range_id: the ranges of the metaranges.
        commits: metarange_id, age_rank, and the words: of the active commits, each metarange once.
        words: names of the columns with the groups.

    Returns:
        range_id, oldest (null where no active commit has the range), and the words; such a range
        has the first group alone, that of no branch.
    """
    held = pairs.select("metarange_id", "range_id").join(commits, "metarange_id")
    united = held.groupBy("range_id").agg(
        F.min("age_rank").alias("oldest"), *(F.bit_or(word).alias(word) for word in words)
    )
    known = ranges.select("range_id").join(united, "range_id", "left")
    return known.select(
        "range_id",
        "oldest",
        *(
            F.coalesce(F.col(word), F.lit(0 if number else 1).cast("bigint")).alias(word)
            for number, word in enumerate(words)
        ),
    )


@relation
def object_holders(entries: DataFrame, ranges: DataFrame, words: Sequence[str]) -> DataFrame:
    """Who holds each object: the groups of all ranges that name it.

    Args:
        entries: range_id, hash, size, folder: what the ranges name.
        ranges: range_id, oldest, and the words: as ``range_holders`` gives them.
        words: names of the columns with the groups.

    Returns:
        hash, entry_size (bytes), folder (of several the first), oldest, and holders: the words, as
        decimal numbers with commas between them.
    """
    named = entries.join(ranges.select("range_id", "oldest", *words), "range_id")
    united = named.groupBy("hash").agg(
        F.max("size").alias("entry_size"),
        F.min("folder").alias("folder"),
        F.min("oldest").alias("oldest"),
        *(F.bit_or(word).alias(word) for word in words),
    )
    holders = F.concat_ws(",", *(F.col(word).cast("string") for word in words))
    return united.select("hash", "entry_size", "folder", "oldest", holders.alias("holders"))


@relation
def with_unread(holders: DataFrame, committed: DataFrame) -> DataFrame:
    """What is live, also where nobody knows who holds it: all else of such an object is null.

    Args:
        holders: as ``object_holders`` gives it.
        committed: hash: Committed DF, as often as its files have it.
    """
    columns = ("hash", "entry_size", "folder", "oldest", "holders")
    unread = committed.select("hash").distinct().join(holders.select("hash"), "hash", "left_anti")
    nobody = {"entry_size": "bigint", "folder": "string", "oldest": "bigint", "holders": "string"}
    return holders.select(*columns).unionByName(
        unread.select("hash", *(F.lit(None).cast(kind).alias(n) for n, kind in nobody.items()))
    )


@relation
def classified(
    listing: DataFrame,
    holders: DataFrame,
    staged: DataFrame,
    referenced: DataFrame,
    garbage: DataFrame,
    spared: DataFrame,
    swept: DataFrame,
    cutoff: datetime,
    otherwise: str,
) -> DataFrame:
    """What each listed object is, and what commits hold besides.

    Args:
        listing: address, hash, size, last_modified, in_place: Store DF.
        holders: hash, entry_size, folder, oldest, holders: each hash once.
        staged: hash: Uncommitted DF.
        referenced: hash: what other repositories name.
        garbage: address, hash, reason: the candidates, each once.
        spared: address, why.
        swept: address: what sweeps have deleted since it was listed.
        cutoff: what was written since then is too young.
        otherwise: the class of what fits in no other one.

    Returns:
        class, why, size, last_modified, holders, also_needed (whether something else than a commit
        needs it, too), folder, oldest; a row for each listed object, and one for each address of a
        commit that is not listed, with the size that its entry says.
    """
    found = _listed_or_held(listing, holders)
    found = _flagged(found, staged, "hash", "is_staged")
    found = _flagged(found, referenced, "hash", "is_referenced")
    found = _flagged(found, swept, "address", "is_swept")
    return _of_one_class(_with_reasons(found, garbage, spared), cutoff, otherwise)


# Each step is a relation, for SQLFrame copies all that a plan has at each operation on it.


@relation
def _listed_or_held(listing: DataFrame, holders: DataFrame) -> DataFrame:
    """What is listed, what commits hold, or both."""
    columns = ("hash", "entry_size", "folder", "oldest", "holders")
    held = holders.select(*(F.col(name).alias(f"held_{name}") for name in columns))
    return listing.join(held, F.col("hash") == F.col("held_hash"), "full_outer").select(
        *("address", "hash", "size", "last_modified", "in_place"),
        *("held_hash", "held_entry_size", "held_folder", "held_oldest", "held_holders"),
    )


@relation
def _flagged(objects: DataFrame, members: DataFrame, key: str, flag: str) -> DataFrame:
    """Objects with one column more: true where a member has the same key, else null."""
    flags = members.select(key).distinct().withColumn(flag, F.lit(True))
    return objects.join(flags, key, "left")


@relation
def _with_reasons(objects: DataFrame, garbage: DataFrame, spared: DataFrame) -> DataFrame:
    """Objects with the reason why each is garbage, and the first why each is spared."""
    reasons = spared.groupBy("address").agg(F.min("why").alias("spared_why"))
    dead = garbage.select("address", "hash", "reason")
    return objects.join(dead, ["hash", "address"], "left").join(reasons, "address", "left")


@relation
def _of_one_class(found: DataFrame, cutoff: datetime, otherwise: str) -> DataFrame:
    """The first class that fits each object; see ``classified``."""
    is_listed, is_held = F.col("hash").isNotNull(), F.col("held_hash").isNotNull()
    kind = (
        F.when(~is_listed, F.lit(NOT_LISTED))
        .when(F.col("is_swept"), F.lit(SWEPT))
        .when(is_held, F.lit(COMMITTED))
        .when(F.col("is_staged"), F.lit(STAGED))
        .when(F.col("is_referenced"), F.lit(REFERENCED))
        .when(F.col("reason").isNotNull(), F.lit(GARBAGE))
        .when(F.col("spared_why").isNotNull(), F.lit(SPARED))
        .when(F.col("address") == F.lit("dummy"), F.lit(LAKEFS))
        .when(~F.col("in_place"), F.lit(UNKNOWN))
        .when(F.col("last_modified") >= F.lit(cutoff), F.lit(TOO_YOUNG))
        .otherwise(F.lit(otherwise))
    )
    judged = found.withColumn("class", kind)
    why = F.when(F.col("class") == F.lit(GARBAGE), F.col("reason")).when(
        F.col("class") == F.lit(SPARED), F.col("spared_why")
    )
    is_live = F.col("class").isin(COMMITTED, NOT_LISTED)
    return judged.select(
        "class",
        why.alias("why"),
        F.when(is_listed, F.col("size"))
        .otherwise(F.coalesce(F.col("held_entry_size"), F.lit(0).cast("bigint")))
        .alias("size"),
        "last_modified",
        F.when(is_live, F.col("held_holders")).alias("holders"),
        (is_live & (F.col("is_staged").isNotNull() | F.col("is_referenced").isNotNull())).alias(
            "also_needed"
        ),
        F.when(is_live, F.col("held_folder")).alias("folder"),
        F.when(is_live, F.col("held_oldest")).alias("oldest"),
    )


@relation
def gone(first: DataFrame, *others: DataFrame) -> DataFrame:
    """The addresses of what sweeps have deleted or found missing, as often as they say it.

    Args:
        first: address, outcome: the record of a sweep.
        others: those of others.
    """
    names = [
        one.where(F.col("outcome").isin("deleted", "already_missing")).select("address")
        for one in (first, *others)
    ]
    return reduce(lambda some, more: some.unionAll(more), names)


@relation
def cells(objects: DataFrame, start: datetime) -> DataFrame:
    """Objects and bytes of all that is equal in all that is asked for: what totals are made of.

    Args:
        objects: as ``classified`` gives them.
        start: of the run, from which ages are counted back.

    Returns:
        class, why, holders, also_needed, folder, age (the most days, null of what is not listed),
        size_class (the most bytes), oldest, objects, bytes.
    """
    modified = F.col("last_modified")
    age = _class_of(
        [(modified >= F.lit(start - timedelta(days=days)), days) for days in AGES], ABOVE
    )
    size = _class_of([(F.col("size") <= F.lit(most), most) for most in SIZES], ABOVE)
    known = objects.withColumn("age", F.when(modified.isNotNull(), age))
    known = known.withColumn("size_class", size)
    return known.groupBy(*_CELL).agg(
        F.count(F.lit(1)).alias("objects"), F.sum("size").cast("bigint").alias("bytes")
    )


def _class_of(limits: Sequence[tuple[Column, int]], above: int) -> Column:
    """The first class whose condition holds."""
    (first, label), *others = limits
    found = F.when(first, F.lit(label))
    found = reduce(lambda column, one: column.when(one[0], F.lit(one[1])), others, found)
    return found.otherwise(F.lit(above)).cast("bigint")


@relation
def totals(found: DataFrame, by: Sequence[str]) -> DataFrame:
    """Objects and bytes of cells, by some of their columns.

    Args:
        found: objects, bytes, and the columns.
        by: the names of these.
    """
    return found.groupBy(*by).agg(
        F.sum("objects").cast("bigint").alias("objects"),
        F.sum("bytes").cast("bigint").alias("bytes"),
    )


@relation
def renamed(found: DataFrame, column: str, name: str) -> DataFrame:
    """Totals whose key has another name.

    Args:
        found: with the key, objects and bytes.
        column: name of the key.
        name: that it gets.
    """
    return found.select(F.col(column).alias(name), "objects", "bytes")


@relation
def of_class(found: DataFrame, name: str) -> DataFrame:
    """The cells of one class."""
    return found.where(F.col("class") == F.lit(name))


@relation
def by_folder(found: DataFrame, depth: int) -> DataFrame:
    """Objects and bytes by the outermost folders of the paths (folder, objects, bytes).

    Args:
        found: cells.
        depth: how many folders.
    """
    pattern = "^((?:[^/]*/){1," + str(depth) + "})"
    cut = F.regexp_extract("folder", pattern, 1)
    shorter = F.when(F.col("folder").isNotNull(), cut)
    return (
        found.select(shorter.alias("folder"), "objects", "bytes")
        .groupBy("folder")
        .agg(
            F.sum("objects").cast("bigint").alias("objects"),
            F.sum("bytes").cast("bigint").alias("bytes"),
        )
    )


@relation
def range_sizes(entries: DataFrame) -> DataFrame:
    """How much the entries of each range name (range_id, objects, bytes): logical sizes.

    Args:
        entries: range_id, size.
    """
    return entries.groupBy("range_id").agg(
        F.count(F.lit(1)).alias("objects"), F.sum("size").cast("bigint").alias("bytes")
    )


@relation
def commit_sizes(pairs: DataFrame, sizes: DataFrame) -> DataFrame:
    """How much each metarange holds (metarange_id, objects, bytes), whoever holds it, too.

    Args:
        pairs: metarange_id, range_id.
        sizes: range_id, objects, bytes: as ``range_sizes`` gives them.
    """
    held = pairs.select("metarange_id", "range_id").join(sizes, "range_id")
    return held.groupBy("metarange_id").agg(
        F.sum("objects").cast("bigint").alias("objects"),
        F.sum("bytes").cast("bigint").alias("bytes"),
    )
