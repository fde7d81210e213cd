"""The jobs: a collection and its parts, undoing it, the estate, pruning. Each in one process."""

from __future__ import annotations

from typing import Any, Final

import dagster as dg

from lakegc_assets.defs.approving import approving
from lakegc_assets.defs.partitions import REPOSITORY_RUN
from lakegc_assets.defs.policy import Policies
from lakegc_assets.defs.pruning import gc_prune

_BACKUP = dg.AssetSelection.assets("backup")
_SWEPT = dg.AssetSelection.assets("backup", "swept_set")
_RESTORED = dg.AssetSelection.assets("restored_set")
_MARK = dg.AssetSelection.assets("gc_report").upstream()
#: What people change first, and all that the launchpad begins with.
FIRST_SETTINGS: Final = (
    "mode",
    "min_age_hours",
    "max_candidate_share",
    "protect_tags",
    "clean",
)
_MARK_CHECKS = dg.AssetSelection.checks_for_assets("deletion_candidates")


def jobs(policies: Policies) -> dg.Definitions:
    """``gc``, its parts, ``gc_restore``, ``gc_estate`` and ``gc_prune``.

    Args:
        policies: of all repositories; the launchpad begins with what they say.
    """
    config = launchpad(policies)
    return dg.Definitions(
        jobs=[
            dg.define_asset_job(
                "gc",
                selection=_MARK | _MARK_CHECKS | _SWEPT,
                partitions_def=REPOSITORY_RUN,
                config=config,
                description="Mark a repository, check the mark, publish it, back up and sweep.",
            ),
            dg.define_asset_job(
                "gc_mark",
                selection=_MARK | _MARK_CHECKS,
                partitions_def=REPOSITORY_RUN,
                config=config,
                description="Mark a repository, check the mark and publish it. Deletes nothing.",
            ),
            dg.define_asset_job(
                "gc_backup",
                selection=_BACKUP,
                partitions_def=REPOSITORY_RUN,
                config=config,
                description="Copy what a published mark names; may be run again after a kill.",
            ),
            dg.define_asset_job(
                "gc_sweep",
                selection=_SWEPT,
                partitions_def=REPOSITORY_RUN,
                config=config,
                description="Back a published mark up and sweep it; may be run again after a kill.",
            ),
            dg.define_asset_job(
                "gc_restore",
                selection=_RESTORED,
                partitions_def=REPOSITORY_RUN,
                config=config,
                description="Bring back what was swept; may be run again, after a kill, too.",
            ),
            approving(config),
            dg.define_asset_job(
                "gc_estate",
                selection=dg.AssetSelection.assets("estate"),
                description="Make the table of all repositories again. Deletes nothing.",
            ),
            gc_prune,
        ],
        executor=dg.in_process_executor,
    )


def launchpad(policies: Policies) -> dg.PartitionedConfig[Any]:
    """What the launchpad begins with: the first settings, as they are for the repository.

    With those for all, it would overrule what the policies say of single ones.
    """

    def of(key: str) -> dict[str, Any]:
        policy = policies.of(key.split("|", maxsplit=1)[0])
        shown = {
            "mode": "unified",
            "min_age_hours": policy.min_age_hours,
            "max_candidate_share": policy.max_candidate_share,
            "protect_tags": policy.protect_tags,
            "clean": False,
        }
        return {"resources": {"collector": {"config": shown}}}

    return dg.PartitionedConfig(partitions_def=REPOSITORY_RUN, run_config_for_partition_key_fn=of)
