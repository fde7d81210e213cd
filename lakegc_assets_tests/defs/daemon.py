"""Dagster's daemon in virtual time: evaluates ticks, and starts what they ask for, once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from traceback import TracebackException
from typing import Any

import dagster as dg
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.execution.plan.objects import StepFailureData, UserFailureData
from dagster._core.remote_origin import (
    InProcessCodeLocationOrigin,
    RemoteInstigatorOrigin,
    RemoteJobOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.scheduler.instigation import (
    InstigatorState,
    InstigatorStatus,
    ScheduleInstigatorData,
    SensorInstigatorData,
    TickData,
    TickStatus,
)
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster_shared.error import SerializableErrorInfo

from lakegc_assets.defs.failures import TRIED_AGAIN
from lakegc_assets.defs.names import PLAIN, Names

_SOURCES = {"schedule": "dagster/schedule_name", "sensor": "dagster/sensor_name"}


def turn_on(
    instance: dg.DagsterInstance,
    name: str,
    crons: str | list[str],
    status: InstigatorStatus = InstigatorStatus.RUNNING,
    location: str = "here",
) -> InstigatorState:
    """Let Dagster know a schedule as it does one that was turned on."""
    data = ScheduleInstigatorData(crons, 0.0)
    state = InstigatorState(_origin(name, location), InstigatorType.SCHEDULE, status, data)
    return instance.add_instigator_state(state)


def code_location(name: str) -> InProcessCodeLocationOrigin:
    """A code location, as a tick knows in which one it is."""
    return InProcessCodeLocationOrigin(
        LoadableTargetOrigin(python_file=f"{name}.py"), location_name=name
    )


def ticked(
    instance: dg.DagsterInstance,
    sensor: str,
    location: str,
    at: datetime,
    error: str = "",
    every_s: int = 60,
) -> None:
    """Let Dagster know a sensor that is on as it is defined, and one tick of it, which may fail."""
    state = InstigatorState(
        _origin(sensor, location),
        InstigatorType.SENSOR,
        InstigatorStatus.DECLARED_IN_CODE,
        SensorInstigatorData(min_interval=every_s),
    )
    known = {one.instigator_origin_id for one in instance.all_instigator_state()}
    if state.instigator_origin_id not in known:
        instance.add_instigator_state(state)
    tick = TickData(
        instigator_origin_id=state.instigator_origin_id,
        instigator_name=sensor,
        instigator_type=InstigatorType.SENSOR,
        status=TickStatus.FAILURE if error else TickStatus.SKIPPED,
        timestamp=at.timestamp(),
        selector_id=state.selector_id,
        error=SerializableErrorInfo(error, [], "Error") if error else None,
    )
    instance.create_tick(tick)


def schedule_failed(
    instance: dg.DagsterInstance, schedule: str, at: datetime, error: Exception
) -> None:
    """Let Dagster know a schedule that is on, and a tick of it that failed."""
    states = instance.all_instigator_state(instigator_type=InstigatorType.SCHEDULE)
    state = next((one for one in states if one.instigator_name == schedule), None)
    state = state or turn_on(instance, schedule, "0 2 * * *")
    instance.create_tick(
        TickData(
            instigator_origin_id=state.instigator_origin_id,
            instigator_name=schedule,
            instigator_type=InstigatorType.SCHEDULE,
            status=TickStatus.FAILURE,
            timestamp=at.timestamp(),
            selector_id=state.selector_id,
            error=SerializableErrorInfo.from_traceback(TracebackException.from_exception(error)),
        )
    )


def _origin(name: str, location: str) -> RemoteInstigatorOrigin:
    return RemoteInstigatorOrigin(_repository(location), name)


def _repository(location: str) -> RemoteRepositoryOrigin:
    return RemoteRepositoryOrigin(code_location(location), "repository")


@dataclass
class Daemon:
    """Starts runs as Dagster does, but none of them does anything.

    Attributes:
        definitions: whose schedules and sensors tick.
        instance: that has the runs and partitions.
        cursors: of the sensors, as far as they were written.
        log: job, partition key and source of each run that was started.
        skipped: why ticks were skipped.
        names: of the component; ticks are asked for by their plain names.
        failed: why ticks of ``gc_schedule`` failed.
        status: of a run that was started.
        location: code location of the schedules and sensors. Dagster compares run keys within it.
    """

    definitions: dg.Definitions
    instance: dg.DagsterInstance
    cursors: dict[str, str | None] = field(default_factory=dict)
    log: list[tuple[str, str, str]] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    names: Names = PLAIN
    status: dg.DagsterRunStatus = dg.DagsterRunStatus.STARTED
    location: str = "here"

    def schedule(
        self, at: datetime, *, dies_after: int | None = None, **resources: Any
    ) -> list[str]:
        """One tick of ``gc_schedule``; the ids of the runs that it started.

        Args:
            at: the time of the tick.
            dies_after: so many runs; None to live on.
            resources: in place of those that are defined.
        """
        schedule = self.definitions.resolve_schedule_def(self.names.of("gc_schedule"))
        context = dg.build_schedule_context(
            instance=self.instance,
            scheduled_execution_time=at,
            repository_def=self.definitions.get_repository_def(),
            resources=self._needed(schedule, resources),
        )
        with context:
            try:
                result = schedule.evaluate_tick(context)
            except dg.DagsterError as error:
                self._record_failure(at, error)
                return []
        if result.skip_message:
            self.skipped.append(result.skip_message)
        job = self.names.of("gc")
        return self._submit(
            result.run_requests or [], "schedule", "gc_schedule", job, dies_after, at
        )

    def _record_failure(self, at: datetime, error: Exception) -> None:
        """What Dagster keeps of a tick of ``gc_schedule`` that failed."""
        schedule_failed(self.instance, "gc_schedule", at, error)
        self.failed.append(str(error.__cause__))

    def sensor(
        self,
        name: str,
        *,
        dies_after: int | None = None,
        as_defined: dg.SensorDefinition | None = None,
        **resources: Any,
    ) -> list[str]:
        """One tick of a sensor; the ids of the runs that it started.

        Args:
            name: of the sensor.
            dies_after: so many runs, before the cursor is written; None to live on.
            as_defined: in place of the one that is defined.
            resources: in place of those that are defined.
        """
        sensor = as_defined or self.definitions.resolve_sensor_def(self.names.of(name))
        context = dg.build_sensor_context(
            instance=self.instance,
            instance_ref=self.instance.get_ref(),
            cursor=self.cursors.get(name),
            resources=self._needed(sensor, resources),
            repository_def=self.definitions.get_repository_def(),
        )
        with context:
            result = sensor.evaluate_tick(context)
        assert result.run_requests or result.skip_message, f"{name} does not say why it starts none"
        if result.skip_message:
            self.skipped.append(result.skip_message)
        for change in result.dynamic_partitions_requests or []:
            keys = list(change.partition_keys)
            if isinstance(change, dg.AddDynamicPartitionsRequest):
                self.instance.add_dynamic_partitions(change.partitions_def_name, keys)
            else:
                for key in keys:
                    self.instance.delete_dynamic_partition(change.partitions_def_name, key)
        runs = self._submit(result.run_requests or [], "sensor", name, None, dies_after)
        for event in result.asset_events:
            self.instance.report_runless_asset_event(event)
        if dies_after is None:
            self.cursors[name] = result.cursor
        return runs

    def _needed(
        self, ticking: dg.ScheduleDefinition | dg.SensorDefinition, others: dict[str, Any]
    ) -> dict[str, Any]:
        """The resources that a schedule or sensor asks for: Dagster makes no others, either."""
        found = {**(self.definitions.resources or {}), **others}
        return {name: found[name] for name in ticking.required_resource_keys}

    def _submit(
        self,
        requests: Sequence[dg.RunRequest],
        kind: str,
        source: str,
        job: str | None,
        dies_after: int | None,
        at: datetime | None = None,
    ) -> list[str]:
        started: list[str] = []
        for request in requests[:dies_after]:
            tags = {
                "dagster/run_key": str(request.run_key),
                _SOURCES[kind]: source,
                ".dagster/repository": f"repository@{self.location}",
            }
            if at is not None:
                tags["dagster/scheduled_execution_time"] = at.isoformat()
            if self.instance.get_runs_count(dg.RunsFilter(tags=tags)):
                continue
            started.append(self.launch(request, str(request.job_name or job), tags))
            self.log.append((str(request.job_name or job), str(request.partition_key), source))
        return started

    def launch(self, request: dg.RunRequest, name: str, tags: dict[str, str]) -> str:
        job = self.definitions.resolve_job_def(name)
        key = str(request.partition_key)
        partitions = self.names.repository_run
        assert key in partitions.get_partition_keys(dynamic_partitions_store=self.instance)
        assert dg.validate_run_config(job, request.run_config)
        chosen = request.asset_selection
        assert set(chosen or ()) <= set(job.asset_layer.executable_asset_keys)
        # Without events of all that it will make, which nothing reads, and which take long.
        run = dg.DagsterRun(
            job_name=name,
            run_config=request.run_config,
            tags={
                **request.tags,
                **tags,
                **partitions.get_tags_for_partition_key(key),
                "dagster/partition": key,
            },
            status=self.status,
            remote_job_origin=RemoteJobOrigin(_repository(self.location), name),
            asset_selection=None if chosen is None else frozenset(chosen),
        )
        return str(self.instance.add_run(run).run_id)

    def kill(self, run_id: str) -> None:
        """End a run as Dagster does whose process is gone."""
        run = self.instance.get_run_by_id(run_id)
        assert run is not None
        self.instance.report_run_failed(run, "Run process unexpectedly exited")

    def kill_step(self, run_id: str, kind: str | None, said: str) -> None:
        """End a run whose executor reports that the process of a step is gone."""
        run = self.instance.get_run_by_id(run_id)
        assert run is not None
        error = SerializableErrorInfo(said, [], kind)
        self._fail_step(run, "store_listing", error, None)

    def fail(self, run_id: str, said: str, *, transient: bool = False) -> None:
        """End a run whose step has failed; for a reason that may pass, if that is said."""
        run = self.instance.get_run_by_id(run_id)
        assert run is not None
        cause = SerializableErrorInfo(
            f"lakegc_assets.errors.RefusedError: {said}\n", [], "RefusedError"
        )
        error = SerializableErrorInfo(
            "dagster._core.errors.DagsterExecutionStepExecutionError: Error occurred while "
            "executing op\n", [], "DagsterExecutionStepExecutionError", cause,
        )  # fmt: skip
        metadata = {TRIED_AGAIN: dg.MetadataValue.text("once")} if transient else {}
        data = UserFailureData(  # type: ignore[no-untyped-call]
            "intentional-failure", said, metadata
        )
        self._fail_step(run, "gc_report", error, data)

    def _fail_step(
        self,
        run: dg.DagsterRun,
        step: str,
        error: SerializableErrorInfo,
        data: UserFailureData | None,
    ) -> None:
        self.instance.report_dagster_event(
            dg.DagsterEvent(
                event_type_value=dg.DagsterEventType.STEP_FAILURE.value,
                job_name=run.job_name,
                event_specific_data=StepFailureData(error, data),  # type: ignore[no-untyped-call]
                step_key=step,
            ),
            run_id=run.run_id,
        )
        self.instance.report_run_failed(run, "Steps failed")

    def succeed(self, run_id: str) -> None:
        """End a run that did all of its work."""
        run = self.instance.get_run_by_id(run_id)
        assert run is not None
        self.instance.report_dagster_event(
            dg.DagsterEvent(
                event_type_value=dg.DagsterEventType.RUN_SUCCESS.value, job_name=run.job_name
            ),
            run_id=run_id,
        )
