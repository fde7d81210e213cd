"""Why a candidate is dead: which expired commit held it last, if any did.

A wrong reason, by two addresses of one hash, harms nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.datasets import Part, PartWriter, read_part, write_part
from lakegc_assets.errors import LakegcError
from lakegc_assets.mark.commits import FORGOTTEN
from lakegc_assets.mark.lookalikes import Integers
from lakegc_assets.mark.metaranges import ranges_of
from lakegc_assets.mark.ranges import (
    HASHES,
    Wanted,
    cached_ranges,
    read_entries,
    seconds,
    spread_ranges,
    wanted,
)
from lakegc_assets.run.artifacts import LISTING, AttemptArtifacts
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import Hashes, KeyDigest, address_hashes, key_digest
from lakegc_assets.run.selection import Selection
from lakegc_assets.run.sets import distinct, members_of, read_run, write_set
from lakegc_assets.storage.base import ObjectStore

#: Sorted hashes, and a rank of each.
_Ranks = tuple[Hashes, Integers]

_FOLDER: Final = "deletion_candidates/"
_EMPTY: Final[_Ranks] = np.empty(0, np.uint64), np.empty(0, np.int64)
#: Addresses that a task collects before it merges what several ranges hold.
_WAITING: Final = 1_000_000
CANDIDATES: Final = pa.schema(
    [
        *LISTING,
        pa.field("reason", pa.string(), nullable=False),
        pa.field("commit_id", pa.string()),
        pa.field("branch", pa.string()),
    ]
)


@dataclass(frozen=True)
class Holders:
    """Which commit held what last.

    Attributes:
        last: rows (hash, rank), sorted by hash: of the objects that one held.
        commits: rows (commit_id, branch), by their rank.
    """

    last: Part
    commits: Part


@dataclass(frozen=True)
class Written:
    """Candidates that one task wrote.

    Attributes:
        parts: rows of ``CANDIDATES``.
        digest: of their addresses.
        by_reason: reason, objects, bytes.
    """

    parts: Sequence[Part]
    digest: KeyDigest
    by_reason: pa.Table


def last_holders(
    ctx: RunContext, connections: Connections, attempt: AttemptArtifacts, dead: Hashes
) -> Holders:
    """Find the expired commits that held candidates last.

    Where none that lakeFS still names did, those count that an earlier mark knew. Ranges of expired
    commits that active commits hold as well cannot name a candidate (B without A
    of lakeFS #1932), so they are not read.

    Args:
        ctx: the run.
        connections: how tasks reach the store and the cache.
        attempt: with the commits, and where to write.
        dead: the sorted hashes of the candidates.

    Raises:
        IntegrityError: a metarange or range of an expired commit is missing or damaged.
    """
    expired = attempt.read("active_commits", "expired")
    rows = expired.select(["creation_date", "commit_id", "branch", "metarange_id"]).to_pylist()
    rows.sort(key=lambda row: (row["creation_date"], row["commit_id"], row["branch"] or ""))
    active = attempt.read("committed_addresses", "ranges", ["range_id"])["range_id"]
    without = active.combine_chunks()
    found = find_holders(ctx, connections, attempt.url, _FOLDER, rows, dead, without)
    if FORGOTTEN not in attempt.manifest("active_commits").parts:
        return found
    forgotten = attempt.read("active_commits", FORGOTTEN).to_pylist()
    store = attempt.store()
    rest = dead[~members_of([read_part(store, found.last)["hash"].to_numpy()], dead)]
    try:
        more = find_holders(ctx, connections, attempt.url, _FOLDER, forgotten, rest, without)
    except LakegcError as error:
        # What nothing leads to any more need not be whole.
        ctx.log.warning("commits that an earlier mark knew cannot be read: %s", error)
        return found
    return _both(store, found, more)


def _both(store: ObjectStore, found: Holders, more: Holders) -> Holders:
    """Holders of some objects, and of others."""
    last, commits = read_part(store, found.last), read_part(store, found.commits)
    others = read_part(store, more.last)
    rank = pc.add(others["rank"], commits.num_rows)
    last = pa.concat_tables([last, others.set_column(1, "rank", rank)]).sort_by("hash")
    commits = pa.concat_tables([commits, read_part(store, more.commits)])
    return Holders(
        write_part(store, f"{_FOLDER}holders/", last),
        write_part(store, f"{_FOLDER}holders/", commits),
    )


def find_holders(
    ctx: RunContext,
    connections: Connections,
    url: str,
    folder: str,
    rows: Sequence[Mapping[str, Any]],
    hashes: Hashes,
    without: pa.Array | None = None,
) -> Holders:
    """Find which of some commits holds each of some objects; of several the last.

    Args:
        ctx: the run.
        connections: how tasks reach the store and the cache.
        url: of the store to write to.
        folder: relative to it, with a slash at its end.
        rows: the commits (commit_id, branch, metarange_id).
        hashes: of the objects, sorted.
        without: ids of ranges that are of no interest.

    Raises:
        IntegrityError: a metarange or range of a commit is missing or damaged.
    """
    store = connections.open(url)
    ranks = {row["metarange_id"]: rank for rank, row in enumerate(rows) if row["metarange_id"]}
    found: list[Part] = []
    if len(hashes):
        ranges = ranges_of(ctx, connections, ranks, without).rows
        found = _probe(ctx, connections, url, folder, ranges, hashes)
    latest = _merged(_ranks(read_part(store, part)) for part in found)
    commits = pa.table(
        {
            name: pa.array([row[name] for row in rows], pa.string())
            for name in ("commit_id", "branch")
        }
    )
    return Holders(
        write_part(store, f"{folder}holders/", _table(latest)),
        write_part(store, f"{folder}holders/", commits),
    )


def _latest(found: Sequence[_Ranks]) -> _Ranks:
    """Of each hash the highest rank; sorted by hash."""
    hashes = np.concatenate([np.empty(0, np.uint64), *(h for h, _ in found)])
    ranks = np.concatenate([np.empty(0, np.int64), *(r for _, r in found)])
    order = np.lexsort((-ranks, hashes))
    hashes = hashes[order]
    first = np.flatnonzero(np.append(True, hashes[1:] != hashes[:-1])[: len(hashes)])
    return hashes[first], ranks[order][first]


def _merged(found: Iterable[_Ranks]) -> _Ranks:
    """The same of many, of which several may name the same: what is held grows with these alone."""
    held = [_EMPTY]
    for one in found:
        held.append(one)
        if sum(len(hashes) for hashes, _ in held[1:]) > max(_WAITING, len(held[0][0])):
            held = [_latest(held)]
    return _latest(held)


def _ranks(table: pa.Table) -> _Ranks:
    return table["hash"].to_numpy(), table["rank"].to_numpy()


def _table(ranks: _Ranks) -> pa.Table:
    return pa.table(dict(zip(("hash", "rank"), ranks, strict=True)))


@dataclass(frozen=True)
class _Probe:
    connections: Connections
    url: str
    folder: str
    dead: Sequence[Part]
    ranges: Sequence[tuple[Wanted, int]]


def _probe(
    ctx: RunContext,
    connections: Connections,
    url: str,
    folder: str,
    ranges: pa.Table,
    dead: Hashes,
) -> list[Part]:
    some = wanted(ranges, cached_ranges(connections) if ranges.num_rows else {})
    ranks = dict(zip(ranges["range_id"].to_pylist(), ranges["rank"].to_pylist(), strict=True))
    runs = write_set(connections.open(url), f"{folder}dead/", [dead])
    orders = [
        _Probe(
            connections, url, f"{folder}held/", runs, [(one, ranks[one.range_id]) for one in group]
        )
        for group in spread_ranges(some, ctx.settings.address_num_partitions)
    ]
    return ctx.tasks.run(
        "read ranges that may hold objects", _held, orders, sum(map(seconds, some))
    )


def _held(order: _Probe) -> Part:
    """Which candidates some ranges hold, and the highest rank of these for each (hash, rank)."""
    store = order.connections.open(order.url)
    dead = [read_run(store, part) for part in order.dead]
    ranks = {one.range_id: rank for one, rank in order.ranges}

    def found() -> Iterator[_Ranks]:
        for entries in read_entries(order.connections, [one for one, _ in order.ranges], HASHES):
            hashes = entries.group["hash"].to_numpy()
            held = distinct(hashes[members_of(dead, hashes)])
            yield held, np.full(len(held), ranks[entries.range_id], np.int64)

    return write_part(store, order.folder, _table(_merged(found())), plain=True)


def with_reasons(
    connections: Connections,
    url: str,
    dead: Selection,
    holders: Holders,
    parts: Sequence[Part],
) -> Written:
    """Write candidates with the reason, and the expired commit and branch that held them last.

    Args:
        connections: how to reach the artifacts.
        url: of the store of the attempt.
        dead: the candidates.
        holders: who held them.
        parts: those of the candidates' files that are to be written.

    Raises:
        IntegrityError: a file is not what it was.
    """
    store = connections.open(url)
    last, commits = read_part(store, holders.last), read_part(store, holders.commits)
    writer, digest = PartWriter(store, f"{_FOLDER}data/", CANDIDATES), KeyDigest()
    counts: list[pa.Table] = []
    for part in parts:
        rows = dead.read(store, part)
        if not rows.num_rows:
            continue
        rank = ranks_of(last, address_hashes(rows["address"]))
        for column in (
            pc.if_else(pc.is_null(rank), "unreferenced", "expired"),
            commits["commit_id"].take(rank),
            commits["branch"].take(rank),
        ):
            rows = rows.append_column(CANDIDATES.field(rows.num_columns), column)
        writer.add(rows)
        digest += key_digest(rows["address"])
        counts.append(rows.select(["reason", "size"]))
    written = [part for part in writer.finish() if part.rows]
    empty = CANDIDATES.empty_table().select(["reason", "size"])
    grouped = pa.concat_tables([empty, *counts]).group_by("reason", use_threads=False)
    by_reason = grouped.aggregate([("size", "count"), ("size", "sum")])
    return Written(written, digest, by_reason.rename_columns(["reason", "objects", "bytes"]))


def ranks_of(last: pa.Table, hashes: Hashes) -> pa.Array:
    """The rank of the last holder of each address (``Holders.last``); null where there is none."""
    known = last["hash"].to_numpy()
    if not len(known):
        return pa.nulls(len(hashes), pa.int64())
    at = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
    return pa.array(last["rank"].to_numpy()[at], mask=known[at] != hashes)
