"""The schedules: ``gc_schedule``, at each tick one wave, and the one of the estate."""

from collections.abc import Container, Iterable, Sequence
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import Final

import dagster as dg

from lakegc_assets.defs.collection import Collection, keys_of
from lakegc_assets.defs.names import REPOSITORY, RUN, Names
from lakegc_assets.defs.policy import Policies, Policy
from lakegc_assets.defs.requests import REPOSITORY_TAG, WAVE_TAG
from lakegc_assets.lakefs.models import Repository
from lakegc_assets.wording import counted

NAME: Final = "gc_schedule"
#: After the waves of the night, as they are where nothing else is said.
_ESTATE_CRON: Final = "0 6 * * *"
#: It lists all versions, and lets lakeFS dump its refs.
_LEFTOVERS_CRON: Final = "0 7 * * 0"
#: For how long a repository may join a wave.
OPEN: Final = timedelta(hours=24)


def schedules(collection: Collection) -> list[dg.ScheduleDefinition]:
    """``gc_schedule``, and one more for each other time zone; those of estate and leftovers."""
    policies, names = collection.policies, collection.names
    return [
        *(_schedule(collection, zone, crons) for zone, crons in policies.crons().items()),
        dg.ScheduleDefinition(
            name=names.of("gc_estate_schedule"),
            job_name=names.of("gc_estate"),
            cron_schedule=_ESTATE_CRON,
            execution_timezone=policies.for_all.time_zone,
            default_status=policies.schedule_status,
            description="Makes the table of all repositories again, each day. Starts nothing.",
        ),
        dg.ScheduleDefinition(
            name=names.of("gc_leftovers_schedule"),
            job_name=names.of("gc_leftovers"),
            cron_schedule=_LEFTOVERS_CRON,
            execution_timezone=policies.for_all.time_zone,
            default_status=policies.schedule_status,
            description="Says each week what no collection finds on the server. Removes nothing.",
        ),
    ]


def name_of(zone: str, policies: Policies, names: Names) -> str:
    """The name of the schedule of a time zone."""
    plain = names.of(NAME)
    if zone == policies.for_all.time_zone:
        return plain
    # Etc/GMT+5 is not Etc/GMT-5.
    said = zone.replace("+", "plus")
    return f"{plain}_{''.join(c if c.isalnum() else '_' for c in said)}"


def _schedule(collection: Collection, zone: str, crons: Sequence[str]) -> dg.ScheduleDefinition:
    policies, names = collection.policies, collection.names

    @dg.schedule(
        name=name_of(zone, policies, names),
        job_name=names.of("gc"),
        required_resource_keys=names.resources("lakefs"),
        cron_schedule=list(crons),
        execution_timezone=zone,
        default_status=policies.schedule_status,
        description=f"Collects each repository that is due ({zone}). What is swept, and when, "
        "says its policy.",
    )
    def wave(context: dg.ScheduleEvaluationContext) -> list[dg.RunRequest] | dg.SkipReason:
        repositories = collection.collected(collection.of(context).lakefs.config())
        at = context.scheduled_execution_time
        requests = requests_of_wave(context.instance, repositories, collection, zone, at)
        of = counted(len(repositories), "repository", "repositories")
        return requests or dg.SkipReason(f"of {of} none is due, or all that are were started")

    return wave


def requests_of_wave(
    instance: dg.DagsterInstance,
    repositories: Iterable[Repository],
    collection: Collection,
    zone: str,
    at: datetime,
    waves: Container[str] | None = None,
) -> list[dg.RunRequest]:
    """The runs that are due at a time and were not started, after their keys were added.

    Args:
        instance: of Dagster.
        repositories: that are collected.
        collection: of the component.
        zone: time zone whose schedule is meant.
        at: the time.
        waves: that are meant; None for all.
    """
    names, requests = collection.names, []
    for repository in repositories:
        policy = collection.policies.of(repository.id)
        due = _due(repository, policy, at) if policy.time_zone == zone else None
        if due is None or (waves is not None and due not in waves):
            continue
        if _joined(instance, names, repository.id, due):
            continue
        key, tags = f"{due}/{repository.id}", {WAVE_TAG: due}
        requests.append(collection.request(repository.id, due, run_key=key, job="gc", tags=tags))
    # All at once: an estate has thousands, and a tick has a minute.
    for dimension, keys in zip((REPOSITORY, RUN), keys_of(requests), strict=True):
        instance.add_dynamic_partitions(names.of(dimension), keys)
    return requests


def last_tick(cron: str, zone: str, at: datetime) -> datetime:
    """The time of a cron schedule at or before a time.

    Dagster knows its own dialect of cron, by which it computes the times of partitions.
    """
    window = _windows(cron, zone).get_prev_partition_window(at, respect_bounds=False)
    if window is None:
        raise ValueError(f"no time of {cron!r} is before {at}")
    return window.end


def next_tick(cron: str, zone: str, at: datetime) -> datetime:
    """The time of a cron schedule after a time."""
    window = _windows(cron, zone).get_next_partition_window(at, respect_bounds=False)
    if window is None:
        raise ValueError(f"no time of {cron!r} is after {at}")
    return window.start if window.start > at else window.end


@lru_cache
def _windows(cron: str, zone: str) -> dg.TimeWindowPartitionsDefinition:
    start = datetime(2000, 1, 1, tzinfo=timezone.utc)
    return dg.TimeWindowPartitionsDefinition(
        start=start, fmt="%Y-%m-%dT%H:%M:%S%z", cron_schedule=cron, timezone=zone
    )


def wave_at(moment: datetime) -> str:
    """The id of the wave that begins at a time."""
    return f"{moment.astimezone(timezone.utc):%Y%m%dT%H%M%SZ}"


def _due(repository: Repository, policy: Policy, at: datetime) -> str | None:
    """The wave that a repository may join at a tick; None where there is none.

    A repository that was made after its wave had begun waits for the next one.
    """
    last = last_tick(policy.cron, policy.time_zone, at)
    if at - last >= OPEN or repository.creation_date > last.timestamp():
        return None
    return wave_at(last)


def _joined(instance: dg.DagsterInstance, names: Names, repository: str, wave: str) -> bool:
    """True if a repository had its run in a wave, at another tick say.

    A run that was made and not launched yet is asked for again: the daemon may have died between
    the two, and then launches that one.
    """
    tags = {WAVE_TAG: wave, REPOSITORY_TAG: repository}
    launched = [s for s in dg.DagsterRunStatus if s is not dg.DagsterRunStatus.NOT_STARTED]
    runs = dg.RunsFilter(job_name=names.of("gc"), tags=tags, statuses=launched)
    return instance.get_runs_count(runs) > 0
