"""``uncommitted_snapshot``: what is staged on any branch.

Reads: lakeFS's ``prepare_uncommited``, all pages, and the parquet files that it writes.
Writes: address (relative to the namespace), created (UTC).
Guarantees: comes after the listing and before the commits, so an object that is committed in
between is seen in at least one of them; a page without a location is believed only if nothing is
staged on what it covered; otherwise the run stops.
"""

import dagster as dg

from lakegc_assets.defs.execution import Execution
from lakegc_assets.defs.metadata import materialization, of_manifest
from lakegc_assets.defs.stages import stage
from lakegc_assets.mark.uncommitted import snapshot_uncommitted
from lakegc_assets.run.artifacts import UNCOMMITTED


@stage(columns=UNCOMMITTED, after=("store_listing",))
def uncommitted_snapshot(execution: Execution) -> dg.MaterializeResult[None]:
    """The addresses that are staged on any branch."""
    with execution.run_context() as ctx:
        manifest = snapshot_uncommitted(ctx)
    facts = ("pages", "pages_without_location", "tries")
    return materialization(ctx.root, manifest, of_manifest(manifest, facts))
