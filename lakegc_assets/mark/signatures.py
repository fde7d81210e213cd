"""The signatures of candidates: their sizes, and their etags if these are checksums.

lakeFS may serve the path of an entry at a branch HEAD from a candidate with the entry's signature.
An entry's etag may say nothing about the object that is served at its path (``etag_hash`` is 0):
lakeFS's copy of an object keeps the etag of a multipart upload, or of another store, and the object
of the copy has another etag. Such an entry matches every candidate of its size.

Sizes of entries are also declared by clients. If the listing shows another size for the object of
one entry, every entry whose size the listing does not confirm matches every candidate.

If the etag of a small candidate is no checksum, the candidate is read for it, if that takes less
time than to ask lakeFS about all matching paths at branch HEADs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from lakegc_assets.engine.datasets import Part, table_of
from lakegc_assets.engine.ddl import schema
from lakegc_assets.errors import IntegrityError
from lakegc_assets.mark import signature_relations as relations
from lakegc_assets.mark.etags import (
    AT_RANDOM,
    CONTENTS,
    ENTRIES,
    ETAGS,
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
from lakegc_assets.mark.metaranges import COUNTED, each_once, pairs_of
from lakegc_assets.mark.ranges import Wanted, range_frame, wanted
from lakegc_assets.mark.session_folder import SessionFolder
from lakegc_assets.mark.signature_relations import ANY
from lakegc_assets.run.artifacts import LISTING
from lakegc_assets.run.context import RunContext

Integers = npt.NDArray[np.int64]
Positions = npt.NDArray[np.int32]

#: Columns of the inputs and results of relations; see ``signature_relations``.
CANDIDATES: Final = pa.schema(
    [
        LISTING.field(name)
        for name in ("address", "hash", "size", "last_modified", "etag", "etag_hash")
    ]
)
#: Columns of candidates for their possible signatures.
_COMPARED: Final = pa.schema([LISTING.field(name) for name in ("size", "etag_hash")])
SAMPLED: Final = pa.schema(
    [LISTING.field(name) for name in ("address", "size", "last_modified", "etag")]
)
RANGES: Final = schema("range_id string, branches bigint, pages bigint")
SIGNATURES: Final = schema("size bigint, signature bigint")
MATCHES: Final = schema("range_id string", SIGNATURES, "entries bigint")
#: Entries whose sizes prove nothing, by size and etag in their range.
UNCLEAR: Final = schema("range_id string, size bigint, etag_hash bigint, entries bigint")
RANGE_IDS: Final = schema("range_id string")
SIZES: Final = schema("size bigint")
MOST: Final = schema(SIZES, "most bigint")
SIZED: Final = schema(SIZES, "candidates bigint, paths bigint, pages bigint")
TO_READ: Final = schema("address string", SIZES)

#: Maximum number of bytes of candidates that are read for their checksums.
_MOST_BYTES: Final = 1 << 30
#: Seconds for a page of a listing.
_PAGE_S: Final = 0.03
_COMPARE: Final = "compare entries at branch HEADs"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
#: Number of close paths of a range that one page of a listing answers for.
_OF_PAGE: Final = 500


@dataclass(frozen=True)
class HeadRanges:
    """The ranges of branch HEADs; other code refers to them by their positions here."""

    ranges: Sequence[Wanted] = ()
    #: For each range, the number of branches that hold it.
    branches: Integers = field(default_factory=lambda: np.empty(0, np.int64))
    #: For each branch, the positions of its ranges.
    of_branch: Mapping[str, Positions] = field(default_factory=dict)

    def entries(self) -> pa.Table:
        """Range ids with their number of entries, or null (``COUNTED``)."""
        return table_of(((one.range_id, one.entries) for one in self.ranges), COUNTED)

    def costs(self) -> pa.Table:
        """Branches and pages of each range: the costs of a lookup of its paths (``RANGES``)."""
        ids = [one.range_id for one in self.ranges]
        pages = [(one.entries or 0) // _OF_PAGE + 1 for one in self.ranges]
        return table_of(zip(ids, self.branches.tolist(), pages, strict=True), RANGES)


def head_ranges(ctx: RunContext, heads: pa.Table) -> HeadRanges:
    """The ranges of branch HEADs.

    ``heads``: columns ``branch`` and ``metarange_id``.

    Raises:
        IntegrityError: a metarange is missing or damaged.
    """
    named = dict(zip(heads["branch"].to_pylist(), heads["metarange_id"].to_pylist(), strict=True))
    pairs = pairs_of(ctx, set(named.values()))
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
class HeadMatches:
    """Entries of HEAD ranges with the signatures that candidates of a mark may have.

    Ranges never change, so the matches also hold for any subset of these candidates.
    """

    #: Ids of the ranges that were compared.
    ranges: AbstractSet[str] = frozenset()
    #: Files of ``MATCHES``.
    files: Sequence[Part] = ()
    #: True if etags were compared, too.
    by_etag: bool = False
    #: True if no entry is known to differ in size from its listed object.
    sizes_agree: bool = False


NOTHING_COMPARED: Final = HeadMatches()


@dataclass(frozen=True)
class Signatures:
    """The data that determine signatures of candidates, and the entries that may have one."""

    matches: Sequence[Part] = ()
    #: Etags of objects written up to this time are checksums; None if no etag is one.
    until: datetime | None = None
    contents: Sequence[Part] = ()
    #: Files of ``UNCLEAR``: entries that match every candidate; none if all sizes are true.
    unclear: Sequence[Part] = ()

    def of(self, work: SessionFolder, candidates: DataFrame) -> DataFrame:
        """The signatures of each candidate (address, size, signature)."""
        contents = work.read(self.contents, CONTENTS)
        return relations.signatures_of(candidates, self.until, contents, bool(self.unclear))


def find_signatures(
    work: SessionFolder,
    heads: HeadRanges,
    parts: Sequence[Part],
    etags: EtagFiles,
    deadline: float,
    compared: HeadMatches = NOTHING_COMPARED,
) -> Signatures:
    """Find the signatures of candidates.

    ``parts``: files of candidates, which no live set holds, among the working files.
    ``etags``: files of listed objects, among the working files; none if neither etags nor sizes
        are to be compared.
    ``deadline``: seconds since 1970; candidates may be read for half of the time until then.
    ``compared``: the comparison of a mark whose candidates include these, in the same files.

    Raises:
        IntegrityError: a range or a file is missing or damaged.
    """
    if not heads.ranges:
        return Signatures()
    # Only these columns are read, so that an engine knows how small the input is.
    possible = relations.possible_signatures(work.read(parts, _COMPARED), bool(etags.parts))
    if compared.by_etag != bool(etags.parts):
        compared = NOTHING_COMPARED
    found = Signatures(_matches(work, heads, possible, compared))
    sizes_agree = compared.sizes_agree and compared.ranges >= {one.range_id for one in heads.ranges}
    # If no entry has the size of a candidate, no candidate has a match, whatever its etag.
    if not etags.parts or (sizes_agree and not found.matches):
        return found
    evidence = evidence_of(work, heads.ranges, etags)
    if found.matches:
        candidates = work.read(parts, CANDIDATES)
        found = _by_etag(work, heads, candidates, possible, found, evidence, deadline)
    return found if evidence.sizes_agree else _with_unclear(work, heads, found, etags)


def _by_etag(
    work: SessionFolder,
    heads: HeadRanges,
    candidates: DataFrame,
    possible: DataFrame,
    found: Signatures,
    evidence: Evidence,
    deadline: float,
) -> Signatures:
    """The signatures with etags, or with MD5s of contents, if these can be compared."""
    found = replace(found, until=_comparable_until(work, candidates, evidence))
    comparable = "no etags" if found.until is None else f"etags until {found.until}"
    work.ctx.log.info("%s of the store can be compared with those at HEADs", comparable)
    # The etag of an entry is the MD5 of the content, or else the etag that the store gave.
    if evidence.small_agree:
        return found
    contents = _contents(work, heads, candidates, found, deadline)
    if not contents:
        return found
    found = replace(found, contents=contents)
    more = relations.other_signatures(found.of(work, candidates), possible)
    more_matches = _matches(work, heads, more, NOTHING_COMPARED)
    return replace(found, matches=[*found.matches, *more_matches])


def _with_unclear(
    work: SessionFolder, heads: HeadRanges, found: Signatures, etags: EtagFiles
) -> Signatures:
    """The signatures, with the entries whose sizes the listing does not confirm.

    Raises:
        IntegrityError: there are no such entries, although the evidence says that sizes differ.
    """
    entries = range_frame(work.ctx, work.frames, heads.entries(), ENTRIES)
    rows = relations.unclear_entries(entries, work.read(etags.parts, ETAGS))
    unclear = work.write(rows, "unclear", UNCLEAR, "find entries whose sizes say nothing")
    if not unclear:
        raise IntegrityError(
            "by the cached evidence, sizes of entries at branch HEADs differ from those of their "
            "objects, but by the cached entries none does. Remove the folders evidence/ and "
            f"ranges/ of {work.connections.cache_url}, which a run makes anew, then run again"
        )
    work.ctx.log.warning(
        "entries at branch HEADs have other sizes than their objects, as clients declared them: "
        "lakeFS is asked for all whose sizes are not confirmed, %s or more",
        f"{sum(part.rows for part in unclear):,}",
    )
    every = relations.unclear_matches(work.read(unclear, UNCLEAR))
    matches = work.write(every, "matches", MATCHES, _COMPARE)
    return replace(found, matches=[*found.matches, *matches], unclear=unclear)


def _matches(
    work: SessionFolder, heads: HeadRanges, possible: DataFrame, compared: HeadMatches
) -> list[Part]:
    """Entries of HEADs with the signatures (``MATCHES``); compared ranges are not read again."""
    ranges = heads.entries()
    known = pc.is_in(ranges["range_id"], pa.array(sorted(compared.ranges), pa.string()))
    found: list[Part] = []
    if compared.files:
        ids = work.frames.create(ranges.filter(known).select(["range_id"]))
        rows = relations.matches_in(work.read(compared.files, MATCHES), ids, possible)
        found += work.write(rows, "matches", MATCHES, _COMPARE)
    unread = ranges.filter(pc.invert(known))
    if unread.num_rows:
        columns = ("range_id", "size", "etag_hash")
        entries = range_frame(work.ctx, work.frames, unread, columns)
        found += work.write(relations.matches(entries, possible), "matches", MATCHES, _COMPARE)
    return found


def _comparable_until(
    work: SessionFolder, candidates: DataFrame, evidence: Evidence
) -> datetime | None:
    """The time up to which the store's etag of an object is the checksum in its entry.

    Etags are comparable only if they agree for every object at a branch HEAD and for every object
    that was read, and only for objects written before the newest of these. Samples are always read:
    if clients linked objects, entries may have the store's etags, even if these are no checksums.
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
    work: SessionFolder,
    heads: HeadRanges,
    candidates: DataFrame,
    found: Signatures,
    deadline: float,
) -> list[Part]:
    """The checksums of small candidates that are read faster than asked for (``CONTENTS``)."""
    matches, ranges = work.read(found.matches, MATCHES), work.frames.create(heads.costs())
    doubtful = relations.doubtful_sizes(candidates, matches, ranges, found.until)
    sized = work.frames.collect(doubtful, SIZED, "count candidates by size")
    chosen = _worth_reading(sized, deadline - time.time(), work.ctx.settings.max_served_lookups)
    if not chosen.num_rows or not _checksums(work, matches, chosen):
        return []
    to_read = relations.to_read(candidates, work.frames.create(chosen), found.until)
    parts = work.write(to_read, "read", TO_READ, "choose candidates to read")
    return read_contents(work, parts, (time.time() + deadline) / 2)


