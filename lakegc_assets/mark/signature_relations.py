"""Candidates beside entries of branch HEADs with their size and etag, and evidence of both.

An *entry* is a row (range_id, hash, size, etag_hash): what a range at a branch HEAD holds. An
``etag_hash`` of 0 says nothing about the content. A *signature* is a row (size, signature): a size,
and the hash of an etag, or ``ANY`` for whatever etag; with ``ANY`` for its size, too, it is that of
an entry whose size says nothing, and of every candidate. A *match* is a row (range_id, size,
signature, entries): how many entries of a range have a signature. Two etags with one hash only mean
that more paths are asked for.
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
#: In place of the hash of an etag, where only the size counts; and of a size that says nothing.
ANY: Final = 0x6E6F20657461670A
SERVED: Final = "lakeFS serves it"
UNVERIFIED: Final = "more paths at branch HEADs look like it than may be asked"
#: Turns at most in which signatures are asked for; each has as many paths as all before it.
_TURNS: Final = 40
_KEY: Final = ["size", "signature"]


@relation
def etag_evidence(
    entries: DataFrame,
    ranges: DataFrame,
    store: Sequence[DataFrame],
    few: bool,  # noqa: FBT001 - as its twin
) -> DataFrame:
    """Agreement of entries with the listed objects they address, in etag and size.

    Args:
        entries: those of some ranges.
        ranges: range_id, number: these ranges, each once. Entries are moved with the number, which
            is an eighth of the id.
        store: Store DF (hash, etag_hash, last_modified, size), in pieces.
        few: whether all pieces together may be sent to each task, so that entries need not be
            exchanged: an optimized run compares all of them with what was listed since.

    Returns:
        number; piece, the number of the piece; whether all etags agree there, as 1 or 0;
        newest, when the last of the objects compared was written; small_agree, whether an object
        that may be read has the etag of its entry, as 1 or 0; sizes_agree, whether all sizes are
        those of the objects, as 1 or 0. Where no etag was compared, agree and newest are null; each
        range is in the answer: piece and sizes_agree are null of what no piece lists.
    """
    pieces = [
        one.select(
            "hash",
            F.col("etag_hash").alias("listed"),
            F.col("size").alias("listed_size"),
            "last_modified",
            F.lit(number).alias("piece"),
        )
        for number, one in enumerate(store)
    ]
    listed = reduce(lambda some, more: some.unionByName(more), pieces)
    if few:
        # That its parts are small is lost in a union.
        listed = listed.hint("broadcast")
    compared = F.col("piece").isNotNull() & (F.col("etag_hash") != 0)
    agrees = F.col("etag_hash") == F.col("listed")
    agree = F.when(compared, F.when(agrees, F.lit(1)).otherwise(F.lit(0)))
    small = compared & agrees & (F.col("size") <= SMALL)
    numbered = entries.join(ranges, "range_id").select("number", "hash", "size", "etag_hash")
    pairs = numbered.join(listed, "hash", "left").select(
        *("number", "piece", "size", "listed_size", "etag_hash", "listed", "last_modified")
    )
    # Of what is not listed neither holds.
    same_size = F.when(F.col("size") == F.col("listed_size"), F.lit(1)).when(
        F.col("size") != F.col("listed_size"), F.lit(0)
    )
    return pairs.groupBy("number", "piece").agg(
        F.min(agree).alias("agree"),
        F.max(F.when(compared, F.col("last_modified"))).alias("newest"),
        F.max(F.when(small, F.lit(1)).otherwise(F.lit(0))).alias("small_agree"),
        F.min(same_size).alias("sizes_agree"),
    )


@relation
def unclear_entries(entries: DataFrame, store: DataFrame) -> DataFrame:
    """Entries whose objects are not listed in their sizes, by what they look like.

    lakeFS takes sizes as clients declare them. Where one is wrong, others may be, so that only
    those count that the listing confirms.

    Args:
        entries: those of some ranges.
        store: Store DF (hash, size).

    Returns:
        range_id, size, etag_hash, entries: how many there are.
    """
    listed = store.select("hash", F.col("size").alias("listed_size"))
    confirmed = F.coalesce(F.col("size") == F.col("listed_size"), F.lit(False))
    unclear = entries.join(listed, "hash", "left").where(~confirmed)
    return unclear.groupBy("range_id", "size", "etag_hash").agg(F.count(F.lit(1)).alias("entries"))


@relation
def unclear_matches(unclear: DataFrame) -> DataFrame:
    """Matches of entries with unclear sizes, which are the same for every candidate.

    ``unclear``: as ``unclear_entries`` gives it.
    """
    counted = unclear.groupBy("range_id").agg(F.sum("entries").cast("bigint").alias("entries"))
    any_size, any_etag = F.lit(ANY).alias("size"), F.lit(ANY).alias("signature")
    return counted.select("range_id", any_size, any_etag, "entries")


# Which signatures entries have


@relation
def possible_signatures(candidates: DataFrame, by_etag: bool) -> DataFrame:  # noqa: FBT001 - as its twin
    """Every signature that may count for a candidate, each once.

    ``by_etag``: whether etags may be compared; else only sizes are.
    """
    # An entry whose etag says nothing matches all of its size.
    columns = [F.lit(ANY), F.col("etag_hash"), F.lit(0)] if by_etag else [F.lit(ANY)]
    # One pass over the candidates; a union would also hide from Spark that they are few.
    each = F.explode(F.array(*(column.cast("bigint") for column in columns)))
    return candidates.select("size", each.alias("signature")).distinct()


@relation
def matches(entries: DataFrame, signatures: DataFrame) -> DataFrame:
    """Number of entries of each range with each of some signatures (a match)."""
    sizes = signatures.select("size").distinct()
    near = entries.select("range_id", "size", "etag_hash").join(sizes, "size", "left_semi")
    # One pass over the entries, which are many: a union would read them twice.
    either = F.explode(F.array(F.col("etag_hash"), F.lit(ANY).cast("bigint")))
    both = near.select("range_id", "size", either.alias("signature"))
    found = both.join(signatures, _KEY, "left_semi")
    return found.groupBy("range_id", *_KEY).agg(F.count(F.lit(1)).alias("entries"))


@relation
def matches_in(known: DataFrame, ranges: DataFrame, signatures: DataFrame) -> DataFrame:
    """The matches in some ranges (range_id) with some signatures."""
    held = known.join(ranges, "range_id", "left_semi")
    return held.join(signatures, _KEY, "left_semi").select(*known.columns)


@relation
def other_signatures(signatures: DataFrame, known: DataFrame) -> DataFrame:
    """Signatures that are not among others, each once."""
    return signatures.select(*_KEY).distinct().join(known, _KEY, "left_anti")


# The signatures of candidates


@relation
def signatures_of(
    candidates: DataFrame,
    until: datetime | None,
    contents: DataFrame,
    unclear: bool,  # noqa: FBT001 - as its twin
) -> DataFrame:
    """The signatures of each candidate (address, size, signature): it is asked for by all of them.

    Where its etag is a checksum, these are that etag, and an unclear one. Where its content is
    known, they are the checksum of that, the etag that the store gave, and an unclear one. Else
    whatever has its size matches.

    Args:
        candidates: address, size, last_modified, etag_hash.
        until: what was written until then has its checksum as etag; None where nothing has.
        contents: address, content: hashes of the checksums of what was read of some.
        unclear: whether there are entries whose sizes say nothing, which match all candidates.
    """
    read = candidates.join(contents, "address", "left").select(
        "address", "size", "last_modified", "etag_hash", "content"
    )
    known = read.where(F.col("content").isNotNull())
    rest = read.where(F.col("content").isNull())
    found = [_with_signature(known, one) for one in ("content", "etag_hash", 0)]
    found.append(_with_signature(_doubtful(rest, until), ANY))
    if until is not None:
        clear = rest.where(_comparable(until))
        found += [_with_signature(clear, one) for one in ("etag_hash", 0)]
    if unclear:
        found.append(_with_signature(candidates.withColumn("size", F.lit(ANY)), ANY))
    return reduce(lambda some, more: some.unionByName(more), found)


def _with_signature(rows: DataFrame, signature: str | int) -> DataFrame:
    column = F.col(signature) if isinstance(signature, str) else F.lit(signature)
    return rows.select("address", "size", column.cast("bigint").alias("signature"))


def _comparable(until: datetime) -> Column:
    known = (F.col("etag_hash") != 0) & (F.col("last_modified") <= F.lit(until))
    # What nobody can tell is not comparable, in any case.
    return F.coalesce(known, F.lit(False))


def _doubtful(candidates: DataFrame, until: datetime | None) -> DataFrame:
    """Candidates whose etags are not known to be checksums."""
    return candidates if until is None else candidates.where(~_comparable(until))


# What is read of candidates


@relation
def sample(candidates: DataFrame, most: int, newest: int, others: int) -> DataFrame:
    """Some small candidates whose etags may be checksums: the newest, and a few others.

    ``most``: bytes of one.
    ``newest``: so many of the newest ones.
    ``others``: so many of the others.
    """
    small = candidates.where((F.col("etag_hash") != 0) & (F.col("size") <= most))
    last = small.orderBy(F.col("last_modified").desc(), "address").limit(newest)
    rest = small.orderBy("hash", "address").limit(others)
    columns = ("address", "size", "last_modified", "etag")
    return last.select(*columns).unionByName(rest.select(*columns)).distinct()


@relation
def doubtful_sizes(
    candidates: DataFrame, matches: DataFrame, ranges: DataFrame, until: datetime | None
) -> DataFrame:
    """Sizes of small candidates that match entries by their size alone.

    Args:
        candidates: size, last_modified, etag_hash.
        matches: those of the candidates.
        ranges: range_id, branches: how many have it, pages: that a listing of it takes.
        until: as ``signatures_of`` takes it.

    Returns:
        size; candidates: how many; paths at branches to ask for; pages to list for that.
    """
    small = _doubtful(candidates, until).where(F.col("size") <= SMALL)
    members = small.groupBy("size").agg(F.count(F.lit(1)).alias("candidates"))
    held = matches.where(F.col("signature") == ANY).join(ranges, "range_id")
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

    ``sizes``: size, most: so many of each.
    ``until``: as ``signatures_of`` takes it.
    """
    some = _doubtful(candidates, until).join(sizes, "size").select("address", "size", "most")
    number = F.row_number().over(Window.partitionBy("size").orderBy("address"))
    return some.withColumn("number", number).where("number <= most").select("address", "size")


