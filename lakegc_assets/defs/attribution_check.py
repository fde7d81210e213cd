"""``attribution_adds_up``: whether the classes of ``storage_attribution`` add up to the listing."""

from typing import Final

import dagster as dg

from lakegc_assets.attribution.attribution import ASSET
from lakegc_assets.attribution.verification import problems
from lakegc_assets.defs.execution import RESOURCES, Execution
from lakegc_assets.defs.names import Names
from lakegc_assets.wording import counted

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
                asset=names.key(ASSET),
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
            manifest = attempt.manifest(ASSET)
            found = problems(attempt, manifest)
        classes = manifest.facts["classes"]
        objects, size = (sum(row[at] for row in classes) for at in (2, 3))
        summary = "; ".join(found) or (
            f"{counted(len(classes), 'class', 'classes')} have all of "
            f"{counted(objects, 'object')} and {counted(size, 'byte')}"
        )
        return dg.AssetCheckResult(
            passed=not found,
            asset_key=names.key(ASSET),
            check_name=CHECK,
            severity=dg.AssetCheckSeverity.WARN,
            description=summary,
            metadata={"what was found": summary},
        )

    return adds_up
