"""Commits and ranges that hold or held a few objects, with the paths: for questions of people."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

import pyarrow as pa

from lakegc_assets.engine.ddl import schema
from lakegc_assets.errors import LakegcError
from lakegc_assets.graveler.entry import decode_commit_data
from lakegc_assets.graveler.ranges import read_range
from lakegc_assets.graveler.sstable import Record, read_dump
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.mark import relations
from lakegc_assets.mark.addresses import entry_spellings
from lakegc_assets.mark.commits import RULE
from lakegc_assets.mark.committed_addresses import PATH_RANGES
from lakegc_assets.mark.earlier_marks import ASSET, FORGOTTEN, PATHS
from lakegc_assets.mark.live_ranges import all_tables
from lakegc_assets.mark.metaranges import (
    each_once,
    pairs_of,
    path_ranges,
    ranges_of,
    uncounted,
)
from lakegc_assets.mark.ranges import range_frame
from lakegc_assets.retention.retain_rules import prefix_of
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import address_hashes, hash_table

_IDS: Final = schema("range_id string")


def ranges_naming(ctx: RunContext, ranges: pa.Table, addresses: Collection[str]) -> list[str]:
    """The sorted ids of the ranges that may name one of the addresses, by hashes.

    ``ranges``: range_id and entries of the ranges to search; entries may be null.
    ``addresses``: a few, relative to the namespace.

    Raises:
        IntegrityError: a range is missing or damaged.
    """
    if not ranges.num_rows:
        return []
    hashes = hash_table(address_hashes(pa.array(sorted(addresses), pa.string())))
    with ctx.frames() as frames:
        entries = range_frame(ctx, frames, ranges, ["range_id", "hash"])
        found = relations.ranges_with_hashes(entries, frames.create(hashes))
        ids = frames.collect(found, _IDS, "look into ranges")
    return sorted(ids["range_id"].to_pylist())


def paths_in(
    connections: Connections, range_id: str, addresses: Collection[str], prefix: str = ""
) -> dict[str, str]:
    """The first path at which a range names each address, in any spelling, by address.

    For people: bytes that are not UTF-8 are replaced. ``prefix``: only paths with it count.

    Raises:
        IntegrityError: the range is missing or damaged.
    """
    data = connections.fetch_table(range_id)
    namespace = connections.namespace()
    paths: dict[str, str] = {}
    for path, entry in read_range(data, range_id):
        if path.startswith(prefix):
            spellings, resolved = entry_spellings(namespace, entry.address, entry.address_type)
            for address in spellings if resolved else ():
                if address in addresses:
                    shown = path.encode(errors="surrogateescape").decode(errors="replace")
                    paths.setdefault(address, shown)
    return paths


class PathHolder(NamedTuple):
    """A commit that keeps an object by a rule of paths."""

    commit: str
    #: The branch whose retention counts; None if no branch leads to the commit.
    branch: str | None
    path: str
    rule: str


def path_holder(ctx: RunContext, attempt: AttemptArtifacts, address: str) -> PathHolder | None:
    """A commit that keeps an object by a rule of ``paths``; None without one.

    Raises:
        IntegrityError: a metarange or range is missing or damaged.
    """
    if PATH_RANGES not in attempt.manifest("committed_addresses").parts:
        return None
    commits = attempt.read(ASSET, PATHS).to_pylist()
    ranks: dict[str, dict[str, int]] = {}
    for rank, row in enumerate(commits):
        ranks.setdefault(row["pattern"], {})[row["metarange_id"]] = rank
    ranges = path_ranges(ctx, ranks)
    suspected = set(ranges_naming(ctx, each_once(ranges), {address}))
    for found in ranges.to_pylist():
        if found["range_id"] in suspected:
            prefix, row = prefix_of(found["pattern"]), commits[found["rank"]]
            if paths := paths_in(ctx.connections, found["range_id"], {address}, prefix):
                return PathHolder(row["commit_id"], row["branch"], paths[address], row[RULE])
    return None


def paths_of(
    ctx: RunContext, attempt: AttemptArtifacts, commits: Mapping[str, str]
) -> dict[str, str]:
    """A path for each of a few candidates, as far as their commits have one.

    ``commits``: the last expired commit that held each address.

    Raises:
        LakegcError: a metarange or range cannot be read.
    """
    ids, paths = set(commits.values()), dict[str, str]()
    columns = ["commit_id", "metarange_id"]
    expired = _commits_of(attempt, {"expired", FORGOTTEN}, columns)
    metaranges = {row["metarange_id"]: 0 for row in expired if row["commit_id"] in ids}
    active = attempt.read("committed_addresses", "ranges", ["range_id"])["range_id"]
    ranges = ranges_of(ctx, metaranges, active.combine_chunks()).rows
    for range_id in ranges_naming(ctx, ranges, commits):
        if len(paths) < len(commits):
            paths = paths_in(ctx.connections, range_id, commits) | paths
    return paths


def _commits_of(
    attempt: AttemptArtifacts, parts: Collection[str], columns: list[str]
) -> list[dict[str, str]]:
    """Rows of the given parts of ``active_commits``; parts that the mark lacks have none."""
    existing = sorted(attempt.manifest(ASSET).parts.keys() & parts)
    return [row for part in existing for row in attempt.read(ASSET, part, columns).to_pylist()]


class Held(NamedTuple):
    """A path at which an object was committed, and the commit; None if lakeFS does not list it."""

    path: str
    commit: str | None


def unreachable_holder(ctx: RunContext, attempt: AttemptArtifacts, address: str) -> Held | None:
    """The commit, unknown to the mark, that held an object; None if no commit held it.

    Raises:
        IntegrityError: a range or metarange is missing or damaged.
        StorageError: the store did not answer.
    """
    commits = _commits_of(attempt, {"data", "expired", FORGOTTEN}, ["metarange_id"])
    known = {row["metarange_id"] for row in commits}
    kinds = all_tables(ctx, ()).kinds
    there = {kind: {i for i, k in kinds.items() if k == kind} for kind in ("ranges", "metaranges")}
    looked_at = dict.fromkeys(there["metaranges"] & known, 0)
    without = {
        *ranges_of(ctx, looked_at).rows["range_id"].to_pylist(),
        *attempt.read("committed_addresses", "ranges", ["range_id"])["range_id"].to_pylist(),
    }
    ranges = uncounted(sorted(there["ranges"] - without))
    for range_id in ranges_naming(ctx, ranges, {address}):
        if paths := paths_in(ctx.connections, range_id, {address}):
            pairs = pairs_of(ctx, there["metaranges"], [range_id])
            ids = set(pairs["metarange_id"].to_pylist())
            return Held(
                paths[address], _commit_of(ctx.client, ctx.connections, ctx.repository, ids)
            )
    return None


def _commit_of(
    client: LakeFSClient, connections: Connections, repository: str, metaranges: Collection[str]
) -> str | None:
    """A commit with one of the metaranges; None if lakeFS lists none, or cannot list commits."""

    def records(name: str) -> list[Record]:
        return read_dump(connections.fetch_table(name), name, "commit").records

    with suppress(LakegcError):
        for dumped in records(client.dump_refs(repository).commits_meta_range_id):
            for record in records(dumped.identity.decode()):
                commit = decode_commit_data(record.value)
                if commit.metarange_id in metaranges:
                    return commit.id
    return None
