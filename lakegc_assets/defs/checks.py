"""Asset checks: one of the candidates for each invariant, and one of the attribution of storage."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import dagster as dg

from lakegc_assets.attribution.attribution import ASSET as ATTRIBUTION
from lakegc_assets.attribution.usage import problems
from lakegc_assets.checks.invariants import (
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
CHECK: Final = "attribution_adds_up"
_ADDS_UP: Final = (
    "The classes together have all listed objects and bytes, and the garbage is what the mark "
    "names. Blocks nothing, since no delete depends on it."
)


def candidate_checks(names: Names) -> dg.AssetChecksDefinition:
    """One check for each invariant; one step evaluates all of them."""
    described = {one.__name__: (one.__doc__, one not in WARNINGS) for one in INVARIANTS}
    return _checks(names, "candidate_checks", ASSET, described, _evaluate)


def attribution_check(names: Names) -> dg.AssetChecksDefinition:
    """The check of the attribution of storage."""
    return _checks(names, CHECK, ATTRIBUTION, {CHECK: (_ADDS_UP, False)}, _add_up)


def _checks(
    names: Names,
    name: str,
    asset: str,
    described: Mapping[str, tuple[str | None, bool]],
    evaluate: Callable[[Execution], Iterator[dg.AssetCheckResult]],
) -> dg.AssetChecksDefinition:
    """The checks of an asset: by name, the description, and True if the check blocks."""
    specs = [
        dg.AssetCheckSpec(
            check,
            asset=names.key(asset),
            description=description,
            blocking=blocking,
            partitions_def=names.repository_run,
        )
        for check, (description, blocking) in described.items()
    ]

    @dg.multi_asset_check(
        name=names.of(name), specs=specs, required_resource_keys=names.all_of(*RESOURCES)
    )
    def evaluated(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        with printing(names.source):
            yield from evaluate(Execution(context, names))

    return evaluated


def _evaluate(execution: Execution) -> Iterator[dg.AssetCheckResult]:
    """Evaluate every invariant on the candidates, with code that shares nothing with the mark."""
    with execution.run_context(marking=True) as ctx:
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
    # Dagster's own message would only give the number of failed checks.
    with shown():
        require_passed(results)


def _add_up(execution: Execution) -> Iterator[dg.AssetCheckResult]:
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
    yield dg.AssetCheckResult(
        passed=not found,
        asset_key=execution.names.key(ATTRIBUTION),
        check_name=CHECK,
        severity=dg.AssetCheckSeverity.WARN,
        description=summary,
        metadata={"what was found": summary},
    )
