"""What must hold of every set of candidates before anything is published or deleted.

Each invariant is a plain function of a ``Case``; ``evaluate`` runs them all. They are asset checks
of ``deletion_candidates``, and the sweep evaluates them again for itself. None of them uses the
code of the mark: they read commits, ranges and lists on a path of their own (``second_opinion``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property, partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from lakegc_assets.errors import IntegrityError
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.mark.second_opinion import (
    as_paths,
    entries_of_ranges,
    main_ancestries,
    ranges_of_commits,
    served_addresses,
)
from lakegc_assets.retention.naive import naive_active_commits
from lakegc_assets.retention.rules import Rules
from lakegc_assets.run.artifacts import AttemptArtifacts, Manifest
from lakegc_assets.run.context import Connections, RunContext

_EXAMPLES = 5


@dataclass(frozen=True)
class CheckResult:
    """What one invariant says.

    Attributes:
        name: of the invariant, which is the name of its asset check.
        passed: whether it holds.
        blocking: whether a run must stop where it does not.
        summary: what was found and what to do about it.
        facts: figures, as JSON values.
    """

    name: str
    passed: bool
    blocking: bool
    summary: str
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Case:
    """A set of candidates and all that the invariants compare it with.

    Attributes:
        ctx: the run.
        client: the lakeFS server.
        connections: how tasks reach lakeFS and the store.
        attempt: the artifacts.
        chain: manifests up to ``deletion_candidates``, checked.
        candidates: address, size, last_modified, etag of what is to be deleted.
    """

    ctx: RunContext
    client: LakeFSClient
    connections: Connections
    attempt: AttemptArtifacts
    chain: Mapping[str, Manifest]
    candidates: DataFrame

    @cached_property
    def heads(self) -> dict[str, str]:
        """HEAD of each branch now, hidden ones too."""
        heads = {b.id: b.commit_id for b in self.client.branches(self.ctx.repository)}
        default = self.client.repository(self.ctx.repository).default_branch
        if default not in heads:
            raise IntegrityError(
                f"the list of branches of {self.ctx.repository!r} lacks its default branch "
                f"{default!r}: it is not complete. Run again",
            )
        return heads

    @cached_property
    def head_ranges(self) -> DataFrame:
        """The ranges of the HEADs (commit_id, range_id)."""
        spark, repository = self.ctx.spark, self.ctx.repository
        found = ranges_of_commits(spark, self.connections, repository, self.heads.values())
        return found.cache()

    @cached_property
    def head_entries(self) -> DataFrame:
        """The entries of the HEADs, by the slow reader."""
        partitions = self.ctx.settings.address_num_partitions
        return entries_of_ranges(self.connections, self.head_ranges, partitions).cache()

    @cached_property
    def listing(self) -> DataFrame:
        """The store listing of the attempt."""
        return self.attempt.read(self.ctx.spark, "store_listing")

    @cached_property
    def total(self) -> int:
        """Number of candidates."""
        return self.candidates.count()

    def close(self) -> None:
        """Free what was cached in Spark."""
        for name in ("head_ranges", "head_entries"):
            if name in self.__dict__:
                self.__dict__[name].unpersist()


def _verdict(
    name: str, wrong: DataFrame, what: str, then: str, column: str = "address"
) -> CheckResult:
    """A blocking invariant that holds if no row is wrong."""
    count = wrong.count()
    if count == 0:
        return CheckResult(name, passed=True, blocking=True, summary=f"no candidate {what}")
    examples = [row[0] for row in wrong.select(column).limit(_EXAMPLES).collect()]
    summary = f"{count} candidates: each {what}, for example {examples}. {then}"
    facts = {"count": count, "examples": examples}
    return CheckResult(name, passed=False, blocking=True, summary=summary, facts=facts)


_REPORT = "This is a fault of the mark, please report it"
_NESTED = (
    "If another repository lies in this one's namespace, of whatever lakeFS server, what one of "
    "them needs looks like garbage in the other: do not collect it. Else please report it"
)
_MOVED = "If a branch moved while the mark was made, mark again. Else please report it"


def inside_namespace(case: Case) -> CheckResult:
    """Every candidate is a relative key where lakeFS writes objects: ``data/`` or the root."""
    address = F.col("address")
    below_data = address.rlike(r"(?s)^data/.")
    at_root = address.rlike(r"^[^/]+$")
    odd = address.rlike(r"(^|/)\.\.?(/|$)") | address.contains("://")
    wrong = case.candidates.where(odd | ~(below_data | at_root) | address.isNull())
    return _verdict("inside_namespace", wrong, "is outside of where lakeFS writes", _REPORT)


def not_special(case: Case) -> CheckResult:
    """No candidate is lakeFS's own, of whatever repository, or has a line break in its name."""
    address = F.col("address")
    # Below data/ they are of a repository in there, which this server may know nothing of.
    own = address.startswith("_lakefs") | address.rlike("(^|/)(_lakefs/|dummy$)")
    wrong = case.candidates.where(own | address.rlike(r"[\r\n]"))
    return _verdict("not_special", wrong, "is lakeFS's own or cannot be listed", _NESTED)


