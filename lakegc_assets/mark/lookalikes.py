"""Entries of branch HEADs that look like a candidate: of its size, and of its etag if a checksum.

An entry's etag may say nothing of what is served at its path (``etag_hash`` is 0): a copy that
lakeFS makes keeps the etag of an upload in parts, or of another store, and its own object has
another one. Such an entry looks like all of its size.

The checksum of a small candidate without such an etag is found by reading it, where that takes less
than to ask lakeFS about all paths at branch HEADs that look like it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from lakegc_assets.engine.datasets import Part, table_of
from lakegc_assets.mark import lookalike_relations as relations
from lakegc_assets.mark.etags import (
    AT_RANDOM,
    CONTENTS,
    NEWEST,
    READ_S,
    SAMPLE,
    EtagFiles,
    Evidence,
    agreement,
    entries_are_checksums,
    evidence_of,
    read_contents,
)
from lakegc_assets.mark.lookalike_relations import ANY
from lakegc_assets.mark.metaranges import COUNTED, each_once, pairs_of
from lakegc_assets.mark.ranges import Wanted, range_frame, wanted
from lakegc_assets.mark.workspace import Workspace
from lakegc_assets.run.artifacts import LISTING
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import Hashes, pair_hashes

Integers = npt.NDArray[np.int64]
Positions = npt.NDArray[np.int32]

#: Columns of what relations take and give; see ``lookalike_relations``.
CANDIDATES: Final = pa.schema(
    [
        LISTING.field(name)
        for name in ("address", "hash", "size", "last_modified", "etag", "etag_hash")
    ]
)
SAMPLED: Final = pa.schema(
    [LISTING.field(name) for name in ("address", "size", "last_modified", "etag")]
)
RANGES: Final = pa.schema(
    [("range_id", pa.string()), ("branches", pa.int64()), ("pages", pa.int64())]
)
LOOKS: Final = pa.schema([("size", pa.int64()), ("look", pa.int64())])
ALIKE: Final = pa.schema([("range_id", pa.string()), *LOOKS, ("entries", pa.int64())])
PATHS_OF: Final = pa.schema([*LOOKS, ("paths", pa.int64())])
BY_PATHS: Final = pa.schema([("paths", pa.int64()), ("looks", pa.int64())])
BEFORE: Final = pa.schema([("paths", pa.int64()), ("before", pa.int64())])
ASKED: Final = pa.schema([*LOOKS, ("turn", pa.int32())])
RANGE_IDS: Final = pa.schema([("range_id", pa.string())])
SIZES: Final = pa.schema([("size", pa.int64())])
MOST: Final = pa.schema([*SIZES, ("most", pa.int64())])
SIZED: Final = pa.schema(
    [*SIZES, *((name, pa.int64()) for name in ("candidates", "paths", "pages"))]
)
TO_READ: Final = pa.schema([("address", pa.string()), *SIZES])
SERVED_NAMES: Final = pa.schema([("name", pa.string())])

#: Bytes of candidates that are read at most, to know their checksums.
_MOST_BYTES: Final = 1 << 30
#: A page of a listing, in seconds.
_PAGE_S: Final = 0.03
_COMPARE: Final = "compare entries at branch HEADs"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
#: Paths of a range that one page of a listing answers for, where they lie close by.
_OF_PAGE: Final = 500


def groups_of(sizes: Integers, etags: Integers | None = None) -> Hashes:
    """One number for each look: of its size and the hash of its etag, or of its size alone.

    Two looks with one number only mean that lakeFS is asked about more paths.
    """
    looks = np.full(len(sizes), ANY, np.int64) if etags is None else etags
    return pair_hashes(sizes.view(np.uint64), looks.view(np.uint64))


@dataclass(frozen=True)
class HeadRanges:
    """The ranges of branch HEADs. Elsewhere they are named by their positions here."""

    ranges: Sequence[Wanted]
    #: For each range, how many branches hold it.
    branches: Integers
    #: For each branch, the positions of its ranges.
    of_branch: Mapping[str, Positions]

    def entries(self) -> pa.Table:
        """range_id, and entries or null."""
        return table_of(((one.range_id, one.entries) for one in self.ranges), COUNTED)

    def costs(self) -> pa.Table:
        """Pages that a lookup of paths needs for each range (``RANGES``)."""
        ids = [one.range_id for one in self.ranges]
        pages = [(one.entries or 0) // _OF_PAGE + 1 for one in self.ranges]
        return table_of(zip(ids, self.branches.tolist(), pages, strict=True), RANGES)


def head_ranges(ctx: RunContext, connections: Connections, heads: pa.Table) -> HeadRanges:
    """The ranges of branch HEADs.

    ``heads``: columns ``branch`` and ``metarange_id``.

    Raises:
        IntegrityError: a metarange is missing or damaged.
    """
    named = dict(zip(heads["branch"].to_pylist(), heads["metarange_id"].to_pylist(), strict=True))
    pairs = pairs_of(ctx, connections, set(named.values()))
    unique = each_once(pairs)
    metaranges, range_ids = (pairs[n].combine_chunks() for n in ("metarange_id", "range_id"))
    by_code = pc.index_in(range_ids.dictionary, unique["range_id"]).to_numpy(zero_copy_only=False)
    order = np.argsort(metaranges.indices.to_numpy(), kind="stable")
    positions = by_code[range_ids.indices.to_numpy()[order]].astype(np.int32)
    rows = np.bincount(metaranges.indices.to_numpy(), minlength=len(metaranges.dictionary))
    held = np.split(positions, np.cumsum(rows)[:-1]) if len(rows) else []
    by_metarange = dict(zip(metaranges.dictionary.to_pylist(), held, strict=True))
    nothing: Positions = np.empty(0, np.int32)
    of_branch = {branch: by_metarange.get(m, nothing) for branch, m in named.items()}
    branches = np.zeros(unique.num_rows, np.int64)
    for found in of_branch.values():
        branches[found] += 1
    return HeadRanges(wanted(unique, {}), branches, of_branch)


@dataclass(frozen=True)
class HeadLooks:
    """Entries of HEAD ranges that look like the candidates of a mark.

    They hold for any subset of these candidates, since ranges never change.

    Attributes:
        ranges: ids of the ranges that were compared.
        alike: files of ``ALIKE``: the entries that may look like a candidate.
        by_etag: whether etags were compared, too.
    """

    ranges: AbstractSet[str] = frozenset()
    alike: Sequence[Part] = ()
    by_etag: bool = False


NOTHING_COMPARED: Final = HeadLooks()


@dataclass(frozen=True)
class Looks:
    """Looks of candidates, and the entries that have them."""

    alike: Sequence[Part] = ()
    #: What was written until then has its checksum as etag; None where nothing has.
    until: datetime | None = None
    contents: Sequence[Part] = ()

    def of(self, work: Workspace, candidates: DataFrame) -> DataFrame:
        """The looks of each candidate (address, size, look)."""
        return relations.looks_of(candidates, self.until, work.read(self.contents, CONTENTS))


def find_looks(
    work: Workspace,
    heads: HeadRanges,
    candidates: DataFrame,
    etags: EtagFiles,
    deadline: float,
    compared: HeadLooks = NOTHING_COMPARED,
) -> Looks:
    """Find out what candidates look like.

    Args:
        work: where to compute.
        heads: the ranges of branch HEADs.
        candidates: what nothing lists any more.
        etags: of what is listed, among the working files; none where etags are not to be compared.
        deadline: seconds since 1970; half of the time until then candidates may be read.
        compared: what a mark has compared of candidates that include these, among the same files.

    Raises:
        IntegrityError: a range or a file is missing or damaged.
    """
    ctx, connections = work.ctx, work.connections
    if not heads.ranges:
        return Looks()
    wanted = relations.looks_of_all(candidates, bool(etags.parts))
    if compared.by_etag != bool(etags.parts):
        compared = NOTHING_COMPARED
    alike = _alike(work, heads, wanted, compared)
    # Without any entry of their sizes no candidate looks like one, whatever its etag is.
    if not alike or not etags.parts:
        return Looks(alike)
    evidence = evidence_of(ctx, connections, heads.ranges, connections.open(work.url), etags)
    until = _comparable_until(work, candidates, evidence)
    which = "no etags" if until is None else f"etags until {until}"
    ctx.log.info("%s of the store can be compared with those at HEADs", which)
    looks = Looks(alike, until)
    # Where the entry's etag is not the content's MD5, it is the one that the store gave.
    if evidence.small_agree:
        return looks
    contents = _contents(work, heads, candidates, looks, deadline)
    if not contents:
        return looks
    known = Looks(alike, until, contents)
    more = relations.unknown_looks(known.of(work, candidates), wanted)
    also = _alike(work, heads, more, NOTHING_COMPARED)
    return Looks([*alike, *also], until, contents)


def _alike(
    work: Workspace, heads: HeadRanges, wanted: DataFrame, compared: HeadLooks
) -> list[Part]:
    """The entries of HEADs with some looks (``ALIKE``); only ranges not yet compared are read."""
    ranges = heads.entries()
    known = pc.is_in(ranges["range_id"], pa.array(sorted(compared.ranges), pa.string()))
    found: list[Part] = []
    if compared.alike:
        ids = work.frames.create(ranges.filter(known).select(["range_id"]))
        rows = relations.alike_in(work.read(compared.alike, ALIKE), ids, wanted)
        found += work.write(rows, "alike", ALIKE, _COMPARE)
    unread = ranges.filter(pc.invert(known))
    if unread.num_rows:
        columns = ("range_id", "size", "etag_hash")
        entries = range_frame(work.ctx, work.connections, work.frames, unread, columns)
        found += work.write(relations.alike(entries, wanted), "alike", ALIKE, _COMPARE)
    return found


def _comparable_until(
    work: Workspace, candidates: DataFrame, evidence: Evidence
) -> datetime | None:
    """Until which time of writing an object's etag in the store is the checksum in its entry.

    Etags count as comparable only if they agree for every object at a branch HEAD, and for every
    one that was read; and only for objects written before the latest of these. Some are read in any
    case: entries may have the store's etags, whatever these are, where clients linked them.
    """
    if evidence.agree is False:
        return None
    until = evidence.newest if evidence.agree else -1
    chosen = relations.sample(candidates, SAMPLE, NEWEST, AT_RANDOM)
    rows = work.frames.collect(chosen, SAMPLED, "choose candidates whose etags are verified")
    if rows.num_rows:
        agree, newest = agreement(work.connections.store(), rows)
        if agree is False:
            return None
        until = max(until, newest if agree else -1)
    return None if until < 0 else _EPOCH + timedelta(microseconds=until)


def _contents(
    work: Workspace,
    heads: HeadRanges,
    candidates: DataFrame,
    looks: Looks,
    deadline: float,
) -> list[Part]:
    """The checksums of small candidates that are read sooner than asked about (``CONTENTS``)."""
    alike = work.read(looks.alike, ALIKE)
    ranges = work.frames.create(heads.costs())
    doubtful = relations.doubtful_sizes(candidates, alike, ranges, looks.until)
    sized = work.frames.collect(doubtful, SIZED, "count candidates by size")
    chosen = _worth_reading(sized, deadline - time.time(), work.ctx.settings.max_served_lookups)
    if not chosen.num_rows or not _checksums(work, alike, chosen):
        return []
    sizes = work.frames.create(chosen)
    some = relations.to_read(candidates, sizes, looks.until)
    parts = work.write(some, "read", TO_READ, "choose candidates to read")
    half = (time.time() + deadline) / 2
    return read_contents(
        work.ctx, work.connections, work.url, f"{work.folder}contents/", parts, half
    )


def _worth_reading(sized: pa.Table, left: float, lookups: int) -> pa.Table:
    """The number of candidates to read of each size (``MOST``).

    Args:
        sized: rows of ``SIZED``.
        left: seconds for which lakeFS may be asked.
        lookups: paths that may be looked up.
    """
    sized = sized.sort_by("size")
    sizes, members, paths, pages = (sized[name].to_numpy() for name in SIZED.names)
    seconds = pages * _PAGE_S
    few = int(paths.sum()) <= lookups
    if not sized.num_rows or (few and seconds.sum() < left / 4):
        return MOST.empty_table()
    # Where lakeFS may not be asked, to read is all that is left.
    worth = seconds > members * READ_S if few else np.ones(len(sizes), np.bool_)
    rows: list[dict[str, int]] = []
    room = _MOST_BYTES
    for size, count in zip(sizes[worth].tolist(), members[worth].tolist(), strict=True):
        most = min(count, room // size) if size else count
        room -= most * size
        if most:
            rows.append({"size": size, "most": most})
    return pa.Table.from_pylist(rows, MOST)


def _checksums(work: Workspace, alike: DataFrame, chosen: pa.Table) -> bool:
    """Return whether the etags of entries of some sizes are checksums, by some of their ranges."""
    sizes = chosen["size"].combine_chunks()
    by_size = pa.table([sizes, pa.repeat(pa.scalar(relations.ANY, pa.int64()), len(sizes))], LOOKS)
    held = relations.ranges_with(alike, work.frames.create(by_size))
    found = work.frames.collect(held, RANGE_IDS, "find ranges to look into")
    ids = sorted(found["range_id"].to_pylist())
    some = ids[:: max(1, len(ids) // 3)][:3]
    return entries_are_checksums(work.connections, some, frozenset(sizes.to_pylist()))
