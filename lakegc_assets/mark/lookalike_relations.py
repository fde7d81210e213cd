"""Candidates that look like entries at branch HEADs, and evidence of etags, as relations.

An *entry* is a row (range_id, hash, size, etag_hash): what a range at a branch HEAD holds. An
``etag_hash`` of 0 says nothing about the content. A *look* is a row (size, look): what has a size,
and an etag, whose hash ``look`` is; or any etag, where it is ``ANY``. An etag with that very hash
only means that more paths are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame

from lakegc_assets.engine.relation import F, Window, relation

#: Objects that may be read to know their checksum, in bytes.
SMALL: Final = 64 << 10
#: In place of the hash of an etag: of what looks alike by its size alone.
ANY: Final = 0x6E6F20657461670A
SERVED: Final = "lakeFS serves it"
UNVERIFIED: Final = "more paths at branch HEADs look like it than may be asked"
#: Turns at most in which looks are asked for; each has as many paths as all before it.
_TURNS: Final = 40


@relation
def etag_evidence(entries: DataFrame, store: Sequence[DataFrame]) -> DataFrame:
    """Counts of entries whose etag equals, or differs from, that of the listed object they address.

    Args:
        entries: those of some ranges.
        store: Store DF (hash, etag_hash, last_modified), in pieces.

    Returns:
        range_id; piece, the number of the piece; whether all etags agree there, as 1 or 0;
        newest, when the last of the objects compared was written; small_agree, whether an object
        that may be read has the etag of its entry, as 1 or 0. Where nothing was compared, agree and
        newest are null. Each range is in the answer: piece is null of what no piece lists.
    """
    pieces = [
        one.select(
            "hash",
            F.col("etag_hash").alias("listed"),
            "last_modified",
            F.lit(number).alias("piece"),
        )
        for number, one in enumerate(store)
    ]
    listed = reduce(lambda some, more: some.unionByName(more), pieces)
    compared = F.col("piece").isNotNull() & (F.col("etag_hash") != 0)
    agrees = F.col("etag_hash") == F.col("listed")
    agree = F.when(compared, F.when(agrees, F.lit(1)).otherwise(F.lit(0)))
    small = compared & agrees & (F.col("size") <= SMALL)
    pairs = entries.join(listed, "hash", "left").select(
        "range_id", "piece", "size", "etag_hash", "listed", "last_modified"
    )
    return pairs.groupBy("range_id", "piece").agg(
        F.min(agree).alias("agree"),
        F.max(F.when(compared, F.col("last_modified"))).alias("newest"),
        F.max(F.when(small, F.lit(1)).otherwise(F.lit(0))).alias("small_agree"),
    )


# Which looks entries have


@relation
def looks_of_all(candidates: DataFrame, by_etag: bool) -> DataFrame:  # noqa: FBT001 - as its twin
    """Every look that may count for a candidate, each once.

    Args:
        candidates: size, etag_hash.
        by_etag: whether etags may be compared; else only sizes are.
    """
    by_size = _looks(candidates, F.lit(ANY))
    if not by_etag:
        return by_size.distinct()
    with_etag = _looks(candidates, F.col("etag_hash"))
    # An entry whose etag says nothing looks like all of its size.
    unclear = _looks(candidates, F.lit(0))
    return by_size.unionByName(with_etag).unionByName(unclear).distinct()


@relation
def alike(entries: DataFrame, looks: DataFrame) -> DataFrame:
    """Number of entries of each range for each size and etag (range_id, size, look, entries)."""
    sizes = looks.select("size").distinct()
    near = entries.select("range_id", "size", "etag_hash").join(sizes, "size", "left_semi")
    # One pass over the entries, which are many: a union would read them twice.
    either = F.explode(F.array(F.col("etag_hash"), F.lit(ANY).cast("bigint")))
    both = near.select("range_id", "size", either.alias("look"))
    found = both.join(looks, ["size", "look"], "left_semi")
    return found.groupBy("range_id", "size", "look").agg(F.count(F.lit(1)).alias("entries"))


@relation
def alike_in(known: DataFrame, ranges: DataFrame, looks: DataFrame) -> DataFrame:
    """Rows of an earlier ``alike`` for some of its ranges and looks.

    Args:
        known: the result of ``alike`` for more ranges, and for more looks.
        ranges: range_id.
        looks: size, look.
    """
    held = known.join(ranges, "range_id", "left_semi")
    return held.join(looks, ["size", "look"], "left_semi").select(*known.columns)


@relation
def unknown_looks(looks: DataFrame, known: DataFrame) -> DataFrame:
    """Looks that are not among others, each once."""
    return looks.select("size", "look").distinct().join(known, ["size", "look"], "left_anti")


def _looks(rows: DataFrame, look: Column) -> DataFrame:
    return rows.select("size", look.cast("bigint").alias("look"))


# What candidates look like


@relation
def looks_of(candidates: DataFrame, until: datetime | None, contents: DataFrame) -> DataFrame:
    """The looks of each candidate (address, size, look): it is asked for by all of them.

    Where its etag is a checksum, it looks like entries of that etag, and of an unclear one. Where
    its content is known, it looks like entries with the checksum of that, with the etag that the
    store gave, and with an unclear one. Else it looks like all of its size.

    Args:
        candidates: address, size, last_modified, etag_hash.
        until: what was written until then has its checksum as etag; None where nothing has.
        contents: address, content: hashes of the checksums of what was read of some.
    """
    read = candidates.join(contents, "address", "left").select(
        "address", "size", "last_modified", "etag_hash", "content"
    )
    known = read.where(F.col("content").isNotNull())
    rest = read.where(F.col("content").isNull())
    found = [_looks_by(known, "content"), _looks_by(known, "etag_hash"), _looks_by(known, 0)]
    found.append(_looks_by(_doubtful(rest, until), ANY))
    if until is not None:
        clear = rest.where(_comparable(until))
        found += [_looks_by(clear, "etag_hash"), _looks_by(clear, 0)]
    return reduce(lambda some, more: some.unionByName(more), found)


def _looks_by(rows: DataFrame, look: str | int) -> DataFrame:
    column = F.col(look) if isinstance(look, str) else F.lit(look)
    return rows.select("address", "size", column.cast("bigint").alias("look"))


def _comparable(until: datetime) -> Column:
    known = (F.col("etag_hash") != 0) & (F.col("last_modified") <= F.lit(until))
    # What nobody can tell is not comparable, in any case.
    return F.coalesce(known, F.lit(False))


def _doubtful(candidates: DataFrame, until: datetime | None) -> DataFrame:
    """Those whose etags are no checksums, as far as is known."""
    return candidates if until is None else candidates.where(~_comparable(until))


# What is read of candidates


@relation
def sample(candidates: DataFrame, most: int, newest: int, others: int) -> DataFrame:
    """Some small candidates whose etags may be checksums: the newest, and a few others.

    Args:
        candidates: address, hash, size, last_modified, etag, etag_hash.
        most: bytes of one.
        newest: so many of the newest ones.
        others: so many of the others.
    """
    small = candidates.where((F.col("etag_hash") != 0) & (F.col("size") <= most))
    last = small.orderBy(F.col("last_modified").desc(), "address").limit(newest)
    rest = small.orderBy("hash", "address").limit(others)
    columns = ("address", "size", "last_modified", "etag")
    return last.select(*columns).unionByName(rest.select(*columns)).distinct()


@relation
def doubtful_sizes(
    candidates: DataFrame, alike: DataFrame, ranges: DataFrame, until: datetime | None
) -> DataFrame:
    """Sizes of small candidates that look like entries by their size alone.

    Args:
        candidates: size, last_modified, etag_hash.
        alike: range_id, size, look, entries.
        ranges: range_id, branches: how many have it, pages: that a listing of it takes.
        until: as ``looks_of`` takes it.

    Returns:
        size; candidates: how many; paths at branches to ask for; pages to list for that.
    """
    small = _doubtful(candidates, until).where(F.col("size") <= SMALL)
    members = small.groupBy("size").agg(F.count(F.lit(1)).alias("candidates"))
    held = alike.where(F.col("look") == ANY).join(ranges, "range_id")
    costs = held.select(
        "size",
        (F.col("entries") * F.col("branches")).alias("of_paths"),
        # Paths that lie close by share a page.
        (F.least("entries", "pages") * F.col("branches")).alias("of_pages"),
    )
    of_size = costs.groupBy("size").agg(
        F.sum("of_paths").cast("bigint").alias("paths"),
        F.sum("of_pages").cast("bigint").alias("pages"),
    )
    return members.join(of_size, "size").select("size", "candidates", "paths", "pages")


@relation
def to_read(candidates: DataFrame, sizes: DataFrame, until: datetime | None) -> DataFrame:
    """Candidates (address, size) of some sizes whose etags are no checksums.

    Args:
        candidates: address, size, last_modified, etag_hash.
        sizes: size, most: so many of each.
        until: as ``looks_of`` takes it.
    """
    some = _doubtful(candidates, until).join(sizes, "size").select("address", "size", "most")
    number = F.row_number().over(Window.partitionBy("size").orderBy("address"))
    return some.withColumn("number", number).where("number <= most").select("address", "size")


# What is asked


@relation
def paths_of_looks(alike: DataFrame, looks: DataFrame, ranges: DataFrame) -> DataFrame:
    """At how many paths of branches each look of a candidate is found (size, look, paths).

    Args:
        alike: range_id, size, look, entries.
        looks: address, size, look: those of candidates.
        ranges: range_id, branches: how many have it.
    """
    mine = alike.join(looks.select("size", "look").distinct(), ["size", "look"], "left_semi")
    held = mine.join(ranges, "range_id").select(
        "size", "look", (F.col("entries") * F.col("branches")).alias("at")
    )
    return held.groupBy("size", "look").agg(F.sum("at").cast("bigint").alias("paths"))


@relation
def looks_by_paths(looks: DataFrame, most: int, kinds: int) -> DataFrame:
    """Number of looks by the number of their paths (paths, looks), fewest paths first.

    Args:
        looks: size, look, paths.
        most: paths of a look.
        kinds: rows at most.
    """
    counted = looks.where(F.col("paths") <= most).groupBy("paths")
    return counted.agg(F.count(F.lit(1)).alias("looks")).orderBy("paths").limit(kinds)


@relation
def asked_looks(looks: DataFrame, before: DataFrame, most: int, first: int) -> DataFrame:
    """The looks that are asked for, the rarest first, and in which turn (size, look, turn).

    Args:
        looks: size, look, paths.
        before: paths, before: paths of all looks that are rarer than those with so many.
        most: paths of all looks together.
        first: paths of the first turn; all turns before one have as many as it has.
    """
    ordered = Window.partitionBy("paths").orderBy("size", "look")
    ranked = looks.withColumn("number", F.row_number().over(ordered))
    total = ranked.join(before, "paths").select(
        "size", "look", (F.col("before") + F.col("number") * F.col("paths")).alias("total")
    )
    turns = [
        F.when(F.col("total") > first * 2**turn, F.lit(1)).otherwise(F.lit(0))
        for turn in range(_TURNS)
    ]
    turn = reduce(lambda some, more: some + more, turns).cast("int")
    asked = total.where(F.col("total") <= most)
    return asked.select("size", "look", turn.alias("turn"))


@relation
def ranges_with(alike: DataFrame, looks: DataFrame) -> DataFrame:
    """The ranges (range_id) that hold entries of some looks."""
    held = alike.join(looks.select("size", "look"), ["size", "look"], "left_semi")
    return held.select("range_id").distinct()


@relation
def sizes_of(candidates: DataFrame) -> DataFrame:
    """The sizes of candidates, each once."""
    return candidates.select("size").distinct()


# What is answered


@relation
def spared(
    candidates: DataFrame, served: DataFrame, looks: DataFrame, doubtful: DataFrame
) -> DataFrame:
    """The candidates that stay, each once, with the reason (address, why).

    Args:
        candidates: address.
        served: name: what lakeFS serves; the last part of an address that nobody can resolve.
        looks: address, size, look: those of candidates.
        doubtful: size, look: of which not all paths were asked for.
    """
    parts = candidates.select("address", F.element_at(F.split("address", "/"), -1).alias("part"))
    by_name = parts.join(served.select(F.col("name").alias("address")), "address", "left_semi")
    by_part = parts.join(served.select(F.col("name").alias("part")), "part", "left_semi")
    unsure = looks.join(doubtful.select("size", "look"), ["size", "look"], "left_semi")
    sure, doubt = F.lit(1).alias("served"), F.lit(0).alias("served")
    found = by_name.select("address", sure).unionByName(by_part.select("address", sure))
    each = found.unionByName(unsure.select("address", doubt)).groupBy("address")
    best = each.agg(F.max("served").alias("served"))
    why = F.when(F.col("served") == 1, F.lit(SERVED)).otherwise(F.lit(UNVERIFIED))
    return best.select("address", why.alias("why"))
