"""``deletion_candidates``: what nothing needs any more.

Reads: the four assets before it, each with its digest checked; and lakeFS, to see what it serves.
Writes: address, size (bytes), last_modified (UTC), etag, reason (expired or unreferenced), and for
expired ones the commit and branch that held them last. Beside it: what was spared, and why; where
a mark of lakeFS's own collector is adopted, who holds what it names and ours keeps.
Guarantees: strictly older than the cutoff, below ``data/`` or flat at the root, in no live set. The
blocking checks stand here, before anything is published.
"""

import dagster as dg
from dagster_pyspark import LazyPySparkResource

from lakegc_assets.defs.connecting import LakeFSResource, ObjectStoreResource
from lakegc_assets.defs.contracts import contract
from lakegc_assets.defs.metadata import of_manifest
from lakegc_assets.defs.partitions import REPOSITORY_RUN
from lakegc_assets.defs.resources import CollectorResource
from lakegc_assets.mark.candidates import find_candidates


@dg.asset(
    description=contract(__doc__),
    partitions_def=REPOSITORY_RUN,
    deps=["committed_addresses"],
    group_name="gc",
    kinds={"pyspark", "lakefs"},
)
def deletion_candidates(
    context: dg.AssetExecutionContext,
    collector: CollectorResource,
    lakefs: LakeFSResource,
    stores: ObjectStoreResource,
    pyspark: LazyPySparkResource,
) -> dg.MaterializeResult[None]:
    """What is older than the cutoff and nothing needs any more, with the reason."""
    with collector.run_context(context, lakefs, stores, pyspark) as ctx:
        manifest = find_candidates(ctx)
    return dg.MaterializeResult(
        metadata=of_manifest(
            manifest,
            (
                "by_reason",
                "spared",
                "listed",
                "listed_bytes",
                "skipped_slices",
                "too_young",
                "outside_data",
                *(("adopted",) if "adopted" in manifest.facts else ()),
            ),
        )
    )
