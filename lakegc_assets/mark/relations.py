"""Store DF - Committed DF - Uncommitted DF, the holders of candidates, and revived objects.

A hash can only keep an object: if two addresses share a hash, a dead object looks alive.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame

from lakegc_assets.engine.relation import F, Window, relation
from lakegc_assets.mark.addresses import UNNAMEABLE
from lakegc_assets.mark.references import COMMITTED, STAGED, sentence
from lakegc_assets.mark.signature_relations import UNVERIFIED
from lakegc_assets.run.pins import PINNED

#: Etag of a multipart upload.
MULTIPART: Final = r"^[0-9a-fA-F]{32}-[0-9]+$"
AMBIGUOUS: Final = "a full address that cannot be resolved ends like it"
CONTROL: Final = "its name has a line break or another control character"
NOT_SEEN: Final = "uploaded in parts, and not seen before the cutoff"
#: Names of upload parts that lakeFS's S3 gateway writes until the upload is completed: on Google's
#: store, and at the root of a namespace on local storage. lakeFS unites all parts that still exist.
_PART_NAME: Final = r"\.(multipart|part_[0-9]+(_[0-9]+)*)\z|\A[0-9a-f]{32}-[0-9]{5,}\z"
#: Time before the cutoff within which an object named like an upload part is spared.
UPLOAD_TIME: Final = timedelta(days=7)
UPLOADING: Final = "named like a part of an upload, which may still go on"
#: File names that clients of Iceberg catalogs give to the files of a table. lakeFS's own names have
#: no file extension. The metadata of such a table may name a file that no entry names.
_TABLE_FILE: Final = (
    r"\.metadata\.json(\.gz)?\z|"
    r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}[^/]*\.(avro|orc|parquet|puffin|stats)\z"
)
OF_TABLE: Final = "named like a file of an Iceberg table, which no entry has to name"
TWICE: Final = "the inventory report names it more than once"
SAME_HASH: Final = "its hash is that of an address that another repository names"
#: Reasons of candidates.
EXPIRED: Final = "expired"
UNREFERENCED: Final = "unreferenced"
#: Lowest rank of a reason that does not prove that an object is needed; see ``_doubt``.
_DOUBTED: Final = 2


@relation
def dead_hashes(
    store: DataFrame, committed: DataFrame, uncommitted: DataFrame, cutoff: datetime
) -> DataFrame:
    """Store DF - Committed DF - Uncommitted DF: the hashes of objects that no live set holds.

    Args:
        store: listed objects (``LISTING``).
        committed: hashes of the addresses that active commits hold.
        uncommitted: hashes of the addresses that are staged on any branch.
        cutoff: only an object that was written before it can be a candidate.

    Returns:
        hash: of rows of ``store`` in the places where lakeFS writes objects; duplicates stay.
    """
    hashes = _old(store, cutoff).select("hash")
    return hashes.join(committed, "hash", "left_anti").join(uncommitted, "hash", "left_anti")


@relation
def candidates(store: DataFrame, dead: DataFrame, cutoff: datetime) -> DataFrame:
    """Semi-join: the rows of Store DF whose hash is dead.

    Separate from ``dead_hashes``, so that Spark need not shuffle whole rows of live objects.

    Args:
        store: listed objects (``LISTING``).
        dead: hash, from ``dead_hashes`` for the same cutoff.
        cutoff: only an object that was written before it can be a candidate.
    """
    return _old(store, cutoff).join(dead, "hash", "left_semi")


@relation
def still_live(
    objects: DataFrame,
    live: Sequence[DataFrame],
    unresolved: Sequence[DataFrame],
    named: Sequence[DataFrame],
    most: int,
) -> DataFrame:
    """Names of what is alive that are names of objects, which should be dead.

    Semi-joins from the other side: an engine that loses rows in ``dead_hashes`` or ``came_back``
    finds them here.

    Args:
        objects: address and hash.
        live: hashes of addresses that are alive.
        unresolved: last path components (last_part) of live addresses that cannot be resolved.
        named: address, ...: objects that are alive by name.
        most: maximum number of rows.

    Returns:
        name: hashes, last path components or addresses, as text.
    """
    ends = objects.select(F.element_at(F.split("address", "/"), -1).alias("last_part"))
    kinds = [(live, "hash", objects), (unresolved, "last_part", ends), (named, "address", objects)]
    found = [
        rows.select(key)
        .join(of.select(key), key, "left_semi")
        .select(F.col(key).cast("string").alias("name"))
        for sets, key, of in kinds
        for rows in sets
    ]
    return reduce(lambda united, frame: united.unionByName(frame), found).limit(most)


def _old(store: DataFrame, cutoff: datetime) -> DataFrame:
    return store.where(F.col("in_place") & (F.col("last_modified") < F.lit(cutoff)))


@relation
def without_swept(store: DataFrame, swept: Sequence[DataFrame]) -> DataFrame:
    """Listed objects without the objects that later sweeps (address, outcome) have deleted.

    One join covers all sweeps: an optimized run may follow hundreds of them.
    """
    if not swept:
        return store
    outcomes = reduce(lambda united, frame: united.unionByName(frame), swept)
    gone = outcomes.where(F.col("outcome").isin("deleted", "already_missing"))
    return store.join(gone.select("address"), "address", "left_anti")


@relation
def judged(
    unreferenced: DataFrame,
    unresolved: DataFrame,
    seen: Sequence[DataFrame],
    pins: DataFrame,
    uploading_since: datetime,
    twice: DataFrame | None = None,
) -> DataFrame:
    """Unreferenced objects, with the first reason why each is spared; null where there is none.

    A multipart upload carries the time at which it began. So its age counts from the first finished
    listing that saw it. Where its parts are objects, lakeFS needs them until the upload ends. An
    Iceberg table may need an object that is named like one of its files.

    Args:
        unreferenced: old objects that no live set holds (``LISTING``).
        unresolved: last path components (last_part) of live addresses that cannot be resolved.
        seen: address and etag of the multipart uploads in each listing before the cutoff.
        pins: address and why of restored objects that must stay for a while; each once.
        uploading_since: ``UPLOAD_TIME`` before the cutoff of the mark.
        twice: hashes of objects that an inventory report names more than once, from
            ``named_twice``: it is unknown which row is true. None without a report.

    Returns:
        The rows of ``unreferenced``, duplicates included, with the column ``why`` added.
    """
    columns = unreferenced.columns
    is_doubled = F.lit(False)
    if twice is not None:
        doubled = twice.select("hash", F.lit(True).alias("doubled"))
        unreferenced = unreferenced.join(doubled, "hash", "left")
        is_doubled = F.col("doubled")
    doubtful = unresolved.select("last_part", F.lit(True).alias("ambiguous")).distinct()
    named = unreferenced.withColumn("last_part", F.element_at(F.split("address", "/"), -1))
    # Before the joins: after them SQLFrame may take the address column of the pins instead.
    recent = F.col("last_modified") >= F.lit(uploading_since)
    named = named.withColumn("uploading", F.col("address").rlike(_PART_NAME) & recent)
    named = named.withColumn("of_table", F.col("address").rlike(_TABLE_FILE))
    marked = named.join(doubtful, "last_part", "left")
    marked = marked.join(pins.withColumnRenamed("why", "pinned"), "address", "left")
    marked, known = _seen_before(marked, seen)
    # In Java, a dollar also matches before a line break at the end of the text.
    in_parts = F.col("etag").rlike(MULTIPART.replace("$", r"\z"))
    why = (
        F.when(is_doubled, F.lit(TWICE))
        .when(F.col("ambiguous"), F.lit(AMBIGUOUS))
        .when(F.col("address").rlike(UNNAMEABLE), F.lit(CONTROL))
        .when(in_parts & ~known, F.lit(NOT_SEEN))
        .when(F.col("uploading"), F.lit(UPLOADING))
        .when(F.col("of_table"), F.lit(OF_TABLE))
        .otherwise(F.col("pinned"))
    )
    return marked.withColumn("why", why).select(*columns, "why")


def _seen_before(rows: DataFrame, seen: Sequence[DataFrame]) -> tuple[DataFrame, Column]:
    """Join the uploads of earlier listings; also a column: true if any listing has the row."""
    known = F.lit(False)
    for number, listed_uploads in enumerate(seen):
        name = f"seen_{number}"
        uploads = listed_uploads.select("address", "etag", F.lit(True).alias(name)).distinct()
        rows = rows.join(uploads, ["address", "etag"], "left")
        known = known | F.col(name).isNotNull()
    return rows, known


@relation
def not_spared(judged: DataFrame) -> DataFrame:
    """Judged candidates that nothing spares: ``why`` is null."""
    return judged.where(F.col("why").isNull())


@relation
def spared(judged: DataFrame) -> DataFrame:
    """Spared candidates with the reason (address, why), each once."""
    return judged.where(F.col("why").isNotNull()).select("address", "why").distinct()


@relation
def without_spared(objects: DataFrame, spared: DataFrame) -> DataFrame:
    """Anti-join: the objects that are not spared, by their addresses."""
    return objects.join(spared.select("address"), "address", "left_anti")


@relation
def listing_totals(store: DataFrame, cutoff: datetime) -> DataFrame:
    """Counts and bytes of listed objects: all, those outside of lakeFS's places, those too young.

    Returns one row; a sum over no rows is null.
    """
    young = F.col("in_place") & (F.col("last_modified") >= F.lit(cutoff))

    def total(column: Column) -> Column:
        return F.sum(column).cast("bigint")

    return store.agg(
        F.count(F.lit(1)).alias("listed"),
        total(F.col("size")).alias("listed_bytes"),
        total(F.when(F.col("in_place"), F.lit(0)).otherwise(F.lit(1))).alias("outside_data"),
        total(F.when(young, F.lit(1)).otherwise(F.lit(0))).alias("too_young"),
        total(F.when(young, F.col("size")).otherwise(F.lit(0))).alias("too_young_bytes"),
    )


@relation
def counts_by_reason(rows: DataFrame) -> DataFrame:
    """Number of spared objects by reason (why, objects)."""
    return rows.groupBy("why").agg(F.count(F.lit(1)).alias("objects"))


@relation
def duplicates(rows: DataFrame, most: int) -> DataFrame:
    """Addresses in more than one row (address, times); at most ``most`` of them."""
    times = F.count(F.lit(1)).alias("times")
    return rows.groupBy("address").agg(times).where("times > 1").limit(most)


@relation
def listed_twice(candidates: DataFrame, spared: DataFrame, most: int) -> DataFrame:
    """Addresses of candidates with another row in the listing; at most ``most`` of them.

    The rows of an address may have different times and etags, so one may be spared alone.

    Args:
        candidates: address, ...: the candidates.
        spared: address, ...: the spared objects; duplicates do not count.
        most: maximum number of rows.

    Returns:
        address, times: as ``duplicates`` returns them.
    """
    each = spared.select("address").distinct()
    return duplicates(candidates.select("address").unionByName(each), most)


@relation
def in_order(marked: DataFrame) -> DataFrame:
    """Marked DF sorted by address, so that each file covers one key range of the store."""
    return marked.orderBy("address")


@relation
def named_twice(rows: DataFrame) -> DataFrame:
    """Hashes that occur in more than one row: their objects are named more than once.

    Two objects that share a hash look like one object that is named twice, and are spared.
    """
    times = rows.groupBy("hash").agg(F.count(F.lit(1)).alias("times"))
    return times.where("times > 1").select("hash")


@relation
def lacked(rows: DataFrame, others: DataFrame, before: datetime) -> DataFrame:
    """Number and bytes of rows written before a time that are missing from other rows.

    Args:
        rows: ``LISTING``; duplicates count each time.
        others: the other rows, also ``LISTING``.
        before: only rows written before this time count.

    Returns:
        One row: objects, bytes, and the first missing address as an example (null without any).
    """
    old = rows.where(F.col("last_modified") < F.lit(before)).select("address", "size")
    found = old.join(others.select("address"), "address", "left_anti")
    return found.agg(
        F.count(F.lit(1)).alias("objects"),
        F.coalesce(F.sum("size"), F.lit(0)).cast("bigint").alias("bytes"),
        F.min("address").alias("example"),
    )


# Holders of objects among commits. A range is a row (range_id, rank); its rank is the highest rank
# of the commits that hold the range. An entry is a row (range_id, hash): an address in a range.


@relation
def last_holders(
    objects: DataFrame, entries: DataFrame, ranges: DataFrame, commits: DataFrame
) -> DataFrame:
    """The last commit that held each object: the holder with the highest rank.

    Args:
        objects: hash, ...: the objects in question.
        entries: range_id, hash: entries of ranges; may include ranges of other commits.
        ranges: range_id, rank: the ranges of the commits, each once.
        commits: rank, commit_id, branch.

    Returns:
        hash, commit_id, branch: one row for each object that a commit held.
    """
    held = entries.join(ranges.select("range_id", "rank"), "range_id")
    held = held.join(objects.select("hash"), "hash", "left_semi")
    last = held.groupBy("hash").agg(F.max("rank").alias("rank"))
    return last.join(commits, "rank").select("hash", "commit_id", "branch")


@relation
def with_holders(objects: DataFrame, holders: DataFrame) -> DataFrame:
    """Objects with the commit and the branch that held each; null without such a commit."""
    return objects.join(holders.select("hash", "commit_id", "branch"), "hash", "left")


@relation
def with_reasons(dead: DataFrame, holders: DataFrame) -> DataFrame:
    """Candidates with their reason: ``expired`` if a commit held them, else ``unreferenced``.

    Returns the columns of ``dead`` with commit_id, branch and reason, sorted by address.
    """
    held = dead.join(holders.select("hash", "commit_id", "branch"), "hash", "left")
    reason = F.when(F.col("commit_id").isNull(), F.lit(UNREFERENCED)).otherwise(F.lit(EXPIRED))
    return held.withColumn("reason", reason).orderBy("address")


@relation
def held_by_expired(entries: DataFrame, active: DataFrame) -> DataFrame:
    """Objects in ranges of B and in none of A: the set O of lakeFS #1932.

    Args:
        entries: range_id, hash: of all ranges below ``_lakefs/``.
        active: range_id, ...: A, the ranges of active commits. B are all others.

    Returns:
        hash, range_id: each address once, with one of the ranges of B that name it.
    """
    ids = active.select("range_id")
    named_by_a = entries.join(ids, "range_id", "left_semi").select("hash")
    named_by_b = entries.join(ids, "range_id", "left_anti")
    only_b = named_by_b.join(named_by_a, "hash", "left_anti")
    return only_b.groupBy("hash").agg(F.min("range_id").alias("range_id"))


@relation
def with_hashes(rows: DataFrame, objects: DataFrame) -> DataFrame:
    """Semi-join: the rows that share a hash with one of the objects."""
    return rows.join(objects.select("hash"), "hash", "left_semi")


@relation
def ranges_with_hashes(entries: DataFrame, objects: DataFrame) -> DataFrame:
    """The distinct ids of the ranges with an entry that shares a hash with one of the objects."""
    return with_hashes(entries, objects).select("range_id").distinct()


@relation
def named_by_expired(named: DataFrame, held: DataFrame) -> DataFrame:
    """The addresses of O, each once, sorted.

    Args:
        named: address, hash: entries of ranges; duplicates are allowed.
        held: hash, ...: O, from ``held_by_expired``.
    """
    only_b = named.join(held.select("hash"), "hash", "left_semi")
    return only_b.select("address").distinct().orderBy("address")


# Marked DF ∩ live


@relation
def came_back(
    marked: DataFrame,
    live: Sequence[tuple[DataFrame, str]],
    unresolved: Sequence[DataFrame],
    named: Sequence[DataFrame],
) -> DataFrame:
    """Marked DF ∩ live: the objects that came back to life after the mark, with the reason.

    Args:
        marked: objects of the mark, or a part of them.
        live: pairs: hashes of addresses that are alive now, and the reason.
        unresolved: last path components (last_part) of live addresses that cannot be resolved.
        named: address and why of objects that are spared by name.

    Returns:
        address, size, why and certain; each address once. ``certain`` is true if the object is
        surely alive. Sure reasons precede doubts and pins: a pin may name a missing object.
    """
    objects = marked.select("address", "hash", "size")
    found = [
        objects.join(hashes, "hash", "left_semi").select("address", "size", F.lit(why).alias("why"))
        for hashes, why in live
    ]
    ends = objects.withColumn("last_part", F.element_at(F.split("address", "/"), -1))
    found += [
        ends.join(names, "last_part", "left_semi").select(
            "address", "size", F.lit(AMBIGUOUS).alias("why")
        )
        for names in unresolved
    ]
    found += [
        objects.join(rows.select("address", "why"), "address").select("address", "size", "why")
        for rows in named
    ]
    united = found[0]
    for frame in found[1:]:
        united = united.unionByName(frame)
    order = Window.partitionBy("address").orderBy("doubt", "why")
    ranked = united.withColumn("doubt", _doubt(F.col("why")))
    first = ranked.withColumn("place", F.row_number().over(order)).where("place = 1")
    return first.select("address", "size", "why", (F.col("doubt") < _DOUBTED).alias("certain"))


@relation
def referenced(references: DataFrame) -> DataFrame:
    """Objects that other repositories name (``REFERENCES``): address and the reason to spare it."""
    reason = F.when(F.col("held") == COMMITTED, _named_in(COMMITTED)).otherwise(_named_in(STAGED))
    return references.select("address", reason.alias("why"))


def _named_in(held: str) -> Column:
    """The sentence of the mark about the repository of a row of ``REFERENCES``."""
    before, after = sentence("{}", held).split("{}")
    return F.concat(F.lit(before), F.col("repository"), F.lit(after))


def _doubt(why: Column) -> Column:
    """The rank of a reason; the lowest rank is the surest proof that an object is needed."""
    doubtful = why.isin(AMBIGUOUS, UNVERIFIED) | why.startswith(PINNED)
    return F.when(doubtful, F.lit(_DOUBTED)).when(why == SAME_HASH, F.lit(1)).otherwise(F.lit(0))
