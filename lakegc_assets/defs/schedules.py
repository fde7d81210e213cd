"""The schedules: ``gc_schedule``, at each tick one wave, and those of estate and leftovers.

Dagster records a failed tick and does not evaluate it again. The sensor ``gc_waves`` starts the
runs of failed ticks instead, and sends notices of lost waves.
"""

import json
from collections.abc import Container, Iterable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import Any, Final

import dagster as dg

from lakegc_assets.defs.automation_state import (
    FailedTick,
    add_failing,
    failed_ticks,
    failing_sensors,
)
from lakegc_assets.defs.collection import Collection, collected, keys_of, remembered
from lakegc_assets.defs.names import (
    LAUNCHED,
    OWN_REPOSITORY_TAG,
    REPOSITORY,
    RUN,
    WAVE_TAG,
    Names,
    location_of,
)
from lakegc_assets.defs.notices import ways_of
from lakegc_assets.defs.policy import Policies, Policy
from lakegc_assets.errors import LakegcError
from lakegc_assets.estate.notices import Document, Outbox, document
from lakegc_assets.lakefs.models import Repository
from lakegc_assets.run.command_line import in_dagster
from lakegc_assets.wording import counted

NAME: Final = "gc_schedule"
#: After the waves of the night, which begin at 2:00 by default.
_ESTATE_CRON: Final = "0 6 * * *"
#: Weekly, since it lists all versions and makes lakeFS dump its refs.
_LEFTOVERS_CRON: Final = "0 7 * * 0"
#: Time after its tick during which a repository may join a wave.
OPEN: Final = timedelta(hours=24)


def schedules(collection: Collection) -> list[dg.ScheduleDefinition]:
    """``gc_schedule``, one for each further time zone, and those of estate and leftovers."""
    policies, names = collection.policies, collection.names

    def of_all(job: str, cron: str, description: str) -> dg.ScheduleDefinition:
        return dg.ScheduleDefinition(
            name=names.of(f"{job}_schedule"),
            job_name=names.of(job),
            cron_schedule=cron,
            execution_timezone=policies.for_all.time_zone,
            default_status=policies.schedule_status,
            description=description,
        )

    table = "Makes the table of all repositories again, each day. Collects nothing."
    left = "Shows each week the objects that no collection finds. Removes nothing."
    return [
        *(_schedule(collection, zone, crons) for zone, crons in policies.crons().items()),
        of_all("gc_estate", _ESTATE_CRON, table),
        of_all("gc_leftovers", _LEFTOVERS_CRON, left),
    ]


def name_of(zone: str, policies: Policies, names: Names) -> str:
    """The name of the schedule of a time zone."""
    plain = names.of(NAME)
    if zone == policies.for_all.time_zone:
        return plain
    # Etc/GMT+5 and Etc/GMT-5 are different zones.
    said = zone.replace("+", "plus")
    return f"{plain}_{''.join(c if c.isalnum() else '_' for c in said)}"


def _schedule(collection: Collection, zone: str, crons: Sequence[str]) -> dg.ScheduleDefinition:
    policies, names = collection.policies, collection.names

    @dg.schedule(
        name=name_of(zone, policies, names),
        job_name=names.of("gc"),
        required_resource_keys=names.all_of("lakefs"),
        cron_schedule=list(crons),
        execution_timezone=zone,
        default_status=policies.schedule_status,
        description=f"Collects each repository that is due ({zone}), and sweeps it as far as its "
        "policy allows.",
    )
    def wave(context: dg.ScheduleEvaluationContext) -> list[dg.RunRequest] | dg.SkipReason:
        repositories = collected(collection.of(context).lakefs.config(), collection.policies)
        at = context.scheduled_execution_time
        requests = requests_of_wave(context.instance, repositories, collection, zone, at)
        of = counted(len(repositories), "repository", "repositories")
        return requests or dg.SkipReason(
            f"of {of}, none is due that was not started and is not in the queue"
        )

    return wave


def requests_of_wave(
    instance: dg.DagsterInstance,
    repositories: Iterable[Repository],
    collection: Collection,
    zone: str,
    at: datetime,
    waves: Container[str] | None = None,
) -> list[dg.RunRequest]:
    """The requests for due runs that were not started yet; their partition keys are added first.

    ``zone``: the time zone of the schedule. ``waves``: the waves that may start; None for all.
    """
    names, requests = collection.names, []
    joined: dict[str, set[str]] = {}
    waits = _queued(instance, names, at)
    for repository in repositories:
        policy = collection.policies.of(repository.id)
        due = _due(repository, policy, at) if policy.time_zone == zone else None
        if due is None or (waves is not None and due not in waves):
            continue
        if due not in joined:
            joined[due] = _joined(instance, names, due)
        if repository.id in joined[due] or repository.id in waits:
            continue
        key, tags = f"{due}/{repository.id}", {WAVE_TAG: due}
        requests.append(collection.request(repository.id, due, run_key=key, job="gc", tags=tags))
    # All keys in one call: an estate has thousands of them, and a tick has only a minute.
    for dimension, keys in zip((REPOSITORY, RUN), keys_of(requests), strict=True):
        instance.add_dynamic_partitions(names.of(dimension), keys)
    return requests


