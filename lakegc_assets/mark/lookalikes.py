"""What branch HEADs hold that looks like a candidate: entries of its size, and of its etag.

Entries are compared as hashes of (size, etag), or of the size alone. Two groups with one hash only
mean that lakeFS is asked about more paths. An entry's etag may say nothing of what is served at its
path (``etag_hash`` is 0): a copy that lakeFS makes keeps the etag of an upload in parts, or of
another store, and its own object has another one. Such an entry looks like all of its size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.mark.metaranges import pairs_of
from lakegc_assets.mark.ranges import (
    HASHES,
    LOOKS,
    Wanted,
    cached_ranges,
    read_entries,
    seconds,
    wanted,
)
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import Hashes, pair_hashes
from lakegc_assets.run.parts import Part, read_part
from lakegc_assets.run.sets import Members, places_of, read_run
from lakegc_assets.run.tasks import spread
from lakegc_assets.storage.base import ObjectStore

Integers = npt.NDArray[np.int64]
Positions = npt.NDArray[np.int32]

#: Objects that may be read to know their checksum, in bytes.
SMALL: Final = 64 << 10
#: What listed objects are compared by: sorted by ``hash``, that of the address.
ETAGS: Final = pa.schema(
    [("hash", pa.uint64()), ("etag_hash", pa.int64()), ("modified", pa.int64())]
)
_NO_ETAG: Final = 0x6E6F20657461670A
#: Entries whose etags are compared with the listing's at a time, about.
_HELD: Final = 4_000_000
#: Work on one core, in seconds, to compare an entry.
_ENTRY_S: Final = 3e-7


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
class Evidence:
    """How etags of listed objects compare with those of the entries at branch HEADs.

    Attributes:
        agree: whether all of them do; None where there are none.
        newest: of the objects compared, when the last was written, in microseconds since 1970.
        small_agree: whether one of a size that may be read has the etag of its entry.
    """

    agree: bool | None = None
    newest: int = 0
    small_agree: bool = False

    def __add__(self, other: Evidence) -> Evidence:
        """What both say together."""
        both = [e.agree for e in (self, other) if e.agree is not None]
        return Evidence(
            all(both) if both else None,
            max(self.newest, other.newest),
            self.small_agree or other.small_agree,
        )


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
    etags: Sequence[Part]


def compare(
    ctx: RunContext,
    connections: Connections,
    heads: HeadRanges,
    url: str,
    groups: Sequence[Part],
    etags: Sequence[Part] = (),
) -> tuple[Alike, Evidence]:
    """Find entries of some groups at branch HEADs, and compare etags where wanted.

    Args:
        ctx: the run.
        connections: how tasks reach the store and the cache.
        heads: the ranges to look at.
        url: of the store of the following files.
        groups: a set of groups.
        etags: rows of ``ETAGS``, of all that is listed.

    Raises:
        IntegrityError: a range or a file is missing or damaged.
    """
    chunks = _chunks(heads.ranges)
    rows = sum(part.rows for part in etags)
    costs = [
        sum(seconds(one) + (one.entries or 0) * _ENTRY_S for _, one in chunk) + rows * _ENTRY_S / 10
        for chunk in chunks
    ]
    orders = [
        _Order(connections, url, some, groups, etags)
        for some in spread(chunks, costs, ctx.settings.address_num_partitions)
    ]
    answers = ctx.tasks.run("compare entries at branch HEADs", _compare, orders, sum(costs))
    alike = _joined([alike for alike, _ in answers])
    return alike, sum((evidence for _, evidence in answers), Evidence())


def _chunks(ranges: Sequence[Wanted]) -> list[list[tuple[int, Wanted]]]:
    """Ranges that are read together: those of one pack."""
    packs: dict[str, list[tuple[int, Wanted]]] = {}
    for position, one in enumerate(ranges):
        name = one.slot.pack.index if one.slot else one.range_id
        packs.setdefault(name, []).append((position, one))
    return list(packs.values())


def _joined(parts: Sequence[Alike]) -> Alike:
    return Alike(
        np.concatenate([np.empty(0, np.int32), *(part.positions for part in parts)]),
        np.concatenate([np.empty(0, np.uint64), *(part.groups for part in parts)]),
        np.concatenate([np.empty(0, np.int64), *(part.entries for part in parts)]),
    )


def _compare(order: _Order) -> tuple[Alike, Evidence]:
    store = order.connections.open(order.url)
    found: list[Alike] = []
    entries: list[_Entries] = []
    evidence = Evidence()
    groups = Members([read_run(store, part) for part in order.groups])
    for chunk in order.chunks:
        positions = {one.range_id: position for position, one in chunk}
        ranges = [one for _, one in chunk]
        looks = {
            e.range_id: (_numbers(e.group["size"]), _numbers(e.group["etag_hash"]))
            for e in read_entries(order.connections, ranges, LOOKS)
        }
        for range_id, (sizes, etags) in looks.items():
            found.append(_count(positions[range_id], groups, sizes, etags))
        if order.etags:
            hashes = {
                e.range_id: e.group["hash"].to_numpy()
                for e in read_entries(order.connections, ranges, HASHES)
            }
            entries += [_Entries(hashes[one], *look) for one, look in looks.items()]
        if sum(len(some.hashes) for some in entries) >= _HELD:
            evidence, entries = sum(_evidence(store, order.etags, entries), evidence), []
    return _joined(found), sum(_evidence(store, order.etags, entries), evidence)


def _count(position: int, groups: Members, sizes: Integers, etags: Integers) -> Alike:
    """Each entry counts for both groups that may look like it: of its etag, and of its size."""
    hashes = np.concatenate([groups_of(sizes, etags), groups_of(sizes)])
    unique, counts = np.unique(hashes[groups.hold(hashes)], return_counts=True)
    return Alike(np.full(len(unique), position, np.int32), unique, counts.astype(np.int64))


@dataclass(frozen=True)
class _Entries:
    hashes: Hashes
    sizes: Integers
    etags: Integers


def _evidence(
    store: ObjectStore, parts: Sequence[Part], some: Sequence[_Entries]
) -> Iterator[Evidence]:
    if not some:
        return
    hashes = np.concatenate([one.hashes for one in some])
    order = np.argsort(hashes, kind="stable")
    etags = np.concatenate([one.etags for one in some])[order]
    small = np.concatenate([one.sizes for one in some])[order] <= SMALL
    unique, starts = _starts(hashes[order])
    for part in parts:
        table = read_part(store, part)
        listed = table["hash"].to_numpy()
        if not len(listed) or not len(unique):
            continue
        # A listing comes in many files, so what is searched for is theirs.
        at = np.minimum(places_of(unique, listed), len(unique) - 1)
        held = unique[at] == listed
        first, last = starts[at], np.where(held, starts[at + 1], starts[at])
        object_of = np.repeat(np.arange(len(listed)), last - first)
        ends = np.cumsum(last - first)
        entry_of = np.arange(len(object_of)) + np.repeat(last - ends, last - first)
        # An unclear etag is evidence neither for nor against any other.
        clear = etags[entry_of] != 0
        object_of, entry_of = object_of[clear], entry_of[clear]
        if not len(entry_of):
            continue
        agree = _numbers(table["etag_hash"])[object_of] == etags[entry_of]
        modified = _numbers(table["modified"])[object_of]
        yield Evidence(
            bool(agree.all()), int(modified.max()), bool((agree & small[entry_of]).any())
        )


def _starts(hashes: Hashes) -> tuple[Hashes, Integers]:
    """Sorted hashes, each once, and where each begins; behind these where the last ends."""
    begins = np.append(True, hashes[1:] != hashes[:-1])[: len(hashes)]
    starts = np.append(np.flatnonzero(begins), len(hashes))
    return hashes[starts[:-1]], starts


def _numbers(column: pa.ChunkedArray | pa.Array) -> Integers:
    numbers: Integers = (
        column.to_numpy()
        if isinstance(column, pa.ChunkedArray)
        else (column.to_numpy(zero_copy_only=False))
    )
    return numbers
