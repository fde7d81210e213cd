"""Who needs an object: the branch, the path and the commit that lead to it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from lakegc_assets.graveler.ranges import read_range
from lakegc_assets.mark.addresses import entry_spellings
from lakegc_assets.mark.commits import ACTIVE, Liveness
from lakegc_assets.mark.ranges import entries_of, fetch, ranges_of
from lakegc_assets.mark.why import staging_areas
from lakegc_assets.run.context import Connections, RunContext


@dataclass(frozen=True)
class Holder:
    """What leads to an object; what is not known is None.

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
        """What is known, for messages."""
        known = {"branch": self.branch, "path": self.path, "commit": self.commit}
        return ", ".join(f"{name} {value!r}" for name, value in known.items() if value)


def holders_of(
    ctx: RunContext,
    connections: Connections,
    liveness: Liveness,
    ranges: DataFrame,
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
        for address, branch, path in staging_areas(client, ctx.repository, connections, staged):
            found.setdefault(address, Holder(address, branch, path, None))
    return found


def _committed(
    ctx: RunContext,
    connections: Connections,
    liveness: Liveness,
    ranges: DataFrame,
    addresses: Collection[str],
) -> Iterator[Holder]:
    entries = entries_of(connections, ranges, ctx.settings.address_num_partitions)
    holding = entries.where(F.col("resolved") & F.col("address").isin(*addresses))
    pairs = [(r["range_id"], r["address"]) for r in holding.distinct().collect()]
    active = ctx.spark.createDataFrame(liveness.active_rows(), ACTIVE)
    ids = active.where("metarange_id != ''").select("metarange_id").distinct()
    range_ids = sorted({range_id for range_id, _ in pairs})
    commits = (
        ranges_of(connections, ids, ctx.settings.range_num_partitions)
        .where(F.col("range_id").isin(*range_ids))
        .join(active, "metarange_id")
        .orderBy((F.col("kind") == "head").desc(), "commit_id")
        .collect()
        if range_ids
        else []
    )
    for range_id in range_ids:
        wanted = {address for of_range, address in pairs if of_range == range_id}
        commit = next((row for row in commits if row["range_id"] == range_id), None)
        for address, path in _paths(connections, range_id, wanted):
            branch = commit["branch"] if commit else None
            yield Holder(address, branch, path, commit["commit_id"] if commit else None)


def _paths(
    connections: Connections, range_id: str, wanted: Collection[str]
) -> Iterator[tuple[str, str]]:
    """Addresses and paths of a range, read again by the slow reader."""
    namespace = connections.namespace()
    for path, entry in read_range(fetch(connections.store(), connections, range_id), range_id):
        spellings, resolved = entry_spellings(namespace, entry.address, entry.address_type)
        for address in wanted if resolved else ():
            if address in spellings:
                yield address, path.encode(errors="surrogateescape").decode(errors="replace")
