"""``swept_set``: what became of each marked object.

Reads: the published mark; and staged objects, rules, branches and commits once more.
Writes: address, size (bytes), outcome (deleted, already_missing, spared, locked, put_back),
error_code, detail (of what was deleted: space freed, or held until when), at (UTC).
Guarantees: trusts no earlier check; evaluates every invariant again; what came back to life is
spared, and what is not verified in the backup where ``backup_url`` is set; each batch is recorded
before the next is sent; a killed sweep goes on where it was. A mark that was swept is left alone,
and its record is shown. A run that nobody asked for (a schedule's, a sensor's, a backfill's) sweeps
only where the repository's policy lets it, and else ends without.
"""

from collections.abc import Iterator

import dagster as dg

from lakegc_assets.defs.execution import Execution
from lakegc_assets.defs.failures import interrupts_shown
from lakegc_assets.defs.metadata import links, materialization, of_sweep
from lakegc_assets.defs.requests import WAITS_TAG, first_tags, is_unattended
from lakegc_assets.defs.stages import stage
from lakegc_assets.run.context import RunContext
from lakegc_assets.sweep.approval import approved, recorded_sweep, when
from lakegc_assets.sweep.attempts import recorded_try
from lakegc_assets.sweep.auto_sweep import waits_for
from lakegc_assets.sweep.ledger import SWEPT
from lakegc_assets.sweep.sweep import sweep


@stage(columns=SWEPT, reads=("gc_report", "backup"), skippable=True)
def swept_set(execution: Execution) -> Iterator[dg.MaterializeResult[None]]:
    """Verifies the mark again, deletes what it names, and records every outcome."""
    context = execution.context
    with execution.run_context() as ctx, interrupts_shown(ctx):
        manifest = recorded_sweep(ctx)
        if manifest is not None:
            context.log.info("mark %s was %s: nothing is to be done", ctx.run, when(manifest))
        elif (waits := _waits(execution, ctx)) is not None:
            context.log.warning("%s", waits)
            context.instance.add_run_tags(context.run.run_id, {WAITS_TAG: waits})
            return
        else:
            manifest = sweep(approved(ctx), recorded_try)
    shown = {"swept": when(manifest), **of_sweep(manifest), **links(ctx.lakefs, ctx.repository)}
    yield materialization(ctx.root, manifest, shown)


def _waits(execution: Execution, ctx: RunContext) -> str | None:
    """A sentence about what a run waits for that nobody asked for; None if it may sweep."""
    context = execution.context
    if not is_unattended(first_tags(context.instance, context.run)):
        return None
    policy = execution.resources.collector.policy(ctx.repository)
    return waits_for(ctx, policy.sweep, policy.auto.limits())
