"""The inactive commit that keeps an object, since it lies below a path of a rule."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from lakegc_assets.mark.commits import PATHS, RULE
from lakegc_assets.mark.committed import PATH_RANGES
from lakegc_assets.mark.path_ranges import ranked_path_ranges
from lakegc_assets.mark.range_lookup import path_in, ranges_with_hash
from lakegc_assets.retention.retain import prefix_of
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import address_hashes


class PathHolder(NamedTuple):
    """A commit that keeps an object by a rule of paths.

    Attributes:
        commit: that has it.
        branch: whose days count; None for what no branch leads to.
        path: at which the commit has it.
        rule: that keeps it, in words.
    """

    commit: str
    branch: str | None
    path: str
    rule: str


def path_holder(
    ctx: RunContext, connections: Connections, attempt: AttemptArtifacts, address: str
) -> PathHolder | None:
    """A commit that keeps an object by a rule of ``paths``; None where none does.

    Args:
        ctx: the run.
        connections: how tasks reach the store and the cache.
        attempt: of a mark.
        address: relative to the namespace.

    Raises:
        IntegrityError: a metarange or range is missing or damaged.
    """
    if PATH_RANGES not in attempt.manifest("committed_addresses").parts:
        return None
    commits = attempt.read("active_commits", PATHS).to_pylist()
    ranks: dict[str, dict[str, int]] = {}
    for rank, row in enumerate(commits):
        if row["metarange_id"]:
            ranks.setdefault(row["pattern"], {})[row["metarange_id"]] = rank
    ranges = ranked_path_ranges(ctx, connections, ranks)
    hashes = address_hashes(pa.array([address], pa.string()))
    suspected = set(ranges_with_hash(ctx, connections, _distinct(ranges), hashes))
    for found in ranges.to_pylist():
        if found["range_id"] in suspected:
            path = path_in(connections, found["range_id"], address, prefix_of(found["pattern"]))
            if path is not None:
                row = commits[found["rank"]]
                return PathHolder(row["commit_id"], row["branch"], path, row[RULE])
    return None


def _distinct(ranges: pa.Table) -> pa.Table:
    """Each range once: range_id, entries."""
    found = ranges.group_by("range_id").aggregate([("entries", "max")])
    return found.rename_columns(["range_id", "entries"])
