"""Commits and ranges that hold, or held, a few objects, and at which paths: for people who ask."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import pyarrow as pa

from lakegc_assets.errors import LakegcError
from lakegc_assets.graveler.entry import CommitData, decode_commit_data
from lakegc_assets.graveler.ranges import read_range
from lakegc_assets.graveler.sstable import Record, read_dump
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.mark import holder_relations
from lakegc_assets.mark.addresses import entry_spellings
from lakegc_assets.mark.commits import FORGOTTEN, PATHS, RULE
from lakegc_assets.mark.committed import PATH_RANGES
from lakegc_assets.mark.live_ranges import all_tables
from lakegc_assets.mark.metaranges import (
    each_once,
    fetch,
    pairs_of,
    ranges_of,
    ranked_path_ranges,
    uncounted,
)
from lakegc_assets.mark.ranges import range_frame
from lakegc_assets.retention.retain import prefix_of
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import Hashes, address_hashes, hash_table

_IDS: Final = pa.schema([("range_id", pa.string())])


def ranges_with_hash(
    ctx: RunContext, connections: Connections, ranges: pa.Table, hashes: Hashes
) -> list[str]:
    """The ranges that hold an address of one of some hashes, by their ids, in order.

    ``ranges``: to look into: range_id, and entries or null.
    ``hashes``: of the addresses, which are few.

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

    ``prefix``: what the path must begin with.

    Raises:
        IntegrityError: the range is missing.
        FormatError: it is damaged.
    """
    return paths_in(connections, range_id, {address}, prefix).get(address)


def paths_in(
    connections: Connections, range_id: str, addresses: Collection[str], prefix: str = ""
) -> dict[str, str]:
    """The first paths at which a range names some addresses, by these; as ``path_in``."""
    data = fetch(connections.store(), connections.namespace_url, range_id)
    namespace = connections.namespace()
    paths: dict[str, str] = {}
    for path, entry in read_range(data, range_id):
        if path.startswith(prefix):
            for address in entry_spellings(namespace, entry.address, entry.address_type)[0]:
                if address in addresses:
                    paths.setdefault(address, path)
    return paths


class PathHolder(NamedTuple):
    """A commit that keeps an object by a rule of paths."""

    commit: str
    #: Whose days count; None for what no branch leads to.
    branch: str | None
    path: str
    rule: str


def path_holder(
    ctx: RunContext, connections: Connections, attempt: AttemptArtifacts, address: str
) -> PathHolder | None:
    """A commit that keeps an object by a rule of ``paths``; None where none does.

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
    suspected = set(ranges_with_hash(ctx, connections, each_once(ranges), hashes))
    for found in ranges.to_pylist():
        if found["range_id"] in suspected:
            path = path_in(connections, found["range_id"], address, prefix_of(found["pattern"]))
            if path is not None:
                row = commits[found["rank"]]
                return PathHolder(row["commit_id"], row["branch"], path, row[RULE])
    return None


def paths_of(
    ctx: RunContext,
    connections: Connections,
    attempt: AttemptArtifacts,
    commits: Mapping[str, str],
) -> dict[str, str]:
    """A path of each of a few candidates, as far as their commits tell.

    ``commits``: the expired commit that held each address last.
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
            paths = paths_in(connections, range_id, commits) | paths
    return paths


_ACTIVE = "active_commits"


@dataclass(frozen=True)
class Held:
    """That an object was committed."""

    path: str
    #: None where lakeFS does not tell its id.
    commit: str | None


def unreachable_holder(
    ctx: RunContext,
    client: LakeFSClient,
    connections: Connections,
    attempt: AttemptArtifacts,
    address: str,
) -> Held | None:
    """The commit, unknown to the mark, that held an object; None if it was never committed.

    Raises:
        IntegrityError: a range or metarange is missing or damaged.
        StorageError: the store did not answer.
    """
    parts = attempt.manifest(_ACTIVE).parts.keys() & {"data", "expired", "forgotten"}
    tables = [attempt.read(_ACTIVE, part, ["metarange_id"]) for part in sorted(parts)]
    known = {i for table in tables for i in table["metarange_id"].to_pylist()} - {""}
    kinds = all_tables(ctx, connections, ()).kinds
    there = {kind: {i for i, k in kinds.items() if k == kind} for kind in ("ranges", "metaranges")}
    looked_at = dict.fromkeys(there["metaranges"] & known, 0)
    without = {
        *ranges_of(ctx, connections, looked_at).rows["range_id"].to_pylist(),
        *attempt.read("committed_addresses", "ranges", ["range_id"])["range_id"].to_pylist(),
    }
    ids = sorted(there["ranges"] - without)
    ranges = uncounted(ids)
    hashes = address_hashes(_array([address]))
    for range_id in ranges_with_hash(ctx, connections, ranges, hashes):
        path = path_in(connections, range_id, address)
        if path is not None:
            pairs = pairs_of(ctx, connections, there["metaranges"], [range_id])
            of = pairs["metarange_id"].to_pylist()
            return Held(path, _commit_of(client, connections, ctx.repository, of))
    return None


def _commit_of(
    client: LakeFSClient, connections: Connections, repository: str, metaranges: Collection[str]
) -> str | None:
    """A commit with one of some metaranges; None where lakeFS lists none, or does not list."""
    try:
        dump = client.dump_refs(repository)
        listed = _commits(connections, dump.commits_meta_range_id)
        return next((one.id for one in listed if one.metarange_id in metaranges), None)
    except LakegcError:
        return None


def _commits(connections: Connections, dump: str) -> Iterator[CommitData]:
    """The commits of a dump of refs.

    Raises:
        LakegcError: it cannot be read.
    """
    for found in _records(connections, dump):
        for record in _records(connections, found.identity.decode()):
            yield decode_commit_data(record.value)


def _records(connections: Connections, name: str) -> list[Record]:
    data = fetch(connections.store(), connections.namespace_url, name)
    return read_dump(data, name, "commit").records


def _array(values: Collection[str]) -> pa.Array:
    return pa.array(sorted(values), pa.string())
