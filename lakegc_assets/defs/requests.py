"""Runs that are started without a person: their tags, and how a run knows what it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import dagster as dg

from lakegc_assets.errors import RefusedError

REPOSITORY_TAG: Final = "lakegc/repository"
WAVE_TAG: Final = "lakegc/wave"
MODE_TAG: Final = "lakegc/mode"
#: How often a run that was cut off was started again.
RESUMED_TAG: Final = "lakegc/resumed"
#: It is the second try of a run that failed for a reason that may pass.
RETRIED_TAG: Final = "lakegc/retried"
#: A person asked for the run that this one goes on with.
ASKED_TAG: Final = "lakegc/asked"
#: What a run that ended with its mark waits for, in a sentence.
WAITS_TAG: Final = "lakegc/waits"

#: Of runs that Dagster itself starts again, and of those that it is about to.
_RETRY_TAG: Final = "dagster/retry_number"
_WILL_RETRY_TAG: Final = "dagster/will_retry"
#: Jobs of one step, which begins where it was: Dagster may start them again as they are.
RETRIES: Final = {"dagster/max_retries": "3", "dagster/retry_strategy": "ALL_STEPS"}

#: Runs of which nothing goes on.
ENDED: Final = (
    dg.DagsterRunStatus.SUCCESS,
    dg.DagsterRunStatus.FAILURE,
    dg.DagsterRunStatus.CANCELED,
)

#: Dagster puts one of these on every run that no person has launched by itself.
_UNATTENDED: Final = (
    "dagster/backfill",
    "dagster/schedule_name",
    "dagster/sensor_name",
    "dagster/auto_materialize",
    "dagster/from_automation_condition",
    WAVE_TAG,
)


def is_unattended(tags: Mapping[str, str]) -> bool:
    """True if a run was started by a schedule, a sensor or a backfill, by its tags."""
    return ASKED_TAG not in tags and any(tag in tags for tag in _UNATTENDED)


def first_tags(instance: dg.DagsterInstance, run: dg.DagsterRun) -> Mapping[str, str]:
    """The tags of the run that Dagster's own retries (``run_retries``) go back to.

    A retry loses the tag of its backfill once that has ended, and would look as if a person had
    asked for it. Where the first run is not known any more, nobody has.
    """
    while _RETRY_TAG in run.tags:
        before = instance.get_run_by_id(run.parent_run_id) if run.parent_run_id else None
        if before is None:
            return {**run.tags, _UNATTENDED[0]: "not known"}
        run = before
    return run.tags


def is_retried(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """True if Dagster itself starts a failed run again, by ``run_retries`` of the instance."""
    return instance.run_retries_enabled and run.tags.get(_WILL_RETRY_TAG) == "true"


def asking_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """Those of the tags of a run that say who has asked for it."""
    return {tag: tags[tag] for tag in (*_UNATTENDED, ASKED_TAG) if tag in tags}


def require_own_config(instance: dg.DagsterInstance, run: dg.DagsterRun) -> None:
    """Refuse a run that did not get what was typed into the dialog of its backfill.

    A job gives each partition a configuration of its own; Dagster then forgets the backfill's.
    """
    backfill = instance.get_backfill(run.tags.get("dagster/backfill", ""))
    typed = backfill.run_config if backfill is not None else None
    if typed and typed != run.run_config:
        raise RefusedError(
            "the configuration that was typed for this backfill does not reach its runs: launch "
            "each of them by itself, or write what should hold into the component's file"
        )