def older_than_cutoff(case: Case) -> CheckResult:
    """Every candidate was written before the cutoff, by the listing itself."""
    cutoff = case.chain["store_listing"].cutoff
    young = case.listing.where(~(F.col("last_modified") < F.lit(cutoff))).select("address")
    listed = case.candidates.select("address").exceptAll(case.listing.select("address"))
    wrong = case.candidates.select("address").intersect(young).union(listed)
    return _verdict("older_than_cutoff", wrong, "is not older than the cutoff", _REPORT)


def none_head_reachable(case: Case) -> CheckResult:
    """No candidate is held by the HEAD of any branch."""
    wrong = case.candidates.select("address").intersect(case.head_entries.select("address"))
    return _verdict("none_head_reachable", wrong, "is held by a branch HEAD", _MOVED)


def none_staged(case: Case) -> CheckResult:
    """No candidate is in any list of staged objects that lakeFS wrote for this mark."""
    keys = case.chain["uncommitted_snapshot"].facts["files"]
    partitions = max(1, min(case.ctx.settings.address_num_partitions, len(keys)))
    staged = (
        case.ctx.spark.createDataFrame([(key,) for key in keys], "key string")
        .repartition(partitions)
        .mapInArrow(partial(_staged, case.connections), "address string")
    )
    wrong = case.candidates.select("address").intersect(staged)
    return _verdict("none_staged", wrong, "is staged on a branch", _REPORT)


