"""Relations that give each listed object its class and its holders, and the totals of both.

The holders of an object are a set of *groups*. A group is the set of branches that keep a commit,
so there are few groups. Group n is bit ``n % WORD`` of the column ``word_<n // WORD>``. A bitwise
OR unites sets of any number of commits.

There are far fewer sets of ranges than objects that they name. So the row of an object holds only
its *prints*: the sums of two random numbers of each of its ranges. The sets are united for one
object of each pair of sums. Two different sets of ranges have equal sums with a probability of
2**-72.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame

from lakegc_assets.engine.relation import F, Window, relation

#: Bits per word; every word is a non-negative number.
WORD: Final = 62
#: Columns with the random numbers of a range and with their sums, and the bits of one random
#: number. The sum fits a long for an object that is named up to 2**27 times.
PRINTS: Final = ("print_0", "print_1")
PRINT_BITS: Final = 36
#: Classes of objects: an object has exactly one class, the first that matches.
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
#: The class of objects that a commit names and the listing lacks; no listed object has it.
NOT_LISTED: Final = "not listed"
#: Upper limits of the age classes, in days, and of the size classes, in bytes; -1 for all above.
AGES: Final = (1, 7, 30, 90, 180, 365, 730)
SIZES: Final = (1 << 10, 1 << 16, 1 << 20, 1 << 24, 1 << 27, 1 << 30, 1 << 34)
ABOVE: Final = -1
_AGE_COLUMNS: Final = {f"since_{days}": days for days in AGES}
#: The largest total of bytes, far more than any store holds.
MOST: Final = 2**62
#: Exclusive upper limit of the lower half of a 64-bit number.
_HALF: Final = 2**32
#: Columns that identify a cell, besides its folder and its holders.
_CELL: Final = ("class", "why", "also_needed", "age", "size_class", "oldest")


def words_of(groups: int) -> list[str]:
    """The names of the columns that hold the bits of this number of groups."""
    return [f"word_{number}" for number in range(-(-groups // WORD))]


@relation
def range_groups(
    ranges: DataFrame, pairs: DataFrame, commits: DataFrame, words: Sequence[str]
) -> DataFrame:
    """The groups of each live range: the groups of all commits that have it.

    Args:
        ranges: range_id, and its prints.
        pairs: metarange_id, range_id: the ranges of the metaranges.
        commits: metarange_id, age_rank, and the words: of the active commits, each metarange once.
        words: names of the columns with the groups.

    Returns:
        The columns of ``ranges``; oldest, the least age_rank of the commits, null where no active
        commit has the range; and the words. If no active commit has a live range, only the first
        group, of no branch, holds it.
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
    """The folders of entries, each once, with their sorted places from 1 on (folder, place).

    Objects carry the place and not the folder: Spark has to sort to find the least of several
    texts, but not to find the least of several numbers.
    """
    named = entries.where(F.col("folder").isNotNull()).select("folder").distinct()
    # All rows are in one window; PySpark warns about a window without a partition.
    named = named.withColumn("together", F.lit(1))
    place = F.row_number().over(Window.partitionBy("together").orderBy("folder"))
    return named.select("folder", place.cast("bigint").alias("place"))


@relation
def named_objects(entries: DataFrame, ranges: DataFrame, folders: DataFrame) -> DataFrame:
    """The objects that entries name.

    Args:
        entries: range_id, hash, size, folder: the entries of the live ranges.
        ranges: as ``range_groups`` returns them: one row for the range of each entry.
        folders: as ``numbered_folders`` returns them.

    Returns:
        hash; entry_size (bytes); place of its first folder, null without a folder; oldest, null
        where no active commit has such a range; and the sums of the prints of the ranges.
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
    """Named objects, and one row for each other live object, for which the holders are not known.

    Args:
        named: as ``named_objects`` returns them.
        committed: hash: Committed DF, with the duplicates of its files.

    Returns:
        The columns of ``named``; in the added rows all columns but the hash are null.
    """
    unread = committed.select("hash").distinct().join(named.select("hash"), "hash", "left_anti")
    nobody = ("entry_size", "place", "oldest", *PRINTS)
    nothing = (F.lit(None).cast("bigint").alias(name) for name in nobody)
    return named.select("hash", *nobody).unionByName(unread.select("hash", *nothing))


@relation
def needs(staged: DataFrame, referenced: DataFrame) -> DataFrame:
    """Objects that a staged entry or another repository needs (hash, is_staged), each hash once.

    Args:
        staged: hash: Uncommitted DF; its rows get is_staged 1.
        referenced: hash: addresses that other repositories name; is_staged 0 if not staged as well.
    """
    named = staged.select("hash", F.lit(1).alias("is_staged")).unionByName(
        referenced.select("hash", F.lit(0).alias("is_staged"))
    )
    return named.groupBy("hash").agg(F.max("is_staged").alias("is_staged"))


@relation
def exceptions(spared: DataFrame, *sweeps: DataFrame) -> DataFrame:
    """Spared objects with their reasons, and objects that a sweep deleted after the listing.

    Args:
        spared: address, why.
        sweeps: address, outcome: the records of sweeps.

    Returns:
        address, spared_why (the first of several; null where only sweeps name the address) and
        is_swept (true where a sweep deleted the object or found it missing, else null): each
        address once.
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
    """The class of each listed object, and of the unlisted objects that commits name.

    Args:
        listing: address, hash, size, last_modified, in_place: Store DF.
        named: as ``named_objects`` returns them.
        needs: hash, is_staged: as ``needs`` returns it.
        garbage: address, hash, reason: the candidates, each once.
        exceptions: address, spared_why, is_swept: as ``exceptions`` returns them.
        moments: one row with ``cutoff`` and the columns of ``moments_of``. Times are columns and
            not literals, so that every run has the same query plan.
        otherwise: the class of objects that match no other class.

    Returns:
        class, why, size, also_needed (true where the object is listed, and a staged entry or
        another repository needs it too), place, oldest, age (the upper limit in days; null for
        unlisted objects), size_class (the upper limit in bytes), the prints, and object: the hash
        of an object that a commit names. There is one row for each listed object, and one for each
        unlisted address of a commit, with the size of its entry.
    """
    # SQLFrame loses the hash of unlisted objects after an outer join, so ``object`` carries a copy.
    held = named.withColumn("object", F.col("hash"))
    explained = with_reasons(listing, garbage, exceptions)
    # Addresses and times are dropped here: the listed and the named objects are both large, so the
    # join gets short rows.
    listed = with_needs(without_needs(explained, moments, otherwise), needs)
    return of_one_class(listed.join(held, "hash", "full_outer"))


