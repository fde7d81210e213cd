"""Which candidates lakeFS still serves although it lists them nowhere.

An upload whose size, checksum, metadata and content type equal what HEAD has at its path is served
from its new address, yet neither ``diff`` nor ``prepare_uncommited`` names it. So a candidate that
looks like an entry of some branch HEAD (equal size, and equal etag where etags can be compared) is
a candidate only after lakeFS was asked which address it serves at each such path. So it is with
what a branch's diff shows and ``prepare_uncommited`` may have lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql import types as T  # noqa: N812 - Spark's own convention

from lakegc_assets.errors import IntegrityError
from lakegc_assets.graveler.decode import etag_hash, etag_hashes
from lakegc_assets.graveler.namespace import UnresolvableAddressError
from lakegc_assets.graveler.ranges import read_range
from lakegc_assets.lakefs.calls import LARGEST_PAGE
from lakegc_assets.lakefs.client import LakeFSClient, branch_ref
from lakegc_assets.lakefs.errors import NotFoundError
from lakegc_assets.mark.addresses import just_before, live_spellings
from lakegc_assets.mark.ranges import entries_of, fetch, ranges_of, spread
from lakegc_assets.mark.staged import staged_paths
from lakegc_assets.run.context import Connections, RunContext

_MD5 = "^[0-9a-f]{32}$"
_PATHS = "range_id string, path string, size long, etag_hash long"
#: Paths in the first page of a place; the next is twice as long if it answered for several.
_PAGE = 100
_TASKS = 8
UNVERIFIED = "more paths at branch HEADs look like it than may be asked"


def head_entries(
    ctx: RunContext,
    connections: Connections,
    heads: DataFrame,
    keep: Callable[[DataFrame, str], DataFrame],
) -> tuple[DataFrame, DataFrame]:
    """What the branch HEADs hold.

    Args:
        ctx: the run.
        connections: how tasks reach the store and the cache.
        heads: columns ``branch`` and ``metarange_id``.
        keep: writes rows under a name and reads them back.

    Returns:
        The ranges of each branch (branch, range_id, entries), and the entries of these ranges.
    """
    metaranges = heads.where("metarange_id != ''").select("metarange_id").distinct()
    pairs = ranges_of(connections, metaranges, ctx.settings.range_num_partitions)
    branch_ranges = heads.join(pairs, "metarange_id").select("branch", "range_id", "entries")
    branch_ranges = keep(branch_ranges, "head_ranges")
    ranges = branch_ranges.select("range_id", "entries").distinct()
    return branch_ranges, entries_of(connections, ranges, ctx.settings.address_num_partitions)


def comparable_until(listing: DataFrame, entries: DataFrame) -> datetime | None:
    """Until which time of writing an object's etag in the store is the checksum in its entry.

    Stores differ: encryption with managed keys and uploads in parts give etags that are no
    checksums. Etags count as comparable only if they agree for every object at a branch HEAD, and
    only for objects written before the latest of these.
    """
    row = (
        entries.where("resolved")
        .join(_with_hash(listing), "address")
        .select((F.col("hash") == F.col("etag_hash")).alias("agrees"), "last_modified")
        .agg(F.min("agrees"), F.max("last_modified"))
        .first()
    )
    return row[1] if row is not None and row[0] else None


def _with_hash(objects: DataFrame) -> DataFrame:
    """Objects (address, size, last_modified, etag) with a column ``hash``: that of their etag."""
    columns = objects.select("address", "size", "last_modified", "etag")
    schema = T.StructType([*columns.schema.fields, T.StructField("hash", T.LongType())])
    return columns.mapInArrow(_append_hash, schema)


def _append_hash(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_arrays(
            [*batch.columns, etag_hashes(batch["etag"])], names=[*batch.schema.names, "hash"]
        )


def served_candidates(
    ctx: RunContext,
    connections: Connections,
    dead: DataFrame,
    listing: DataFrame,
    heads: DataFrame,
    keep: Callable[[DataFrame, str], DataFrame],
) -> DataFrame:
    """The candidates that must stay, with the reason: columns ``address`` and ``why``.

    Args:
        ctx: the run.
        connections: how tasks reach lakeFS, the store and the cache.
        dead: what nothing lists any more (address, size, last_modified, etag).
        listing: the whole listing.
        heads: HEAD of each branch (branch, metarange_id).
        keep: writes rows under a name and reads them back, so that they are computed once.
    """
    branch_ranges, entries = head_entries(ctx, connections, heads, keep)
    until = comparable_until(listing, entries)
    ctx.log.info("etags of the store are comparable until %s", until)
    comparable = F.lit(False)
    if until is not None:
        comparable = F.col("etag").rlike(_MD5) & (F.col("last_modified") <= F.lit(until))
    suspects = _with_hash(dead).select(
        "address", "size", F.when(comparable, F.col("hash")).alias("etag_hash")
    )
    weighed, alike = _weigh(ctx, branch_ranges, entries, suspects, keep)
    unverified = (
        suspects.alias("one")
        .join(weighed.where("not affordable").alias("group"), _same_group(), "left_semi")
        .select("address", F.lit(UNVERIFIED).alias("why"))
    )
    affordable = weighed.where("affordable")
    ranges = alike.alias("one").join(affordable.alias("group"), _same_group(), "left_semi")
    ranges = keep(ranges.select("range_id").distinct(), "alike_ranges")
    paths = spread(ranges, ctx.settings.address_num_partitions).mapInArrow(
        partial(_read_paths, connections), _PATHS
    )
    alike_paths = (
        _looks(paths)
        .alias("one")
        .join(affordable.alias("group"), _same_group(), "left_semi")
        .join(branch_ranges, "range_id")
        .select("branch", "path")
    )
    staged = staged_paths(connections, ctx.repository, heads, suspects, _TASKS)
    served = (
        alike_paths.union(staged)
        .distinct()
        .repartition(_TASKS, "branch")
        .sortWithinPartitions("branch", "path")
        .mapInArrow(partial(_ask, connections, ctx.repository), "address string")
    )
    served = keep(served, "served").distinct()
    # What is served from an address that cannot be resolved is known by its last part only.
    last_part = F.element_at(F.split("address", "/"), -1)
    names = suspects.select("address", F.explode(F.array("address", last_part)).alias("name"))
    return (
        names.join(served.withColumnRenamed("address", "name"), "name", "left_semi")
        .selectExpr("address", "'lakeFS serves it' as why")
        .unionByName(unverified)
    )


def _looks(entries: DataFrame) -> DataFrame:
    """Entries, each with both groups that may look like it: that of its etag, that of none."""
    either = F.array("etag_hash", F.lit(None).cast("long"))
    return entries.withColumn("etag_hash", F.explode(either))


def _same_group() -> Column:
    """Whether ``one`` belongs to a ``group`` of candidates.

    All of it is equality: a join by size alone would pair every object with every other one where
    all are equally large.
    """
    return (F.col("one.size") == F.col("group.size")) & F.col("one.etag_hash").eqNullSafe(
        F.col("group.etag_hash")
    )


def _weigh(
    ctx: RunContext,
    branch_ranges: DataFrame,
    entries: DataFrame,
    suspects: DataFrame,
    keep: Callable[[DataFrame, str], DataFrame],
) -> tuple[DataFrame, DataFrame]:
    """How many paths would have to be looked up for each group of candidates, before any is read.

    Returns:
        The groups (size, etag_hash) with ``affordable``: the smallest ones, until the budget is
        used up; and the ranges whose entries look like a group (range_id, size, etag_hash).
    """
    groups = suspects.select("size", "etag_hash").distinct()
    alike = (
        _looks(entries)
        .alias("one")
        .join(groups.alias("group"), _same_group())
        .groupBy("one.range_id", "group.size", "group.etag_hash")
        .agg(F.count("*").alias("entries"))
    )
    alike = keep(alike, "alike")
    branches = branch_ranges.groupBy("range_id").agg(F.count("*").alias("branches"))
    order = Window.orderBy("paths", "size", "etag_hash").rowsBetween(
        Window.unboundedPreceding, Window.currentRow
    )
    weighed = (
        alike.join(branches, "range_id")
        .groupBy("size", "etag_hash")
        .agg(F.sum(F.col("entries") * F.col("branches")).alias("paths"))
        .withColumn("total", F.sum("paths").over(order))
        .withColumn("affordable", F.col("total") <= ctx.settings.max_served_lookups)
    )
    return keep(weighed, "lookup_groups"), alike


def _read_paths(
    connections: Connections, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Paths of ranges, read again by the slow reader, which is independent of the cache."""
    store = connections.store()
    for batch in batches:
        for range_id in batch["range_id"].to_pylist():
            items = read_range(fetch(store, connections, range_id), range_id)
            if any(not _is_text(path) for path, _ in items):
                raise IntegrityError(
                    f"range {range_id} of {connections.namespace_url} has a path that is not "
                    "UTF-8: lakeFS cannot be asked what it serves there",
                )
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array([range_id] * len(items), pa.string()),
                    pa.array([path for path, _ in items], pa.string()),
                    pa.array([entry.size for _, entry in items], pa.int64()),
                    pa.array([etag_hash(entry.e_tag) for _, entry in items], pa.int64()),
                ],
                names=["range_id", "path", "size", "etag_hash"],
            )