def last_tick(cron: str, zone: str, at: datetime) -> datetime:
    """The time of a cron schedule at or before a time.

    Cron dialects differ. Dagster's own partitions compute the times here, as for its schedules.
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
    """The wave that a repository may join at a tick; None if there is none.

    A repository that was created after the start of its wave waits for the next one.
    """
    last = last_tick(policy.cron, policy.time_zone, at)
    if at - last >= OPEN or repository.creation_date > last.timestamp():
        return None
    return wave_at(last)


def _joined(instance: dg.DagsterInstance, names: Names, wave: str) -> set[str]:
    """The repositories that already have a run in a wave, for example from another tick.

    A run that was made but not launched does not count: the daemon may have died between the two.
    If that run is requested again, the daemon launches it.
    """
    # One query for all: in Dagster+ each query is a request to its server.
    runs = dg.RunsFilter(job_name=names.of("gc"), tags={WAVE_TAG: wave}, statuses=LAUNCHED)
    records = instance.get_run_records(runs)
    return {one.dagster_run.tags.get(OWN_REPOSITORY_TAG, "") for one in records}


def _queued(instance: dg.DagsterInstance, names: Names, at: datetime) -> set[str]:
    """The repositories with a run of another wave in Dagster's queue, for at most a week.

    A queued run marks the state at its start, so a second one adds nothing. If a wave takes longer
    than the time between two waves, the queue would grow with each of them.
    """
    queued = dg.RunsFilter(
        job_name=names.of("gc"),
        statuses=[dg.DagsterRunStatus.QUEUED],
        created_after=at - 7 * OPEN,
    )
    tags = (record.dagster_run.tags for record in instance.get_run_records(queued))
    return {one.get(OWN_REPOSITORY_TAG, "") for one in tags if WAVE_TAG in one}


def next_run(
    on: Mapping[str, Sequence[str]],
    policies: Policies,
    names: Names,
    repository: str,
    now: datetime,
) -> datetime | str:
    """The next time at which a repository is due, UTC; or the reason why it is unknown."""
    if not policies.collects(repository):
        return "never: `include` and `exclude` leave it out"
    policy = policies.of(repository)
    name = name_of(policy.time_zone, policies, names)
    if name not in on:
        return f"{name} is off: turn it on under Automation"
    if policy.cron not in on[name]:
        return f"see {name} under Automation"
    return next_tick(policy.cron, policy.time_zone, now).astimezone(timezone.utc)


#: Schedules whose failed ticks no sensor starts again.
_SCHEDULES: Final = ("gc_prune_schedule", "gc_estate_schedule", "gc_leftovers_schedule")
#: Sensors whose failures nobody would notice without a notice; ``gc_waiting`` watches ``gc_waves``.
_SENSORS: Final = (
    *("gc_repositories", "gc_rules", "gc_approvals", "gc_resume", "gc_waiting", "gc_staleness"),
    *("gc_failures", "gc_metrics"),
)
#: States of a failed tick.
_MADE_UP: Final = "made up"
_WAITS: Final = "waits"
_LOST: Final = "lost"
#: The initial cursor of ``gc_waves``.
_NOTHING: Final[Mapping[str, Any]] = {"ticks": {}, "waiting": {}, "sensors": [], "schedules": []}


def waves_sensor(collection: Collection) -> dg.SensorDefinition:
    """``gc_waves``. It makes the resource of lakeFS in its tick, so that it reports its failure."""
    policies, names = collection.policies, collection.names
    zones = {name_of(zone, policies, names): zone for zone in policies.crons()}

    @collection.sensor(
        "gc_waves",
        300,
        "For 24 hours, starts the runs that a failed tick of gc_schedule did not start. Posts or "
        "mails notices of lost waves, of sensors that have failed for an hour, and of failed ticks "
        "of other schedules.",
        running=True,
        job_name=names.of("gc"),
    )
    def waves(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        moment, known = collection.now(), {**_NOTHING, **remembered(context)}
        seen = known["ticks"]
        outbox = Outbox(ways_of(collection.notices), known["waiting"], moment)
        location = location_of(context.code_location_origin)
        ticks = failed_ticks(context.instance, moment - 2 * OPEN, location)
        failed = {_tick_key(tick): tick for tick in ticks if tick.name in zones}
        states = {key: state for key, state in seen.items() if key in failed}
        pending = [t for key, t in failed.items() if states.get(key) not in (_MADE_UP, _LOST)]
        requests, error = _made_up(context.instance, collection, zones, pending)
        for tick in pending:
            key, was = _tick_key(tick), states.get(_tick_key(tick))
            states[key] = _state(tick, was, error, moment)
            if states[key] in {_LOST, _WAITS} - {was}:
                made = _wave_notice(tick, error, policies, lost=states[key] == _LOST)
                outbox.add(f"{key} {states[key]}", document=made)
                context.log.error("%s", made["text"])
        states = {key: state for key, state in states.items() if state}
        failing = failing_sensors(context.instance, location, moment, names.all_of(*_SENSORS))
        others = [tick for tick in ticks if tick.name in names.all_of(*_SCHEDULES)]
        now_known = {
            "ticks": states,
            "sensors": add_failing(outbox, failing, known["sensors"], policies.for_all.owners),
            "schedules": _add_failed(outbox, others, known["schedules"], policies),
            "waiting": outbox.waiting,
        }
        outbox.deliver(context.log)
        # An error that needs a person fails the tick, but only after the notice was delivered.
        if error and not error.transient and now_known == known:
            raise error
        otherwise = f"tried again in five minutes: {error}" if error else "no tick has failed"
        return dg.SensorResult(
            run_requests=requests,
            skip_reason=None if requests else outbox.reason(otherwise),
            cursor=json.dumps(now_known, sort_keys=True),
        )

    return waves


def _state(
    tick: FailedTick, was: str | None, error: LakegcError | None, now: datetime
) -> str | None:
    """The new state of a failed tick; None for one that is retried without a notice."""
    if now - tick.at >= OPEN:
        return _LOST
    if error is None:
        return _MADE_UP
    # An error that needs a person is reported at once, a transient one when the wave is lost.
    return was if error.transient else _WAITS


def _made_up(
    instance: dg.DagsterInstance,
    collection: Collection,
    zones: Mapping[str, str],
    pending: Sequence[FailedTick],
) -> tuple[list[dg.RunRequest], LakegcError | None]:
    """The runs that failed ticks of the last day should have started; or the error that stops them.

    ``zones``: time zones, by the names of schedules.
    """
    now, found = collection.now(), []
    ticks = [tick for tick in pending if now - tick.at < OPEN]
    if not ticks:
        return [], None
    try:
        there = collected(collection.lakefs(), collection.policies)
        for name, zone in zones.items():
            if missed := {wave_at(tick.at) for tick in ticks if tick.name == name}:
                found += requests_of_wave(instance, there, collection, zone, now, missed)
    except LakegcError as error:
        return [], error
    return found, None


def _tick_key(tick: FailedTick) -> str:
    return f"{tick.name} {wave_at(tick.at)}"


def _wave_notice(
    tick: FailedTick, error: LakegcError | None, policies: Policies, *, lost: bool
) -> Document:
    wave, until = wave_at(tick.at), f"{tick.at + OPEN:%Y-%m-%d %H:%M} UTC"
    what, how = "could not be started", f"could not start it: {error}"
    waves, job = in_dagster("gc_waves"), in_dagster("gc")
    then = f"{waves} then starts the wave, until {until}"
    if lost:
        what = "was lost"
        how = f"could not start it, nor could {waves} in the 24 hours after it: {tick.error}"
        then = f"repositories are collected with the next wave, or by the job {job}"
    return document(
        "wave",
        f"wave {wave} {what}",
        f"{tick.name} {how}",
        f"correct the cause that the error names: {then}",
        wave=wave,
        owners=policies.for_all.owners,
    )


def _add_failed(
    outbox: Outbox, ticks: Sequence[FailedTick], reported: Sequence[str], policies: Policies
) -> list[str]:
    """Queue a notice for each failed tick not yet reported; return the keys of all."""
    for tick in ticks:
        key, name, at = _tick_key(tick), tick.name, f"{tick.at:%Y-%m-%d %H:%M} UTC"
        job = name.removesuffix("_schedule")
        if key not in reported:
            made = document(
                "schedule",
                f"the schedule {name} failed",
                f"its tick of {at} started nothing: {tick.error}",
                f"correct the cause that the error names, and launch {job} by hand: no sensor "
                "repeats the tick",
                schedule=name,
                owners=policies.for_all.owners,
            )
            outbox.add(f"schedule {key}", document=made)
    return sorted(map(_tick_key, ticks))