# Each step is a relation of its own, because every operation of SQLFrame copies the whole plan.


@relation
def with_reasons(listing: DataFrame, garbage: DataFrame, exceptions: DataFrame) -> DataFrame:
    """Listed objects with the reason why each is garbage, and with its exceptions."""
    found = listing.join(garbage, ["hash", "address"], "left")
    return found.join(exceptions, "address", "left")


@relation
def without_needs(found: DataFrame, moments: DataFrame, otherwise: str) -> DataFrame:
    """The first class that matches each listed object if nothing needs it, and the reason.

    Returns:
        hash, size, age, why, and unneeded: the class.
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
    """Listed objects, with a flag for those that a staged entry or another repository needs."""
    return listed.join(needs, "hash", "left")


@relation
def of_one_class(found: DataFrame) -> DataFrame:
    """The class of each object that is listed or that a commit names; see ``classified``."""
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
    """The moments that the classes depend on, by the names of their columns.

    Args:
        cutoff: an object written at or after it is too young.
        start: of the run; ages are counted back from it.
    """
    ages = {name: start - timedelta(days=days) for name, days in _AGE_COLUMNS.items()}
    return {"cutoff": cutoff, **ages}


@relation
def cells(objects: DataFrame) -> DataFrame:
    """Objects and bytes, grouped by all columns that totals need.

    Args:
        objects: as ``classified`` returns them.

    Returns:
        class, why, also_needed, age, size_class, oldest, place, the prints, object (one of the
        objects that a commit names), objects, bytes.
    """
    return objects.groupBy(*_CELL, "place", *PRINTS).agg(
        F.min("object").alias("object"),
        F.count(F.lit(1)).alias("objects"),
        _total("size").alias("bytes"),
    )


@relation
def holding_ranges(entries: DataFrame, cells: DataFrame) -> DataFrame:
    """The ranges that hold the objects with each pair of prints, found by one of the objects.

    Args:
        entries: range_id, hash, ...: the entries of the live ranges.
        cells: as ``cells`` returns them.

    Returns:
        The prints, and range_id, once for each entry of the range that names the object.
    """
    samples = cells.where(F.col(PRINTS[0]).isNotNull())
    samples = samples.groupBy(*PRINTS).agg(F.min("object").alias("hash"))
    return entries.select("range_id", "hash").join(samples, "hash").select(*PRINTS, "range_id")


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
    """Objects and bytes of the cells, with holders in place of prints.

    Args:
        cells: as ``cells`` returns them.
        holders: as ``holders`` returns them.
        folders: as ``numbered_folders`` returns them.

    Returns:
        class, why, also_needed, age, size_class, oldest, folder, holders (null where no known range
        names the objects), objects, bytes.
    """
    named = cells.join(holders, list(PRINTS), "left").join(folders, "place", "left")
    return totals(named, [*_CELL, "folder", "holders"])


def _class_of(limits: Sequence[tuple[Column, int]]) -> Column:
    """The number of the first condition that holds; ``ABOVE`` if none holds."""
    (first, label), *others = limits
    found = F.when(first, F.lit(label))
    found = reduce(lambda column, one: column.when(one[0], F.lit(one[1])), others, found)
    return found.otherwise(F.lit(ABOVE)).cast("bigint")


def _total(name: str) -> Column:
    """The sum of a column, at most ``MOST``: the sum may exceed a number of 64 bits.

    The client that links an object tells lakeFS its size, and the sizes of commits count shared
    objects several times.
    """
    # The two halves of the numbers are summed separately: sums of decimals take several times as
    # long.
    half = F.col(name) % F.lit(_HALF)
    low = F.sum(half).cast("decimal(38,0)")
    high = F.sum(((F.col(name) - half) / F.lit(_HALF)).cast("bigint")).cast("decimal(38,0)")
    whole = high * F.lit(_HALF) + low
    # The least and the greatest of null and a number would return that number.
    found = F.when(whole > F.lit(MOST), F.lit(MOST)).when(whole < F.lit(-MOST), F.lit(-MOST))
    return found.otherwise(whole).cast("bigint")


@relation
def totals(found: DataFrame, by: Sequence[str]) -> DataFrame:
    """Objects and bytes of cells, grouped by the given columns."""
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
    """Logical size of each metarange: the objects and bytes that it names.

    Returns:
        metarange_id, objects, bytes.
    """
    sizes = entries.groupBy("range_id").agg(
        F.count(F.lit(1)).alias("objects"), _total("size").alias("bytes")
    )
    return totals(pairs.join(sizes, "range_id"), ["metarange_id"])
