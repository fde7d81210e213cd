"""The jobs: a collection and its parts, undoing it, the estate, pruning. Each in one process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import dagster as dg

from lakegc_assets.attribution.attribution import ASSET as ATTRIBUTION
from lakegc_assets.defs.checks import ASSET
from lakegc_assets.defs.decisions import accepting, approving
from lakegc_assets.defs.names import Names
from lakegc_assets.defs.policy import Policies
from lakegc_assets.defs.prune import prune_job
from lakegc_assets.defs.requests import RETRIES
from lakegc_assets.run.artifacts import MARK_ASSETS

#: What people change first, and all that the launchpad begins with.
_FIRST_SETTINGS: Final = (
    "mode",
    "min_age_hours",
    "max_candidate_share",
    "protect_tags",
    "clean",
)
#: Is shown for repositories that are excluded, in jobs that refuse these.
_EXCLUDED: Final = "collect_excluded"
#: A mark is begun anew until it is published, and then left as it is: gc_resume knows which.
_NO_RETRIES: Final = {"dagster/max_retries": "0"}
#: Those of them that a sweep takes; the others are of its mark.
_OF_A_SWEEP: Final = ("max_candidate_share", "protect_tags", _EXCLUDED)


def jobs(policies: Policies, names: Names) -> dg.Definitions:
    """``gc``, its parts, and what is done beside it, from ``gc_restore`` to ``gc_accept_hold``."""
    backup, swept = names.selection("backup"), names.selection("backup", "swept_set")
    checks = dg.AssetSelection.checks_for_assets(names.key(ASSET), names.key(ATTRIBUTION))
    mark = names.selection(*MARK_ASSETS, ATTRIBUTION) | checks

    def of_runs(name: str, selection: dg.AssetSelection, description: str, *settings: str) -> Any:  # noqa: ANN401 - Dagster has no public name for it
        return dg.define_asset_job(
            names.of(name),
            selection=selection,
            tags=_NO_RETRIES if name in {"gc", "gc_mark"} else RETRIES,
            config=launchpad(policies, names, settings),
            description=description,
        )

    def of_all(name: str, asset: str, description: str) -> Any:  # noqa: ANN401 - likewise
        selection = names.selection(asset)
        return dg.define_asset_job(names.of(name), selection, tags=RETRIES, description=description)

    first = (*_FIRST_SETTINGS, _EXCLUDED)
    return dg.Definitions(
        jobs=[
            of_runs(
                "gc",
                mark | swept,
                "Mark a repository, check the mark, publish it, back up and sweep.",
                *first,
            ),
            of_runs(
                "gc_mark",
                mark,
                "Mark a repository, check the mark and publish it. Deletes nothing.",
                *first,
            ),
            of_runs(
                "gc_backup",
                backup,
                "Copy what a published mark names; may be run again after a kill.",
                _EXCLUDED,
            ),
            of_runs(
                "gc_sweep",
                swept,
                "Back a published mark up and sweep it; may be run again after a kill.",
                *_OF_A_SWEEP,
            ),
            of_runs(
                "gc_restore",
                names.selection("restored_set"),
                "Bring back what was swept; may be run again, after a kill, too.",
            ),
            of_runs(
                "gc_forecast",
                names.selection("policy_forecast"),
                "Say what other retention rules would free. Deletes nothing.",
            ),
            of_all(
                "gc_estate", "estate", "Make the table of all repositories again. Deletes nothing."
            ),
            of_all(
                "gc_leftovers",
                "estate_leftovers",
                "Say what no collection finds on the server. Removes nothing.",
            ),
            approving(names),
            prune_job(names),
            accepting(names),
        ],
        executor=dg.in_process_executor,
    )


def launchpad(
    policies: Policies, names: Names, settings: Sequence[str]
) -> dg.PartitionedConfig[Any]:
    """The configuration that the launchpad begins with: some settings of the repository.

    With those for all, it would overrule what the policies say of single ones.

    Args:
        policies: of all repositories.
        names: of the component.
        settings: that the job takes, of these; ``collect_excluded`` where it refuses the excluded.
    """

    def of(key: str) -> dict[str, Any]:
        repository = key.split("|", maxsplit=1)[0]
        policy = policies.of(repository)
        first = {
            "mode": "unified",
            "min_age_hours": policy.min_age_hours,
            "max_candidate_share": policy.max_candidate_share,
            "protect_tags": policy.protect_tags,
            "clean": False,
            **({} if policies.collects(repository) else {_EXCLUDED: False}),
        }
        shown = {name: first[name] for name in settings if name in first}
        return {"resources": {names.of("collector"): {"config": shown}}} if shown else {}

    return dg.PartitionedConfig(
        partitions_def=names.repository_run, run_config_for_partition_key_fn=of
    )
