"""Commits that no branch and no tag leads to: which of them held an object, and at which path.

Such are those of deleted branches. No log has them, and once they have expired lakeFS's list of
active commits has not either; but their ranges stay below ``_lakefs/``, and lakeFS dumps them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import pyarrow as pa

from lakegc_assets.errors import LakegcError
from lakegc_assets.graveler.entry import CommitData, decode_commit_data
from lakegc_assets.graveler.sstable import Record, read_dump
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.mark.live_ranges import all_tables
from lakegc_assets.mark.metaranges import fetch, pairs_of, ranges_of
from lakegc_assets.mark.range_lookup import path_in, ranges_with_hash
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import address_hashes

_ACTIVE = "active_commits"


@dataclass(frozen=True)
class Held:
    """That an object was committed.

    Attributes:
        path: at which a range has it.
        commit: that has the range; None where lakeFS does not tell its id.
    """

    path: str
    commit: str | None


def unreachable_holder(
    ctx: RunContext,
    client: LakeFSClient,
    connections: Connections,
    attempt: AttemptArtifacts,
    address: str,
) -> Held | None:
    """The commit, unknown to the mark, that held an object; None if it was never committed.

    Args:
        ctx: the run.
        client: of lakeFS.
        connections: how tasks reach the store and the cache.
        attempt: the artifacts of the mark.
        address: relative to the namespace.

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
    ranges = pa.table({"range_id": _array(ids), "entries": pa.nulls(len(ids), pa.int64())})
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
