"""Which ranges name an address, and at which path."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pyarrow as pa

from lakegc_assets.graveler.ranges import read_range
from lakegc_assets.mark.addresses import entry_spellings
from lakegc_assets.mark.metaranges import fetch
from lakegc_assets.mark.ranges import (
    HASHES,
    Wanted,
    cached_ranges,
    read_entries,
    seconds,
    spread_ranges,
    wanted,
)
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import Hashes


def ranges_with_hash(
    ctx: RunContext, connections: Connections, ranges: pa.Table, hashes: Hashes
) -> list[str]:
    """The ranges that hold an address of a hash, by their ids.

    Args:
        ctx: the run.
        connections: how tasks reach the store and the cache.
        ranges: to look into: range_id, and entries or null.
        hashes: the hash of the address, alone.

    Raises:
        IntegrityError: a range is missing or damaged.
    """
    some = wanted(ranges, cached_ranges(connections) if ranges.num_rows else {})
    groups = spread_ranges(some, ctx.settings.address_num_partitions)
    task = partial(_with_hash, connections, hashes)
    found = ctx.tasks.run("look into ranges", task, groups, sum(map(seconds, some)))
    return sorted(range_id for group in found for range_id in group)


def _with_hash(connections: Connections, hashes: Hashes, ranges: Sequence[Wanted]) -> list[str]:
    return [
        entries.range_id
        for entries in read_entries(connections, ranges, HASHES)
        if (entries.group["hash"].to_numpy() == hashes[0]).any()
    ]


def path_in(connections: Connections, range_id: str, address: str) -> str | None:
    """The first path at which a range names this very address, in whatever spelling; else None.

    Raises:
        IntegrityError: the range is missing.
        FormatError: it is damaged.
    """
    data = fetch(connections.store(), connections.namespace_url, range_id)
    namespace = connections.namespace()
    return next(
        (
            path
            for path, e in read_range(data, range_id)
            if address in entry_spellings(namespace, e.address, e.address_type)[0]
        ),
        None,
    )