def _staged(
    connections: Connections, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    store, namespace = connections.store(), connections.namespace()
    for batch in batches:
        for key in batch["key"].to_pylist():
            reader = pq.ParquetFile(pa.BufferReader(store.get(key)))
            for page in reader.iter_batches(columns=["physical_address"]):
                addresses = page["physical_address"].to_pylist()
                full = [namespace.relatives(a) for a in addresses if "://" in a]
                both = as_paths([*addresses, *(a for found in full for a in found)])
                yield pa.RecordBatch.from_arrays([pa.array(both, pa.string())], names=["address"])


def none_shadowed(case: Case) -> CheckResult:
    """No candidate is served at a path whose HEAD entry has its size, and its etag if an MD5."""
    compared = F.when(F.col("etag").rlike("^[0-9a-f]{32}$"), F.col("etag"))
    looks = case.candidates.select("size", compared.alias("etag")).distinct().alias("candidate")
    either = F.explode(F.array("etag", F.lit(None).cast("string")))
    alike = (
        case.head_entries.withColumn("etag", either)
        .alias("entry")
        .join(
            looks,
            (F.col("entry.size") == F.col("candidate.size"))
            & F.col("entry.etag").eqNullSafe(F.col("candidate.etag")),
            "left_semi",
        )
    )
    commits = case.ctx.spark.createDataFrame(
        [(commit, branch) for branch, commit in case.heads.items()],
        "commit_id string, branch string",
    )
    served = partial(served_addresses, case.connections, case.ctx.repository)
    asked = (
        alike.select("range_id", "path")
        .join(case.head_ranges, "range_id")
        .join(commits, "commit_id")
        .select("branch", "path")
        .distinct()
        # In order, so that the server finds neighbours in what it has just read.
        .repartitionByRange(8, "branch", "path")
        .sortWithinPartitions("branch", "path")
        .mapInArrow(served, "address string")
    )
    wrong = case.candidates.select("address").intersect(asked)
    return _verdict("none_shadowed", wrong, "is served by lakeFS", _MOVED)


def active_commits_complete(case: Case) -> CheckResult:
    """The active commits hold every recorded HEAD, and all that the naive walk finds active."""
    name = "active_commits_complete"
    spark = case.ctx.spark
    heads = {
        row["branch"]: row["commit_id"]
        for row in case.attempt.read(spark, "active_commits", "heads").collect()
    }
    active = {
        row[0] for row in case.attempt.read(spark, "active_commits").select("commit_id").collect()
    }
    expected = set(heads.values())
    rules = case.chain["active_commits"].facts["rules"]
    if rules is not None:
        start = datetime.fromisoformat(str(case.chain["store_listing"].facts["start"]))
        # A HEAD that moved meanwhile is still in the log of what it moved to, or its own ref.
        commits = main_ancestries(case.client, case.ctx.repository, heads.values())
        expected |= naive_active_commits(commits, heads, Rules.parse(rules), start)
    missing = sorted(expected - active) or ([] if heads and active else ["every one"])
    summary = f"{len(active)} active commits hold all {len(heads)} HEADs"
    if missing:
        summary = (
            f"{len(missing)} commits are missing from the active ones, for example "
            f"{missing[:_EXAMPLES]}. {_REPORT}"
        )
    facts = {"active": len(active), "missing": len(missing)}
    return CheckResult(name, not missing, blocking=True, summary=summary, facts=facts)


def candidate_share(case: Case) -> CheckResult:
    """The share of the listing that is to be deleted is below its limit."""
    # What was approved for the mark is approved for its sweep.
    approved = case.chain["deletion_candidates"].settings["max_candidate_share"]
    limit = max(case.ctx.settings.max_candidate_share, approved)
    listed = case.chain["store_listing"].rows
    share = case.total / listed if listed else 0.0
    summary = f"{case.total} of {listed} listed objects are candidates ({share:.1%})"
    if share > limit:
        summary += (
            f", more than the limit of {limit:.0%}. If that is what the rules should do, approve "
            "this run by a higher max_candidate_share"
        )
    facts = {"candidates": case.total, "listed": listed, "share": share, "limit": limit}
    return CheckResult(
        "candidate_share", share <= limit, blocking=True, summary=summary, facts=facts
    )


def tagged_commits_whole(case: Case) -> CheckResult:
    """A warning, not a stop: tagged commits that would lose objects, with their names."""
    tags = case.attempt.read(case.ctx.spark, "active_commits", "tags").where("not active")
    names = {row["tag"]: row["commit_id"] for row in tags.collect()}
    losing: dict[str, int] = {}
    if names:
        spark, repository = case.ctx.spark, case.ctx.repository
        ranges = ranges_of_commits(spark, case.connections, repository, names.values()).cache()
        partitions = case.ctx.settings.address_num_partitions
        entries = entries_of_ranges(case.connections, ranges, partitions)
        lost = (
            entries.join(case.candidates.select("address"), "address")
            .join(ranges, "range_id")
            .groupBy("commit_id")
            .agg(F.countDistinct("address").alias("lost"))
        )
        by_commit = {row["commit_id"]: row["lost"] for row in lost.collect()}
        losing = {tag: by_commit[c] for tag, c in names.items() if c in by_commit}
    summary = "no tagged commit loses an object"
    if losing:
        summary = f"tagged commits lose objects: {losing}. Set protect_tags to keep them"
    return CheckResult(
        "tagged_commits_whole",
        not losing,
        blocking=False,
        summary=summary,
        facts={"tags": losing, "at": datetime.now(timezone.utc).isoformat()},
    )
