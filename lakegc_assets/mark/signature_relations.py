"""Relations that compare candidates with entries of branch HEADs, by size and etag.

An *entry* is a row (range_id, hash, size, etag_hash) of a range at a branch HEAD. An ``etag_hash``
of 0 says nothing about the content. A *signature* is a row (size, signature): a size, and the hash
of an etag, or ``ANY`` for any etag. The signature (``ANY``, ``ANY``) is that of an entry whose size
proves nothing, and every candidate has it. A *match* is a row (range_id, size, signature, entries):
the number of entries of a range with a signature. If two etags share a hash, more paths are asked
for, and nothing else happens.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame

from lakegc_assets.engine.relation import F, Window, relation

#: Maximum size of an object that is read for its checksum, in bytes.
SMALL: Final = 64 << 10
#: Replaces the hash of an etag if only the size counts, and a size that proves nothing.
ANY: Final = 0x6E6F20657461670A
SERVED: Final = "lakeFS serves it"
UNVERIFIED: Final = "more paths at branch HEADs look like it than may be asked"
#: Maximum number of turns; each turn has as many paths as all turns before it together.
_TURNS: Final = 40
_KEY: Final = ["size", "signature"]


@relation
def etag_evidence(
    entries: DataFrame,
    ranges: DataFrame,
    store: Sequence[DataFrame],
    few: bool,  # noqa: FBT001 - as its twin
) -> DataFrame:
    """Compare entries with the listed objects at their addresses, in etag and size.

    Args:
        entries: entries of the ranges.
        ranges: range_id, number: the ranges, each once. Spark exchanges entries with the number,
            which has an eighth of the size of the id.
        store: Store DF (hash, etag_hash, last_modified, size), in pieces.
        few: whether Spark may broadcast all pieces together, so that it need not exchange entries:
            an optimized run compares all entries with the newly listed objects.

    Returns:
        number; piece, the number of the piece; agree, 1 if all etags agree, else 0; newest, the
        time of the newest compared object; small_agree, 1 if the etag of an object of at most
        ``SMALL`` bytes agrees, else 0; sizes_agree, 1 if all sizes agree, else 0. If no etag was
        compared, agree and newest are null. Every range has a row; for entries that no piece lists,
        piece and sizes_agree are null.
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
    listed = reduce(lambda united, frame: united.unionByName(frame), pieces)
    if few:
        # A union hides from Spark that its parts are small.
        listed = listed.hint("broadcast")
    compared = F.col("piece").isNotNull() & (F.col("etag_hash") != 0)
    agrees = F.col("etag_hash") == F.col("listed")
    agree = F.when(compared, F.when(agrees, F.lit(1)).otherwise(F.lit(0)))
    small = compared & agrees & (F.col("size") <= SMALL)
    numbered = entries.join(ranges, "range_id").select("number", "hash", "size", "etag_hash")
    pairs = numbered.join(listed, "hash", "left").select(
        *("number", "piece", "size", "listed_size", "etag_hash", "listed", "last_modified")
    )
    # If the object is not listed, neither condition is true, and the result is null.
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
    """Entries whose size the listing does not confirm, grouped by size and etag.

    lakeFS stores sizes as clients declare them. If one is wrong, others may be wrong, too, so only
    sizes that the listing confirms count.

    Args:
        entries: entries of ranges.
        store: Store DF (hash, size).

    Returns:
        range_id, size, etag_hash, entries (their number).
    """
    listed = store.select("hash", F.col("size").alias("listed_size"))
    confirmed = F.coalesce(F.col("size") == F.col("listed_size"), F.lit(False))
    unclear = entries.join(listed, "hash", "left").where(~confirmed)
    return unclear.groupBy("range_id", "size", "etag_hash").agg(F.count(F.lit(1)).alias("entries"))


@relation
def unclear_matches(unclear: DataFrame) -> DataFrame:
    """Matches of entries with unclear sizes; every candidate has these matches.

    ``unclear``: from ``unclear_entries``.
    """
    counted = unclear.groupBy("range_id").agg(F.sum("entries").cast("bigint").alias("entries"))
    any_size, any_etag = F.lit(ANY).alias("size"), F.lit(ANY).alias("signature")
    return counted.select("range_id", any_size, any_etag, "entries")


