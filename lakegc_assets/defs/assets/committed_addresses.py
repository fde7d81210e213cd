"""``committed_addresses``: every address that an active commit holds.

Reads: metaranges and ranges below ``_lakefs/``, through the cache of decoded tables.
Writes: hash (64 bits) of each address relative to the namespace, in every spelling that is meant.
Beside it: the ranges read, what other repositories of the server name of this one's objects, and
the ends of full addresses that nobody can resolve.
Without retention rules, and in the mode ``uncommitted``, every range counts, whoever has it.
Guarantees: a table that is missing, damaged, or not what its id says stops the run.
"""

import dagster as dg
from dagster_pyspark import LazyPySparkResource

from lakegc_assets.defs.connecting import LakeFSResource, ObjectStoreResource
from lakegc_assets.defs.contracts import contract
from lakegc_assets.defs.metadata import of_manifest
from lakegc_assets.defs.partitions import REPOSITORY_RUN
from lakegc_assets.defs.resources import CollectorResource
from lakegc_assets.mark.committed import read_committed_addresses


@dg.asset(
    description=contract(__doc__),
    partitions_def=REPOSITORY_RUN,
    deps=["active_commits"],
    group_name="gc",
    kinds={"pyspark", "lakefs"},
)
def committed_addresses(
    context: dg.AssetExecutionContext,
    collector: CollectorResource,
    lakefs: LakeFSResource,
    stores: ObjectStoreResource,
    pyspark: LazyPySparkResource,
) -> dg.MaterializeResult[None]:
    """Every address that an active commit holds, read range by range."""
    with collector.run_context(context, lakefs, stores, pyspark) as ctx:
        manifest = read_committed_addresses(ctx)
    return dg.MaterializeResult(
        metadata=of_manifest(
            manifest,
            (
                "ranges",
                "ranges_from_cache",
                "ranges_decoded",
                "metaranges",
                "metaranges_from_cache",
                "metaranges_decoded",
                "entries",
            ),
        )
    )
