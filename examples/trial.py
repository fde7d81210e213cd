"""The trial of ``make ui`` without a configured lakeFS: an embedded lakeFS, and its first wave.

It has three repositories. One is swept within limits, and one waits for an approval. The mark of
the third is refused, because it would delete nearly everything.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Final

import dagster as dg

from examples.team import Calendar, Team
from lakegc_assets.defs.component import GarbageCollection
from lakegc_assets.defs.policy import ForecastSection, Override
from lakegc_assets.errors import RefusedError
from lakegc_assets.lakefs.config import LakeFSConfig

SWEPT, WAITS, REFUSED = "analytics", "models", "sandbox"
_CRON_VARIABLE: Final = "LAKEGC_TRIAL_CRON"
_DAYS: Final = 30
#: Default retention of the forecasts, in days.
_SHORTER_DAYS: Final = 14
#: Time for the start of the interface: Dagster would miss an earlier tick.
_START: Final = timedelta(seconds=60)
#: Minutes between waves: on a slow machine, the second wave is the first that runs.
_EVERY: Final = 15
_PROJECT: Final = Path(__file__).parents[1]
_WORKSPACE: Final = f"""\
load_from:
  - python_module:
      module_name: examples.trial
      location_name: lakegc_assets
      working_directory: {json.dumps(str(_PROJECT))}
"""


@dg.definitions
def defs() -> dg.Definitions:
    """The graph of a platform team that uses every feature."""
    found = component(os.environ[_CRON_VARIABLE]).definitions()
    sensors = [estate_sensor(), forecast_sensor()]
    own = dg.Definitions(sensors=sensors, executor=dg.in_process_executor)
    return dg.Definitions.merge(found, own)


def estate_sensor() -> dg.SensorDefinition:
    """``trial_estate``: makes the table of all repositories at the start and after each run."""

    @dg.sensor(
        name="trial_estate",
        job_name="gc_estate",
        minimum_interval_seconds=30,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Makes the table of all repositories at once, and again after each run. Other "
        "projects have a daily schedule for it.",
    )
    def estate(context: dg.SensorEvaluationContext) -> dg.RunRequest:
        ended = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE]
        every = context.instance.get_runs_count(dg.RunsFilter(statuses=ended))
        others = sum(
            context.instance.get_runs_count(dg.RunsFilter(job_name=name, statuses=ended))
            for name in ("gc_estate", "gc_forecast")
        )
        return dg.RunRequest(run_key=f"after-{every - others}")

    return estate


def forecast_sensor() -> dg.SensorDefinition:
    """``trial_forecast``: forecasts once for each mark what the rules of the trial would free."""

    @dg.sensor(
        name="trial_forecast",
        job_name="gc_forecast",
        minimum_interval_seconds=30,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Shows for each mark what shorter retention would free. Other projects launch "
        "the job gc_forecast when they consider other rules.",
    )
    def forecast(context: dg.SensorEvaluationContext) -> Iterator[dg.RunRequest]:
        reports = context.instance.get_materialized_partitions(dg.AssetKey("gc_report"))
        for partition in sorted(reports):
            # The demo leaves marks of its own repositories in the same Dagster instance.
            if partition.partition("|")[0] not in _HISTORIES:
                continue
            yield dg.RunRequest(run_key=partition, partition_key=partition)

    return forecast


def component(cron: str) -> GarbageCollection:
    """The policies of the trial.

    Args:
        cron: schedule of its waves.
    """
    return GarbageCollection(
        cron=cron,
        running=True,
        include=[SWEPT, WAITS, REFUSED],
        # Nobody else commits here.
        longest_commit_seconds=0,
        forecast=ForecastSection(default_retention_days=_SHORTER_DAYS),
        repositories=[
            Override(include=[SWEPT], sweep="auto"),
            Override(include=[WAITS], protect_tags=True),
        ],
    )


def prepare(folder: Path, now: datetime) -> Path:
    """Write the files that Dagster loads, with a first wave that is due soon, and others after it.

    Args:
        folder: of the trial.
        now: the time.

    Returns:
        The workspace file.
    """
    first = now.astimezone(timezone.utc) + _START + timedelta(minutes=1)
    os.environ[_CRON_VARIABLE] = f"{first.minute % _EVERY}-59/{_EVERY} * * * *"
    workspace = folder / "workspace.yaml"
    workspace.write_text(_WORKSPACE, encoding="utf-8")
    return workspace


def tell(calendar: Calendar, folder: Path) -> None:
    """Make the missing repositories.

    Args:
        calendar: the clock of the lakeFS that the environment names.
        folder: data folder of that lakeFS.

    Raises:
        RefusedError: an earlier start was killed while it made a repository.
    """
    client = LakeFSConfig().connect_writer()
    there = {repository.id for repository in client.repositories()}
    for name, history in _HISTORIES.items():
        if name not in there:
            calendar.days_ago = 200
            client.create_repository(name, f"local://{name}")
            history(Team(client, name, calendar))
            calendar.days_ago = 0
            # Rules are set last, so a repository without rules was interrupted.
            client.set_gc_rules(name, _DAYS, {})
        elif client.gc_rules(name) is None:
            raise RefusedError(
                f"repository {name!r} of the trial is incomplete, as an earlier start was killed: "
                f"remove {folder}, which holds only the demo and the trial, and start again"
            )


def _analytics(team: Team) -> None:
    """Write events of which few are old: an eighth is garbage."""
    team.on(120)
    for part in range(70):
        team.write("main", f"events/part-{part:02d}.parquet", 20_000)
    team.commit("main", "events")
    team.on(90)
    for part in range(10):
        team.remove("main", f"events/part-{part:02d}.parquet")
        team.write("main", f"events/compacted-{part:02d}.parquet", 20_000)
    team.commit("main", "compact the oldest events")


def _models(team: Team) -> None:
    """Write a model that is trained every three weeks, and the features for its training."""
    team.on(150)
    for number in range(20):
        team.write("main", f"features/{number:02d}.parquet", 10_000)
    for week, day in enumerate(range(149, 20, -21)):
        team.on(day)
        team.write("main", "forecast/model.bin", 200_000)
        team.write("main", "forecast/metrics.json", 900)
        team.commit("main", f"training {week}")


def _sandbox(team: Team) -> None:
    """Write experiments, and remove nearly all of them."""
    team.on(100)
    for number in range(40):
        team.write("main", f"tries/{number:02d}.csv", 5_000)
    team.commit("main", "tries")
    team.on(60)
    for number in range(2, 40):
        team.remove("main", f"tries/{number:02d}.csv")
    team.commit("main", "clean up")


_HISTORIES: Final[dict[str, Callable[[Team], None]]] = {
    SWEPT: _analytics,
    WAITS: _models,
    REFUSED: _sandbox,
}
