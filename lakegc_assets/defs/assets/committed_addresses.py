"""``committed_addresses``: every address that an active commit holds.

Reads: metaranges and ranges below ``_lakefs/``, through the cache of decoded tables.
Writes: hash (64 bits) of each address relative to the namespace, in every spelling that is meant.
Beside it: the ranges read, what other repositories of the server name of this one's objects, and
the ends of full addresses that nobody can resolve.
Without retention rules, and in the mode ``uncommitted``, every range counts, whoever has it.
Guarantees: a table that is missing, damaged, or not what its id says stops the run.
"""

import dagster as dg

from lakegc_assets.defs.execution import Execution
from lakegc_assets.defs.metadata import materialization, of_manifest
from lakegc_assets.defs.stages import stage
from lakegc_assets.mark.committed import read_committed_addresses
from lakegc_assets.run.hashing import HASHES


@stage(columns=HASHES, reads=("active_commits",))
def committed_addresses(execution: Execution) -> dg.MaterializeResult[None]:
    """Every address that an active commit holds, read range by range."""
    with execution.run_context() as ctx:
        manifest = read_committed_addresses(ctx)
    tables = ("ranges", "metaranges")
    facts = [f"{one}{source}" for one in tables for source in ("", "_from_cache", "_decoded")]
    return materialization(ctx.root, manifest, of_manifest(manifest, (*facts, "entries")))
