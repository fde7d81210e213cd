"""``store_listing``: what the object store holds.

Reads: the storage namespace of the repository, everything outside ``_lakefs/``; and what the last
run listed of slices that nobody writes to any more. In the mode ``committed``: commits and ranges,
and of the namespace only what ranges name that no active commit holds.
Writes: address (relative to the namespace), size (bytes), last_modified (UTC), etag.
Guarantees: starts a new attempt, unless the mark is frozen; the cutoff is recorded here and never
computed again; whatever is written to the store later is not in it, so it cannot be a candidate.
"""

import dagster as dg
from dagster_pyspark import LazyPySparkResource

from lakegc_assets.defs.connecting import LakeFSResource, ObjectStoreResource
from lakegc_assets.defs.contracts import contract
from lakegc_assets.defs.metadata import of_manifest
from lakegc_assets.defs.partitions import REPOSITORY_RUN
from lakegc_assets.defs.resources import CollectorResource
from lakegc_assets.mark.listing import list_store


@dg.asset(
    description=contract(__doc__),
    partitions_def=REPOSITORY_RUN,
    group_name="gc",
    kinds={"pyspark", "lakefs"},
)
def store_listing(
    context: dg.AssetExecutionContext,
    collector: CollectorResource,
    lakefs: LakeFSResource,
    stores: ObjectStoreResource,
    pyspark: LazyPySparkResource,
) -> dg.MaterializeResult[None]:
    """What the object store holds. The first asset of a run: it fixes the one cutoff."""
    with collector.run_context(context, lakefs, stores, pyspark) as ctx:
        manifest = list_store(ctx)
    return dg.MaterializeResult(
        metadata=of_manifest(manifest, ("mode", "because", "listed", "carried", "bytes", "start"))
    )
