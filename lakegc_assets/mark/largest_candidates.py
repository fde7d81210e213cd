"""At which paths the largest candidates were committed, for people who read a report."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from lakegc_assets.errors import LakegcError
from lakegc_assets.graveler.ranges import read_range
from lakegc_assets.mark.addresses import entry_spellings
from lakegc_assets.mark.earlier_commits import FORGOTTEN
from lakegc_assets.mark.metaranges import fetch, ranges_of
from lakegc_assets.mark.range_lookup import ranges_with_hash
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import address_hashes


def paths_of(
    ctx: RunContext,
    connections: Connections,
    attempt: AttemptArtifacts,
    commits: Mapping[str, str],
) -> dict[str, str]:
    """A path of each of a few candidates, as far as their commits tell.

    Args:
        ctx: the run.
        connections: how tasks reach the store and the cache.
        attempt: with the commits of the mark.
        commits: the expired commit that held each address last.
    """
    if not commits:
        return {}
    try:
        return _paths(ctx, connections, attempt, commits)
    except LakegcError as error:
        # A report without paths is a report all the same.
        ctx.log.warning("the largest objects are shown without their paths: %s", error)
        return {}


def _paths(
    ctx: RunContext,
    connections: Connections,
    attempt: AttemptArtifacts,
    commits: Mapping[str, str],
) -> dict[str, str]:
    some = set(commits.values())
    metaranges = {
        row["metarange_id"]: 0
        for part in ("expired", FORGOTTEN)
        if part in attempt.manifest("active_commits").parts
        for row in attempt.read("active_commits", part, ["commit_id", "metarange_id"]).to_pylist()
        if row["commit_id"] in some and row["metarange_id"]
    }
    active = attempt.read("committed_addresses", "ranges", ["range_id"])["range_id"]
    ranges = ranges_of(ctx, connections, metaranges, active.combine_chunks()).rows
    hashes = address_hashes(pa.array(sorted(commits), pa.string()))
    paths: dict[str, str] = {}
    for range_id in ranges_with_hash(ctx, connections, ranges, hashes):
        if len(paths) < len(commits):
            paths = _in_range(connections, range_id, commits) | paths
    return paths


def _in_range(
    connections: Connections, range_id: str, commits: Mapping[str, str]
) -> dict[str, str]:
    """The paths at which a range names some addresses, by these."""
    data = fetch(connections.store(), connections.namespace_url, range_id)
    namespace = connections.namespace()
    paths: dict[str, str] = {}
    for path, entry in read_range(data, range_id):
        for address in entry_spellings(namespace, entry.address, entry.address_type)[0]:
            if address in commits:
                paths.setdefault(address, path)
    return paths
