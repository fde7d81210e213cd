"""The invariant that the listing is of the right place: it holds what the branch HEADs hold.

A listing of the wrong prefix, scheme or account, or one that ended early, shows here: objects that
a HEAD names are not in it. What a collector deleted before is left out of the comparison, and so is
what the operator has looked at and accepted once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from lakegc_assets.errors import LakegcError
from lakegc_assets.mark.invariants import Case, CheckResult
from lakegc_assets.run.artifacts import key_digest
from lakegc_assets.run.context import Connections
from lakegc_assets.storage.opening import open_store

NAME = "listing_holds_heads"
_ACCEPTED = "_accepted_missing"
#: Where lakeFS's collectors, and ours, write the addresses of a mark.
_MARKS = re.compile(
    r"_lakefs/retention/gc/(?:(?:unified|uncommitted)/(?P<run>[^/]+)/deleted/|"
    r"addresses/(?:mark|run)_id=(?P<mark>[^/]+)/)[^/]+\.parquet"
)
#: How many missing objects are asked for one by one before the check gives its verdict.
_CONFIRM = 1000
_EXAMPLES = 5


def listing_holds_heads(case: Case) -> CheckResult:
    """Every object that a branch HEAD names, and that is old enough to be listed, is listed."""
    start = datetime.fromisoformat(str(case.chain["store_listing"].facts["start"]))
    before = F.lit(start - case.ctx.settings.clock_skew)
    # Slices that are too new for candidates are not listed.
    unlisted = case.chain["store_listing"].facts.get("skipped_slices", ())
    expected = (
        case.head_entries.where(F.col("address").isNotNull() & (F.col("entry_modified") < before))
        .where(~F.concat(F.substring_index("address", "/", 2), F.lit("/")).isin(*unlisted))
        .select("address")
        .distinct()
    )
    missing = expected.join(case.listing.select("address"), "address", "left_anti").cache()
    try:
        if missing.isEmpty():
            summary = "the listing holds every object that a branch HEAD names"
            return CheckResult(NAME, passed=True, blocking=True, summary=summary)
        return _judge(case, missing.join(_known(case), "address", "left_anti"))
    finally:
        missing.unpersist()


def _judge(case: Case, missing: DataFrame) -> CheckResult:
    digest = key_digest(missing)
    if digest.count == 0:
        summary = "what branch HEADs name and the listing lacks was deleted or accepted before"
        return CheckResult(NAME, passed=True, blocking=True, summary=summary)
    examples = [row[0] for row in missing.limit(_CONFIRM).collect()]
    store = case.connections.store()
    present = [address for address in examples if store.exists(address)]
    facts = {"missing": digest.count, "digest": str(digest), "examples": examples[:_EXAMPLES]}
    if present:
        summary = (
            f"{digest.count} objects that branch HEADs name are not in the listing of "
            f"{case.connections.namespace_url}, but the store has them, for example "
            f"{present[:_EXAMPLES]}: the listing is not complete. Run again"
        )
        return CheckResult(NAME, passed=False, blocking=True, summary=summary, facts=facts)
    if case.ctx.settings.accept_missing == str(digest):
        _accept(case, missing, str(digest))
        summary = f"{digest.count} objects of branch HEADs are missing; the operator accepts that"
        return CheckResult(NAME, passed=True, blocking=True, summary=summary, facts=facts)
    summary = (
        f"{digest.count} objects that branch HEADs name are neither in the listing nor in the "
        f"store at {case.connections.namespace_url}, for example {examples[:_EXAMPLES]}. If this "
        "is the wrong place, correct the connection. If they are known to be lost, accept them "
        f"once: accept_missing={digest}"
    )
    return CheckResult(NAME, passed=False, blocking=True, summary=summary, facts=facts)


def _accept(case: Case, missing: DataFrame, digest: str) -> None:
    sink = pa.BufferOutputStream()
    rows = [row[0] for row in missing.collect()]
    pq.write_table(pa.table({"address": pa.array(rows, pa.string())}), sink)
    store = case.ctx.root.open(case.ctx.repository)
    store.put(f"{_ACCEPTED}/{digest}.parquet", sink.getvalue().to_pybytes())


def _known(case: Case) -> DataFrame:
    """Addresses that a collector deleted, or whose loss was accepted: one column ``address``."""
    spark, connections = case.ctx.spark, case.connections
    marked = [
        key
        for batch in connections.store().list("_lakefs/retention/gc/")
        for key in batch["key"].to_pylist()
        if (match := _MARKS.fullmatch(key)) and case.ctx.run not in match.groups()
    ]
    root = case.ctx.root.open(case.ctx.repository)
    accepted = [k for batch in root.list(f"{_ACCEPTED}/") for k in batch["key"].to_pylist()]
    root_url = f"{case.ctx.root.url.rstrip('/')}/{case.ctx.repository}"
    files = [(connections.namespace_url, key) for key in marked]
    files += [(root_url, key) for key in accepted]
    known = (
        spark.createDataFrame(files, "url string, key string")
        .repartition(max(1, min(50, len(files))))
        .mapInArrow(partial(_read_addresses, connections), "address string")
    )
    for run in case.ctx.root.runs(case.ctx.repository):
        try:
            attempt = case.ctx.root.attempt(case.ctx.repository, run)
            attempt.manifest("swept_set")
        except LakegcError:
            continue
        swept = attempt.read(spark, "swept_set").where("outcome in ('deleted', 'already_missing')")
        known = known.unionByName(swept.select("address"))
    return known.distinct()


def _read_addresses(
    connections: Connections, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for row in batch.to_pylist():
            data = open_store(row["url"], connections.stores).get(row["key"])
            table = pq.read_table(pa.BufferReader(data), columns=["address"])
            addresses = table["address"].cast(pa.string()).combine_chunks()
            yield pa.RecordBatch.from_arrays([addresses], names=["address"])
