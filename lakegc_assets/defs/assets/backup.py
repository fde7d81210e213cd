"""``backup``: copies of what the mark names, before anything of it is deleted.

Reads: the published mark, and the objects that it names.
Writes: below ``backup_url``, one copy of each object, verified; what became of each (copied,
changed, missing, failed); and a manifest, last. Nothing where ``backup_url`` is not set.
Guarantees: a finished backup is never changed; a killed one goes on where it was; a sweep with
``backup_url`` deletes only what is verified in the backup of its own mark.
"""

import dagster as dg
from dagster_pyspark import LazyPySparkResource

from lakegc_assets.defs.connecting import LakeFSResource, ObjectStoreResource
from lakegc_assets.defs.contracts import contract
from lakegc_assets.defs.metadata import of_backup
from lakegc_assets.defs.partitions import REPOSITORY_RUN
from lakegc_assets.defs.resources import CollectorResource
from lakegc_assets.sweep.backing_up import back_up


@dg.asset(
    description=contract(__doc__),
    partitions_def=REPOSITORY_RUN,
    deps=["gc_report"],
    group_name="gc",
    kinds={"pyspark", "lakefs"},
)
def backup(
    context: dg.AssetExecutionContext,
    collector: CollectorResource,
    lakefs: LakeFSResource,
    stores: ObjectStoreResource,
    pyspark: LazyPySparkResource,
) -> dg.MaterializeResult[None]:
    """Copies what the mark names to ``backup_url``, verifies each copy, and records it."""
    with collector.run_context(context, lakefs, stores, pyspark) as ctx:
        record = back_up(ctx)
        url = ctx.settings.backup_url
    return dg.MaterializeResult(metadata=of_backup(record, url))