def _worth_reading(sized: pa.Table, left: float, lookups: int) -> pa.Table:
    """The number of candidates to read of each size (``MOST``).

    ``sized``: rows of ``SIZED``.
    ``left``: seconds that remain for questions to lakeFS.
    ``lookups``: maximum number of paths to ask for.
    """
    sized = sized.sort_by("size")
    sizes, members, paths, pages = (sized[name].to_numpy() for name in SIZED.names)
    seconds = pages * _PAGE_S
    few = int(paths.sum()) <= lookups
    if not sized.num_rows or (few and seconds.sum() < left / 4):
        return MOST.empty_table()
    # If there are too many paths to ask for, reading is the only way.
    worth = seconds > members * READ_S if few else np.ones(len(sizes), np.bool_)
    rows: list[tuple[int, int]] = []
    room = _MOST_BYTES
    for size, count in zip(sizes[worth].tolist(), members[worth].tolist(), strict=True):
        most = min(count, room // size) if size else count
        room -= most * size
        if most:
            rows.append((size, most))
    return table_of(rows, MOST)


def _checksums(work: SessionFolder, matches: DataFrame, chosen: pa.Table) -> bool:
    """Return whether the etags of entries with these sizes are checksums, by some of the ranges."""
    sizes = chosen["size"].to_pylist()
    by_size = table_of(((size, ANY) for size in sizes), SIGNATURES)
    held = relations.ranges_with(matches, work.frames.create(by_size))
    found = work.frames.collect(held, RANGE_IDS, "find ranges to look into")
    ids = sorted(found["range_id"].to_pylist())
    sample = ids[:: max(1, len(ids) // 3)][:3]
    return entries_are_checksums(work.connections, sample, frozenset(sizes))
