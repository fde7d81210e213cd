"""The jobs: a collection, its mark, its sweep. Each runs in one process, with one session."""

from __future__ import annotations

import dagster as dg

from lakegc_assets.defs.approving import gc_approve
from lakegc_assets.defs.partitions import REPOSITORY_RUN

_SWEPT = dg.AssetSelection.assets("swept_set")
_MARK = dg.AssetSelection.assets("gc_report").upstream()
_MARK_CHECKS = dg.AssetSelection.checks_for_assets("deletion_candidates")


@dg.definitions
def jobs() -> dg.Definitions:
    """``gc``, ``gc_mark``, ``gc_approve`` and ``gc_sweep``."""
    return dg.Definitions(
        jobs=[
            dg.define_asset_job(
                "gc",
                selection=_MARK | _MARK_CHECKS | _SWEPT,
                partitions_def=REPOSITORY_RUN,
                description="Mark a repository, check the mark, publish it and sweep it.",
            ),
            dg.define_asset_job(
                "gc_mark",
                selection=_MARK | _MARK_CHECKS,
                partitions_def=REPOSITORY_RUN,
                description="Mark a repository, check the mark and publish it. Deletes nothing.",
            ),
            dg.define_asset_job(
                "gc_sweep",
                selection=_SWEPT,
                partitions_def=REPOSITORY_RUN,
                description="Sweep a published mark; may be run again after it was killed.",
            ),
            gc_approve,
        ],
        executor=dg.in_process_executor,
    )
