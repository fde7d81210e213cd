"""Runs that are started without a person: their tags, and how a run knows what it is."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

import dagster as dg

from lakegc_assets.defs.names import Names
from lakegc_assets.defs.partitions import partition_key
from lakegc_assets.defs.policy import Policies, settings_of
from lakegc_assets.errors import ConfigurationError, RefusedError
from lakegc_assets.lakefs.config import LakeFSConfig
from lakegc_assets.lakefs.models import Repository

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

    Args:
        instance: of Dagster.
        run: that may be a retry.
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

    Raises:
        RefusedError: the run has another configuration than its backfill.
    """
    backfill = instance.get_backfill(run.tags.get("dagster/backfill", ""))
    typed = backfill.run_config if backfill is not None else None
    if typed and typed != run.run_config:
        raise RefusedError(
            "the configuration that was typed for this backfill does not reach its runs: launch "
            "each of them by itself, or write what should hold into the component's file"
        )


def request(
    policies: Policies,
    names: Names,
    repository: str,
    run: str,
    *,
    run_key: str,
    job: str,
    config: Mapping[str, Any] | None = None,
    tags: Mapping[str, str] | None = None,
) -> dg.RunRequest:
    """The request of a run on a repository, with the repository's own settings.

    Args:
        policies: of all repositories.
        names: of the component.
        repository: lakeFS repository.
        run: id of the run; both must be known as partition keys when the run is started.
        run_key: Dagster starts no second run with it.
        job: to be run, by its plain name.
        config: of the ``collector`` resource, beside the repository's settings.
        tags: beside the repository, and those of its policy.

    Raises:
        ConfigurationError: a name cannot be one.
    """
    policy = policies.of(repository)
    settings = settings_of(policy) | dict(config or {})
    return dg.RunRequest(
        run_key=run_key,
        job_name=names.of(job),
        partition_key=partition_key(repository, run),
        run_config={"resources": {names.of("collector"): {"config": settings}}},
        tags={**policy.tags, REPOSITORY_TAG: repository, MODE_TAG: policy.sweep, **(tags or {})},
    )


def collected(lakefs: LakeFSConfig, policies: Policies) -> list[Repository]:
    """The repositories of the server that are collected by themselves.

    Raises:
        ConfigurationError: ``include`` names one, not by a pattern, that the server does not have.
        LakegcError: the server does not answer, or there is none.
    """
    there = list(lakefs.connect().repositories())
    unknown = policies.named() - {repository.id for repository in there}
    if unknown:
        shown = ", ".join(map(repr, sorted(unknown)))
        raise ConfigurationError(
            f"`include` names {shown}, which the lakeFS server does not have: correct the name, or "
            "take it out"
        )
    return [
        repository
        for repository in there
        if not repository.read_only and _can_be_a_key(repository.id)
        if policies.collects(repository.id)
    ]


def _can_be_a_key(repository: str) -> bool:
    try:
        partition_key(repository, "any")
    except ConfigurationError:
        return False
    return True


def remembered(context: dg.SensorEvaluationContext) -> dict[str, Any]:
    """The JSON values in the cursor of a sensor; none where it is damaged, or not its own.

    Somebody may have changed it in the interface. A sensor then begins as if it were new.
    """
    if not context.cursor:
        return {}
    try:
        known = json.loads(context.cursor)
    except ValueError:
        known = None
    # Those of Dagster's own sensors name their class.
    if not isinstance(known, dict) or "__class__" in known:
        context.log.warning("the cursor cannot be read, so this begins anew: %s", context.cursor)
        return {}
    return known


def keys_of(requests: Iterable[dg.RunRequest]) -> list[tuple[str, str]]:
    """Repository and run of each request, in their order."""
    keys = (request.partition_key for request in requests)
    pairs = (str(key).split("|") for key in keys)
    return [(repository, run) for repository, run in pairs]
