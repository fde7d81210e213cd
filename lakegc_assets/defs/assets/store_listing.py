"""``store_listing``: what the object store holds.

Reads: the storage namespace of the repository, everything outside ``_lakefs/``; and what the last
run listed of slices that nobody writes to any more. In the mode ``committed``: commits and ranges,
and of the namespace only what ranges name that no active commit holds.
Writes: address (relative to the namespace), size (bytes), last_modified (UTC), etag.
Guarantees: starts a new attempt, unless the mark is frozen; the cutoff is recorded here and never
computed again; whatever is written to the store later is not in it, so it cannot be a candidate.
"""

import dagster as dg

from lakegc_assets.defs.execution import Execution
from lakegc_assets.defs.metadata import materialization, of_manifest
from lakegc_assets.defs.stages import stage
from lakegc_assets.mark.listing import list_store
from lakegc_assets.run.artifacts import LISTING


@stage(columns=LISTING)
def store_listing(execution: Execution) -> dg.MaterializeResult[None]:
    """Lists the object store. The first asset of a run: it fixes the one cutoff."""
    with execution.run_context() as ctx:
        manifest = list_store(ctx)
    facts = ("mode", "because", "listed", "carried", "bytes", "start")
    return materialization(ctx.root, manifest, of_manifest(manifest, facts))
