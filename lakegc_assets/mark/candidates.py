"""Stage 5, ``deletion_candidates``: listing - committed - uncommitted, older than the cutoff.

Only keys in ``data/`` and keys at the root without ``/`` can be candidates. All other keys are
reported as unknown and left alone. An object that cannot be proven dead is spared, with the reason.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame

from lakegc_assets.engine.datasets import Part, write_part, write_tables
from lakegc_assets.engine.ddl import schema
from lakegc_assets.engine.session import Dataset
from lakegc_assets.errors import IntegrityError, LakegcError
from lakegc_assets.mark import relations
from lakegc_assets.mark.adoption import adopt
from lakegc_assets.mark.etags import etag_files
from lakegc_assets.mark.incremental_listing import sweeps_since
from lakegc_assets.mark.installation import require_one_server
from lakegc_assets.mark.listing_pages import SEEN_IN
from lakegc_assets.mark.live_sets import UNRESOLVED, LiveSets
from lakegc_assets.mark.lookups import Inquiry
from lakegc_assets.mark.reasons import CANDIDATES, Written, last_holders, write_candidates
from lakegc_assets.mark.served_candidates import (
    COMPARED_BY_ETAG,
    LEAST_SECONDS,
    SIZES_AGREE,
    SPARED,
    served_candidates,
    write_compared,
)
from lakegc_assets.mark.session_folder import SessionFolder
from lakegc_assets.mark.signatures import HeadMatches
from lakegc_assets.mark.uncommitted_snapshot import listed_once
from lakegc_assets.run.artifacts import LISTING, AttemptArtifacts
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import HASHES
from lakegc_assets.run.manifest import Manifest, require_protection
from lakegc_assets.run.pins import pinned

ASSET = "deletion_candidates"
#: Columns of the inputs and results of relations.
SEEN: Final = schema("address string, etag string")
JUDGED: Final = LISTING.append(pa.field("why", pa.string()))
ADDRESSES: Final = schema("address string")
#: Columns of the listing for the totals; objects that sweeps deleted are matched by the address.
SUMMED: Final = pa.schema([LISTING.field(n) for n in ("size", "last_modified", "in_place")])
CARRIED: Final = pa.schema([LISTING.field("address"), *SUMMED])
COUNTS: Final = schema("why string, objects bigint")
TOTALS: Final = pa.schema(
    [
        (name, pa.int64())
        for name in ("listed", "listed_bytes", "outside_data", "too_young", "too_young_bytes")
    ]
)


def find_candidates(ctx: RunContext) -> Manifest:
    """Write the ``deletion_candidates`` asset, with the spared objects as a part of it.

    Raises:
        OtherServerError: the mark was begun with another server.
        RefusedError: another version began the mark, and spares other objects.
        IntegrityError: an input differs from its manifest, or a range is damaged.
        LakeFSError: lakeFS did not answer which addresses it serves.
    """
    started = ctx.clocks.now()
    ctx = ctx.connect()
    require_one_server(ctx.client, ctx.repository, ctx.connections.store())
    attempt = ctx.root.attempt(ctx.repository, ctx.run)
    chain = attempt.chain("committed_addresses", ctx.connections.namespace_url)
    require_protection(*chain.values())
    with ctx.frames() as frames:
        work = SessionFolder(ctx, frames, attempt.url, f"{ASSET}/")
        return _find(work, attempt, chain, started)


def _find(
    work: SessionFolder,
    attempt: AttemptArtifacts,
    chain: Mapping[str, Manifest],
    started: datetime,
) -> Manifest:
    ctx, listing, store = work.ctx, chain["store_listing"], attempt.store()
    unlisted, spared = subtract_live(work, attempt, chain)
    served, compared = _served(work, attempt, chain, unlisted)
    spared = [*spared, *served]
    rows = _rows(unlisted)
    dead = relations.without_spared(work.read(unlisted, LISTING), work.read(served, SPARED))
    adopted = None
    if ctx.settings.adopt is not None:
        adopted = adopt(work.below("adopted/"), attempt, ctx.settings.adopt, dead, spared)
        rows, dead = adopted.dead.rows, work.frames.read(adopted.dead)
        spared = [*spared, *adopted.spared]
    written = Written()
    if rows:
        written = write_candidates(work, dead, last_holders(work, attempt, dead))
    _require_distinct(work, written.parts, spared)
    _require_dead(work, attempt, written.parts, chain)
    facts = {
        **_totals(work, listing),
        "by_reason": written.by_reason,
        "spared": _spared_by_reason(work, spared),
        "skipped_slices": len(listing.facts.get("skipped_slices", ())),
        COMPARED_BY_ETAG: compared.by_etag,
        SIZES_AGREE: compared.sizes_agree,
        **(adopted.facts if adopted else {}),
    }
    parts = {
        "data": written.parts or [write_part(store, f"{ASSET}/data/", CANDIDATES.empty_table())],
        "spared": spared or [write_part(store, f"{ASSET}/spared/", SPARED.empty_table())],
        **write_compared(store, f"{ASSET}/compared/", compared),
        **(adopted.parts if adopted else {}),
    }
    return ctx.finish(ASSET, chain["committed_addresses"], started, parts, facts, written.digest)


def _served(
    work: SessionFolder,
    attempt: AttemptArtifacts,
    chain: Mapping[str, Manifest],
    unlisted: Sequence[Part],
) -> tuple[list[Part], HeadMatches]:
    """Candidates that lakeFS serves or may serve although no live set holds them (``SPARED``)."""
    listing, store = chain["store_listing"], attempt.store()
    spent = (work.ctx.clocks.now() - listing.started).total_seconds()
    deadline = time.time() + max(LEAST_SECONDS, spent)
    facts = chain["uncommitted_snapshot"].facts
    staged = listed_once(int(facts["listed"]), int(facts["tries"]))
    spared, compared = served_candidates(
        work.ctx,
        Inquiry(store.url, f"{ASSET}/served/", deadline, staged),
        attempt.read("active_commits", "heads"),
        unlisted,
        etag_files(listing),
    )
    return write_tables(store, f"{ASSET}/spared/", SPARED, [spared]), compared


# Store DF - Committed DF - Uncommitted DF


def subtract_live(
    work: SessionFolder, attempt: AttemptArtifacts, chain: Mapping[str, Manifest]
) -> tuple[list[Part], list[Part]]:
    """Subtract the live sets: remaining objects (``LISTING``), and spared ones (``SPARED``)."""
    listing, committed, uncommitted = (
        chain[asset] for asset in ("store_listing", "committed_addresses", "uncommitted_snapshot")
    )
    _require_live_addresses(attempt, committed, uncommitted)
    pins, ctx, frames = pinned(work.connections.store()), work.ctx, work.frames

    def read(schema: pa.Schema, *parts: Part) -> DataFrame:
        return work.read(parts, schema)

    store = read(LISTING, *listing.parts["data"])
    hashes = relations.dead_hashes(
        store,
        read(HASHES, *committed.parts["data"], *committed.parts["referenced"]),
        read(HASHES, *uncommitted.parts["hashes"]),
        listing.cutoff,
    )
    what = "subtract what is live from the listing"
    # Computed before whole rows are read: if few hashes are dead, the rows need not be shuffled.
    dead = work.written(hashes, "dead", HASHES, what)
    if not dead.rows:
        return [], []
    unreferenced = relations.candidates(store, frames.read(dead), listing.cutoff)
    if swept := sweeps_since(ctx, listing):
        unreferenced = relations.without_swept(unreferenced, [frames.read(one) for one in swept])
    what = "judge what is not live"
    twice = listing.parts.get("twice")
    judged = relations.judged(
        unreferenced,
        read(UNRESOLVED, *committed.parts["unresolved"], *uncommitted.parts["unresolved"]),
        [frames.read(one) for one in uploads_seen(ctx, listing)],
        frames.create(pins.cast(SPARED)),
        listing.cutoff - relations.UPLOAD_TIME,
        read(HASHES, *twice) if twice else None,
    )
    found = work.write(judged, "judged", JUDGED, what)
    if not found:
        return [], []
    judged = read(JUDGED, *found)
    spared = work.write(relations.spared(judged), "spared", SPARED, what)
    if not spared:
        # The files have the columns of LISTING, and one more column that is null.
        return found, []
    return work.write(relations.not_spared(judged), "unlisted", LISTING, what), spared


def _require_live_addresses(
    attempt: AttemptArtifacts, committed: Manifest, uncommitted: Manifest
) -> None:
    """Raise IntegrityError where an asset has live ranges or staged rows, but no address."""
    for manifest, rows, live in (
        (committed, "ranges", "data"),
        (uncommitted, "data", "hashes"),
    ):
        if _rows(manifest.parts[rows]) and not _rows(manifest.parts[live]):
            raise IntegrityError(
                f"{attempt.url}/{manifest.asset} has rows of {rows!r}, but no live address: mark "
                "again"
            )


def _rows(parts: Sequence[Part]) -> int:
    return sum(part.rows for part in parts)


def uploads_seen(ctx: RunContext, listing: Manifest) -> list[Dataset]:
    """The multipart uploads in the earlier listings that this listing names (``SEEN_IN``).

    Those listings were finished before the cutoff. An upload in none of them is spared.
    """
    datasets: list[Dataset] = []
    for run, attempt_id in listing.facts.get(SEEN_IN, ()):
        attempt = AttemptArtifacts(ctx.root, ctx.repository, run, attempt_id)
        with suppress(LakegcError):
            parts = attempt.manifest("store_listing").parts.get("multipart", ())
            datasets.append(Dataset(attempt.url, parts, SEEN))
    return datasets


def _require_distinct(work: SessionFolder, parts: Sequence[Part], spared: Sequence[Part]) -> None:
    """Raise IntegrityError where the listing holds a candidate twice, even if one row is spared."""
    if not parts:
        return
    twice = relations.listed_twice(work.read(parts, ADDRESSES), work.read(spared, ADDRESSES), 1)
    if work.collect(twice, ADDRESSES, "look for objects that are listed twice"):
        raise IntegrityError(f"{work.url} lists an object twice: mark again under a new id")


def _require_dead(
    work: SessionFolder,
    attempt: AttemptArtifacts,
    candidates: Sequence[Part],
    chain: Mapping[str, Manifest],
) -> None:
    """Raise IntegrityError where a live set holds a candidate, by another kind of join.

    The checks read objects of HEADs and staged objects again, but not those of older commits.
    """
    if not candidates:
        return
    committed, uncommitted = chain["committed_addresses"], chain["uncommitted_snapshot"]
    live = [
        *committed.parts["data"],
        *committed.parts["referenced"],
        *uncommitted.parts["hashes"],
    ]
    unresolved = {
        row["last_part"]
        for manifest in (committed, uncommitted)
        for row in attempt.values(manifest, "unresolved")
    }
    alive = LiveSets(work.ctx, work.url, {"live": live}, unresolved)
    alive.require_dead(work.frames, Dataset(work.url, candidates, CANDIDATES))


def _totals(work: SessionFolder, listing: Manifest) -> dict[str, int]:
    """Counts and bytes of listed objects, as facts of the asset.

    An object that was carried forward and swept since does not count: the store no longer has it.
    """
    parts, swept = listing.parts["data"], sweeps_since(work.ctx, listing)
    if not swept:
        return _counted(work, work.read(parts, SUMMED), listing.cutoff)
    carried = listing.parts["carried"]
    listed_now = work.read([part for part in parts if part not in carried], SUMMED)
    outcomes = [work.frames.read(one) for one in swept]
    kept = relations.without_swept(work.read(carried, CARRIED), outcomes)
    totals = [_counted(work, store, listing.cutoff) for store in (listed_now, kept)]
    return {name: sum(one[name] for one in totals) for name in TOTALS.names}


def _counted(work: SessionFolder, store: DataFrame, cutoff: datetime) -> dict[str, int]:
    totals = relations.listing_totals(store, cutoff)
    (row,) = work.collect(totals, TOTALS, "count what is listed")
    return {name: row[name] or 0 for name in TOTALS.names}


def _spared_by_reason(work: SessionFolder, spared: Sequence[Part]) -> dict[str, int]:
    if not _rows(spared):
        return {}
    counts = relations.counts_by_reason(work.read(spared, SPARED))
    found = work.collect(counts, COUNTS, "count what is spared")
    return {row["why"]: row["objects"] for row in found}
