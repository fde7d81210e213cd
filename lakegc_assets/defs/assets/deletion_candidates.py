"""``deletion_candidates``: what nothing needs any more.

Reads: the four assets before it, each with its digest checked; and lakeFS, to see what it serves.
Writes: address, size (bytes), last_modified (UTC), etag, reason (expired or unreferenced), and for
expired ones the commit and branch that held them last. Beside it: what was spared, and why; where
a mark of lakeFS's own collector is adopted, who holds what it names and ours keeps.
Guarantees: strictly older than the cutoff, below ``data/`` or flat at the root, in no live set. The
blocking checks stand here, before anything is published.
"""

import dagster as dg

from lakegc_assets.defs.execution import Execution
from lakegc_assets.defs.metadata import materialization, of_manifest
from lakegc_assets.defs.stages import stage
from lakegc_assets.mark.candidates import find_candidates
from lakegc_assets.mark.reasons import CANDIDATES


@stage(
    columns=CANDIDATES,
    reads=("store_listing", "uncommitted_snapshot", "active_commits", "committed_addresses"),
)
def deletion_candidates(execution: Execution) -> dg.MaterializeResult[None]:
    """Objects older than the cutoff that nothing needs any more, with the reason."""
    with execution.run_context() as ctx:
        manifest = find_candidates(ctx)
    listed = ("listed", "listed_bytes", "skipped_slices", "too_young", "outside_data")
    adopted = ("adopted",) if "adopted" in manifest.facts else ()
    facts = ("by_reason", "spared", *listed, *adopted)
    return materialization(ctx.root, manifest, of_manifest(manifest, facts))
