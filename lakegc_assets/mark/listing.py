"""Stage 1, ``store_listing``: what the object store holds, listed in parallel by key ranges.

The listing comes first: what is written afterwards is not in it, so it cannot be a candidate. It
also fixes the one cutoff of the run. Everything outside ``_lakefs/`` is listed, wherever it lies.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from lakegc_assets.artifacts import LISTING, Manifest, key_digest
from lakegc_assets.mark.context import Connections, RunContext
from lakegc_assets.mark.publication import require_unused
from lakegc_assets.storage.base import ObjectStore

LAKEFS_PREFIX = "_lakefs/"
#: Above every key that starts with a given prefix, for all keys that a person would make.
_LAST = "\U0010ffff"
_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
#: A gap between slices that holds more keys than one page is split further.
_DENSE = 1000


def list_store(ctx: RunContext) -> Manifest:
    """List the store into the ``store_listing`` asset of a new attempt.

    Raises:
        RefusedError: the mark is frozen, or a clock is off.
        IntegrityError: the repository shares its namespace with another one.
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

    attempt.write(listed_objects(ctx, connections), "store_listing")

    written = attempt.read(ctx.spark, "store_listing")
    digest = key_digest(written)
    size = written.agg(F.sum("size")).first()
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
                "bytes": int(size[0] or 0) if size else 0,
            },
        ),
    )


def listed_objects(ctx: RunContext, connections: Connections) -> DataFrame:
    """What the store holds now, outside of ``_lakefs/``: columns of ``LISTING``."""
    ranges = key_ranges(connections.store())
    partitions = min(ctx.settings.listing_num_partitions, len(ranges))
    ctx.log.info("listing %s in %d key ranges", connections.namespace_url, len(ranges))
    return (
        ctx.spark.createDataFrame(ranges, "low string, high string")
        .repartition(partitions)
        .mapInArrow(partial(_list_ranges, connections), LISTING)
    )


def key_ranges(store: ObjectStore) -> list[tuple[str | None, str | None]]:
    """Ranges (low, high] that cover every key of the namespace but those below ``_lakefs/``.

    Each slice of ``data/`` ends a range, so that slices are listed independently. Where a gap
    between them holds many keys (flat repositories of older lakeFS), it is split by first
    characters. ``None`` stands for the beginning and the end of all keys.
    """
    slices = sorted(store.list_prefixes("data/").prefixes)
    lakefs_end = LAKEFS_PREFIX + _LAST
    outer = _split(store, None, LAKEFS_PREFIX, "") + _split(store, lakefs_end, "data/", "")
    inner = [(low, high) for low, high in itertools.pairwise([*slices, "data/" + _LAST])]
    head = _split(store, "data/", slices[0] if slices else "data/" + _LAST, "data/")
    return [*outer, *head, *inner, *_split(store, "data/" + _LAST, None, "")]


def _split(
    store: ObjectStore, low: str | None, high: str | None, prefix: str
) -> list[tuple[str | None, str | None]]:
    """Split (low, high] at the characters that may follow ``prefix``, if it holds many keys."""
    seen = 0
    for batch in store.list(start_after=low, end_before=None if high is None else high + "\0"):
        seen += batch.num_rows
        if seen >= _DENSE:
            break
    if seen < _DENSE:
        return [(low, high)]
    inside = [
        prefix + character
        for character in _ALPHABET
        if (low is None or prefix + character > low) and (high is None or prefix + character < high)
    ]
    return list(itertools.pairwise([low, *inside, high]))


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
        for row in batch.to_pylist():
            end = None if row["high"] is None else row["high"] + "\0"
            for page in store.list(start_after=row["low"], end_before=end):
                columns = [
                    page[name].cast(schema.field(i).type)
                    for i, name in enumerate(page.schema.names)
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)
