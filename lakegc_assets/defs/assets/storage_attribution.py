"""``storage_attribution``: what each listed byte is, and whose the live ones are.

Reads: the assets before the report, the caches of ranges and metaranges that they have filled, and
the listing of ``_lakefs/``; it decodes no range.
Writes: objects and bytes by class, and of what commits hold by branch, path, oldest commit, age and
size, as one table of totals; `lakegc usage` shows it.
Guarantees: each listed object is in exactly one class; what is not known has a class of its own.
Nothing depends on it: where it cannot be made, mark and sweep go on, and `lakegc usage` makes it
later.
"""

from collections.abc import Iterator

import dagster as dg

from lakegc_assets.attribution.attribution import CELLS, attribute
from lakegc_assets.attribution.usage import usage
from lakegc_assets.defs.execution import Execution
from lakegc_assets.defs.metadata import materialization, of_attribution
from lakegc_assets.defs.stages import stage
from lakegc_assets.errors import LakegcError
from lakegc_assets.run.command_line import command_line


@stage(columns=CELLS, reads=("gc_report",), skippable=True)
def storage_attribution(execution: Execution) -> Iterator[dg.MaterializeResult[None]]:
    """Attributes listed bytes to classes and branches, unless `attribution` is off."""
    with execution.run_context() as ctx:
        if not ctx.settings.attribution:
            ctx.log.info("attribution is off: storage is not attributed")
            return
        try:
            manifest = attribute(ctx)
            branches, paths = (usage(ctx, by, 1).rows for by in ("branch", "path"))
        except LakegcError as error:
            ctx.log.warning(
                "storage is not attributed: %s. `%s` tries again",
                error,
                command_line("usage", ctx.repository, "--run", ctx.run),
            )
            return
    price = execution.resources.collector.policy(ctx.repository).price_per_tb_month
    yield materialization(ctx.root, manifest, of_attribution(manifest, branches, paths, price))
