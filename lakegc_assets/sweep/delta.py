"""The delta mark: what came back to life since a mark was made.

Before anything is deleted, staged addresses, rules, branches and active commits are read again. A
revert, a branch from an old commit, a longer rule, a late link: what they need is taken out of the
candidates. Only ranges that the mark did not read are decoded, so the cost follows what changed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from lakegc_assets.errors import IntegrityError
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.mark.commits import ACTIVE, Liveness, find_liveness, read_heads, read_tags
from lakegc_assets.mark.committed import live_tables
from lakegc_assets.mark.ranges import entries_of, ranges_of
from lakegc_assets.mark.served import UNVERIFIED, served_candidates
from lakegc_assets.mark.uncommitted import prepare_uncommitted, read_uncommitted
from lakegc_assets.retention.rules import Rules
from lakegc_assets.run.artifacts import AttemptArtifacts, Manifest
from lakegc_assets.run.context import Connections, RunContext
from lakegc_assets.sweep.moment import Moment


@dataclass(frozen=True)
class DeltaMark:
    """What a delta mark found.

    Attributes:
        fingerprint: of HEADs, rules and protecting tags when it began; while they stay it holds.
            Empty, so that no others are equal to it, if they changed while it was taken.
        taken: when it began.
        spared: what came back to life (address, why).
        liveness: the active commits that it found; they say who needs an object.
    """

    fingerprint: str
    taken: Moment
    spared: DataFrame
    liveness: Liveness | None = None


def fingerprint(client: LakeFSClient, repository: str, *, protect_tags: bool) -> str:
    """A digest of all branch HEADs, the retention rules and, where they protect, the tags."""
    heads = read_heads(client, repository)
    rules = client.gc_rules(repository)
    tags = read_tags(client, repository) if protect_tags else {}
    return _digest(heads, None if rules is None else Rules.parse(rules), tags)


def _digest(heads: Mapping[str, str], rules: Rules | None, tags: Mapping[str, str]) -> str:
    told = [sorted(heads.items()), rules.to_json() if rules else None, sorted(tags.items())]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def take_delta_mark(
    ctx: RunContext,
    chain: Mapping[str, Manifest],
    attempt: AttemptArtifacts,
    candidates: DataFrame,
    keep: Callable[[DataFrame, str], DataFrame],
) -> DeltaMark:
    """Find which of some marked objects are alive now.

    Args:
        ctx: the run.
        chain: the manifests of the mark.
        attempt: the artifacts of the mark.
        candidates: marked objects (address, size, last_modified, etag).
        keep: writes rows under a name and reads them back.

    Raises:
        IntegrityError: the repository is at another namespace now, or an answer is not whole.
    """
    client, connections = ctx.connect()
    if connections.namespace_url != chain["store_listing"].namespace:
        raise IntegrityError(
            f"{ctx.repository!r} is at {connections.namespace_url} now, and the mark is about "
            f"{chain['store_listing'].namespace}: it was made anew, so mark it under a new id",
        )
    ctx.check_clocks(client, connections.store())
    taken = Moment.now(connections.store())
    seen = fingerprint(client, ctx.repository, protect_tags=ctx.settings.protect_tags)

    files = prepare_uncommitted(ctx, client, connections)
    staged = read_uncommitted(ctx, connections, files.keys).select("address", "resolved")
    spared = _among(candidates, staged.select("address"), "it is staged on a branch now")

    start = datetime.fromisoformat(str(chain["store_listing"].facts["start"]))
    liveness = find_liveness(ctx, client, connections, start, attempt)
    tags = liveness.tags if ctx.settings.protect_tags else {}
    if _digest(liveness.heads, liveness.rules, tags) != seen:
        # HEADs that came back since would look like those that this delta mark is about.
        seen = ""
    active = ctx.spark.createDataFrame(liveness.active_rows(), ACTIVE)
    has_rules = liveness.rules is not None
    entries = _new_entries(ctx, connections, attempt, active, keep, has_rules=has_rules)
    entries = keep(entries.select("address", "resolved"), "new_entries")
    held = entries.where("resolved").select("address")
    spared = spared.unionByName(_among(candidates, held, "an active commit holds it now"))
    unclear = staged.union(entries).where("not resolved")
    unclear = unclear.selectExpr("address as last_part").distinct()
    last_part = F.element_at(F.split("address", "/"), -1)
    ambiguous = candidates.withColumn("last_part", last_part).join(
        unclear, "last_part", "left_semi"
    )
    spared = spared.unionByName(
        ambiguous.selectExpr(
            "address", "'a full address that cannot be resolved ends like it' as why"
        )
    )

    heads = ctx.spark.createDataFrame(
        [(b, liveness.commits[c].metarange_id) for b, c in sorted(liveness.heads.items())],
        "branch string, metarange_id string",
    )
    listing = attempt.read(ctx.spark, "store_listing")
    served = served_candidates(ctx, connections, candidates, listing, heads, keep)
    # Of several reasons one that is certain counts: the alarm after a sweep looks at these only.
    best = F.min_by("why", F.struct(~_certain(), "why"))
    spared = spared.unionByName(served).groupBy("address").agg(best.alias("why"))
    return DeltaMark(seen, taken, keep(spared, "spared"), liveness)


def certainly_alive(spared: DataFrame) -> DataFrame:
    """Of what a delta mark spared: what is known to be alive, not only not known to be dead."""
    return spared.where(_certain())


def _certain() -> Column:
    return (F.col("why") != UNVERIFIED) & ~F.col("why").contains("cannot be resolved")


def _among(candidates: DataFrame, live: DataFrame, why: str) -> DataFrame:
    found = candidates.join(live, "address", "left_semi")
    return found.select("address", F.lit(why).alias("why"))


def _new_entries(
    ctx: RunContext,
    connections: Connections,
    attempt: AttemptArtifacts,
    active: DataFrame,
    keep: Callable[[DataFrame, str], DataFrame],
    *,
    has_rules: bool,
) -> DataFrame:
    """Entries of the ranges that are live now and were not read by the mark."""
    metaranges, more_ranges = live_tables(ctx, connections, active, has_rules=has_rules)
    ids = metaranges.where("metarange_id != ''").distinct()
    pairs = ranges_of(connections, ids, ctx.settings.range_num_partitions)
    ranges = pairs.select("range_id", "entries")
    if more_ranges is not None:
        ranges = ranges.unionByName(more_ranges)
    known = attempt.read(ctx.spark, "committed_addresses", "ranges").select("range_id")
    new = (
        ranges.groupBy("range_id")
        .agg(F.max("entries").alias("entries"))
        .join(known, "range_id", "left_anti")
    )
    new = keep(new, "new_ranges")
    return entries_of(connections, new, ctx.settings.address_num_partitions)
