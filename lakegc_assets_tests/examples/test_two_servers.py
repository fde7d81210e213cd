"""The example with two servers: waves, approvals and sweeps of each, and nothing of the other's."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from lakegc_assets.defs.names import Names
from lakegc_assets_tests.sessions import Session

pytestmark = [pytest.mark.conformance, pytest.mark.filterwarnings("ignore::dagster.BetaWarning")]

_EXAMPLE = Path(__file__).parents[2] / "examples/two_servers"
_MODELS = "models"
_QUIET: dict[str, Any] = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


@dataclass
class Collection:
    """One of the two components, in the Dagster of both."""

    definitions: dg.Definitions
    instance: dg.DagsterInstance
    names: Names
    folder: Path

    def objects(self) -> set[str]:
        """What the repository of its server has in the store."""
        data = self.folder / self.names.name / "objects" / _MODELS / "data"
        return {str(path.relative_to(data)) for path in data.rglob("*") if path.is_file()}

    def keys(self, definition: str) -> set[str]:
        return set(self.instance.get_dynamic_partitions(self.names.of(definition)))

    def wave(self) -> list[dg.DagsterRun]:
        """The runs of one tick of its schedule, which have ended."""
        schedule = self.definitions.resolve_schedule_def(self.names.of("gc_schedule"))
        two = datetime.now(timezone.utc).replace(hour=2, minute=0, second=0, microsecond=0)
        with dg.build_schedule_context(
            self.instance,
            scheduled_execution_time=two - timedelta(days=1),
            repository_def=self.definitions.get_repository_def(),
            resources=self.definitions.resources,
        ) as context:
            requests = schedule.evaluate_tick(context).run_requests or []
        return [self._run(one, schedule.job_name, "schedule", schedule.name) for one in requests]

    def sensor(self, plain: str) -> list[dg.DagsterRun]:
        """The runs of one tick of a sensor, which have ended."""
        sensor = self.definitions.resolve_sensor_def(self.names.of(plain))
        with dg.build_sensor_context(
            self.instance,
            instance_ref=self.instance.get_ref(),
            repository_def=self.definitions.get_repository_def(),
            resources=self.definitions.resources,
        ) as context:
            result = sensor.evaluate_tick(context)
        for change in result.dynamic_partitions_requests or ():
            assert isinstance(change, dg.AddDynamicPartitionsRequest)
            assert change.partitions_def_name.startswith(f"{self.names.name}_")
            self.instance.add_dynamic_partitions(
                change.partitions_def_name, list(change.partition_keys)
            )
        job = self.names.of("gc_sweep")
        return [self._run(one, job, "sensor", sensor.name) for one in result.run_requests or ()]

    def _run(self, request: dg.RunRequest, job: str, kind: str, source: str) -> dg.DagsterRun:
        assert request.partition_key is not None
        return self.launch(
            request.job_name or job,
            request.partition_key,
            request.run_config,
            {**request.tags, f"dagster/{kind}_name": source},
        )

    def approve(self, key: str) -> None:
        said = {"ops": {self.names.of("approve"): {"config": {"by": "somebody"}}}}
        self.launch(self.names.of("gc_approve"), key, said)

    def launch(
        self, job: str, key: str, config: Any = None, tags: dict[str, str] | None = None
    ) -> dg.DagsterRun:
        done = self.definitions.resolve_job_def(job).execute_in_process(
            partition_key=key,
            instance=self.instance,
            run_config={**(config or {}), **_QUIET},
            tags=tags,
        )
        run = self.instance.get_run_by_id(done.run_id)
        assert run is not None
        return run


@pytest.fixture
def collections(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spark: Session,  # noqa: ARG001 - its tasks must not outlive it
) -> Iterator[tuple[Collection, Collection]]:
    monkeypatch.syspath_prepend(str(_EXAMPLE))
    for name in [one for one in os.environ if one.startswith(("LAKECTL_", "LAKEGC_"))]:
        monkeypatch.delenv(name)
    try:
        with importlib.import_module("two_servers.lakes").lakes(tmp_path) as variables:
            for name, value in variables.items():
                monkeypatch.setenv(name, value)
            definitions = importlib.import_module("two_servers.definitions").defs()
            with dg.instance_for_test() as instance:
                eu, us = (
                    Collection(definitions, instance, Names(name), tmp_path)
                    for name in ("eu", "us")
                )
                yield eu, us
    finally:
        for name in [one for one in sys.modules if one.partition(".")[0] == "two_servers"]:
            del sys.modules[name]


def test_each_server_has_its_wave_its_approval_and_its_sweep(
    collections: tuple[Collection, Collection],
) -> None:
    eu, us = collections
    assert {one.name for one in eu.definitions.jobs or ()} >= {"eu_gc", "us_gc", "us_gc_approve"}
    before = {"eu": eu.objects(), "us": us.objects()}
    assert [len(objects) for objects in before.values()] == [8, 7]

    # Both have a repository of one name, and a wave of one id: neither hides the other's.
    runs = {one.names.name: one.wave() for one in (eu, us)}
    assert [[run.job_name for run in some] for some in runs.values()] == [["eu_gc"], ["us_gc"]]
    for name, (run,) in runs.items():
        waits = run.tags["lakegc/waits"]
        assert f"run the job {name}_gc_approve" in waits
        assert f"{_EXAMPLE}/two_servers/defs/{name}#{name}" in waits
    assert eu.keys("run") == us.keys("run")
    key = str(runs["eu"][0].tags["dagster/partition"])

    # One is approved and swept; the other waits on.
    for one in (eu, us):
        one.sensor("gc_waiting")
        assert one.keys("waiting") == {key}
    eu.approve(key)
    assert (eu.keys("waiting"), us.keys("waiting")) == (set(), {key})
    assert us.sensor("gc_approvals") == []
    (swept,) = eu.sensor("gc_approvals")
    assert (swept.job_name, swept.tags["dagster/partition"]) == ("eu_gc_sweep", key)
    assert (len(eu.objects()), us.objects()) == (6, before["us"])

    us.approve(key)
    (swept,) = us.sensor("gc_approvals")
    assert swept.job_name == "us_gc_sweep"
    assert (len(eu.objects()), len(us.objects())) == (6, 6)
    for name, count in (("eu", 2), ("us", 1)):
        found = eu.instance.get_latest_materialization_event(dg.AssetKey([name, "swept_set"]))
        assert found is not None
        assert found.asset_materialization is not None
        assert found.asset_materialization.metadata["objects deleted"].value == count

    # And each has the partitions of its own server.
    for one in (eu, us):
        one.sensor("gc_repositories")
        assert one.keys("repository") == {_MODELS}
