"""Reasons: the last expired commit that held a candidate, and why a run keeps a named object.

Objects are found by their hashes. A wrong reason, if two addresses share a hash, harms nobody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from lakegc_assets.engine.datasets import Part
from lakegc_assets.engine.ddl import schema
from lakegc_assets.engine.session import Dataset
from lakegc_assets.errors import IntegrityError, LakegcError
from lakegc_assets.mark import comparison_relations, relations
from lakegc_assets.mark.committed_addresses import PATH_RANGES
from lakegc_assets.mark.comparison_relations import (
    ANY_RANGE,
    COMMITTED,
    LACKED,
    MISSING,
    NOT_ADOPTED,
    NOT_LOOKED_AT,
    NOT_REPORTED,
    OR_A_PATH,
    OTHER,
    WHY,
)
from lakegc_assets.mark.earlier_marks import FORGOTTEN
from lakegc_assets.mark.incremental_listing import SWEPT, sweeps_since
from lakegc_assets.mark.inventory import MODE as INVENTORY
from lakegc_assets.mark.live_ranges import every_range, isolate
from lakegc_assets.mark.marked_objects import digest_of
from lakegc_assets.mark.metaranges import ranges_of
from lakegc_assets.mark.ranges import cache_ranges, range_frame
from lakegc_assets.mark.served_candidates import SPARED
from lakegc_assets.mark.session_folder import SessionFolder
from lakegc_assets.run.artifacts import LISTING, AttemptArtifacts
from lakegc_assets.run.connections import reads_tables
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import HASHES, KeyDigest
from lakegc_assets.run.manifest import Manifest

CANDIDATES: Final = schema(LISTING, "reason string not null, commit_id string, branch string")
#: Columns of the inputs and results of relations.
HOLDERS: Final = schema(HASHES, "commit_id string, branch string")
_RANGES: Final = schema("range_id string, rank bigint")
_COMMITS: Final = schema("rank bigint, commit_id string, branch string")
_SUMMED: Final = pa.schema([CANDIDATES.field(name) for name in ("size", "reason")])
_TOTALS: Final = schema([CANDIDATES.field("reason")], "objects bigint, bytes bigint")


@dataclass(frozen=True)
class Written:
    """Candidates as they were written."""

    #: Files of ``CANDIDATES``, sorted by address.
    parts: Sequence[Part] = ()
    digest: KeyDigest = field(default_factory=KeyDigest)
    by_reason: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@reads_tables
def last_holders(work: SessionFolder, attempt: AttemptArtifacts, dead: DataFrame) -> DataFrame:
    """The last expired commits that held candidates (``HOLDERS``), by the candidates' hashes.

    A commit that only an earlier mark knew counts if no commit that lakeFS still names held the
    candidate. Ranges that an active commit also holds are not read: they cannot name a candidate
    (B without A of lakeFS #1932). No live set depends on the other ranges: an unreadable range
    gives no reasons, and the log names it.
    """
    expired = attempt.read("active_commits", "expired")
    rows = expired.select(["creation_date", "commit_id", "branch", "metarange_id"]).to_pylist()
    rows.sort(key=lambda row: (row["creation_date"], row["commit_id"], row["branch"] or ""))
    active = attempt.read("committed_addresses", "ranges", ["range_id"])["range_id"]
    find = partial(find_holders, work, dead, without=active.combine_chunks())
    forgotten = []
    if FORGOTTEN in attempt.manifest("active_commits").parts:
        forgotten = attempt.read("active_commits", FORGOTTEN).to_pylist()
    try:
        return find([*forgotten, *rows])
    except LakegcError as error:
        damaged = isinstance(error, IntegrityError)
        if not (damaged or forgotten):
            raise
        work.ctx.log.warning(
            "commits that are not active cannot be read, so the report gives the reason "
            "'unreferenced' for objects that only they held: %s", error,
        )  # fmt: skip
    return find([*forgotten, *rows] if damaged else rows, strict=False)


def find_holders(
    work: SessionFolder,
    objects: DataFrame,
    rows: Sequence[Mapping[str, Any]],
    without: pa.Array | None = None,
    *,
    strict: bool = True,
) -> DataFrame:
    """The last of the commits that held each object (``HOLDERS``).

    ``objects``: by their hashes.
    ``rows``: the commits in ascending order (commit_id, branch, metarange_id).
    ``without``: ids of ranges to leave out.
    ``strict``: whether a missing or damaged metarange or range is an error; else it is left out.

    Raises:
        IntegrityError: a metarange or range of a commit is missing or damaged.
    """
    ctx, frames = work.ctx, work.frames
    ranks = {row["metarange_id"]: rank for rank, row in enumerate(rows) if row["metarange_id"]}
    if not strict:
        ranks = _readable(ctx, ranks, without)
    ranges = ranges_of(ctx, ranks, without).rows
    if not strict:
        _, damaged = cache_ranges(ctx, ranges, strict=False)
        ranges = ranges.filter(
            pc.invert(pc.is_in(ranges["range_id"], pa.array(damaged, pa.string())))
        )
    if not ranges.num_rows:
        return frames.create(HOLDERS.empty_table())
    commits = pa.Table.from_pylist(
        [{**row, "rank": rank} for rank, row in enumerate(rows)], _COMMITS
    )
    return relations.last_holders(
        objects,
        range_frame(ctx, frames, ranges, ["range_id", "hash"]),
        frames.create(ranges.select(_RANGES.names).cast(_RANGES)),
        frames.create(commits),
    )


def _readable(
    ctx: RunContext, ranks: Mapping[str, int], without: pa.Array | None
) -> dict[str, int]:
    """The metaranges that can be read, with their ranks."""

    def read(ids: Sequence[str]) -> None:
        ranges_of(ctx, {i: ranks[i] for i in ids}, without)

    _, damaged = isolate(read, sorted(ranks))
    return {i: rank for i, rank in ranks.items() if i not in dict(damaged)}


def write_candidates(work: SessionFolder, dead: DataFrame, holders: DataFrame) -> Written:
    """Write candidates (``LISTING``) with their reason and their last holder (``HOLDERS``).

    Raises:
        IntegrityError: a written file has changed.
    """
    candidates = relations.with_reasons(dead, holders)
    parts = work.write(candidates, "data", CANDIDATES, "write candidates")
    if not parts:
        return Written()
    digest = digest_of(work.ctx, Dataset(work.url, parts, CANDIDATES))
    return Written(parts, digest, _by_reason(work, parts))


def _by_reason(work: SessionFolder, parts: Sequence[Part]) -> dict[str, dict[str, int]]:
    totals = comparison_relations.totals(work.read(parts, _SUMMED), ["reason"])
    rows = sorted(work.collect(totals, _TOTALS, "count candidates"), key=lambda row: row["reason"])
    return {row["reason"]: {name: row[name] for name in ("objects", "bytes")} for row in rows}


#: ``size`` is null if the store does not hold the object, ``commit_id`` if no commit does.
SURVIVORS: Final = schema(
    HASHES,
    "address string not null, size bigint, kind string not null, why string not null, "
    "commit_id string, branch string",
)
_FOUND: Final = pa.schema(list(SURVIVORS)[:5])
_STORE: Final = pa.schema(
    [LISTING.field(name) for name in ("address", "hash", "size", "last_modified")]
)
_FOLDERS: Final = schema("folder string")
_SURVIVOR_TOTALS: Final = schema(
    (SURVIVORS.field(name) for name in ("kind", "why")),
    "objects bigint, sized bigint, bytes bigint",
)


#: Objects of a list that a run keeps (``SURVIVORS``); and totals: kind, why, objects, sized (the
#: number of listed ones), and bytes of the listed ones, null without any.
Survivors = tuple[Dataset, Sequence[Mapping[str, Any]]]


def survivors(
    work: SessionFolder,
    attempt: AttemptArtifacts,
    spared: Sequence[Part],
    named: DataFrame,
    candidates: DataFrame,
    swept: AttemptArtifacts | None = None,
) -> Survivors:
    """Objects that a list names and a run would not delete, each with the reason why it stays.

    ``attempt``: attempt of that run, with all assets before its candidates.
    ``spared``: objects that the run spared (``SPARED``), in its own store.
    ``named``: objects that the list names (``NAMED``).
    ``candidates``: hashes of the objects that the run would delete.
    ``swept``: attempt of the run that made the list; objects its sweep deleted are shown so.

    Raises:
        IntegrityError: a file has changed.
    """
    frames = work.frames
    listing = attempt.manifest("store_listing")
    committed, staged = (
        attempt.manifest(name).parts for name in ("committed_addresses", "uncommitted_snapshot")
    )

    def read(schema: pa.Schema, parts: Sequence[Part]) -> DataFrame:
        return frames.read(Dataset(attempt.url, parts, schema))

    since = [frames.read(one) for one in sweeps_since(work.ctx, listing)]
    store = read(_STORE, listing.parts["data"])
    skipped = pa.array(sorted(listing.facts.get("skipped_slices", ())), pa.string())
    judged = comparison_relations.survivors(
        named,
        candidates,
        relations.without_swept(store, since) if since else store,
        comparison_relations.live_by_kind(
            read(HASHES, committed["data"]),
            read(HASHES, staged["hashes"]),
            read(HASHES, committed.get("referenced", ())),
        ),
        read(SPARED, spared),
        frames.create(pa.table([skipped], schema=_FOLDERS)),
        _outcomes_of(work, swept),
        listing.cutoff,
        _committed_why(attempt, listing),
        missing_from(listing),
        f"the sweep of run {swept.run!r} has deleted it" if swept else "",
        NOT_ADOPTED if _has_adopted(attempt) else OTHER,
    )
    what = "find why objects stay"
    found = work.written(judged, "found", _FOUND, what)
    if not found.rows:
        return Dataset(work.url, [], SURVIVORS), []
    of_kind = comparison_relations.totals(frames.read(found), ["kind", "why"])
    totals = work.collect(of_kind, _SURVIVOR_TOTALS, what)
    holders = frames.create(HOLDERS.empty_table())
    if any(row["kind"] == COMMITTED for row in totals):
        held = frames.read(found).where(f"kind = '{COMMITTED}'")
        holders = _active_holders(work, attempt, held)
    rows = relations.with_holders(frames.read(found), holders)
    return work.written(rows, "kept", SURVIVORS, what), totals


def _outcomes_of(work: SessionFolder, swept: AttemptArtifacts | None) -> DataFrame:
    """The outcomes of a run's sweep (``SWEPT``); empty if no sweep of it has ended."""
    if swept is None or not swept.has("swept_set"):
        return work.frames.create(SWEPT.empty_table())
    parts = swept.manifest("swept_set").parts["data"]
    return work.frames.read(Dataset(swept.url, parts, SWEPT))


def _committed_why(attempt: AttemptArtifacts, listing: Manifest) -> str:
    """The general reason why a run keeps committed objects."""
    if every_range(listing, attempt.manifest("active_commits").facts["rules"]):
        return ANY_RANGE
    has_paths = PATH_RANGES in attempt.manifest("committed_addresses").parts
    return OR_A_PATH if has_paths else WHY[COMMITTED]


def missing_from(listing: Manifest) -> str:
    """The kind of objects that a listing lacks; only a whole listing proves absence."""
    if listing.mode == "committed":
        return NOT_LOOKED_AT
    return NOT_REPORTED if listing.facts.get("mode") == INVENTORY else MISSING


def _has_adopted(attempt: AttemptArtifacts) -> bool:
    """Return whether a run has candidates, and adopted a mark for them."""
    asset = "deletion_candidates"
    return attempt.has(asset) and "adopted" in attempt.manifest(asset).facts


def _active_holders(work: SessionFolder, attempt: AttemptArtifacts, held: DataFrame) -> DataFrame:
    """The active commit that holds each committed object: a HEAD if there is one."""
    columns = ["commit_id", "branch", "kind", "metarange_id"]
    commits = attempt.read("active_commits", columns=columns).to_pylist()
    commits.sort(key=lambda c: (c["kind"] == "head", c["branch"] or "", c["commit_id"]))
    return find_holders(work, held, commits)


def sentence(row: Mapping[str, Any]) -> str:
    """The reason why an object stays, with its holder, from its row of ``SURVIVORS``."""
    why = str(row["why"])
    if row["kind"] == COMMITTED and row["commit_id"] is not None:
        on = f" of branch {row['branch']!r}" if row["branch"] else ""
        lacked = LACKED if why.endswith(LACKED) else ""
        why = f"the active commit {row['commit_id']}{on} holds it{lacked}"
    return why
