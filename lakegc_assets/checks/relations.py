"""Violations of the invariants, as relations of the checks' own over whole addresses.

Committed DF is here what the checks' own reader finds in the ranges of branch HEADs and of tags,
whose columns are those of ``witness.ENTRIES``.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from pyspark.sql import Column, DataFrame

from lakegc_assets.engine.relation import F, relation

#: The folder of an address's slice: empty where it is in none.
_SLICE: Final = "^data/[^/]*/"
#: An etag of which it tells something that another one differs.
_MD5: Final = "^[0-9a-f]{32}$"
_DIGITS: Final = 32


@relation
def outside(candidates: DataFrame) -> DataFrame:
    """Candidates that are not where lakeFS writes objects: in and below data/, or at the root.

    In ``data/`` it makes one folder, or three where the name of the first begins with ``!``.
    """
    address = F.col("address")
    folders = F.when(address.startswith("data/!"), F.lit(4)).otherwise(F.lit(2))
    deeper = F.size(F.split(address, "/")) - F.lit(1) > folders
    in_data = address.startswith("data/") & (F.length(address) > len("data/"))
    at_root = ~address.contains("/") & (F.length(address) > 0)
    parts = F.concat(F.lit("/"), address, F.lit("/"))
    odd = parts.contains("/./") | parts.contains("/../") | address.contains("://")
    wrong = address.isNull() | ~(in_data | at_root) | odd | deeper
    return candidates.where(wrong).select("address")


@relation
def special(candidates: DataFrame) -> DataFrame:
    """Candidates that are lakeFS's own, of whatever repository, or have a line break."""
    address = F.col("address")
    # Below data/ they are of a repository in there, which this server may know nothing of.
    parts = F.concat(F.lit("/"), address)
    own = address.startswith("_lakefs") | parts.contains("/_lakefs/") | parts.endswith("/dummy")
    broken = address.contains("\n") | address.contains("\r")
    return candidates.where(own | broken).select("address")


@relation
def not_old(candidates: DataFrame, store: DataFrame, cutoff: datetime) -> DataFrame:
    """Candidates that Store DF lacks, or has with a time that is not before the cutoff.

    Args:
        candidates: address.
        store: address and last_modified of what is listed; an address may be listed twice.
        cutoff: of the mark.
    """
    named = candidates.select("address")
    # Of what is listed only these, so that all others need not be moved for an outer join.
    times = store.select("address", "last_modified").join(named, "address", "left_semi")
    found = named.join(times, "address", "left")
    young = F.col("last_modified").isNull() | (F.col("last_modified") >= F.lit(cutoff))
    return found.where(young).select("address").distinct()


@relation
def of_tags(entries: DataFrame, ranges: DataFrame, tags: DataFrame) -> DataFrame:
    """Addresses held by tags (name of the tag, address).

    Args:
        entries: of ranges.
        ranges: range_id and commit_id, a row for each range of a commit.
        tags: name and commit_id, a row for each tag.
    """
    of_each = ranges.join(tags, "commit_id").select("name", "range_id")
    return entries.join(of_each, "range_id").select("name", "address")


@relation
def within(entries: DataFrame, spans: DataFrame) -> DataFrame:
    """The addresses of those entries whose numbers are in a span of their range.

    Args:
        entries: range_id, number, address.
        spans: range_id, first, behind: the numbers from the first on, and before the last.
    """
    held = entries.join(spans, "range_id")
    from_first = held.where(F.col("number") >= F.col("first"))
    return from_first.where(F.col("number") < F.col("behind")).select("address")


@relation
def named(addresses: DataFrame, check: str) -> DataFrame:
    """Addresses that no candidate may have (check, name, address), and the check that says so.

    Args:
        addresses: address, and perhaps name: what has it.
        check: its name.
    """
    name = F.col("name") if "name" in addresses.columns else F.lit(None).cast("string")
    return addresses.select(
        F.lit(check).alias("check"), name.alias("name"), F.col("address").alias("address")
    )


@relation
def found(addresses: DataFrame, candidates: DataFrame) -> DataFrame:
    """Candidates that are among forbidden addresses: each once for each check and name.

    Args:
        addresses: check, name and address.
        candidates: address.
    """
    return addresses.join(candidates.select("address"), "address", "left_semi").distinct()


@relation
def counts(wrong: DataFrame) -> DataFrame:
    """The number of addresses for each check and name (check, name, objects)."""
    return wrong.groupBy("check", "name").agg(F.count(F.lit(1)).alias("objects"))


@relation
def first(addresses: DataFrame, most: int) -> DataFrame:
    """Rows of some addresses to be shown: the first ones, in order; null is the very first."""
    return addresses.orderBy(F.col("address").asc_nulls_first()).limit(most)


@relation
def expected(entries: DataFrame, before: datetime | None) -> DataFrame:
    """Addresses that branch HEADs name and that are old enough to be listed, some several times.

    Args:
        entries: of HEADs.
        before: an entry of before then should be listed; None if all.
    """
    placed = entries.where(F.col("address").isNotNull())
    old = placed if before is None else placed.where(_is_before(before))
    return old.select("address")


@relation
def outside_slices(addresses: DataFrame, unlisted: DataFrame) -> DataFrame:
    """Rows of addresses that are in none of the slices that were not listed.

    Args:
        addresses: address, and perhaps more.
        unlisted: folder of each slice, with a slash at its end.
    """
    placed = addresses.withColumn("folder", F.regexp_extract("address", _SLICE, 0))
    return placed.join(unlisted, "folder", "left_anti").select(*addresses.columns)


