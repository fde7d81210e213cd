"""``uncommitted_snapshot``: what is staged on any branch.

Reads: lakeFS's ``prepare_uncommited``, all pages, and the parquet files that it writes.
Writes: address (relative to the namespace), created (UTC).
Guarantees: comes after the listing and before the commits, so an object that is committed in
between is seen in at least one of them; a page without a location is believed only if nothing is
staged on what it covered; otherwise the run stops.
"""

import dagster as dg
from dagster_pyspark import LazyPySparkResource

from lakegc_assets.defs.connecting import LakeFSResource, ObjectStoreResource
from lakegc_assets.defs.contracts import contract
from lakegc_assets.defs.metadata import of_manifest
from lakegc_assets.defs.partitions import REPOSITORY_RUN
from lakegc_assets.defs.resources import CollectorResource
from lakegc_assets.mark.uncommitted import snapshot_uncommitted


@dg.asset(
    description=contract(__doc__),
    partitions_def=REPOSITORY_RUN,
    deps=["store_listing"],
    group_name="gc",
    kinds={"pyspark", "lakefs"},
)
def uncommitted_snapshot(
    context: dg.AssetExecutionContext,
    collector: CollectorResource,
    lakefs: LakeFSResource,
    stores: ObjectStoreResource,
    pyspark: LazyPySparkResource,
) -> dg.MaterializeResult[None]:
    """The addresses that are staged on any branch."""
    with collector.run_context(context, lakefs, stores, pyspark) as ctx:
        manifest = snapshot_uncommitted(ctx)
    return dg.MaterializeResult(
        metadata=of_manifest(manifest, ("pages", "pages_without_location", "tries"))
    )
