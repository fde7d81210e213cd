"""Asset checks: one of the candidates for each invariant, and one of the attribution of storage."""

from collections.abc import Iterator
from typing import Final

import dagster as dg

from lakegc_assets.attribution.attribution import ASSET as ATTRIBUTION
from lakegc_assets.attribution.verification import problems
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
from lakegc_assets.wording import counted

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


CHECK: Final = "attribution_adds_up"
_DESCRIPTION: Final = (
    "The classes have all objects and bytes that were listed, and the garbage is what the mark "
    "names. It blocks nothing: what is deleted does not depend on it."
)


def attribution_check(names: Names) -> dg.AssetChecksDefinition:
    """The check, of each repository and run."""

    @dg.multi_asset_check(
        name=names.of(CHECK),
        specs=[
            dg.AssetCheckSpec(
                CHECK,
                asset=names.key(ATTRIBUTION),
                description=_DESCRIPTION,
                blocking=False,
                partitions_def=names.repository_run,
            )
        ],
        required_resource_keys=names.resources(*RESOURCES),
    )
    def adds_up(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        execution = Execution(context, names)
        with execution.run_context() as ctx:
            attempt = ctx.root.attempt(ctx.repository, ctx.run)
            manifest = attempt.manifest(ATTRIBUTION)
            found = problems(attempt, manifest)
        classes = manifest.facts["classes"]
        objects, size = (sum(row[at] for row in classes) for at in (2, 3))
        summary = "; ".join(found) or (
            f"{counted(len(classes), 'class', 'classes')} have all of "
            f"{counted(objects, 'object')} and {counted(size, 'byte')}"
        )
        return dg.AssetCheckResult(
            passed=not found,
            asset_key=names.key(ATTRIBUTION),
            check_name=CHECK,
            severity=dg.AssetCheckSeverity.WARN,
            description=summary,
            metadata={"what was found": summary},
        )

    return adds_up
