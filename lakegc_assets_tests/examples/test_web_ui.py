"""What `make ui` starts: where nothing is configured a trial, whose repositories are told once."""

from __future__ import annotations

import os
from datetime import datetime, timedelta, timezone
from pathlib import Path

import dagster as dg
import pytest
from click.testing import CliRunner

from examples import trial, web_ui
from examples.team import Calendar
from lakegc_assets.defs.names import add_partition
from lakegc_assets.defs.schedules import next_tick
from lakegc_assets.embedded.server import EmbeddedLakeFS
from lakegc_assets.errors import RefusedError
from lakegc_assets.lakefs.config import LakeFSConfig, is_configured

_NAMES = (
    "LAKECTL_SERVER_ENDPOINT_URL", "LAKECTL_CREDENTIALS_ACCESS_KEY_ID",
    "LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY", "LAKECTL_CONFIG_FILE",
    "DAGSTER_HOME", "LAKEGC_ARTIFACT_ROOT", "LAKEGC_BACKUP_URL",
)  # fmt: skip


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """An environment that names nothing."""
    for name in _NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return monkeypatch


def test_a_trial_is_for_who_has_configured_nothing(
    bare: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert web_ui.is_trial(tmp_path)
    for name in _NAMES:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(name, "/somewhere")
            assert not web_ui.is_trial(tmp_path), name
    # The places of the trial itself are what the demo tells to look at.
    bare.setenv("DAGSTER_HOME", str(tmp_path / "dagster"))
    assert web_ui.is_trial(tmp_path)
    assert not is_configured()
    (tmp_path / ".lakectl.yaml").touch()
    assert is_configured()
    assert not web_ui.is_trial(tmp_path)


def test_the_trial_makes_the_estate_at_once_and_again_after_each_run() -> None:
    sensor = trial.estate_sensor()
    assert sensor.default_status is dg.DefaultSensorStatus.RUNNING
    with dg.DagsterInstance.ephemeral() as instance:

        def asked() -> str | None:
            with dg.build_sensor_context(instance) as context:
                (request,) = sensor.evaluate_tick(context).run_requests or ()
            return request.run_key

        first = asked()
        assert asked() == first
        instance.add_run(dg.DagsterRun(job_name="gc_estate", status=dg.DagsterRunStatus.SUCCESS))
        assert asked() == first
        instance.add_run(dg.DagsterRun(job_name="gc_forecast", status=dg.DagsterRunStatus.SUCCESS))
        assert asked() == first
        instance.add_run(dg.DagsterRun(job_name="gc", status=dg.DagsterRunStatus.FAILURE))
        assert asked() != first


# Dagster's own tags of two dimensions.
def test_the_trial_forecasts_by_each_mark_once(tmp_path: Path) -> None:
    component = trial.component("* * * * *")
    assert component.policies().of(trial.SWEPT).forecast is not None
    sensor = trial.forecast_sensor()
    definitions = dg.Definitions.merge(component.definitions(), dg.Definitions(sensors=[sensor]))
    assert sensor.default_status is dg.DefaultSensorStatus.RUNNING
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:

        def asked() -> list[tuple[str | None, str | None]]:
            with dg.build_sensor_context(
                instance,
                instance_ref=instance.get_ref(),
                repository_def=definitions.get_repository_def(),
            ) as context:
                requests = sensor.evaluate_tick(context).run_requests or ()
            return [(one.run_key, one.partition_key) for one in requests]

        assert asked() == []
        marked = add_partition(instance, trial.SWEPT, "20260101T000000Z")
        of_the_demo = add_partition(instance, "demo-20260101-000000-ab12", "first")
        for asset, key in (
            ("gc_report", marked),
            ("swept_set", marked),
            ("gc_report", of_the_demo),
        ):
            instance.report_runless_asset_event(
                dg.AssetMaterialization(dg.AssetKey(asset), partition=key)
            )
        # Dagster starts no second run with the same key.
        assert asked() == asked() == [(marked, marked)]


@pytest.mark.usefixtures("bare")
def test_two_trials_on_one_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "lakefs").mkdir()
    # A lock belongs to whoever has opened the file, be it in this process.
    with web_ui.alone(tmp_path):
        result = CliRunner().invoke(web_ui.main, ["--folder", str(tmp_path)])
    assert result.exit_code == 3
    assert f"another trial runs on {tmp_path}: use that one" in result.output


def test_the_first_wave_comes_when_the_interface_has_started(
    bare: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bare.setenv("LAKEGC_TRIAL_CRON", "")
    for second in range(0, 3600, 37):
        now = datetime(2026, 3, 1, 12, tzinfo=timezone.utc) + timedelta(seconds=second)
        workspace = trial.prepare(tmp_path, now)
        cron = os.environ["LAKEGC_TRIAL_CRON"]
        first = next_tick(cron, "UTC", now)
        second_one = next_tick(cron, "UTC", first)
        assert timedelta(minutes=1) <= first - now <= timedelta(minutes=2), cron
        assert second_one - first <= timedelta(minutes=15)
    assert "examples.trial" in workspace.read_text()
    policies = trial.component(cron).policies()
    assert policies.running
    modes = {name: policies.of(name).sweep for name in (trial.SWEPT, trial.WAITS, trial.REFUSED)}
    assert modes == {trial.SWEPT: "auto", trial.WAITS: "approved", trial.REFUSED: "approved"}


def test_repositories_are_told_once_and_never_half(
    bare: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calendar = Calendar(0)
    with EmbeddedLakeFS(tmp_path / "lakefs", clock=calendar) as server:
        for name, value in server.environment.items():
            bare.setenv(name, value)
        client = LakeFSConfig().connect_writer()
        trial.tell(calendar, tmp_path)
        names = [trial.SWEPT, trial.WAITS, trial.REFUSED]
        assert sorted(r.id for r in client.repositories()) == sorted(names)
        heads = {name: [c.id for c in client.log(name, "main")] for name in names}
        assert calendar.days_ago == 0
        trial.tell(calendar, tmp_path)
        assert heads == {name: [c.id for c in client.log(name, "main")] for name in names}
        client.delete_gc_rules(trial.WAITS)
        with pytest.raises(RefusedError, match=f"'{trial.WAITS}' of the trial is incomplete"):
            trial.tell(calendar, tmp_path)
