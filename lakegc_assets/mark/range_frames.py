"""The cache of ranges as data frames: of all of some ranges, or of those that it has."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame

from lakegc_assets.engine.session import Session
from lakegc_assets.engine.spark_session import SparkBackedSession
from lakegc_assets.engine.tasks import bin_pack
from lakegc_assets.errors import IntegrityError
from lakegc_assets.mark.ranges import CACHED_S, KIND, ROWS, cache_ranges
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.table_cache import CacheFile, Slot, TableCache, by_file

#: Rows of files that are verified here, since starting tasks takes longer.
_FEW_ROWS: Final = 100_000


def range_frame(
    ctx: RunContext,
    connections: Connections,
    frames: Session,
    ranges: pa.Table,
    columns: Sequence[str],
) -> DataFrame:
    """The entries of some ranges, all of them and no others, as a data frame.

    What is not cached is decoded first, and so is what is damaged in the cache.

    Args:
        ctx: the run.
        connections: how tasks reach the store and the cache.
        frames: the session.
        ranges: range_id and entries; these are null where no metarange names the range.
        columns: of ``ROWS``; ``hash`` is as ``hashing.HASHES`` has it.

    Raises:
        IntegrityError: a range is missing or damaged, or is not known in full.
    """
    cache = TableCache(connections.cache(), KIND)
    ids = set(ranges["range_id"].to_pylist())
    while True:
        cached = cache_ranges(ctx, connections, ranges)
        slots = {i: cached.slots[i] for i in ids}
        # Spark compares files when the frame is computed, which is too late to decode them anew.
        late = isinstance(frames, SparkBackedSession)
        if not (late and _forget_damaged(ctx, connections, slots.values())):
            try:
                return cache.frame(frames, connections.cache_url, slots, ROWS, columns)
            except IntegrityError:
                if not _forget_damaged(ctx, connections, slots.values()):
                    raise


def cached_frame(
    ctx: RunContext,
    connections: Connections,
    frames: Session,
    range_ids: Collection[str],
    columns: Sequence[str],
) -> tuple[DataFrame, frozenset[str]]:
    """The entries of those of some ranges that are cached, and which these are; none is decoded.

    Args:
        ctx: the run.
        connections: how tasks reach the cache.
        frames: the session.
        range_ids: of the ranges.
        columns: of ``ROWS``.

    Raises:
        IntegrityError: the cache is damaged again and again.
    """
    cache = TableCache(connections.cache(), KIND)
    late = isinstance(frames, SparkBackedSession)
    while True:
        slots = {i: slot for i, slot in cache.slots().items() if i in range_ids}
        if not (late and _forget_damaged(ctx, connections, slots.values())):
            try:
                found = cache.frame(frames, connections.cache_url, slots, ROWS, columns)
            except IntegrityError:
                if not _forget_damaged(ctx, connections, slots.values()):
                    raise
            else:
                return found, frozenset(slots)


def _forget_damaged(ctx: RunContext, connections: Connections, slots: Iterable[Slot]) -> bool:
    """Forget the files of some ranges that are not what they were; whether there are any."""
    files = [file for file, _ in by_file(slots)]
    rows = sum(file.part.rows for file in files)
    task = partial(_damaged, connections)
    if rows <= _FEW_ROWS:
        found = [task(files)]
    else:
        costs = [file.part.rows * CACHED_S for file in files]
        orders = bin_pack(files, costs, ctx.settings.address_num_partitions)
        found = ctx.tasks.run("verify cached ranges", task, orders, sum(costs))
    return any(found)


def _damaged(connections: Connections, files: Sequence[CacheFile]) -> bool:
    cache = TableCache(connections.cache(), KIND)
    # All of them, so that each that is damaged is forgotten.
    return None in [cache.read(file, [], []) for file in files]
