"""What branch HEADs hold that looks like a candidate: entries of its size, and of its etag.

Entries are compared as hashes of (size, etag), or of the size alone. Two groups with one hash only
mean that lakeFS is asked about more paths. An entry's etag may say nothing of what is served at its
path (``etag_hash`` is 0): a copy that lakeFS makes keeps the etag of an upload in parts, or of
another store, and its own object has another one. Such an entry looks like all of its size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.datasets import Part
from lakegc_assets.engine.tasks import bin_pack
from lakegc_assets.mark.metaranges import pairs_of
from lakegc_assets.mark.ranges import (
    LOOKS,
    Wanted,
    by_files,
    cached_ranges,
    read_entries,
    seconds,
    wanted,
)
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import Hashes, pair_hashes
from lakegc_assets.run.sets import Members, read_run

Integers = npt.NDArray[np.int64]
Positions = npt.NDArray[np.int32]

_NO_ETAG: Final = 0x6E6F20657461670A
#: Work on one core, in seconds, to compare an entry.
_ENTRY_S: Final = 3e-8


def groups_of(sizes: Integers, etags: Integers | None = None) -> Hashes:
    """The group of each object: of its size and the hash of its etag, or of its size alone."""
    none = np.full(len(sizes), _NO_ETAG, np.uint64)
    return pair_hashes(sizes.view(np.uint64), none if etags is None else etags.view(np.uint64))


def unclear_of(sizes: Integers) -> Hashes:
    """The group of entries of each size whose etag says nothing."""
    return groups_of(sizes, np.zeros_like(sizes))


@dataclass(frozen=True)
class HeadRanges:
    """The ranges of branch HEADs. Elsewhere they are named by their positions here.

    Attributes:
        ranges: each once.
        branches: for each range, how many branches hold it.
        of_branch: for each branch, the positions of its ranges.
    """

    ranges: Sequence[Wanted]
    branches: Integers
    of_branch: Mapping[str, Positions]


@dataclass(frozen=True)
class Alike:
    """Which ranges hold how many entries of which group; all three of one length.

    Attributes:
        positions: of the ranges.
        groups: as ``groups_of`` gives them.
        entries: how many.
    """

    positions: Positions
    groups: Hashes
    entries: Integers


def head_ranges(ctx: RunContext, connections: Connections, heads: pa.Table) -> HeadRanges:
    """The ranges of branch HEADs.

    Args:
        ctx: the run.
        connections: how tasks reach the store and the cache.
        heads: columns ``branch`` and ``metarange_id``.

    Raises:
        IntegrityError: a metarange is missing or damaged.
    """
    named = dict(zip(heads["branch"].to_pylist(), heads["metarange_id"].to_pylist(), strict=True))
    pairs = pairs_of(ctx, connections, set(named.values())).rows
    unique = pairs.group_by("range_id").aggregate([("entries", "max")])
    unique = unique.rename_columns(["range_id", "entries"])
    positions = _numbers(pc.index_in(pairs["range_id"], unique["range_id"].combine_chunks()))
    ids, first = np.unique(pairs["metarange_id"].to_numpy(), return_inverse=True)
    order = np.argsort(first, kind="stable")
    cuts = np.searchsorted(first[order], np.arange(1, len(ids)))
    held = np.split(positions[order].astype(np.int32), cuts) if len(ids) else []
    by_metarange = dict(zip(ids, held, strict=True))
    nothing: Positions = np.empty(0, np.int32)
    of_branch = {branch: by_metarange.get(m, nothing) for branch, m in named.items()}
    branches = np.zeros(unique.num_rows, np.int64)
    for found in of_branch.values():
        branches[found] += 1
    slots = cached_ranges(connections) if unique.num_rows else {}
    return HeadRanges(wanted(unique, slots), branches, of_branch)


@dataclass(frozen=True)
class _Order:
    """What one task compares."""

    connections: Connections
    url: str
    chunks: Sequence[Sequence[tuple[int, Wanted]]]
    groups: Sequence[Part]


def compare(
    ctx: RunContext,
    connections: Connections,
    heads: HeadRanges,
    url: str,
    groups: Sequence[Part],
) -> Alike:
    """Find entries of some groups at branch HEADs.

    Args:
        ctx: the run.
        connections: how tasks reach the store and the cache.
        heads: the ranges to look at.
        url: of the store of the following files.
        groups: a set of groups.

    Raises:
        IntegrityError: a range or a file is missing or damaged.
    """
    positions = {one.range_id: position for position, one in enumerate(heads.ranges)}
    chunks = [[(positions[one.range_id], one) for one in some] for some in by_files(heads.ranges)]
    costs = [
        sum(seconds(one) + (one.entries or 0) * _ENTRY_S for _, one in chunk) for chunk in chunks
    ]
    orders = [
        _Order(connections, url, some, groups)
        for some in bin_pack(chunks, costs, ctx.settings.address_num_partitions)
    ]
    answers = ctx.tasks.run("compare entries at branch HEADs", _compare, orders, sum(costs))
    return _joined(answers)


def _joined(parts: Sequence[Alike]) -> Alike:
    return Alike(
        np.concatenate([np.empty(0, np.int32), *(part.positions for part in parts)]),
        np.concatenate([np.empty(0, np.uint64), *(part.groups for part in parts)]),
        np.concatenate([np.empty(0, np.int64), *(part.entries for part in parts)]),
    )


def _compare(order: _Order) -> Alike:
    store = order.connections.open(order.url)
    groups = Members([read_run(store, part) for part in order.groups])
    found: list[Alike] = []
    for chunk in order.chunks:
        positions = {one.range_id: position for position, one in chunk}
        for entries in read_entries(order.connections, [one for _, one in chunk], LOOKS):
            looks = (_numbers(entries.group[name]) for name in ("size", "etag_hash"))
            found.append(_count(positions[entries.range_id], groups, *looks))
    return _joined(found)


def _count(position: int, groups: Members, sizes: Integers, etags: Integers) -> Alike:
    """Each entry counts for both groups that may look like it: of its etag, and of its size."""
    hashes = np.concatenate([groups_of(sizes, etags), groups_of(sizes)])
    unique, counts = np.unique(hashes[groups.hold(hashes)], return_counts=True)
    return Alike(np.full(len(unique), position, np.int32), unique, counts.astype(np.int64))


def _numbers(column: pa.ChunkedArray | pa.Array) -> Integers:
    numbers: Integers = (
        column.to_numpy()
        if isinstance(column, pa.ChunkedArray)
        else (column.to_numpy(zero_copy_only=False))
    )
    return numbers