# What is asked


@relation
def paths_of_signatures(matches: DataFrame, signatures: DataFrame, ranges: DataFrame) -> DataFrame:
    """At how many paths of branches each signature is found (size, signature, paths).

    ``ranges``: range_id, branches: how many have it.
    """
    mine = matches.join(signatures.select(*_KEY).distinct(), _KEY, "left_semi")
    held = mine.join(ranges, "range_id").select(
        "size", "signature", (F.col("entries") * F.col("branches")).alias("at")
    )
    return held.groupBy("size", "signature").agg(F.sum("at").cast("bigint").alias("paths"))


@relation
def signatures_by_paths(signatures: DataFrame, most: int, kinds: int) -> DataFrame:
    """Number of signatures by the number of their paths (paths, signatures), fewest paths first.

    ``most``: paths of a signature.
    ``kinds``: rows at most.
    """
    counted = signatures.where(F.col("paths") <= most).groupBy("paths")
    return counted.agg(F.count(F.lit(1)).alias("signatures")).orderBy("paths").limit(kinds)


@relation
def asked_signatures(signatures: DataFrame, before: DataFrame, most: int, first: int) -> DataFrame:
    """The signatures to ask for, the rarest first, and in which turn (size, signature, turn).

    Args:
        signatures: size, signature, paths.
        before: paths, before: paths of all signatures that are rarer than those with so many.
        most: paths of all signatures together.
        first: paths of the first turn; all turns before one have as many as it has.
    """
    ordered = Window.partitionBy("paths").orderBy("size", "signature")
    ranked = signatures.withColumn("number", F.row_number().over(ordered))
    total = ranked.join(before, "paths").select(
        "size", "signature", (F.col("before") + F.col("number") * F.col("paths")).alias("total")
    )
    turns = [
        F.when(F.col("total") > first * 2**turn, F.lit(1)).otherwise(F.lit(0))
        for turn in range(_TURNS)
    ]
    turn = reduce(lambda some, more: some + more, turns).cast("int")
    asked = total.where(F.col("total") <= most)
    return asked.select("size", "signature", turn.alias("turn"))


