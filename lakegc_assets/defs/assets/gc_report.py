"""``gc_report``: the published mark, and why each object goes.

Reads: the candidates, and the recorded results of their checks.
Writes: objects and bytes by reason, branch rule, slice age and age; in the namespace the lists and
the summary that lakeFS's own tools read.
Guarantees: nothing is published unless every blocking check passed on exactly these candidates; the
summary is written last, after the lists were read back; from then on the mark is frozen.
"""

import dagster as dg

from lakegc_assets.defs.execution import Execution
from lakegc_assets.defs.metadata import links, materialization, of_report
from lakegc_assets.defs.stages import stage
from lakegc_assets.estate.history import marks_over_time
from lakegc_assets.mark.report import BREAKDOWN, report


@stage(columns=BREAKDOWN, reads=("deletion_candidates",))
def gc_report(execution: Execution) -> dg.MaterializeResult[None]:
    """Publishes the mark in the repository's namespace, and says why each object goes."""
    with execution.run_context() as ctx:
        manifest = report(ctx)
        marks = marks_over_time(ctx.root, ctx.repository, manifest.namespace)
    shown = {**of_report(manifest, marks), **links(ctx.lakefs, ctx.repository)}
    return materialization(ctx.root, manifest, shown)
