"""Violations of the invariants, as relations over whole addresses that only the checks use.

Committed DF is here the entries that the checks' reader finds in the ranges of branch HEADs and of
tags, with the columns of ``witness.ENTRIES``.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from pyspark.sql import Column, DataFrame

from lakegc_assets.engine.relation import F, relation

#: The slice folder of an address; no match for an address outside of slices.
_SLICE: Final = "^data/[^/]*/"
#: Etags that are MD5s: two different ones prove that two contents differ.
_MD5: Final = "^[0-9a-f]{32}$"
_DIGITS: Final = 32


@relation
def outside(candidates: DataFrame) -> DataFrame:
    """Candidates that are not where lakeFS writes objects: in data/ or at the root.

    Below ``data/`` lakeFS makes one folder, or three if the name of the first begins with ``!``.
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
    """Candidates that belong to lakeFS itself, in any repository, or have a line break."""
    address = F.col("address")
    # An object below data/ may belong to a nested repository, which this server may not know.
    parts = F.concat(F.lit("/"), address)
    own = address.startswith("_lakefs") | parts.contains("/_lakefs/") | parts.endswith("/dummy")
    broken = address.contains("\n") | address.contains("\r")
    return candidates.where(own | broken).select("address")


@relation
def not_old(candidates: DataFrame, store: DataFrame, cutoff: datetime) -> DataFrame:
    """Candidates that Store DF lacks, or lists with a time that is not before the cutoff.

    ``candidates``: address. ``store``: address and last_modified of the listing; an address may be
    listed twice.
    """
    named = candidates.select("address")
    # The semi-join first, so that the outer join does not move all other rows of the listing.
    times = store.select("address", "last_modified").join(named, "address", "left_semi")
    found = named.join(times, "address", "left")
    young = F.col("last_modified").isNull() | (F.col("last_modified") >= F.lit(cutoff))
    return found.where(young).select("address").distinct()


@relation
def of_tags(entries: DataFrame, ranges: DataFrame, tags: DataFrame) -> DataFrame:
    """Addresses held by tagged commits (name of the tag, address).

    Args:
        entries: entries of ranges.
        ranges: range_id and commit_id, a row for each range of a commit.
        tags: name and commit_id, a row for each tag.
    """
    of_each = ranges.join(tags, "commit_id").select("name", "range_id")
    return entries.join(of_each, "range_id").select("name", "address")


@relation
def within(entries: DataFrame, spans: DataFrame) -> DataFrame:
    """The addresses of the entries with numbers in a span of their range.

    Args:
        entries: range_id, number, address.
        spans: range_id, first, behind: the first number, and the number after the last.
    """
    held = entries.join(spans, "range_id")
    from_first = held.where(F.col("number") >= F.col("first"))
    return from_first.where(F.col("number") < F.col("behind")).select("address")


@relation
def named(addresses: DataFrame, check: str) -> DataFrame:
    """Addresses that no candidate may have (check, name, address), with the name of the check.

    ``addresses``: address, and optionally the name of the tag that holds it.
    """
    name = F.col("name") if "name" in addresses.columns else F.lit(None).cast("string")
    return addresses.select(
        F.lit(check).alias("check"), name.alias("name"), F.col("address").alias("address")
    )


