"""``swept_set``: what became of each marked object.

Reads: the published mark; and staged objects, rules, branches and commits once more.
Writes: address, size (bytes), outcome (deleted, already_missing, spared, put_back), error_code,
detail, at (UTC).
Guarantees: trusts no earlier check; evaluates every invariant again; what came back to life is
spared, and what is not verified in the backup where ``backup_url`` is set; each batch is recorded
before the next is sent; a killed sweep goes on where it was.
"""

import dagster as dg
from dagster_pyspark import LazyPySparkResource

from lakegc_assets.defs.metadata import of_manifest
from lakegc_assets.defs.partitions import REPOSITORY_RUN
from lakegc_assets.defs.resources import CollectorResource, LakeFSResource, ObjectStoreResource
from lakegc_assets.recovery.undoable import undoable
from lakegc_assets.sweep.sweep import sweep


@dg.asset(
    partitions_def=REPOSITORY_RUN,
    deps=["gc_report", "backup"],
    group_name="gc",
    kinds={"pyspark", "lakefs"},
)
def swept_set(
    context: dg.AssetExecutionContext,
    collector: CollectorResource,
    lakefs: LakeFSResource,
    stores: ObjectStoreResource,
    pyspark: LazyPySparkResource,
) -> dg.MaterializeResult[None]:
    """Verifies the mark again, deletes what it names, and records every outcome."""
    with collector.run_context(context, lakefs, stores, pyspark) as ctx:
        manifest = sweep(ctx)
    facts = ("outcomes", "put_back", "rounds", "recovery", "backup", "delete_deadlines")
    undo = undoable(manifest.facts, manifest.finished)
    return dg.MaterializeResult(metadata={"undo": undo, **of_manifest(manifest, facts)})