@relation
def ranges_with(matches: DataFrame, signatures: DataFrame) -> DataFrame:
    """The ranges (range_id) that hold entries of some signatures."""
    held = matches.join(signatures.select(*_KEY), _KEY, "left_semi")
    return held.select("range_id").distinct()


@relation
def sizes_of(candidates: DataFrame) -> DataFrame:
    """The sizes of candidates, each once."""
    return candidates.select("size").distinct()


# What is answered


@relation
def spared(
    candidates: DataFrame, served: DataFrame, signatures: DataFrame, doubtful: DataFrame
) -> DataFrame:
    """The candidates that stay, each once, with the reason (address, why).

    Args:
        candidates: address.
        served: name: what lakeFS serves; the last part of an address that nobody can resolve.
        signatures: those of candidates.
        doubtful: signatures of which not all paths were asked for.
    """
    parts = candidates.select("address", F.element_at(F.split("address", "/"), -1).alias("part"))
    by_name = parts.join(served.select(F.col("name").alias("address")), "address", "left_semi")
    by_part = parts.join(served.select(F.col("name").alias("part")), "part", "left_semi")
    unsure = signatures.join(doubtful.select(*_KEY), _KEY, "left_semi")
    sure, doubt = F.lit(1).alias("served"), F.lit(0).alias("served")
    found = by_name.select("address", sure).unionByName(by_part.select("address", sure))
    each = found.unionByName(unsure.select("address", doubt)).groupBy("address")
    best = each.agg(F.max("served").alias("served"))
    why = F.when(F.col("served") == 1, F.lit(SERVED)).otherwise(F.lit(UNVERIFIED))
    return best.select("address", why.alias("why"))
