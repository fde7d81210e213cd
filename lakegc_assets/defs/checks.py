"""The asset checks of ``deletion_candidates``: one for each invariant of the core."""

from collections.abc import Iterator
from typing import Final

import dagster as dg

from lakegc_assets.checks.evaluation import (
    INVARIANTS,
    WARNINGS,
    check_candidates,
    require_passed,
)
from lakegc_assets.defs.execution import RESOURCES, Execution
from lakegc_assets.defs.failures import shown
from lakegc_assets.defs.metadata import value_of
from lakegc_assets.defs.names import Names
from lakegc_assets.run.command_line import printing

ASSET: Final = "deletion_candidates"


def candidate_checks(names: Names) -> dg.AssetChecksDefinition:
    """All of them, which are evaluated together."""

    @dg.multi_asset_check(
        name=names.of("candidate_checks"),
        specs=[
            dg.AssetCheckSpec(
                invariant.__name__,
                asset=names.key(ASSET),
                description=invariant.__doc__,
                blocking=invariant not in WARNINGS,
                partitions_def=names.repository_run,
            )
            for invariant in INVARIANTS
        ],
        required_resource_keys=names.resources(*RESOURCES),
    )
    def evaluated(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        with printing(names.source):
            yield from _evaluate(Execution(context, names))

    return evaluated


def _evaluate(execution: Execution) -> Iterator[dg.AssetCheckResult]:
    """Evaluate every invariant on the candidates, on a path that shares nothing with the mark."""
    with execution.run_context() as ctx:
        results = check_candidates(ctx)
    for result in results:
        yield dg.AssetCheckResult(
            passed=result.passed,
            asset_key=execution.names.key(ASSET),
            check_name=result.name,
            severity=dg.AssetCheckSeverity.ERROR if result.blocking else dg.AssetCheckSeverity.WARN,
            description=result.summary,
            metadata={"what was found": result.summary}
            | {name: value_of(fact) for name, fact in result.facts.items()},
        )
    # Dagster itself would only say how many checks failed.
    with shown():
        require_passed(results)
