"""Says for one object why a mark named it, or why it did not."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from lakegc_assets.lakefs.client import LakeFSClient, branch_ref
from lakegc_assets.lakefs.errors import NotFoundError
from lakegc_assets.mark.addresses import live_spellings
from lakegc_assets.mark.candidates import in_data
from lakegc_assets.mark.ranges import entries_of
from lakegc_assets.run.artifacts import AttemptArtifacts, Manifest
from lakegc_assets.run.context import Connections, RunContext


@dataclass(frozen=True)
class Explanation:
    """What a mark knows about one object.

    Attributes:
        address: relative to the namespace.
        verdict: candidate, spared, live, too young, outside data, unknown.
        because: the reason, in a sentence.
        facts: what the sentence is made of.
    """

    address: str
    verdict: str
    because: str
    facts: dict[str, Any] = field(default_factory=dict)


def why(ctx: RunContext, address: str) -> Explanation:
    """Explain one object.

    Args:
        ctx: the run whose mark is asked.
        address: relative to the namespace, or a full address inside it.

    Raises:
        RefusedError: the mark is unknown.
        IntegrityError: its artifacts are not whole.
    """
    client, connections = ctx.connect()
    attempt = ctx.root.attempt(ctx.repository, ctx.run)
    chain = attempt.chain("deletion_candidates", connections.namespace_url)
    spellings = [address]
    if "://" in address:
        spellings = live_spellings(connections.namespace(), address)[1:]
    if not spellings:
        because = f"it is not below {connections.namespace_url}"
        return Explanation(address, "unknown", because)

    def explained(spelling: str) -> Explanation:
        explanations = (
            _candidate(ctx, attempt, spelling),
            _spared(ctx, attempt, spelling),
            _not_listed(ctx, attempt, chain["store_listing"], spelling),
            _committed(ctx, connections, attempt, spelling),
            _staged(ctx, client, connections, attempt, spelling),
            _too_young(ctx, attempt, chain["store_listing"], spelling),
        )
        return next(
            (found for found in explanations if found is not None),
            Explanation(spelling, "unknown", "no part of the mark says anything about it"),
        )

    # A full address may be meant percent-decoded or not: the object that is there was meant.
    found = [explained(spelling) for spelling in spellings]
    return next((one for one in found if one.verdict != "unknown"), found[0])


def _rows(ctx: RunContext, attempt: AttemptArtifacts, asset: str, part: str, address: str) -> Any:  # noqa: ANN401 - Spark rows
    frame = attempt.read(ctx.spark, asset, part)
    return frame.where(F.col("address") == address).limit(1).collect()


def _candidate(ctx: RunContext, attempt: AttemptArtifacts, address: str) -> Explanation | None:
    rows = _rows(ctx, attempt, "deletion_candidates", "data", address)
    if not rows:
        return None
    row = rows[0]
    facts = {"size": row["size"], "reason": row["reason"]}
    because = "no branch, tag or commit that lakeFS still names holds it, and it is staged nowhere"
    if row["reason"] == "expired":
        facts |= {"commit": row["commit_id"], "branch": row["branch"]}
        on = f" in the main ancestry of branch {row['branch']!r}" if row["branch"] else ""
        because = f"the expired commit {row['commit_id']}{on} held it last"
    if attempt.has("swept_set"):
        swept = _rows(ctx, attempt, "swept_set", "data", address)[0]
        facts |= {"outcome": swept["outcome"], "detail": swept["detail"]}
        because += f"; the sweep: {swept['outcome']}"
        if swept["detail"]:
            because += f" ({swept['detail']})"
    return Explanation(address, "candidate", because, facts)


def _spared(ctx: RunContext, attempt: AttemptArtifacts, address: str) -> Explanation | None:
    rows = _rows(ctx, attempt, "deletion_candidates", "spared", address)
    return Explanation(address, "spared", rows[0]["why"]) if rows else None


def _not_listed(
    ctx: RunContext, attempt: AttemptArtifacts, manifest: Manifest, address: str
) -> Explanation | None:
    if address.startswith("_lakefs/"):
        because = "it belongs to lakeFS itself, and nothing below _lakefs/ is ever listed"
        return Explanation(address, "outside data", because)
    folder = "/".join(address.split("/")[:2]) + "/"
    if folder in manifest.facts.get("skipped_slices", ()):
        because = "its slice was made after the cutoff, so it was not looked at"
        return Explanation(address, "too young", because)
    listing = attempt.read(ctx.spark, "store_listing").where(F.col("address") == address)
    rows = listing.select(in_data(F.col("address"))).limit(1).collect()
    if not rows:
        because = "the store did not hold it when it was listed"
        return Explanation(address, "unknown", because)
    if not rows[0][0]:
        because = "it is neither below data/ nor at the root, where lakeFS writes objects"
        return Explanation(address, "outside data", because)
    return None


def _committed(
    ctx: RunContext, connections: Connections, attempt: AttemptArtifacts, address: str
) -> Explanation | None:
    """The active commit that holds an object: a HEAD if there is one."""
    if not _rows(ctx, attempt, "committed_addresses", "data", address):
        return None
    ranges = attempt.read(ctx.spark, "committed_addresses", "ranges")
    holding = (
        entries_of(connections, ranges, ctx.settings.address_num_partitions)
        .where(F.col("resolved") & (F.col("address") == address))
        .select("range_id")
        .distinct()
    )
    pairs = attempt.read(ctx.spark, "committed_addresses", "metaranges")
    commits = (
        attempt.read(ctx.spark, "active_commits")
        .join(pairs.join(holding, "range_id").select("metarange_id").distinct(), "metarange_id")
        .orderBy((F.col("kind") == "head").desc(), "commit_id")
        .collect()
    )
    if not commits:
        return Explanation(
            address, "live", "a range below _lakefs/ holds it, and there are no rules"
        )
    row = commits[0]
    on = f" of branch {row['branch']!r}" if row["branch"] else ""
    facts = {"commit": row["commit_id"], "branch": row["branch"], "kind": row["kind"]}
    because = f"the active commit {row['commit_id']}{on} holds it ({row['kind']})"
    if len(commits) > 1:
        because += f", and {len(commits) - 1} other active commits"
    return Explanation(address, "live", because, facts | {"commits": len(commits)})


def _staged(
    ctx: RunContext,
    client: LakeFSClient,
    connections: Connections,
    attempt: AttemptArtifacts,
    address: str,
) -> Explanation | None:
    if not _rows(ctx, attempt, "uncommitted_snapshot", "data", address):
        return None
    for _, branch, path in staging_areas(client, ctx.repository, connections, {address}):
        because = f"it is staged on branch {branch!r} at {path!r}"
        return Explanation(address, "live", because, {"branch": branch, "path": path})
    because = "it was staged when the mark was made, and is not any more"
    return Explanation(address, "live", because)


def staging_areas(
    client: LakeFSClient, repository: str, connections: Connections, addresses: Collection[str]
) -> Iterator[tuple[str, str, str]]:
    """Of some addresses those that are staged now, each with branch and path."""
    for branch in client.branches(repository):
        for change in client.diff_branch(repository, branch.id):
            if change.type == "removed":
                continue
            try:
                found = client.stat(repository, branch_ref(branch.id), change.path).physical_address
            except NotFoundError:
                continue
            for address in live_spellings(connections.namespace(), found):
                if address in addresses:
                    yield address, branch.id, change.path


def _too_young(
    ctx: RunContext, attempt: AttemptArtifacts, listing: Manifest, address: str
) -> Explanation | None:
    rows = _rows(ctx, attempt, "store_listing", "data", address)
    if not rows:
        return None
    written: datetime = rows[0]["last_modified"].astimezone()
    if written < listing.cutoff:
        return None
    because = f"it was written at {written.isoformat()}, after the cutoff {listing.cutoff}"
    return Explanation(address, "too young", because)