# Signatures of entries


@relation
def possible_signatures(candidates: DataFrame, by_etag: bool) -> DataFrame:  # noqa: FBT001 - as its twin
    """Every signature that a candidate may have, each once.

    ``by_etag``: whether etags may be compared; else only sizes are compared.
    """
    # An entry whose etag says nothing (0) matches every candidate of its size.
    columns = [F.lit(ANY), F.col("etag_hash"), F.lit(0)] if by_etag else [F.lit(ANY)]
    # One pass over the candidates; a union would also hide from Spark that there are few.
    each = F.explode(F.array(*(column.cast("bigint") for column in columns)))
    return candidates.select("size", each.alias("signature")).distinct()


@relation
def matches(entries: DataFrame, signatures: DataFrame) -> DataFrame:
    """Number of entries of each range with each of the signatures (a match)."""
    sizes = signatures.select("size").distinct()
    near = entries.select("range_id", "size", "etag_hash").join(sizes, "size", "left_semi")
    # One pass over the many entries: a union would read them twice.
    either = F.explode(F.array(F.col("etag_hash"), F.lit(ANY).cast("bigint")))
    signatures_of_entries = near.select("range_id", "size", either.alias("signature"))
    found = signatures_of_entries.join(signatures, _KEY, "left_semi")
    return found.groupBy("range_id", *_KEY).agg(F.count(F.lit(1)).alias("entries"))


@relation
def matches_in(known: DataFrame, ranges: DataFrame, signatures: DataFrame) -> DataFrame:
    """The matches in ``ranges`` (range_id) with the signatures."""
    held = known.join(ranges, "range_id", "left_semi")
    return held.join(signatures, _KEY, "left_semi").select(*known.columns)


@relation
def other_signatures(signatures: DataFrame, known: DataFrame) -> DataFrame:
    """Signatures that are not in ``known``, each once."""
    return signatures.select(*_KEY).distinct().join(known, _KEY, "left_anti")


# The signatures of candidates


@relation
def signatures_of(
    candidates: DataFrame,
    until: datetime | None,
    contents: DataFrame,
    unclear: bool,  # noqa: FBT001 - as its twin
) -> DataFrame:
    """The signatures of each candidate (address, size, signature); all of them are asked for.

    If the etag of a candidate is a checksum, its signatures are this etag and an unclear one. If
    its content was read, they are the content's checksum, the store's etag, and an unclear one.
    Otherwise the candidate matches every entry of its size.

    Args:
        candidates: address, size, last_modified, etag_hash.
        until: etags of objects written up to this time are checksums; None if no etag is one.
        contents: address, content: hashes of the checksums of candidates that were read.
        unclear: whether entries exist whose sizes prove nothing; these match all candidates.
    """
    read = candidates.join(contents, "address", "left").select(
        "address", "size", "last_modified", "etag_hash", "content"
    )
    known = read.where(F.col("content").isNotNull())
    rest = read.where(F.col("content").isNull())
    found = [_with_signature(known, column) for column in ("content", "etag_hash", 0)]
    found.append(_with_signature(_doubtful(rest, until), ANY))
    if until is not None:
        clear = rest.where(_comparable(until))
        found += [_with_signature(clear, column) for column in ("etag_hash", 0)]
    if unclear:
        found.append(_with_signature(candidates.withColumn("size", F.lit(ANY)), ANY))
    return reduce(lambda united, frame: united.unionByName(frame), found)


def _with_signature(rows: DataFrame, signature: str | int) -> DataFrame:
    column = F.col(signature) if isinstance(signature, str) else F.lit(signature)
    return rows.select("address", "size", column.cast("bigint").alias("signature"))


def _comparable(until: datetime) -> Column:
    known = (F.col("etag_hash") != 0) & (F.col("last_modified") <= F.lit(until))
    # A null condition means unknown, and counts as not comparable.
    return F.coalesce(known, F.lit(False))


def _doubtful(candidates: DataFrame, until: datetime | None) -> DataFrame:
    """Candidates whose etags are not known to be checksums."""
    return candidates if until is None else candidates.where(~_comparable(until))


# Candidates to read


