"""Candidates that lakeFS still serves although it lists them nowhere.

An upload whose size, checksum, metadata and content type equal what HEAD has at its path is served
from its new address, yet neither ``diff`` nor ``prepare_uncommited`` names it. So a candidate that
looks like an entry of some branch HEAD (equal size, and equal etag where etags can be compared) is
a candidate only after lakeFS was asked which address it serves at each such path. So it is with
what a branch's diff shows and ``prepare_uncommited`` may have lost.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from lakegc_assets.engine.datasets import Part, read_parts, write_part
from lakegc_assets.mark import lookalike_relations as relations
from lakegc_assets.mark.etags import EtagFiles
from lakegc_assets.mark.lookalikes import (
    ALIKE,
    ASKED,
    BEFORE,
    BY_PATHS,
    CANDIDATES,
    LOOKS,
    NOTHING_COMPARED,
    PATHS_OF,
    RANGE_IDS,
    SERVED_NAMES,
    SIZES,
    HeadLooks,
    HeadRanges,
    Looks,
    Positions,
    find_looks,
    head_ranges,
)
from lakegc_assets.mark.lookups import Question, ask, find_paths
from lakegc_assets.mark.workspace import Workspace
from lakegc_assets.run.artifacts import AttemptArtifacts, Manifest
from lakegc_assets.run.connections import Connections, reads_tables
from lakegc_assets.run.context import RunContext
from lakegc_assets.storage.base import ObjectStore

SPARED: Final = pa.schema([("address", pa.string()), ("why", pa.string())])
SERVED: Final = relations.SERVED
UNVERIFIED: Final = relations.UNVERIFIED
#: Names of parts and of a fact of ``deletion_candidates``.
_COMPARED: Final = "compared"
_ALIKE: Final = "alike"
COMPARED_BY_ETAG: Final = "compared_by_etag"
#: Seconds for which lakeFS may be asked at least.
LEAST_SECONDS: Final = 60.0
#: Paths that are asked for in the first turn; all turns before one hold as many as it does.
_FIRST_TURN: Final = 10_000
#: Numbers of paths by which looks are counted: beyond so many, with as many paths as may be asked
#: for, none is left.
_KINDS: Final = 50_000


class Served(NamedTuple):
    """The result of ``served_candidates``.

    Attributes:
        spared: the candidates that must stay: address and why.
        compared: what was compared for that, which a sweep of the mark need not compare again.
    """

    spared: pa.Table
    compared: HeadLooks


@reads_tables
def served_candidates(
    ctx: RunContext,
    connections: Connections,
    heads: pa.Table,
    store: ObjectStore,
    folder: str,
    candidates: Sequence[Part],
    etags: EtagFiles,
    seconds: float,
    staged: int = 0,
) -> Served:
    """Find the candidates that must stay, with the reason.

    Args:
        ctx: the run.
        connections: how tasks reach lakeFS, the store and the cache.
        heads: HEAD of each branch (branch, metarange_id).
        store: of artifacts.
        folder: of working files in it, with a slash at its end.
        candidates: files of what nothing lists any more (``LISTING``, and perhaps more).
        etags: of what is listed, in the same store; none where only some objects were looked at.
        seconds: for how long small candidates may be read and lakeFS may be asked.
        staged: about how many objects all branches have staged, by which the work is spread.

    Raises:
        IntegrityError: a range or a file is missing or damaged, or an answer cannot be true.
        LakeFSError: lakeFS did not answer.
    """
    inquiry = inquire(ctx, connections, heads, store, folder, candidates, etags, seconds, staged)
    spared = answered(ctx, connections, inquiry)
    return Served(spared, inquiry.compared(by_etag=bool(etags.parts)))


@dataclass(frozen=True)
class Inquiry:
    """Questions about some candidates; valid while branches stay where they are.

    Attributes:
        heads: what the branches hold.
        candidates: files of the candidates.
        looks: what they look like.
        question: what to ask.
        paths: where.
        over: files of looks that are not asked for, although entries have them.
        url: of the store of all files.
        folder: of working files in it.
    """

    heads: HeadRanges
    candidates: Sequence[Part]
    looks: Looks
    question: Question
    paths: Sequence[Part]
    over: Sequence[Part]
    url: str
    folder: str

    def compared(self, *, by_etag: bool) -> HeadLooks:
        """The entries of HEAD ranges that were found to look like the candidates."""
        ranges = frozenset(one.range_id for one in self.heads.ranges)
        return HeadLooks(ranges, self.looks.alike, by_etag)


def write_compared(
    store: ObjectStore, folder: str, compared: HeadLooks
) -> dict[str, Sequence[Part]]:
    """Parts of ``deletion_candidates`` for ``read_compared``; none where nothing was compared."""
    if not compared.ranges:
        return {}
    ids = pa.table([pa.array(sorted(compared.ranges), pa.string())], schema=RANGE_IDS)
    return {
        _COMPARED: [write_part(store, folder, ids)],
        _ALIKE: compared.alike or [write_part(store, folder, ALIKE.empty_table())],
    }


def read_compared(attempt: AttemptArtifacts, candidates: Manifest) -> HeadLooks:
    """The entries of HEAD ranges that a mark has found to look like its candidates.

    ``candidates``: the manifest of ``deletion_candidates``; an earlier version wrote none of this.

    Raises:
        IntegrityError: a file is missing or damaged.
    """
    if _COMPARED not in candidates.parts:
        return NOTHING_COMPARED
    ids = attempt.rows(candidates, _COMPARED, RANGE_IDS.names)["range_id"].to_pylist()
    by_etag = bool(candidates.facts[COMPARED_BY_ETAG])
    return HeadLooks(frozenset(ids), candidates.parts[_ALIKE], by_etag)


def inquire(
    ctx: RunContext,
    connections: Connections,
    heads: pa.Table,
    store: ObjectStore,
    folder: str,
    candidates: Sequence[Part],
    etags: EtagFiles,
    seconds: float,
    staged: int = 0,
    compared: HeadLooks = NOTHING_COMPARED,
) -> Inquiry:
    """Find the questions to ask; other arguments and errors are as in ``served_candidates``.

    ``compared`` is what the mark of these candidates has compared, in the same store.
    """
    question = Question([], np.empty(0, np.int32), [], 0, time.time() + seconds, staged)
    if not any(part.rows for part in candidates):
        nothing = HeadRanges([], np.empty(0, np.int64), {})
        return Inquiry(nothing, (), Looks(), question, (), (), store.url, folder)
    ranges = head_ranges(ctx, connections, heads)
    with ctx.frames(connections) as frames:
        work = Workspace(ctx, connections, frames, store.url, folder)
        some = work.read(candidates, CANDIDATES)
        looks = find_looks(work, ranges, some, etags, question.deadline, compared)
        sizes = work.write(relations.sizes_of(some), "sizes", SIZES, "collect sizes of candidates")
        question = replace(question, sizes=sizes)
        over: Sequence[Part] = ()
        if looks.alike:
            ranked = relations.paths_of_looks(
                work.read(looks.alike, ALIKE), looks.of(work, some), frames.create(ranges.costs())
            )
            found = work.write(ranked, "looks", PATHS_OF, "count paths at branch HEADs")
            question, over = _chosen(work, ranges, looks, found, question)
    paths = find_paths(ctx, connections, ranges, store.url, folder, question)
    return Inquiry(ranges, candidates, looks, question, paths, over, store.url, folder)


def _chosen(
    work: Workspace,
    heads: HeadRanges,
    looks: Looks,
    found: Sequence[Part],
    question: Question,
) -> tuple[Question, Sequence[Part]]:
    """Choose the questions: looks with fewest paths first, within the budget; and the rest.

    ``found``: files of the looks of candidates that entries have (``PATHS_OF``).
    """
    if not found:
        return question, ()
    most, frames = work.ctx.settings.max_served_lookups, work.frames
    every = work.read(found, PATHS_OF)
    kinds = relations.looks_by_paths(every, most, _KINDS)
    counted = frames.collect_rows(kinds, BY_PATHS, "count looks by their paths")
    before, paths = 0, 0
    rows: list[dict[str, int]] = []
    for kind in counted:
        each = kind["paths"]
        if before + each > most:
            break
        rows.append({"paths": each, "before": before})
        paths += each * min(kind["looks"], (most - before) // each)
        before += each * kind["looks"]
    if not rows:
        return question, found
    rarer = frames.create(pa.Table.from_pylist(rows, BEFORE))
    turns = work.write(
        relations.asked_looks(every, rarer, most, _FIRST_TURN), "turns", ASKED, "choose what to ask"
    )
    asked = work.read(turns, ASKED)
    rest = relations.unknown_looks(every, asked)
    over = work.write(rest, "over", LOOKS, "find what is not to be asked")
    held = relations.ranges_with(work.read(looks.alike, ALIKE), asked)
    ids = frames.collect(held, RANGE_IDS, "find ranges with paths to ask for")
    positions = _positions(heads, ids["range_id"].to_pylist())
    return replace(question, turns=turns, positions=positions, paths=paths), over


def _positions(heads: HeadRanges, range_ids: Sequence[str]) -> Positions:
    named = {one.range_id: position for position, one in enumerate(heads.ranges)}
    return np.array(sorted(named[range_id] for range_id in range_ids), np.int32)


def answered(ctx: RunContext, connections: Connections, inquiry: Inquiry) -> pa.Table:
    """The candidates that must stay, by what lakeFS answers; see ``served_candidates``."""
    if not inquiry.candidates:
        return SPARED.empty_table()
    answer = ask(
        ctx,
        connections,
        inquiry.heads,
        inquiry.url,
        inquiry.folder,
        inquiry.question,
        inquiry.paths,
    )
    doubtful = [*inquiry.over, *answer.unasked]
    if not answer.served and not doubtful:
        return SPARED.empty_table()
    with ctx.frames(connections) as frames:
        work = Workspace(ctx, connections, frames, inquiry.url, inquiry.folder)
        candidates = work.read(inquiry.candidates, CANDIDATES)
        rows = relations.spared(
            candidates,
            work.read(answer.served, SERVED_NAMES),
            inquiry.looks.of(work, candidates),
            work.read(doubtful, LOOKS),
        )
        parts = work.write(rows, "spared", SPARED, "spare what lakeFS serves")
    store = connections.open(inquiry.url)
    return pa.concat_tables([SPARED.empty_table(), *read_parts(store, parts)])


def again(inquiry: Inquiry, seconds: float) -> Inquiry:
    """The same, to be asked from now on, for so long."""
    return replace(inquiry, question=replace(inquiry.question, deadline=time.time() + seconds))