@relation
def found(addresses: DataFrame, candidates: DataFrame) -> DataFrame:
    """Candidates among forbidden addresses, once for each check and name.

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
    """The first rows by address, as examples for a message; null sorts first."""
    return addresses.orderBy(F.col("address").asc_nulls_first()).limit(most)


@relation
def expected(entries: DataFrame, before: datetime | None) -> DataFrame:
    """Addresses that branch HEADs name and that are old enough to be listed, with duplicates.

    Args:
        entries: entries of HEADs.
        before: an entry that was modified before this should be listed; None for all entries.
    """
    placed = entries.where(F.col("address").isNotNull())
    old = placed if before is None else placed.where(_is_before(before))
    return old.select("address")


@relation
def outside_slices(addresses: DataFrame, unlisted: DataFrame) -> DataFrame:
    """Rows of addresses that are not in a slice that was not listed.

    Args:
        addresses: address, and optionally other columns.
        unlisted: folder of each slice that was not listed, with a slash at its end.
    """
    placed = addresses.withColumn("folder", F.regexp_extract("address", _SLICE, 0))
    return placed.join(unlisted, "folder", "left_anti").select(*addresses.columns)


@relation
def unlike(entries: DataFrame, store: DataFrame, before: datetime | None) -> DataFrame:
    """Addresses of branch HEADs that are not listed, or listed with another size, each once.

    Args:
        entries: entries of HEADs.
        store: address and size of the listing.
        before: as in ``expected``.

    Returns:
        address, and the listed size, which differs from the size of an entry; or null if the
        address should be listed and is not.
    """
    placed = entries.where(F.col("address").isNotNull())
    # This removes no row: no address is null here. DuckDB estimates that a filter keeps a fifth of
    # the rows. With a filter on one side only it would hold that side in memory, the larger one.
    listed = store.where(F.col("address").isNotNull())
    listed = listed.select("address", F.col("size").alias("listed"))
    beside = placed.join(listed, "address", "left")
    due = F.lit(True) if before is None else _is_before(before)
    lacks = F.col("listed").isNull() & due
    differs = F.coalesce(F.col("listed") != F.col("size"), F.lit(False))
    return beside.where(lacks | differs).select("address", "listed").distinct()


@relation
def still_there(anew: DataFrame, carried: DataFrame, swept: DataFrame) -> DataFrame:
    """Store DF (address, size) without objects that were carried forward and swept since.

    Args:
        anew: the objects that were listed anew.
        carried: the objects that were carried forward.
        swept: address and outcome of the sweeps since then.
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
    """Anti-join: the addresses that are not in the other frame, each once."""
    found = addresses.join(others.select("address"), "address", "left_anti")
    return found.select("address").distinct()


@relation
def deleted_before(addresses: DataFrame, known: DataFrame) -> DataFrame:
    """Addresses that earlier runs deleted, each once, with the last run that did (address, run).

    Args:
        addresses: address.
        known: address, and the run that deleted it; null if only the loss is known.
    """
    deleted = known.where(F.col("run").isNotNull())
    found = deleted.join(addresses.select("address"), "address", "left_semi")
    return found.groupBy("address").agg(F.max("run").alias("run"))


@relation
def sample(addresses: DataFrame, most: int) -> DataFrame:
    """A deterministic sample of addresses: those with the smallest MD5."""
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

    An upload that equals the HEAD's entry at its path is served, and no list of staged objects
    names it. So lakeFS is asked for the path of each entry with the size of a candidate, unless the
    etags of the two differ and both are MD5s. The etag of an entry is that of the upload or copy,
    the listed etag is that of the object; so only MD5s can be compared.

    A client declares the size of an entry. If one declared size is known to be wrong, others may be
    wrong, too: then lakeFS is asked for all entries whose size no listing confirms. It is also
    asked for entries whose object is missing: no listing shows their size, and a client that
    uploads the object anew may declare the same wrong size.

    Args:
        entries: entries of HEADs; etag is null if it is no MD5.
        candidates: size and etag.
        ranges: range_id and commit_id, a row for each range of a HEAD.
        heads: commit_id and branch, a row for each branch. Thousands of branches with one HEAD
            share the rows of its ranges.
        lost: addresses that HEADs name and the listing should contain and does not; may be empty.
        confirming: address and size of the listing if sizes must be confirmed; else empty.

    Returns:
        range_id, branch, and number of the entry in its range; distinct and sorted.
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
    """True for entries that were modified before a moment."""
    # The moment is converted, not the entry's time, which may be out of the range of an engine.
    return F.col("modified") < F.unix_micros(F.lit(moment))


def _is_md5(etag: Column) -> Column:
    # In Java's regular expressions "$" also matches before a line break at the end.
    return etag.rlike(_MD5) & (F.length(etag) == _DIGITS)