@relation
def sample(candidates: DataFrame, most: int, newest: int, others: int) -> DataFrame:
    """Small candidates whose etags may be checksums: the newest, and a few others.

    ``most``: maximum size of one, in bytes.
    ``newest``: number of the newest ones.
    ``others``: number of the others.
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
        matches: matches of the candidates.
        ranges: range_id, branches (number that hold it), pages (of a listing of it).
        until: as in ``signatures_of``.

    Returns:
        size; candidates (number); paths to ask for at branches; pages to list for these.
    """
    small = _doubtful(candidates, until).where(F.col("size") <= SMALL)
    members = small.groupBy("size").agg(F.count(F.lit(1)).alias("candidates"))
    held = matches.where(F.col("signature") == ANY).join(ranges, "range_id")
    costs = held.select(
        "size",
        (F.col("entries") * F.col("branches")).alias("of_paths"),
        # Paths that are close to each other share a page.
        (F.least("entries", "pages") * F.col("branches")).alias("of_pages"),
    )
    of_size = costs.groupBy("size").agg(
        F.sum("of_paths").cast("bigint").alias("paths"),
        F.sum("of_pages").cast("bigint").alias("pages"),
    )
    return members.join(of_size, "size").select("size", "candidates", "paths", "pages")


@relation
def to_read(candidates: DataFrame, sizes: DataFrame, until: datetime | None) -> DataFrame:
    """Candidates (address, size) of the given sizes whose etags are no checksums.

    ``sizes``: size, most: maximum number of candidates of each size.
    ``until``: as in ``signatures_of``.
    """
    numbered = _doubtful(candidates, until).join(sizes, "size").select("address", "size", "most")
    number = F.row_number().over(Window.partitionBy("size").orderBy("address"))
    return numbered.withColumn("number", number).where("number <= most").select("address", "size")


# Signatures to ask for


@relation
def paths_of_signatures(matches: DataFrame, signatures: DataFrame, ranges: DataFrame) -> DataFrame:
    """Number of paths at branches with each signature (size, signature, paths).

    ``ranges``: range_id, branches: the number of branches that hold it.
    """
    mine = matches.join(signatures.select(*_KEY).distinct(), _KEY, "left_semi")
    held = mine.join(ranges, "range_id").select(
        "size", "signature", (F.col("entries") * F.col("branches")).alias("at")
    )
    return held.groupBy("size", "signature").agg(F.sum("at").cast("bigint").alias("paths"))


@relation
def signatures_by_paths(signatures: DataFrame, most: int, kinds: int) -> DataFrame:
    """Number of signatures by the number of their paths (paths, signatures), fewest paths first.

    ``most``: maximum number of paths of a signature.
    ``kinds``: maximum number of rows.
    """
    counted = signatures.where(F.col("paths") <= most).groupBy("paths")
    return counted.agg(F.count(F.lit(1)).alias("signatures")).orderBy("paths").limit(kinds)


@relation
def asked_signatures(signatures: DataFrame, before: DataFrame, most: int, first: int) -> DataFrame:
    """The signatures to ask for, each with its turn, the rarest first (size, signature, turn).

    Args:
        signatures: size, signature, paths.
        before: paths, before: the number of paths of all signatures that have fewer paths each.
        most: maximum number of paths of all signatures together.
        first: paths in the first turn; each turn has as many as all turns before it together.
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
    turn = reduce(lambda total_turns, more: total_turns + more, turns).cast("int")
    asked = total.where(F.col("total") <= most)
    return asked.select("size", "signature", turn.alias("turn"))


@relation
def ranges_with(matches: DataFrame, signatures: DataFrame) -> DataFrame:
    """The ranges (range_id) that hold entries with one of the signatures."""
    held = matches.join(signatures.select(*_KEY), _KEY, "left_semi")
    return held.select("range_id").distinct()


@relation
def sizes_of(candidates: DataFrame) -> DataFrame:
    """The sizes of candidates, each once."""
    return candidates.select("size").distinct()


# Answers


@relation
def spared(
    candidates: DataFrame, served: DataFrame, signatures: DataFrame, doubtful: DataFrame
) -> DataFrame:
    """The candidates that stay, each once, with the reason (address, why).

    Args:
        candidates: address.
        served: name: addresses that lakeFS serves, or last parts of unresolvable addresses.
        signatures: signatures of the candidates.
        doubtful: signatures that were not asked for at all of their paths.
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
