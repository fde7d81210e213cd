"""The ranges that name an address, with the path of its entry."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from lakegc_assets.graveler.ranges import read_range
from lakegc_assets.mark import holder_relations
from lakegc_assets.mark.addresses import entry_spellings
from lakegc_assets.mark.metaranges import fetch
from lakegc_assets.mark.range_frames import range_frame
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import Hashes, hash_table

_IDS: Final = pa.schema([("range_id", pa.string())])


def ranges_with_hash(
    ctx: RunContext, connections: Connections, ranges: pa.Table, hashes: Hashes
) -> list[str]:
    """The ranges that hold an address of one of some hashes, by their ids, in order.

    Args:
        ctx: the run.
        connections: how tasks reach the store and the cache.
        ranges: to look into: range_id, and entries or null.
        hashes: of the addresses, which are few.

    Raises:
        IntegrityError: a range is missing or damaged.
    """
    if not ranges.num_rows:
        return []
    with ctx.frames(connections) as frames:
        entries = range_frame(ctx, connections, frames, ranges, ["range_id", "hash"])
        found = holder_relations.with_hashes(entries, frames.create(hash_table(hashes)))
        ids = frames.collect(holder_relations.ranges_of_held(found), _IDS, "look into ranges")
    return sorted(ids["range_id"].to_pylist())


def path_in(connections: Connections, range_id: str, address: str, prefix: str = "") -> str | None:
    """The first path at which a range names this very address, in whatever spelling; else None.

    Args:
        connections: how to reach the store.
        range_id: of the range.
        address: relative to the namespace.
        prefix: what the path must begin with.

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
            if path.startswith(prefix)
            and address in entry_spellings(namespace, e.address, e.address_type)[0]
        ),
        None,
    )
