"""Holders of an object: the branch, the path and the commit that lead to it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import pyarrow as pa

from lakegc_assets.graveler.ranges import read_range
from lakegc_assets.mark.addresses import entry_spellings
from lakegc_assets.mark.commits import Liveness
from lakegc_assets.mark.holders import ranges_naming
from lakegc_assets.mark.metaranges import pairs_of
from lakegc_assets.mark.why import staging_areas
from lakegc_assets.run.connections import Connections, reads_tables
from lakegc_assets.run.context import RunContext


@dataclass(frozen=True)
class Holder:
    """The holder of an object; unknown parts are None.

    Attributes:
        address: of the object, relative to the namespace.
        branch: on which it is staged, or whose retention keeps the commit.
        path: at which it is.
        commit: that holds it; None where it is staged.
    """

    address: str
    branch: str | None
    path: str | None
    commit: str | None

    def __str__(self) -> str:
        """The holder, for messages."""
        known = {"branch": self.branch, "path": self.path, "commit": self.commit}
        return ", ".join(f"{name} {value!r}" for name, value in known.items() if value)


@reads_tables
def holders_of(
    ctx: RunContext,
    connections: Connections,
    liveness: Liveness,
    ranges: pa.Table,
    addresses: Collection[str],
) -> dict[str, Holder]:
    """One holder for each object that has one: a commit's, a HEAD's if possible, else a stage's.

    Args:
        ctx: the run.
        connections: how to reach the store and the caches.
        liveness: the active commits.
        ranges: those that may hold the objects (range_id, entries).
        addresses: a few, relative to the namespace.
    """
    found = {h.address: h for h in _committed(ctx, connections, liveness, ranges, addresses)}
    staged = set(addresses) - found.keys()
    if staged:
        client = ctx.lakefs.connect()
        areas = staging_areas(client, ctx.repository, connections, staged)
        found |= {address: Holder(address, *area, None) for address, area in areas.items()}
    return found


def paths_in(
    ctx: RunContext, connections: Connections, ranges: pa.Table, addresses: Collection[str]
) -> Iterator[tuple[str, str]]:
    """Addresses and paths of some objects in some ranges.

    Args:
        ctx: the run.
        connections: how to reach the store and the cache.
        ranges: that may hold the objects (range_id, entries).
        addresses: a few, relative to the namespace.
    """
    for range_id in ranges_naming(ctx, connections, ranges, addresses):
        yield from _paths(connections, range_id, addresses)


def _committed(
    ctx: RunContext,
    connections: Connections,
    liveness: Liveness,
    ranges: pa.Table,
    addresses: Collection[str],
) -> Iterator[Holder]:
    range_ids = ranges_naming(ctx, connections, ranges, addresses)
    if not range_ids:
        return
    active = liveness.tables()["data"]
    pairs = pairs_of(ctx, connections, set(active["metarange_id"].to_pylist()), range_ids)
    ids = pa.schema([("metarange_id", pa.string()), ("range_id", pa.string())])
    named = pairs.select(ids.names).cast(ids)
    holders = named.join(active, "metarange_id", join_type="inner").to_pylist()
    # A HEAD's, if there is one.
    holders.sort(key=lambda row: (row["kind"] != "head", row["commit_id"]))
    for range_id in range_ids:
        holder = next((row for row in holders if row["range_id"] == range_id), None)
        branch, commit = (holder["branch"], holder["commit_id"]) if holder else (None, None)
        for address, path in _paths(connections, range_id, addresses):
            yield Holder(address, branch, path, commit)


def _paths(
    connections: Connections, range_id: str, wanted: Collection[str]
) -> Iterator[tuple[str, str]]:
    """Addresses and paths of a range, read again by the slow reader."""
    namespace = connections.namespace()
    data = connections.fetch_table(range_id)
    for path, entry in read_range(data, connections.table_url(range_id)):
        spellings, resolved = entry_spellings(namespace, entry.address, entry.address_type)
        for address in wanted if resolved else ():
            if address in spellings:
                yield address, path.encode(errors="surrogateescape").decode(errors="replace")
