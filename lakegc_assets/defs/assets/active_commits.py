"""``active_commits``: the commits whose objects must stay.

Reads: retention rules, branches (hidden ones too), tags, logs, and lakeFS's ``prepare_commits``.
Writes: commit_id, metarange_id, and why: branch, kind, counted_from, source. Beside it: expired
commits, HEADs and tags.
Guarantees: holds every HEAD read before and after, all that lakeFS lists, all that our own walk
finds, and what the previous mark knew and its rule still covers. Without rules every commit is
active.
"""

import dagster as dg

from lakegc_assets.defs.execution import Execution
from lakegc_assets.defs.metadata import materialization, of_manifest, of_rules
from lakegc_assets.defs.stages import stage
from lakegc_assets.mark.commits import ACTIVE, find_active_commits


@stage(columns=ACTIVE, after=("uncommitted_snapshot",))
def active_commits(execution: Execution) -> dg.MaterializeResult[None]:
    """The commits whose objects must stay: lakeFS's list united with our own computation."""
    with execution.run_context() as ctx:
        manifest = find_active_commits(ctx)
    found = ("only_server", "only_own", "only_previous_mark")
    facts = of_manifest(manifest, ("active", "expired", "retain", "branches", *found))
    rules = of_rules(manifest.facts["rules"])
    return materialization(ctx.root, manifest, {"rules": rules, **facts})
