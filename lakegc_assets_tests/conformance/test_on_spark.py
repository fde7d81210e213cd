"""A mark and a sweep, every stage on classic Spark: few jobs, and the subtraction is in a plan."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lakegc_assets_tests.lake import REPOSITORY, SECRET_KEY, SmallLake, running, tell_history

pytestmark = pytest.mark.conformance

_SETTINGS = {"min_age_hours": 1 / 3600, "allow_unsafe_min_age": True, "max_candidate_share": 0.9}


def _run(job: str, lake: SmallLake, folder: Path) -> list[dict[str, Any]]:
    """Run a job in a process of its own; the events that Spark logged."""
    events = folder / f"events-{job}"
    events.mkdir(parents=True)
    conf = folder / f"{job}.conf"
    conf.write_text(
        "spark.master local[2]\n"
        "spark.eventLog.enabled true\n"
        f"spark.eventLog.dir {events.as_uri()}\n"
        "spark.eventLog.compress false\n"
        "spark.eventLog.rolling.enabled false\n"
    )
    given = f"{(job, REPOSITORY, 'one', _SETTINGS)}"
    ended = subprocess.run(
        [sys.executable, "-c", f"from lakegc_assets.cli.jobs import run_job; run_job{given}"],
        env=os.environ
        | {
            "LAKEGC_SPARK_CONF": str(conf),
            "LAKEGC_ARTIFACT_ROOT": str(folder / "artifacts"),
            "LAKEGC_LOCAL_ROOT": str(lake.server.objects_dir),
            "LAKECTL_SERVER_ENDPOINT_URL": lake.server.endpoint,
            "LAKECTL_CREDENTIALS_ACCESS_KEY_ID": lake.server.access_key,
            "LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY": SECRET_KEY,
            "DAGSTER_HOME": "",
        },
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    (log,) = events.iterdir()
    return [json.loads(line) for line in log.read_text().splitlines()]


def _jobs(events: Sequence[dict[str, Any]]) -> int:
    return sum(event["Event"] == "SparkListenerJobStart" for event in events)


def test_every_stage_is_a_few_jobs_and_the_subtraction_is_an_anti_join(tmp_path: Path) -> None:
    with running(tmp_path / "lake") as lake:
        groups, _ = tell_history(lake)
        marked = frozenset().union(*groups.values())
        live = lake.keys() - marked
        mark = _run("gc_mark", lake, tmp_path)
        assert 5 <= _jobs(mark) <= 45
        plans = [event.get("physicalPlanDescription", "") for event in mark]
        subtractions = [plan for plan in plans if "LeftAnti" in plan and "hash" in plan]
        assert subtractions
        assert any("mapInArrow" in plan.lower() or "MapInArrow" in plan for plan in subtractions)
        sweep = _run("gc_sweep", lake, tmp_path)
        assert 1 <= _jobs(sweep) <= 30
        assert lake.keys() == live
