"""Candidates that lakeFS still serves although it lists them nowhere.

An upload whose size, checksum, metadata and content type equal what HEAD has at its path is served
from its new address, yet neither ``diff`` nor ``prepare_uncommited`` names it. So a candidate with
the signature of an entry of some branch HEAD (equal size, and equal etag where etags can be
compared) is a candidate only after lakeFS was asked which address it serves at each such path. So
it is with what a branch's diff shows and ``prepare_uncommited`` may have lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa

from lakegc_assets.engine.datasets import Part, read_parts, write_part
from lakegc_assets.engine.ddl import schema
from lakegc_assets.mark import signature_relations as relations
from lakegc_assets.mark.etags import EtagFiles
from lakegc_assets.mark.lookups import SERVED_NAMES, Inquiry, ask, choose, find_paths
from lakegc_assets.mark.session_folder import SessionFolder
from lakegc_assets.mark.signatures import (
    CANDIDATES,
    MATCHES,
    NOTHING_COMPARED,
    RANGE_IDS,
    SIGNATURES,
    SIZES,
    HeadMatches,
    find_signatures,
    head_ranges,
)
from lakegc_assets.run.artifacts import AttemptArtifacts, Manifest
from lakegc_assets.run.connections import reads_tables
from lakegc_assets.run.context import RunContext
from lakegc_assets.storage.base import ObjectStore

SPARED: Final = schema("address string, why string")
SERVED: Final = relations.SERVED
UNVERIFIED: Final = relations.UNVERIFIED
#: Names of parts and of facts of ``deletion_candidates``.
_COMPARED: Final = "compared_ranges"
_MATCHES: Final = "matches"
COMPARED_BY_ETAG: Final = "compared_by_etag"
SIZES_AGREE: Final = "sizes_agree"
#: Seconds for which lakeFS may be asked at least.
LEAST_SECONDS: Final = 60.0


@reads_tables
def served_candidates(
    ctx: RunContext, inquiry: Inquiry, heads: pa.Table, candidates: Sequence[Part], etags: EtagFiles
) -> tuple[pa.Table, HeadMatches]:
    """Find the candidates that must stay (``SPARED``); its arguments are those of ``inquire``.

    Returns:
        These, and what was compared to find them, which a sweep of the mark need not compare again.

    Raises:
        IntegrityError: a range or a file is missing or damaged, or an answer cannot be true.
        LakeFSError: lakeFS did not answer.
    """
    inquiry = inquire(ctx, inquiry, heads, candidates, etags)
    return answered(ctx, inquiry), inquiry.compared(by_etag=bool(etags.parts))


def write_compared(
    store: ObjectStore, folder: str, compared: HeadMatches
) -> dict[str, Sequence[Part]]:
    """Parts of ``deletion_candidates`` for ``read_compared``; none where nothing was compared."""
    if not compared.ranges:
        return {}
    ids = pa.table([pa.array(sorted(compared.ranges), pa.string())], schema=RANGE_IDS)
    return {
        _COMPARED: [write_part(store, folder, ids)],
        _MATCHES: compared.files or [write_part(store, folder, MATCHES.empty_table())],
    }


def read_compared(attempt: AttemptArtifacts, candidates: Manifest) -> HeadMatches:
    """The entries of HEAD ranges that a mark has found to match its candidates.

    ``candidates``: the manifest of ``deletion_candidates``. An earlier version wrote none of this,
    or in another form: then it is compared again.

    Raises:
        IntegrityError: a file is missing or damaged.
    """
    if _COMPARED not in candidates.parts:
        return NOTHING_COMPARED
    ids = attempt.rows(candidates, _COMPARED, RANGE_IDS.names)["range_id"].to_pylist()
    by_etag = bool(candidates.facts[COMPARED_BY_ETAG])
    # An earlier version compared no sizes.
    agree = bool(candidates.facts.get(SIZES_AGREE, False))
    return HeadMatches(frozenset(ids), candidates.parts[_MATCHES], by_etag, agree)


def inquire(
    ctx: RunContext,
    inquiry: Inquiry,
    heads: pa.Table,
    candidates: Sequence[Part],
    etags: EtagFiles,
    compared: HeadMatches = NOTHING_COMPARED,
) -> Inquiry:
    """Find what to ask of lakeFS.

    Args:
        ctx: the run.
        connections: how tasks reach lakeFS, the store and the cache.
        inquiry: the store of all files, the folder of working files, and the time that there is.
        heads: HEAD of each branch (branch, metarange_id).
        candidates: files of what nothing lists any more (``LISTING``, and perhaps more).
        etags: of what is listed; none where only some objects were looked at.
        compared: what the mark of these candidates has compared.

    Raises:
        IntegrityError: a range or a file is missing or damaged.
    """
    if not any(part.rows for part in candidates):
        return inquiry
    inquiry = replace(inquiry, heads=head_ranges(ctx, heads), candidates=candidates)
    with ctx.frames() as frames:
        work = SessionFolder(ctx, frames, inquiry.url, inquiry.folder)
        some = work.read(candidates, CANDIDATES)
        found = find_signatures(work, inquiry.heads, candidates, etags, inquiry.deadline, compared)
        sizes = work.write(relations.sizes_of(some), "sizes", SIZES, "collect sizes of candidates")
        inquiry = replace(inquiry, signatures=found, sizes=sizes)
        if found.matches:
            inquiry = choose(work, inquiry, some)
    return find_paths(ctx, inquiry)


def answered(ctx: RunContext, inquiry: Inquiry) -> pa.Table:
    """The candidates that must stay, by what lakeFS answers (``SPARED``)."""
    if not inquiry.candidates:
        return SPARED.empty_table()
    served, unasked = ask(ctx, inquiry)
    doubtful = [*inquiry.over, *unasked]
    if not served and not doubtful:
        return SPARED.empty_table()
    with ctx.frames() as frames:
        work = SessionFolder(ctx, frames, inquiry.url, inquiry.folder)
        candidates = work.read(inquiry.candidates, CANDIDATES)
        rows = relations.spared(
            candidates,
            work.read(served, SERVED_NAMES),
            inquiry.signatures.of(work, candidates),
            work.read(doubtful, SIGNATURES),
        )
        parts = work.write(rows, "spared", SPARED, "spare what lakeFS serves")
    store = ctx.connections.open(inquiry.url)
    return pa.concat_tables([SPARED.empty_table(), *read_parts(store, parts)])
