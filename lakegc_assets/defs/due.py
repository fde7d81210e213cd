"""When a repository is collected next, by the schedules that are on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Final

import dagster as dg
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.scheduler.instigation import InstigatorStatus, ScheduleInstigatorData
from dagster._utils.schedules import cron_string_iterator

from lakegc_assets.defs.names import Names
from lakegc_assets.defs.policy import Policies
from lakegc_assets.defs.schedules import name_of

#: Turned on by somebody, or from the start.
_ON: Final = (InstigatorStatus.RUNNING, InstigatorStatus.DECLARED_IN_CODE)


def schedules_on(
    instance: dg.DagsterInstance, location: str | None = None
) -> dict[str, Sequence[str]]:
    """The cron schedules of each schedule that is turned on, by its name.

    Args:
        instance: of Dagster.
        location: code location that they belong to; None for whatever has one of that name.
    """
    found: dict[str, Sequence[str]] = {}
    if instance.schedule_storage is None:
        return found
    for state in instance.all_instigator_state(instigator_type=InstigatorType.SCHEDULE):
        origin = state.origin.repository_origin.code_location_origin
        if state.status not in _ON or location not in {None, origin.location_name}:
            continue
        data = state.instigator_data
        if isinstance(data, ScheduleInstigatorData):
            crons = data.cron_schedule
            found[state.instigator_name] = [crons] if isinstance(crons, str) else crons
    return found


def next_run(
    on: Mapping[str, Sequence[str]],
    policies: Policies,
    names: Names,
    repository: str,
    now: datetime,
) -> datetime | str:
    """When a repository is due next, UTC; or why nobody can say when.

    Args:
        on: the schedules that are turned on, with their cron schedules.
        policies: of all repositories.
        names: of the component.
        repository: lakeFS repository.
        now: the time, UTC.
    """
    if not policies.collects(repository):
        return "never: it is excluded"
    policy = policies.of(repository)
    name = name_of(policy.time_zone, policies, names)
    if name not in on:
        return f"{name} is off"
    if policy.cron not in on[name]:
        return f"as {name} says"
    moments = cron_string_iterator(now.timestamp(), policy.cron, policy.time_zone)
    return next(m for m in moments if m > now).astimezone(timezone.utc)
