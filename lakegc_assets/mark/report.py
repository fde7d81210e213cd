"""Stage 6, ``gc_report``: publishes the mark, and says why each object goes and what it frees."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from lakegc_assets.graveler.namespace import slice_time
from lakegc_assets.checks.evaluation import read_results, require_passed
from lakegc_assets.mark.publication import Summary, instant, publish
from lakegc_assets.run.artifacts import Manifest
from lakegc_assets.run.context import RunContext

_LARGEST = 20
_DAY = 86_400
BREAKDOWN = "dimension string, key string, objects long, bytes long"


def report(ctx: RunContext) -> Manifest:
    """Publish the mark and write the ``gc_report`` asset: rows of ``BREAKDOWN``.

    Raises:
        RefusedError: a blocking check failed or was not run, or the mark id is in use.
        IntegrityError: the candidates are not what their manifest says.
    """
    started = ctx.clocks.now()
    _, connections = ctx.connect()
    attempt = ctx.root.attempt(ctx.repository, ctx.run)
    chain = attempt.chain("deletion_candidates", connections.namespace_url)
    manifest = chain["deletion_candidates"]
    results = read_results(attempt, manifest)
    require_passed(results)
    candidates = attempt.read_verified(ctx.spark, manifest)

    start = datetime.fromisoformat(str(chain["store_listing"].facts["start"]))
    rules = chain["active_commits"].facts["rules"]
    rows = [
        *_grouped(candidates, "reason", F.col("reason")),
        *_grouped(candidates, "branch rule", _rule(rules)),
        *_by_slice_age(candidates, start),
        *_by_age(candidates, start),
    ]
    attempt.write(ctx.spark.createDataFrame(rows, BREAKDOWN).coalesce(1), "gc_report")
    slices = F.regexp_extract("address", "^data/([^/]+)/", 1)
    listing = attempt.read(ctx.spark, "store_listing").select(slices.alias("slice"))
    listed = listing.where("slice != ''").agg(F.min("slice")).first()
    unlisted = chain["store_listing"].facts.get("skipped_slices", ())
    slice_names = [listed[0] if listed else None, *(f.split("/")[1] for f in unlisted)]
    summary = Summary(
        run_id=ctx.run,
        success=True,
        first_slice=min(filter(None, slice_names), default=""),
        start_time=instant(start),
        cutoff_time=instant(manifest.cutoff),
        num_deleted_objects=manifest.rows,
    )
    keys = publish(ctx, connections, candidates, manifest.digest, summary)
    largest = candidates.orderBy(F.desc("size"), "address").limit(_LARGEST).collect()
    facts: dict[str, object] = {
        "objects": manifest.rows,
        "bytes": sum(row[3] for row in rows if row[0] == "reason"),
        "breakdown": [list(row) for row in rows],
        "largest": [[r["address"], r["size"], r["reason"]] for r in largest],
        "files": [f"{connections.namespace_url}/{key}" for key in keys],
        "checks": {r.name: r.summary for r in results},
        "warnings": [r.summary for r in results if not r.passed],
    }
    return ctx.frame_manifest("gc_report", manifest, started, facts, key="")


def _rule(rules: dict[str, Any] | None) -> Column:
    """The rule that let a candidate expire, in words."""
    if rules is None:
        return F.lit("no rules")
    days = {r["branch_id"]: r["retention_days"] for r in rules["branches"]}
    label = F.lit(f"default, {rules['default_retention_days']} days")
    for branch, count in days.items():
        label = F.when(F.col("branch") == branch, f"{branch}, {count} days").otherwise(label)
    return F.when(F.col("reason") == "unreferenced", "unreferenced").otherwise(label)


def _grouped(candidates: DataFrame, dimension: str, key: Column) -> list[tuple[str, str, int, int]]:
    rows = candidates.groupBy(key.alias("key")).agg(F.count("*"), F.sum("size")).orderBy("key")
    return [(dimension, str(row[0]), row[1], int(row[2] or 0)) for row in rows.collect()]


def _by_slice_age(candidates: DataFrame, start: datetime) -> list[tuple[str, str, int, int]]:
    """By whole days since the slice was begun; the driver holds a row for each slice."""
    name = F.regexp_extract("address", "^data/([^/]+)/", 1)
    ages: dict[int | None, list[int]] = {}
    for _, slice_name, objects, size in _grouped(candidates, "slice", name):
        begun = slice_time(slice_name)
        age = None if begun is None else max(0, int((start - begun).total_seconds() // _DAY))
        total = ages.setdefault(age, [0, 0])
        total[0] += objects
        total[1] += size
    ordered = sorted(ages.items(), key=lambda item: -1 if item[0] is None else item[0])
    return [
        ("slice age", "not in a slice" if age is None else f"{age} days", count, size)
        for age, (count, size) in ordered
    ]


def _by_age(candidates: DataFrame, start: datetime) -> list[tuple[str, str, int, int]]:
    """By whole days since the object was written."""
    seconds = F.lit(int(start.timestamp())) - F.col("last_modified").cast("long")
    rows = _grouped(candidates, "age in days", F.floor(seconds / _DAY))
    return sorted(rows, key=lambda row: int(row[1]))
