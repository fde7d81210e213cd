"""``gc_report``: the published mark, and why each object goes.

Reads: the candidates, and the recorded results of their checks.
Writes: objects and bytes by reason, branch rule, slice age and age; in the namespace the lists and
the summary that lakeFS's own tools read.
Guarantees: nothing is published unless every blocking check passed on exactly these candidates; the
summary is written last, after the lists were read back; from then on the mark is frozen.
"""

import dagster as dg
from dagster_pyspark import LazyPySparkResource

from lakegc_assets.defs.connecting import LakeFSResource, ObjectStoreResource
from lakegc_assets.defs.contracts import contract
from lakegc_assets.defs.links import links
from lakegc_assets.defs.metadata import of_report
from lakegc_assets.defs.partitions import REPOSITORY_RUN
from lakegc_assets.defs.resources import CollectorResource
from lakegc_assets.mark.report import report


@dg.asset(
    description=contract(__doc__),
    partitions_def=REPOSITORY_RUN,
    deps=["deletion_candidates"],
    group_name="gc",
    kinds={"pyspark", "lakefs"},
)
def gc_report(
    context: dg.AssetExecutionContext,
    collector: CollectorResource,
    lakefs: LakeFSResource,
    stores: ObjectStoreResource,
    pyspark: LazyPySparkResource,
) -> dg.MaterializeResult[None]:
    """Publishes the mark in the repository's namespace, and says why each object goes."""
    with collector.run_context(context, lakefs, stores, pyspark) as ctx:
        manifest = report(ctx)
    return dg.MaterializeResult(
        metadata={**of_report(manifest), **links(ctx.lakefs, ctx.repository)}
    )
