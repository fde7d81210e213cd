"""Stage 4, ``committed_addresses``: every address that an active commit holds, as hashes.

A further part holds the addresses that other repositories of the server name. They are read last:
an object that moves to another repository during the run is then seen here or there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.datasets import write_part
from lakegc_assets.mark.earlier_marks import PATHS
from lakegc_assets.mark.installation import require_one_server
from lakegc_assets.mark.live_ranges import (
    every_range,
    left_alone,
    live_ranges,
    passed_over,
    read_live,
    read_path_ranges,
)
from lakegc_assets.mark.metaranges import path_ranges
from lakegc_assets.mark.references import read_references
from lakegc_assets.mark.uncommitted_snapshot import write_last_parts
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.manifest import Manifest

ASSET: Final = "committed_addresses"
#: Fact: the time, by the store's clock, when all staged objects of all repositories had been read.
READ_UNTIL: Final = "read_until"
#: Part with the ranges in which only entries below some paths are live; only if rules name paths.
PATH_RANGES: Final = "path_ranges"


def read_committed_addresses(ctx: RunContext) -> Manifest:
    """Write the ``committed_addresses`` asset, with the ranges of the addresses as a part of it.

    Raises:
        OtherServerError: the mark was begun with another server.
        IntegrityError: a metarange or range is missing or damaged, or another repository cannot be
            read.
    """
    started = ctx.clocks.now()
    ctx = ctx.connect()
    require_one_server(ctx.client, ctx.repository, ctx.connections.store())
    attempt = ctx.root.attempt(ctx.repository, ctx.run)
    chain = attempt.chain("active_commits", ctx.connections.namespace_url)
    every = every_range(chain["store_listing"], chain["active_commits"].facts["rules"])
    commits = ("data", "expired") if every else ("data",)
    tables = [attempt.read("active_commits", part, ["metarange_id"]) for part in commits]
    ids = {i for table in tables for i in table["metarange_id"].to_pylist()}
    found = live_ranges(ctx, ids, every=every)
    store = attempt.store()
    live = read_live(ctx, found.ranges, store, f"{ASSET}/")
    below = None
    if PATHS in chain["active_commits"].parts and not every:
        below = _path_ranges(ctx, attempt, live.ranges)
        partly = read_path_ranges(ctx, below, store, f"{ASSET}/below/")
        live = replace(live + partly, ranges=live.ranges)
    start = chain["store_listing"].start
    others = read_references(ctx, store, f"{ASSET}/", start)
    unresolved = sorted({*live.unresolved, *others.unresolved})
    strange = left_alone(ctx.connections.namespace_url, found.foreign)
    passed = [*passed_over(found.passed_over), *strange, *others.passed_over]
    for sentence in passed:
        ctx.log.warning("%s", sentence)
    parts = {
        "data": live.runs,
        "ranges": [write_part(store, f"{ASSET}/ranges/", live.ranges)],
        "references": others.parts,
        "referenced": others.hashes,
        "unresolved": [write_last_parts(store, ASSET, unresolved)],
    }
    cached = pc.sum(live.ranges["from_cache"].cast(pa.int64())).as_py() or 0
    facts: dict[str, object] = {
        "ranges": live.ranges.num_rows,
        "ranges_from_cache": cached,
        "ranges_decoded": live.ranges.num_rows - cached,
        "metaranges": found.metaranges,
        "metaranges_from_cache": found.cached,
        "metaranges_decoded": found.metaranges - found.cached,
        "entries": pc.sum(live.ranges["entries"]).as_py() or 0,
        "other_repositories": len(others.counts),
        "references": {name: count for name, count in others.counts.items() if count},
        "ignored_repositories": list(others.ignored),
        "passed_over": passed,
        READ_UNTIL: ctx.connections.store().server_time().isoformat(),
    }
    if below is not None:
        parts[PATH_RANGES] = [write_part(store, f"{ASSET}/{PATH_RANGES}/", below)]
        facts[PATH_RANGES] = pc.count_distinct(below["range_id"]).as_py()
    return ctx.finish(ASSET, chain["active_commits"], started, parts, facts, live.digest)


def _path_ranges(ctx: RunContext, attempt: AttemptArtifacts, active: pa.Table) -> pa.Table:
    """Ranges with entries below the paths of rules, without the ranges of active commits."""
    metaranges: dict[str, dict[str, int]] = {}
    rows = attempt.read("active_commits", PATHS, ["pattern", "metarange_id"])
    for row in rows.to_pylist():
        if row["metarange_id"]:
            metaranges.setdefault(row["pattern"], {})[row["metarange_id"]] = 0
    whole = frozenset(active["range_id"].to_pylist())
    return path_ranges(ctx, metaranges, whole).drop_columns(["rank"])
