"""The jobs: a collection and its parts, undoing it, the estate, pruning. Each in one process."""

from __future__ import annotations

import dagster as dg

from lakegc_assets.defs.approving import gc_approve
from lakegc_assets.defs.partitions import REPOSITORY_RUN
from lakegc_assets.defs.pruning import gc_prune

_BACKUP = dg.AssetSelection.assets("backup")
_SWEPT = dg.AssetSelection.assets("backup", "swept_set")
_RESTORED = dg.AssetSelection.assets("restored_set")
_MARK = dg.AssetSelection.assets("gc_report").upstream()
_MARK_CHECKS = dg.AssetSelection.checks_for_assets("deletion_candidates")


@dg.definitions
def jobs() -> dg.Definitions:
    """``gc``, its parts, ``gc_restore``, ``gc_estate`` and ``gc_prune``."""
    return dg.Definitions(
        jobs=[
            dg.define_asset_job(
                "gc",
                selection=_MARK | _MARK_CHECKS | _SWEPT,
                partitions_def=REPOSITORY_RUN,
                description="Mark a repository, check the mark, publish it, back up and sweep.",
            ),
            dg.define_asset_job(
                "gc_mark",
                selection=_MARK | _MARK_CHECKS,
                partitions_def=REPOSITORY_RUN,
                description="Mark a repository, check the mark and publish it. Deletes nothing.",
            ),
            dg.define_asset_job(
                "gc_backup",
                selection=_BACKUP,
                partitions_def=REPOSITORY_RUN,
                description="Copy what a published mark names; may be run again after a kill.",
            ),
            dg.define_asset_job(
                "gc_sweep",
                selection=_SWEPT,
                partitions_def=REPOSITORY_RUN,
                description="Back a published mark up and sweep it; may be run again after a kill.",
            ),
            dg.define_asset_job(
                "gc_restore",
                selection=_RESTORED,
                partitions_def=REPOSITORY_RUN,
                description="Bring back what was swept; may be run again, after a kill, too.",
            ),
            gc_approve,
            dg.define_asset_job(
                "gc_estate",
                selection=dg.AssetSelection.assets("estate"),
                description="Make the table of all repositories again. Deletes nothing.",
            ),
            gc_prune,
        ],
        executor=dg.in_process_executor,
    )
