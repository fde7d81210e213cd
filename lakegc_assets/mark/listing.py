"""Stage 1, ``store_listing``: what the object store holds, listed in parallel by key ranges.

The listing comes first: what is written afterwards is not in it, so it cannot be a candidate. It
also fixes the one cutoff of the run. Everything outside ``_lakefs/`` is listed, wherever it lies.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from datetime import datetime, timezone
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from lakegc_assets.errors import IntegrityError
from lakegc_assets.graveler.namespace import slice_time
from lakegc_assets.mark.key_ranges import Plan, TimeRange, pack, plan
from lakegc_assets.mark.publication import require_unused
from lakegc_assets.run.artifacts import LISTING, Manifest, key_digest
from lakegc_assets.run.context import Connections, RunContext
from lakegc_assets.storage.opening import open_store

#: Keys in a page that is only looked at, to plan the listing.
_LOOK = 100
_SLICE = "^data/([0-9a-v]{20})/"


def list_store(ctx: RunContext) -> Manifest:
    """List the store into the ``store_listing`` asset of a new attempt.

    Raises:
        RefusedError: the mark is frozen, or a clock is off.
        IntegrityError: the repository shares its namespace with another one, or an object is older
            than the name of its slice says.
        StorageError: the store did not answer in full.
    """
    started = ctx.clocks.now()
    client, connections = ctx.connect()
    store = connections.store()
    start = ctx.check_clocks(client, store)
    grace_period = client.grace_period()
    cutoff = ctx.settings.cutoff(start, grace_period)
    require_unused(store, ctx.run)
    attempt = ctx.root.new_attempt(ctx.repository, ctx.run)

    new = TimeRange(cutoff, start + ctx.settings.clock_skew)
    found = plan_listing(connections, new if ctx.settings.skip_new_slices else None)

    attempt.write(listed_objects(ctx, connections, found), "store_listing")

    written = attempt.read(ctx.spark, "store_listing")
    digest = key_digest(written)
    size = size_of_slices(ctx, written, start)
    return attempt.finish(
        Manifest(
            asset="store_listing",
            repository=ctx.repository,
            run=ctx.run,
            attempt=attempt.attempt,
            namespace=connections.namespace_url,
            cutoff=cutoff,
            started=started,
            finished=ctx.clocks.now(),
            rows=digest.count,
            digest=str(digest),
            files=attempt.files("store_listing"),
            previous="",
            settings=ctx.settings.to_json(),
            facts={
                "start": start.isoformat(),
                "grace_period_seconds": grace_period.total_seconds(),
                "bytes": size,
                "skipped_slices": found.skipped,
            },
        ),
    )


def plan_listing(connections: Connections, new: TimeRange | None = None) -> Plan:
    """Cut the repository's namespace into key ranges, without slices that are ``new``."""
    stores = dataclasses.replace(connections.stores, page_size=_LOOK)
    return plan(open_store(connections.namespace_url, stores), _LOOK, new)


def listed_objects(
    ctx: RunContext, connections: Connections, found: Plan | None = None
) -> DataFrame:
    """What the store holds now, outside of ``_lakefs/`` or as planned: columns of ``LISTING``."""
    ranges = (found or plan_listing(connections)).ranges
    tasks = pack(ranges, ctx.settings.listing_num_partitions)
    ctx.log.info(
        "listing %s in %d key ranges by %d tasks",
        connections.namespace_url,
        len(ranges),
        len(tasks),
    )
    rows = [([(r.low, r.high) for r in task],) for task in tasks]
    return (
        ctx.spark.createDataFrame(rows, "ranges array<struct<low string, high string>>")
        .repartition(len(rows))
        .mapInArrow(partial(_list_ranges, connections), LISTING)
    )


def size_of_slices(ctx: RunContext, listing: DataFrame, start: datetime) -> int:
    """All bytes that are listed, after a look whether slices are as old as their names say.

    What may stay unlisted is told from names of slices. So no object may be older than its slice.

    Raises:
        IntegrityError: one is, by more than clocks may differ.
    """
    slices = listing.groupBy(F.regexp_extract("address", _SLICE, 1).alias("slice")).agg(
        F.sum("size").alias("size"), F.min("last_modified").alias("oldest")
    )
    total = 0
    for row in slices.toLocalIterator():
        total += row["size"]
        made = slice_time(row["slice"])
        oldest = row["oldest"].astimezone(timezone.utc)
        # A name that tells of the future is no slice's.
        if made and oldest + 2 * ctx.settings.clock_skew < made <= start:
            if ctx.settings.skip_new_slices:
                raise IntegrityError(
                    f"data/{row['slice']}/ holds an object of {oldest}, but the slice was made at "
                    f"{made}, by its name: a clock was wrong, or the folder is not lakeFS's. Look "
                    "at it; skip_new_slices=false lists every slice, whatever its name says",
                )
            ctx.log.warning("data/%s/ is younger than an object in it", row["slice"])
    return total


def _list_ranges(
    connections: Connections, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    store = connections.store()
    schema = pa.schema(
        [
            pa.field("address", pa.string(), nullable=False),
            pa.field("size", pa.int64(), nullable=False),
            pa.field("last_modified", pa.timestamp("us", "UTC"), nullable=False),
            pa.field("etag", pa.string(), nullable=False),
        ],
    )
    for batch in batches:
        for low, high in (r.values() for task in batch["ranges"].to_pylist() for r in task):
            end = None if high is None else high + "\0"
            for page in store.list(start_after=low, end_before=end):
                columns = [
                    page[name].cast(schema.field(i).type)
                    for i, name in enumerate(page.schema.names)
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)
