"""The outlook: the default retention that keeps each object of a mark, and its end under today's.

It makes one pass over the ranges that the mark and its predecessors decoded. It does not read
ranges that the cache lacks. Their contents are unknown, so figures that depend on them are bounds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame

from lakegc_assets.engine.ddl import schema
from lakegc_assets.engine.session import Dataset, Session
from lakegc_assets.forecast import relations
from lakegc_assets.forecast.commits import FOREVER, NEVER, Span
from lakegc_assets.mark import relations as mark_relations
from lakegc_assets.mark.candidates import uploads_seen
from lakegc_assets.mark.incremental_listing import SWEPT, sweeps_since
from lakegc_assets.mark.live_sets import UNRESOLVED
from lakegc_assets.mark.metaranges import cached_metaranges, path_ranges, ranges_of
from lakegc_assets.mark.ranges import cached_ranges, range_frame
from lakegc_assets.mark.served_candidates import SPARED
from lakegc_assets.retention.commits import Commit
from lakegc_assets.retention.retain_rules import prefix_of
from lakegc_assets.run.artifacts import LISTING, AttemptArtifacts
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import HASHES
from lakegc_assets.run.history import dataset_of, earlier
from lakegc_assets.run.manifest import Manifest
from lakegc_assets.run.pins import pinned

#: Columns of the inputs and results of relations.
_SPAN: Final = schema("days bigint, left bigint")
RANGES: Final = schema("range_id string", _SPAN)
DOUBTFUL: Final = schema("last_part string", _SPAN)
PATHS: Final = schema("range_id string, prefix string", _SPAN)
OUTLOOK: Final = schema(
    (LISTING.field(name) for name in ("address", "size", "last_modified")), _SPAN, "unseen boolean"
)
LATER: Final = schema("objects bigint, bytes bigint")
TOTALS: Final = schema("days bigint", LATER, "new_objects bigint, new_bytes bigint")
_WHAT: Final = "find what keeps each object"


@dataclass(frozen=True)
class Mark:
    """The mark that a forecast is computed from."""

    ctx: RunContext
    frames: Session
    attempt: AttemptArtifacts
    #: Its manifests, by asset.
    chain: Mapping[str, Manifest]
    #: URL of the store for intermediate files.
    url: str


@dataclass(frozen=True)
class Held:
    """Ranges, and the time for which each is kept."""

    #: Span of each cached range, by its id.
    spans: Mapping[str, Span]
    #: Last path components of addresses in them that cannot be resolved.
    last_parts: Mapping[str, Span]
    #: Span of each range or metarange that is not cached.
    missing: Sequence[Span] = field(default_factory=list)
    #: Span of the entries of ranges below paths, by prefix and range.
    below: Mapping[tuple[str, str], Span] = field(default_factory=dict)


@dataclass(frozen=True)
class Outlook:
    """The objects that become free under some default retention, or on a later day."""

    #: Rows of ``OUTLOOK``.
    objects: Dataset
    #: Span of each range or metarange that is not known.
    missing: Sequence[Span]
    #: Runs with unfinished sweeps.
    unfinished: Sequence[str]


def look_out(
    mark: Mark,
    commits: Mapping[str, Commit],
    spans: Mapping[str, Span],
    paths: Mapping[str, Mapping[str, Span]],
    until: datetime,
) -> Outlook:
    """Compute the default retention that keeps each object, and for how long today's rules keep it.

    Args:
        mark: the mark that the forecast is computed from.
        commits: the commits that the mark knew.
        spans: span for which each commit keeps its objects.
        paths: by pattern, the span for which each commit keeps its objects below some paths.
        until: only objects that were written before it are of interest.

    Raises:
        IntegrityError: an artifact of the mark, or a pin, is missing or damaged.
    """
    frames = mark.frames
    held = _held(mark, commits, spans, paths)
    swept, unfinished = _swept(mark)
    found = relations.outlook(
        _judged(mark, swept, until),
        _entries(mark, held.spans, "range_id", "hash"),
        frames.create(_rows(RANGES, held.spans.items())),
        frames.create(_rows(DOUBTFUL, _last_parts(mark, held).items())),
        *_held_below(mark, held),
    )
    written = frames.write(found, mark.url, "outlook/", OUTLOOK, _WHAT)
    return Outlook(Dataset(mark.url, written, OUTLOOK), held.missing, unfinished)


def _rows(schema: pa.Schema, spans: Iterable[tuple[str | tuple[str, ...], Span]]) -> pa.Table:
    """One row for each key, which is one value or several values, with its span."""
    keys = [((key,) if isinstance(key, str) else key, span) for key, span in spans]
    rows = [dict(zip(schema.names, (*key, s.days, s.left), strict=True)) for key, s in keys]
    return pa.Table.from_pylist(rows, schema)


def _entries(mark: Mark, ranges: Collection[str], *columns: str) -> DataFrame:
    """The given columns of the entries of ranges."""
    ids = pa.array(sorted(ranges), pa.string())
    table = pa.table({"range_id": ids, "entries": pa.nulls(len(ids), pa.int64())})
    return range_frame(mark.ctx, mark.frames, table, list(columns))


# Ranges


def _held(
    mark: Mark,
    commits: Mapping[str, Commit],
    spans: Mapping[str, Span],
    paths: Mapping[str, Mapping[str, Span]],
) -> Held:
    """The span of each range: the span of the commit that keeps it longest."""
    ctx, connections = mark.ctx, mark.ctx.connections
    of_metaranges = _of_metaranges(commits, spans)
    cached = cached_metaranges(connections)
    missing = [span for one, span in of_metaranges.items() if one not in cached]
    in_cache = {one: span for one, span in of_metaranges.items() if one in cached}
    # The highest rank wins, and the least number of days must win, so the days are negated.
    by_days = ranges_of(ctx, {one: -span.days for one, span in in_cache.items()}).rows
    by_left = ranges_of(ctx, {one: span.left for one, span in in_cache.items()}).rows
    of_ranges = {one: span for (one,), span in _spans(by_days, by_left, "range_id").items()}
    below, not_cached = _below(mark, commits, paths, cached)
    missing += not_cached
    if mark.chain["active_commits"].facts["rules"] is None:
        # A mark without rules also read ranges that no known commit has.
        read = mark.attempt.read("committed_addresses", "ranges", ["range_id"])
        never = dict.fromkeys(read["range_id"].to_pylist(), Span(NEVER, FOREVER))
        of_ranges = never | of_ranges
    slots = cached_ranges(connections)
    missing += [span for one, span in of_ranges.items() if one not in slots]
    missing += [span for (_, one), span in below.items() if one not in slots]
    below = {key: span for key, span in below.items() if key[1] in slots}
    known_ranges = {one: span for one, span in of_ranges.items() if one in slots}
    last_parts: dict[str, Span] = {}
    for one, span in [*known_ranges.items(), *((one, span) for (_, one), span in below.items())]:
        for last in slots[one].facts["unresolved"]:
            last_parts[last] = last_parts.get(last, Span()) | span
    return Held(known_ranges, last_parts, missing, below)


def _of_metaranges(commits: Mapping[str, Commit], spans: Mapping[str, Span]) -> dict[str, Span]:
    """The span of each metarange: the span of the commit that keeps it longest."""
    found: dict[str, Span] = {}
    for commit_id, commit in commits.items():
        if commit.metarange_id:
            known = found.get(commit.metarange_id, Span())
            found[commit.metarange_id] = known | spans[commit_id]
    return found


def _below(
    mark: Mark,
    commits: Mapping[str, Commit],
    paths: Mapping[str, Mapping[str, Span]],
    cached: Collection[str],
) -> tuple[dict[tuple[str, str], Span], list[Span]]:
    """The spans of ranges below paths, and of the metaranges that are not ``cached``.

    ``paths`` gives, by pattern, the span for which commits keep their objects below the paths.
    """
    in_cache: dict[str, dict[str, Span]] = {}
    missing: list[Span] = []
    for pattern, spans in paths.items():
        of_pattern = {i: s for i, s in _of_metaranges(commits, spans).items() if s != Span()}
        in_cache[pattern] = {i: span for i, span in of_pattern.items() if i in cached}
        missing += [span for i, span in of_pattern.items() if i not in cached]
    days = {p: {i: -span.days for i, span in of.items()} for p, of in in_cache.items()}
    remaining = {p: {i: span.left for i, span in of.items()} for p, of in in_cache.items()}
    by_days, by_left = path_ranges(mark.ctx, days), path_ranges(mark.ctx, remaining)
    found = _spans(by_days, by_left, "pattern", "range_id")
    return {(prefix_of(pattern), one): span for (pattern, one), span in found.items()}, missing


def _spans(by_days: pa.Table, by_left: pa.Table, *key: str) -> dict[tuple[str, ...], Span]:
    """The span of each range, by the columns that name it; days are negated ranks."""
    days, left = (
        {tuple(row[name] for name in key): row["rank"] for row in rows.to_pylist()}
        for rows in (by_days, by_left)
    )
    return {one: Span(-rank, left[one]) for one, rank in days.items()}


def _held_below(mark: Mark, held: Held) -> list[DataFrame]:
    """The spans of objects below paths, as one frame; no frame if no rule names a path."""
    if not held.below:
        return []
    spans = _rows(PATHS, (((one, prefix), span) for (prefix, one), span in held.below.items()))
    entries = _entries(mark, {one for _, one in held.below}, "range_id", "hash", "folder")
    return [relations.held_below(entries, mark.frames.create(spans))]


def _last_parts(mark: Mark, held: Held) -> dict[str, Span]:
    """Last path components of live addresses that cannot be resolved (``DOUBTFUL``).

    Components that no range has come from staged entries or other repositories; their objects stay.
    """
    found = dict(held.last_parts)
    for asset in ("committed_addresses", "uncommitted_snapshot"):
        rows = mark.attempt.rows(mark.chain[asset], "unresolved", UNRESOLVED.names)
        for last in rows["last_part"].to_pylist() if rows.num_rows else []:
            found.setdefault(last, Span(0, FOREVER))
    return found


# Objects


def _judged(mark: Mark, swept: Sequence[Dataset], until: datetime) -> DataFrame:
    """Listed objects that only commits of the repository may hold, judged as a mark judges them."""
    frames, listing = mark.frames, mark.chain["store_listing"]

    def read(schema: pa.Schema, asset: str, part: str) -> DataFrame:
        return frames.read(Dataset(mark.attempt.url, mark.chain[asset].parts[part], schema))

    store = read(LISTING, "store_listing", "data")
    dead = mark_relations.dead_hashes(
        store,
        read(HASHES, "committed_addresses", "referenced"),
        read(HASHES, "uncommitted_snapshot", "hashes"),
        until,
    )
    unreferenced = mark_relations.candidates(store, dead, until)
    if swept:
        records = [frames.read(one) for one in swept]
        unreferenced = mark_relations.without_swept(unreferenced, records)
    served = relations.spared_by_lakefs(read(SPARED, "deletion_candidates", "spared"))
    seen = uploads_seen(replace(mark.ctx, run=mark.attempt.run), listing)
    return mark_relations.judged(
        mark_relations.without_spared(unreferenced, served),
        frames.create(UNRESOLVED.empty_table()),
        [frames.read(one) for one in seen],
        frames.create(pinned(mark.ctx.connections.store()).cast(SPARED)),
        listing.cutoff - mark_relations.UPLOAD_TIME,
    )


def _swept(mark: Mark) -> tuple[list[Dataset], list[str]]:
    """Records of sweeps since the listing, and the runs with unfinished sweeps."""
    ctx, listing = mark.ctx, mark.chain["store_listing"]
    found = sweeps_since(ctx, listing)
    since = earlier(ctx.root, ctx.repository, "swept_set", listing.namespace, "")
    late = [one for one in since if one.manifest.finished >= listing.started]
    found += dataset_of(late, SWEPT)
    runs = earlier(ctx.root, ctx.repository, "gc_report", listing.namespace, "")
    unfinished = [
        one.attempt.run
        for one in runs
        if not one.attempt.has("swept_set") and one.attempt.files("swept_set")
    ]
    return found, unfinished