@relation
def unlike(entries: DataFrame, store: DataFrame, before: datetime | None) -> DataFrame:
    """Addresses at branch HEADs that are not listed, or are listed in another size, each once.

    Args:
        entries: of HEADs.
        store: address and size of what is listed.
        before: as ``expected`` takes it.

    Returns:
        address, and the size that is listed, which is not that of an entry; null of an address that
        should be listed and is not.
    """
    placed = entries.where(F.col("address").isNotNull())
    # No address is null here. DuckDB takes what is filtered for a fifth of it: with a filter on one
    # side alone it would hold that one in memory, which is the larger.
    listed = store.where(F.col("address").isNotNull())
    listed = listed.select("address", F.col("size").alias("listed"))
    beside = placed.join(listed, "address", "left")
    due = F.lit(True) if before is None else _is_before(before)
    lacks = F.col("listed").isNull() & due
    differs = F.coalesce(F.col("listed") != F.col("size"), F.lit(False))
    return beside.where(lacks | differs).select("address", "listed").distinct()


@relation
def still_there(anew: DataFrame, carried: DataFrame, swept: DataFrame) -> DataFrame:
    """Store DF (address, size) without what was carried forward from an earlier listing and swept.

    Args:
        anew: what was listed anew.
        carried: what was carried forward.
        swept: address and outcome of what sweeps since then did.
    """
    gone = swept.where(F.col("outcome").isin("deleted", "already_missing")).select("address")
    columns = ("address", "size")
    kept = carried.select(*columns).join(gone, "address", "left_anti")
    return anew.select(*columns).unionAll(kept)


@relation
def distinct(addresses: DataFrame) -> DataFrame:
    """Addresses, each once."""
    return addresses.select("address").distinct()


@relation
def without(addresses: DataFrame, others: DataFrame) -> DataFrame:
    """Anti-join: the addresses that other rows lack, each once."""
    found = addresses.join(others.select("address"), "address", "left_anti")
    return found.select("address").distinct()


@relation
def deleted_before(addresses: DataFrame, known: DataFrame) -> DataFrame:
    """Addresses that earlier runs deleted, each once, with the last such run (address, run).

    Args:
        addresses: address.
        known: address, and the run that deleted it; null where only its loss is known.
    """
    deleted = known.where(F.col("run").isNotNull())
    found = deleted.join(addresses.select("address"), "address", "left_semi")
    return found.groupBy("address").agg(F.max("run").alias("run"))


@relation
def sample(addresses: DataFrame, most: int) -> DataFrame:
    """A deterministic sample of addresses: those with the least MD5."""
    mixed = addresses.select("address", F.md5("address").alias("mixed"))
    return mixed.orderBy("mixed").limit(most).select("address")


@relation
def total(addresses: DataFrame) -> DataFrame:
    """The number of rows (objects)."""
    return addresses.agg(F.count(F.lit(1)).alias("objects"))


@relation
def questions(
    entries: DataFrame,
    candidates: DataFrame,
    ranges: DataFrame,
    heads: DataFrame,
    lost: Sequence[DataFrame],
    confirming: Sequence[DataFrame],
) -> DataFrame:
    """Entries of HEADs that look like a candidate, for each branch that has them.

    An upload that equals what a HEAD has at its path is served, and no list of staged objects names
    it. So lakeFS is asked what it serves at the paths of entries whose size is that of a candidate,
    and whose etag is the same, or one of the two tells nothing: the etag of an entry is that of
    what was uploaded or copied, the listed one that of the object, and only MD5s compare.

    The size of an entry is what a client has declared. Where one is known to be wrong, those of
    others may be, too: then all entries are asked for whose size no listing confirms. So are those
    whose object is not there: nothing tells its size, and who uploads it anew may declare the same.

    Args:
        entries: of HEADs; etag is null where it tells nothing.
        candidates: size and etag.
        ranges: range_id and commit_id, a row for each range of a HEAD.
        heads: commit_id and branch, a row for each branch. Thousands of branches with one HEAD
            have its ranges once.
        lost: addresses that HEADs name and the listing should have and lacks, if there are any.
        confirming: address and size of what is listed, where sizes must be confirmed; else none.

    Returns:
        range_id, branch and number of the entry in its range, each once and in order.
    """
    sized = candidates.select("size", F.when(_is_md5(F.col("etag")), F.col("etag")).alias("etag"))
    of_size = sized.groupBy("size").agg(
        F.max(F.when(F.col("etag").isNull(), F.lit(1)).otherwise(F.lit(0))).alias("any")
    )
    known = sized.where(F.col("etag").isNotNull())
    same = known.select("size", "etag", F.lit(1).alias("same")).distinct()
    looks = entries.join(of_size, "size").join(same, ["size", "etag"], "left")
    is_alike = (F.col("any") == 1) | F.col("etag").isNull() | F.col("same").isNotNull()
    alike = looks.where(is_alike).select("range_id", "number")
    for missing in lost:
        gone = entries.join(missing.select("address"), "address", "left_semi")
        alike = alike.unionByName(gone.select("range_id", "number"))
    for listed in confirming:
        same = listed.select("address", "size")
        unclear = entries.join(same, ["address", "size"], "left_anti")
        alike = alike.unionByName(unclear.select("range_id", "number"))
    held = alike.distinct().join(ranges, "range_id")
    asked = held.join(heads, "commit_id").select("range_id", "branch", "number")
    return asked.distinct().orderBy("range_id", "branch", "number")


def _is_before(moment: datetime) -> Column:
    """True of entries that were modified before a moment."""
    # Of the moment, whatever an entry says: what it has may be no time that an engine knows.
    return F.col("modified") < F.unix_micros(F.lit(moment))


def _is_md5(etag: Column) -> Column:
    # In Java's expressions the end of a line is an end, too.
    return etag.rlike(_MD5) & (F.length(etag) == _DIGITS)