def _is_text(path: str) -> bool:
    """Whether a path is UTF-8; what is not has surrogates in place of its bytes."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _ask(
    connections: Connections, repository: str, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Addresses that lakeFS serves at the given paths, which come in order."""
    client = connections.lakefs.connect()
    namespace = connections.namespace()
    page = _Page(client, repository)
    for batch in batches:
        served: list[str] = []
        for row in batch.to_pylist():
            address = page.address(row["branch"], row["path"])
            if address is not None:
                try:
                    served += live_spellings(namespace, address)
                except UnresolvableAddressError as error:
                    served += error.last_components
        yield pa.RecordBatch.from_arrays([pa.array(served, pa.string())], names=["address"])


class _Page:
    """The part of a branch that was listed last: one call answers for many paths in order."""

    def __init__(self, client: LakeFSClient, repository: str) -> None:
        self.client = client
        self.repository = repository
        self.branch = ""
        self.low = ""
        self.high: str | None = ""
        self.addresses: dict[str, str] = {}
        self.amount = _PAGE
        self.answered = 0

    def address(self, branch: str, path: str) -> str | None:
        """The physical address that lakeFS serves at a path; None where it serves nothing."""
        known = branch == self.branch and path > self.low
        if not (known and (self.high is None or path <= self.high)):
            self._turn(branch, path)
        self.answered += 1
        return self.addresses.get(path)

    def _turn(self, branch: str, path: str) -> None:
        useful = branch == self.branch and self.answered > 1
        self.amount = min(2 * self.amount, LARGEST_PAGE) if useful else _PAGE
        self.branch, self.low, self.answered = branch, just_before(path), 0
        try:
            objects, has_more = self.client.objects_page(
                self.repository, branch_ref(branch), after=self.low, amount=self.amount
            )
        except NotFoundError as error:
            if branch in {b.id for b in self.client.branches(self.repository)}:
                raise IntegrityError(
                    f"branch {branch!r} of {self.repository!r} exists, but listing its objects "
                    f"says not found ({error}): run again",
                ) from error
            objects, has_more = [], False
        self.addresses = {found.path: found.physical_address for found in objects}
        self.high = max(self.addresses) if has_more else None
        if has_more and (self.high is None or self.high < path):
            # Nothing is served at this path if even the page that starts before it ends before it.
            raise IntegrityError(
                f"listing branch {branch!r} after {self.low!r} skipped {path!r}: run again"
            )
