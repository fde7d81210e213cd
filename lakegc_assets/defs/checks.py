"""The asset checks of ``deletion_candidates``: one for each invariant of the core."""

from collections.abc import Iterator

import dagster as dg
from dagster_pyspark import LazyPySparkResource

from lakegc_assets.checks.evaluation import (
    INVARIANTS,
    WARNINGS,
    check_candidates,
    require_passed,
)
from lakegc_assets.defs.connecting import LakeFSResource, ObjectStoreResource
from lakegc_assets.defs.failures import shown
from lakegc_assets.defs.metadata import value_of
from lakegc_assets.defs.partitions import REPOSITORY_RUN
from lakegc_assets.defs.resources import CollectorResource

ASSET = dg.AssetKey("deletion_candidates")


@dg.multi_asset_check(
    specs=[
        dg.AssetCheckSpec(
            invariant.__name__,
            asset=ASSET,
            description=invariant.__doc__,
            blocking=invariant not in WARNINGS,
            partitions_def=REPOSITORY_RUN,
        )
        for invariant in INVARIANTS
    ],
)
def candidate_checks(
    context: dg.AssetCheckExecutionContext,
    collector: CollectorResource,
    lakefs: LakeFSResource,
    stores: ObjectStoreResource,
    pyspark: LazyPySparkResource,
) -> Iterator[dg.AssetCheckResult]:
    """Evaluate every invariant on the candidates, on a path that shares nothing with the mark."""
    with collector.run_context(context, lakefs, stores, pyspark) as ctx:
        results = check_candidates(ctx)
    for result in results:
        yield dg.AssetCheckResult(
            passed=result.passed,
            asset_key=ASSET,
            check_name=result.name,
            severity=dg.AssetCheckSeverity.ERROR if result.blocking else dg.AssetCheckSeverity.WARN,
            description=result.summary,
            metadata={"what was found": result.summary}
            | {name: value_of(fact) for name, fact in result.facts.items()},
        )
    # Dagster itself would only say how many checks failed.
    with shown():
        require_passed(results)
