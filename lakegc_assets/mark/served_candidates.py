"""Candidates that lakeFS still serves although it lists them nowhere.

If an upload has the size, checksum, metadata and content type of the entry that HEAD has at its
path, lakeFS serves the path from the new address. Neither ``diff`` nor ``prepare_uncommited`` names
that address. So if a candidate has the signature of an entry at a branch HEAD (same size, and same
etag if etags can be compared), lakeFS is asked which address it serves at each such path. lakeFS is
also asked about the paths in a diff: ``prepare_uncommited`` may have lost them.
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
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.run.connections import reads_tables
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.manifest import Manifest
from lakegc_assets.storage.base import ObjectStore

SPARED: Final = schema("address string, why string")
#: Names of parts and of facts of ``deletion_candidates``.
_COMPARED: Final = "compared_ranges"
_MATCHES: Final = "matches"
COMPARED_BY_ETAG: Final = "compared_by_etag"
SIZES_AGREE: Final = "sizes_agree"
#: Minimum time for questions to lakeFS, in seconds.
LEAST_SECONDS: Final = 60.0


@reads_tables
def served_candidates(
    ctx: RunContext, inquiry: Inquiry, heads: pa.Table, candidates: Sequence[Part], etags: EtagFiles
) -> tuple[pa.Table, HeadMatches]:
    """Find the candidates that must stay (``SPARED``); for the arguments see ``inquire``.

    Returns:
        Their rows, and the comparison with HEADs, which a sweep of the mark need not repeat.

    Raises:
        IntegrityError: a range or a file is missing or damaged, or an answer is impossible.
        LakeFSError: lakeFS did not answer.
    """
    inquiry = inquire(ctx, inquiry, heads, candidates, etags)
    return answered(ctx, inquiry), inquiry.compared(by_etag=bool(etags.parts))


def write_compared(
    store: ObjectStore, folder: str, compared: HeadMatches
) -> dict[str, Sequence[Part]]:
    """Parts of ``deletion_candidates`` for ``read_compared``; empty without compared ranges."""
    if not compared.ranges:
        return {}
    ids = pa.table([pa.array(sorted(compared.ranges), pa.string())], schema=RANGE_IDS)
    return {
        _COMPARED: [write_part(store, folder, ids)],
        _MATCHES: compared.files or [write_part(store, folder, MATCHES.empty_table())],
    }


def read_compared(attempt: AttemptArtifacts, candidates: Manifest) -> HeadMatches:
    """The entries of HEAD ranges that match the candidates of a mark, as the mark recorded them.

    ``candidates``: the manifest of ``deletion_candidates``.

    Raises:
        IntegrityError: a file is missing or damaged.
    """
    if _COMPARED not in candidates.parts:
        return NOTHING_COMPARED
    ids = attempt.rows(candidates, _COMPARED, RANGE_IDS.names)["range_id"].to_pylist()
    by_etag = bool(candidates.facts[COMPARED_BY_ETAG])
    agree = bool(candidates.facts[SIZES_AGREE])
    return HeadMatches(frozenset(ids), candidates.parts[_MATCHES], by_etag, agree)


def inquire(
    ctx: RunContext,
    inquiry: Inquiry,
    heads: pa.Table,
    candidates: Sequence[Part],
    etags: EtagFiles,
    compared: HeadMatches = NOTHING_COMPARED,
) -> Inquiry:
    """Find the paths to ask lakeFS for.

    Args:
        ctx: the run.
        inquiry: the store of all files, the folder of working files, and the deadline.
        heads: HEAD of each branch (branch, metarange_id).
        candidates: files of objects that no live set holds (``LISTING``; more columns may follow).
        etags: files of all listed objects; empty if only some objects were stat-ed.
        compared: the recorded comparison of the mark of these candidates.

    Raises:
        IntegrityError: a range or a file is missing or damaged.
    """
    if not any(part.rows for part in candidates):
        return inquiry
    inquiry = replace(inquiry, heads=head_ranges(ctx, heads), candidates=candidates)
    with ctx.frames() as frames:
        work = SessionFolder(ctx, frames, inquiry.url, inquiry.folder)
        rows = work.read(candidates, CANDIDATES)
        found = find_signatures(work, inquiry.heads, candidates, etags, inquiry.deadline, compared)
        sizes = work.write(relations.sizes_of(rows), "sizes", SIZES, "collect sizes of candidates")
        inquiry = replace(inquiry, signatures=found, sizes=sizes)
        if found.matches:
            inquiry = choose(work, inquiry, rows)
    return find_paths(ctx, inquiry)


def answered(ctx: RunContext, inquiry: Inquiry) -> pa.Table:
    """The candidates that must stay, from lakeFS's answers (``SPARED``)."""
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
