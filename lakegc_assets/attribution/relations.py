"""Relations that give each listed object its class and its holders; and totals of both.

The holders of an object are a set of *groups*. A group is the set of branches that keep a commit,
so there are few of them. Group n is bit ``n % WORD`` of the column ``word_<n // WORD>``: sets are
united by their bits, whatever number of commits they come from.

There are far fewer sets of ranges than objects that they name. So a row of an object has nothing of
its holders but the sums of two random numbers of each of its ranges, its *prints*, and the sets are
united for one object of each pair of sums. Sums of different ranges are equal once in 2**72 times.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame

from lakegc_assets.engine.relation import F, Window, relation

#: Bits of a word; all of them are positive numbers.
WORD: Final = 62
#: Columns with the random numbers of a range, and their sums; and bits of one, so that the sum is a
#: long for an object that is named 2**27 times.
PRINTS: Final = ("print_0", "print_1")
PRINT_BITS: Final = 36
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
_AGE_COLUMNS: Final = {f"since_{days}": days for days in AGES}
#: The largest total of bytes: far more than any store holds.
MOST: Final = 2**62
#: What the lower half of a number stays below.
_HALF: Final = 2**32
#: What cells are told apart by, besides their folders and holders.
_CELL: Final = ("class", "why", "also_needed", "age", "size_class", "oldest")


def words_of(groups: int) -> list[str]:
    """The names of the columns that have room for so many groups."""
    return [f"word_{number}" for number in range(-(-groups // WORD))]


@relation
def range_groups(
    ranges: DataFrame, pairs: DataFrame, commits: DataFrame, words: Sequence[str]
) -> DataFrame:
    """The groups of each live range: those of all commits that have it.

    Args:
        ranges: range_id, and its prints.
        pairs: metarange_id, range_id: the ranges of the metaranges.
        commits: metarange_id, age_rank, and the words: of the active commits, each metarange once.
        words: names of the columns with the groups.

    Returns:
        The columns of ``ranges``; oldest, the least age_rank of the commits, null where no active
        commit has the range; and the words. A live range that no active commit has is held by the
        first group alone, that of no branch.
    """
    found = (
        pairs.join(commits, "metarange_id")
        .groupBy("range_id")
        .agg(F.min("age_rank").alias("oldest"), *(F.bit_or(word).alias(word) for word in words))
    )
    either = (
        F.coalesce(F.col(word), F.lit(0 if number else 1).cast("bigint")).alias(word)
        for number, word in enumerate(words)
    )
    return ranges.join(found, "range_id", "left").select("range_id", *PRINTS, "oldest", *either)


@relation
def numbered_folders(entries: DataFrame) -> DataFrame:
    """The folders of entries, each once, with their places in order from 1 on (folder, place).

    Objects have the places of their folders: Spark has to sort them for the least of several texts,
    and not for that of several numbers.
    """
    named = entries.where(F.col("folder").isNotNull()).select("folder").distinct()
    # All of them are in one order; PySpark warns of a window that does not say so.
    named = named.withColumn("together", F.lit(1))
    place = F.row_number().over(Window.partitionBy("together").orderBy("folder"))
    return named.select("folder", place.cast("bigint").alias("place"))


@relation
def named_objects(entries: DataFrame, ranges: DataFrame, folders: DataFrame) -> DataFrame:
    """The objects that entries name.

    Args:
        entries: range_id, hash, size, folder: the entries of the live ranges.
        ranges: as ``range_groups`` returns them: one for each of the entries.
        folders: as ``numbered_folders`` returns them.

    Returns:
        hash; entry_size (bytes); place, of its folder, of several the first, null where there is
        none; oldest, null where no active commit has such a range; and the sums of the prints of
        the ranges.
    """
    named = entries.join(ranges.select("range_id", *PRINTS, "oldest"), "range_id")
    named = named.join(folders, "folder", "left")
    return named.groupBy("hash").agg(
        F.max("size").alias("entry_size"),
        F.min("place").alias("place"),
        F.min("oldest").alias("oldest"),
        *(F.sum(name).cast("bigint").alias(name) for name in PRINTS),
    )


@relation
def with_unread(named: DataFrame, committed: DataFrame) -> DataFrame:
    """Named objects, and a row for each other live object, whose holders are not known.

    Args:
        named: as ``named_objects`` returns them.
        committed: hash: Committed DF, as often as its files have it.

    Returns:
        The columns of ``named``; in the added rows all but the hash are null.
    """
    unread = committed.select("hash").distinct().join(named.select("hash"), "hash", "left_anti")
    nobody = ("entry_size", "place", "oldest", *PRINTS)
    nothing = (F.lit(None).cast("bigint").alias(name) for name in nobody)
    return named.select("hash", *nobody).unionByName(unread.select("hash", *nothing))


@relation
def needs(staged: DataFrame, referenced: DataFrame) -> DataFrame:
    """Objects needed by something else than a commit (hash, is_staged): each hash once.

    Args:
        staged: hash: Uncommitted DF; is_staged is 1 of these.
        referenced: hash: addresses that other repositories name; 0 of these if not staged, too.
    """
    named = staged.select("hash", F.lit(1).alias("is_staged")).unionByName(
        referenced.select("hash", F.lit(0).alias("is_staged"))
    )
    return named.groupBy("hash").agg(F.max("is_staged").alias("is_staged"))


@relation
def exceptions(spared: DataFrame, *sweeps: DataFrame) -> DataFrame:
    """Spared objects with their reasons, and those that a sweep has deleted since the listing.

    Args:
        spared: address, why.
        sweeps: address, outcome: the records of sweeps.

    Returns:
        address, spared_why (of several the first; null where only sweeps name it) and is_swept
        (true where a sweep has deleted it or found it missing, else null): each address once.
    """
    found = spared.select("address", "why", F.lit(None).cast("boolean").alias("is_swept"))
    for one in sweeps:
        missing = one.where(F.col("outcome").isin("deleted", "already_missing"))
        found = found.unionByName(
            missing.select(
                "address", F.lit(None).cast("string").alias("why"), F.lit(True).alias("is_swept")
            )
        )
    return found.groupBy("address").agg(
        F.min("why").alias("spared_why"), F.max("is_swept").alias("is_swept")
    )


@relation
def classified(
    listing: DataFrame,
    named: DataFrame,
    needs: DataFrame,
    garbage: DataFrame,
    exceptions: DataFrame,
    moments: DataFrame,
    otherwise: str,
) -> DataFrame:
    """The class of each listed object, and of what commits hold besides.

    Args:
        listing: address, hash, size, last_modified, in_place: Store DF.
        named: as ``named_objects`` returns them.
        needs: hash, is_staged: as ``needs`` returns it.
        garbage: address, hash, reason: the candidates, each once.
        exceptions: address, spared_why, is_swept: as ``exceptions`` returns them.
        moments: one row with ``cutoff``, and with the columns of ``moments_of``. Times are columns
            and not literals, so that the plan of one run is that of the next.
        otherwise: the class of what fits in no other one.

    Returns:
        class, why, size, also_needed (true where it is listed, and something else than a commit
        needs it, too), place, oldest, age (the most days; null of what is not listed), size_class
        (the most bytes), the prints, and object: the hash of what a commit holds. A row for each
        listed object, and one for each address of a commit that is not listed, with the size that
        its entry says.
    """
    # Of what is not listed SQLFrame has no hash behind an outer join.
    held = named.withColumn("object", F.col("hash"))
    explained = with_reasons(listing, garbage, exceptions)
    # Addresses and times end here: what is listed and what is named are both large, so the rows of
    # their join are short.
    listed = with_needs(without_needs(explained, moments, otherwise), needs)
    return of_one_class(listed.join(held, "hash", "full_outer"))


# Each step is a relation, for SQLFrame copies all that a plan has at each operation on it.


@relation
def with_reasons(listing: DataFrame, garbage: DataFrame, exceptions: DataFrame) -> DataFrame:
    """Listed objects with the reason why each is garbage, and what is exceptional of it."""
    found = listing.join(garbage, ["hash", "address"], "left")
    return found.join(exceptions, "address", "left")


@relation
def without_needs(found: DataFrame, moments: DataFrame, otherwise: str) -> DataFrame:
    """The first class that fits each listed object if nothing needs it, and why.

    Returns:
        hash, size, age, why, and unneeded: that class.
    """
    modified = F.col("last_modified")
    unneeded = (
        F.when(F.col("is_swept"), F.lit(SWEPT))
        .when(F.col("reason").isNotNull(), F.lit(GARBAGE))
        .when(F.col("spared_why").isNotNull(), F.lit(SPARED))
        .when(F.col("address") == F.lit("dummy"), F.lit(LAKEFS))
        .when(~F.col("in_place"), F.lit(UNKNOWN))
        .when(modified >= F.col("cutoff"), F.lit(TOO_YOUNG))
        .otherwise(F.lit(otherwise))
    )
    ages = [(modified >= F.col(name), days) for name, days in _AGE_COLUMNS.items()]
    judged = found.crossJoin(moments).select(
        *("hash", "size", "reason", "spared_why"),
        _class_of(ages).alias("age"),
        unneeded.alias("unneeded"),
    )
    why = F.when(F.col("unneeded") == F.lit(GARBAGE), F.col("reason")).when(
        F.col("unneeded") == F.lit(SPARED), F.col("spared_why")
    )
    return judged.select("hash", "size", "age", "unneeded", why.alias("why"))


@relation
def with_needs(listed: DataFrame, needs: DataFrame) -> DataFrame:
    """Listed objects, and whether something else than a commit needs each."""
    return listed.join(needs, "hash", "left")


@relation
def of_one_class(found: DataFrame) -> DataFrame:
    """The class of each object, listed or held; see ``classified``."""
    unneeded, is_staged = F.col("unneeded"), F.col("is_staged")
    kind = (
        F.when(unneeded.isNull(), F.lit(NOT_LISTED))
        .when(unneeded == F.lit(SWEPT), unneeded)
        .when(F.col("object").isNotNull(), F.lit(COMMITTED))
        .when(is_staged == 1, F.lit(STAGED))
        .when(is_staged == 0, F.lit(REFERENCED))
        .otherwise(unneeded)
    )
    size = F.coalesce(F.col("size"), F.col("entry_size"), F.lit(0).cast("bigint"))
    judged = found.select(
        *("is_staged", "age", "why", "object", "place", "oldest", *PRINTS),
        kind.alias("class"),
        size.alias("size"),
    )
    is_live = F.col("class").isin(COMMITTED, NOT_LISTED)
    return judged.select(
        "class",
        F.when(F.col("class").isin(GARBAGE, SPARED), F.col("why")).alias("why"),
        "size",
        *(
            F.when(is_live, F.col(name)).alias(name)
            for name in ("object", "place", "oldest", *PRINTS)
        ),
        (is_live & is_staged.isNotNull()).alias("also_needed"),
        "age",
        _class_of([(F.col("size") <= F.lit(most), most) for most in SIZES]).alias("size_class"),
    )


def moments_of(cutoff: datetime, start: datetime) -> dict[str, datetime]:
    """The moments that classes depend on, by the names of their columns.

    Args:
        cutoff: an object that was written since is too young.
        start: of the run, from which ages are counted back.
    """
    ages = {name: start - timedelta(days=days) for name, days in _AGE_COLUMNS.items()}
    return {"cutoff": cutoff, **ages}


@relation
def cells(objects: DataFrame) -> DataFrame:
    """Objects and bytes of all that is equal in all that is asked for: totals are made of these.

    Args:
        objects: as ``classified`` returns them.

    Returns:
        class, why, also_needed, age, size_class, oldest, place, the prints, object (one of those
        that a commit holds), objects, bytes.
    """
    return objects.groupBy(*_CELL, "place", *PRINTS).agg(
        F.min("object").alias("object"),
        F.count(F.lit(1)).alias("objects"),
        _total("size").alias("bytes"),
    )


@relation
def holding_ranges(entries: DataFrame, cells: DataFrame) -> DataFrame:
    """The ranges that hold the objects with each pair of prints, looked up by one of the objects.

    Args:
        entries: range_id, hash, ...: the entries of the live ranges.
        cells: as ``cells`` returns them.

    Returns:
        The prints, and range_id, as often as the range names the object.
    """
    some = cells.where(F.col(PRINTS[0]).isNotNull())
    some = some.groupBy(*PRINTS).agg(F.min("object").alias("hash"))
    return entries.select("range_id", "hash").join(some, "hash").select(*PRINTS, "range_id")


@relation
def holders(holding: DataFrame, ranges: DataFrame, words: Sequence[str]) -> DataFrame:
    """The groups that hold the objects of each pair of prints.

    Args:
        holding: as ``holding_ranges`` returns them.
        ranges: as ``range_groups`` returns them.
        words: names of the columns with the groups.

    Returns:
        The prints, and holders: the words, as decimal numbers with commas between them.
    """
    united = (F.bit_or(word).cast("string") for word in words)
    return (
        holding.join(ranges.select("range_id", *words), "range_id")
        .groupBy(*PRINTS)
        .agg(F.concat_ws(",", *united).alias("holders"))
    )


@relation
def with_holders(cells: DataFrame, holders: DataFrame, folders: DataFrame) -> DataFrame:
    """Objects and bytes of the cells, with the same holders in place of the prints.

    Args:
        cells: as ``cells`` returns them.
        holders: as ``holders`` returns them.
        folders: as ``numbered_folders`` returns them.

    Returns:
        class, why, also_needed, age, size_class, oldest, folder, holders (null of what no range is
        known to name), objects, bytes.
    """
    named = cells.join(holders, list(PRINTS), "left").join(folders, "place", "left")
    return totals(named, [*_CELL, "folder", "holders"])


def _class_of(limits: Sequence[tuple[Column, int]]) -> Column:
    """The number beside the first condition that holds; ``ABOVE`` where none does."""
    (first, label), *others = limits
    found = F.when(first, F.lit(label))
    found = reduce(lambda column, one: column.when(one[0], F.lit(one[1])), others, found)
    return found.otherwise(F.lit(ABOVE)).cast("bigint")


def _total(name: str) -> Column:
    """The sum of a column, at most ``MOST``: it may be larger than any number of 64 bits.

    Who links an object tells lakeFS its size, and sizes of commits count what they share again.
    """
    # The halves of numbers are added up by themselves: sums of decimals take several times as long.
    half = F.col(name) % F.lit(_HALF)
    low = F.sum(half).cast("decimal(38,0)")
    high = F.sum(((F.col(name) - half) / F.lit(_HALF)).cast("bigint")).cast("decimal(38,0)")
    whole = high * F.lit(_HALF) + low
    # The least and the greatest of null and a number would be that number.
    found = F.when(whole > F.lit(MOST), F.lit(MOST)).when(whole < F.lit(-MOST), F.lit(-MOST))
    return found.otherwise(whole).cast("bigint")


@relation
def totals(found: DataFrame, by: Sequence[str]) -> DataFrame:
    """Objects and bytes of cells, by some of their columns."""
    sums = (_total(name).alias(name) for name in ("objects", "bytes"))
    return found.groupBy(*by).agg(*sums)


@relation
def by_folder(found: DataFrame, depth: int) -> DataFrame:
    """Objects and bytes by the outermost folders of the paths (folder, objects, bytes)."""
    pattern = "^((?:[^/]*/){1," + str(depth) + "})"
    cut = F.regexp_extract("folder", pattern, 1)
    shorter = F.when(F.col("folder").isNotNull(), cut)
    return totals(found.select(shorter.alias("folder"), "objects", "bytes"), ["folder"])


@relation
def commit_sizes(pairs: DataFrame, entries: DataFrame) -> DataFrame:
    """Objects and bytes that each metarange names (metarange_id, objects, bytes): logical sizes."""
    sizes = entries.groupBy("range_id").agg(
        F.count(F.lit(1)).alias("objects"), _total("size").alias("bytes")
    )
    return totals(pairs.join(sizes, "range_id"), ["metarange_id"])
