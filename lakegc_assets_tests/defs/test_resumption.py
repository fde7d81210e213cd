"""Runs that go on after their process died, and those that do not: ``gc_resume``."""

from __future__ import annotations

import logging
import sqlite3
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import dagster as dg
import pytest
import yaml
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill
from dagster._daemon.monitoring import run_monitoring
from dagster_shared.record import replace

import lakegc_assets
from lakegc_assets.defs import jobs, names, sensors
from lakegc_assets.defs.collection import Collection
from lakegc_assets.defs.component import GarbageCollection
from lakegc_assets.defs.names import add_partition, is_retried, partition_key
from lakegc_assets.defs.sensors import resume_sensor
from lakegc_assets.lakefs.client import utc_now
from lakegc_assets.lakefs.errors import ConnectionFailedError, ForbiddenError
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets_tests.defs.daemon import Daemon
from lakegc_assets_tests.defs.week import SUNDAY, make, wave
from lakegc_assets_tests.site import Site


def kill_two(site: Site, daemon: Daemon) -> None:
    """Start runs of two repositories, ``closed`` and ``weekly``, whose processes die."""
    for name in ("closed", "weekly"):
        make(site, name, SUNDAY - timedelta(days=1))
        site.root.new_attempt(name, wave(0))
    for run in daemon.schedule(SUNDAY):
        daemon.kill(run)


def left_but_of_closed(error: Exception) -> Callable[..., Any]:
    """``left_to_do``, which fails when it is asked about ``closed``."""
    left_to_do = jobs.left_to_do

    def left(job: str, attempt: AttemptArtifacts, *more: Any) -> Any:
        if attempt.repository == "closed":
            raise error
        return left_to_do(job, attempt, *more)

    return left


def test_those_that_a_tick_had_no_time_for_go_on_at_the_next_one(
    site: Site, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sensors, "BUDGET_S", 0.0)
    kill_two(site, daemon)
    assert [len(daemon.sensor("gc_resume")) for _ in range(3)] == [1, 1, 0]
    resumed = {key for _, key, source in daemon.log if source == "gc_resume"}
    assert resumed == {f"closed|{wave(0)}", f"weekly|{wave(0)}"}


@pytest.mark.parametrize(
    ("kind", "said", "resumed"),
    [
        ("ChildProcessCrashException", "", 1),
        (None, "Step store_listing failed health check: Discovered failed Kubernetes job", 1),
        ("ValueError", "ValueError: no\n", 0),
    ],
)
def test_a_step_whose_process_was_killed_goes_on(
    site: Site, daemon: Daemon, kind: str | None, said: str, resumed: int
) -> None:
    """As executors with a process or a pod for each step report it, for want of memory."""
    make(site, "weekly", SUNDAY - timedelta(days=1))
    (run,) = daemon.schedule(SUNDAY)
    daemon.kill_step(run, kind, said)
    assert len(daemon.sensor("gc_resume")) == resumed


@pytest.mark.parametrize("hours", [-5, 2])
def test_what_failed_for_a_reason_that_passes_is_tried_once_more_after_minutes(
    hours: int, site: Site, daemon: Daemon
) -> None:
    """Where the database of the runs has another time zone, too, as PostgreSQL may."""

    def resume(minutes: float) -> list[str]:
        jobs = list(daemon.definitions.jobs or ())
        policies = GarbageCollection().policies()
        moment = utc_now() + timedelta(minutes=minutes)
        sensor = resume_sensor(jobs, Collection(policies, now=lambda: moment))
        return daemon.sensor("gc_resume", as_defined=sensor)

    make(site, "weekly", SUNDAY - timedelta(days=1))
    (run,) = daemon.schedule(SUNDAY)
    daemon.fail(run, "lakeFS does not answer", transient=True)
    (runs,) = Path(daemon.instance.root_directory).rglob("runs.db")
    with closing(sqlite3.connect(runs)) as database, database:
        database.execute(
            "UPDATE runs SET update_timestamp = datetime(update_timestamp, ?)", [f"{hours} hours"]
        )
    assert resume(1) == []
    assert resume(4) == []
    (again,) = resume(6)
    found = daemon.instance.get_run_by_id(again)
    assert found is not None
    assert found.tags["lakegc/retried"] == "once"
    assert resume(7) == []
    daemon.fail(again, "lakeFS does not answer", transient=True)
    assert resume(20) == []


def test_who_asked_for_a_run_is_remembered_when_it_goes_on(site: Site, daemon: Daemon) -> None:
    make(site, "weekly", SUNDAY - timedelta(days=1))
    key = partition_key("weekly", "by-hand")
    daemon.instance.add_dynamic_partitions("repository", ["weekly"])
    daemon.instance.add_dynamic_partitions("run", ["by-hand"])
    request = dg.RunRequest(run_key="by hand", partition_key=key, job_name="gc")
    run_id = daemon.launch(request, "gc", {})
    daemon.kill(run_id)
    (found,) = daemon.sensor("gc_resume")
    run = daemon.instance.get_run_by_id(found)
    assert run is not None
    assert run.tags["lakegc/asked"] == "by a person"
    assert run.tags["lakegc/resumed"] == "1"


def asked_by_hand(site: Site, daemon: Daemon, job: str, *assets: str) -> dg.DagsterRun:
    """A run of a job, or of some of its assets, that a person has launched."""
    make(site, "weekly", SUNDAY - timedelta(days=1))
    daemon.instance.add_dynamic_partitions("repository", ["weekly"])
    daemon.instance.add_dynamic_partitions("run", ["by-hand"])
    request = dg.RunRequest(
        run_key="by hand",
        partition_key=partition_key("weekly", "by-hand"),
        job_name=job,
        asset_selection=[dg.AssetKey(asset) for asset in assets] or None,
    )
    run = daemon.instance.get_run_by_id(daemon.launch(request, job, {}))
    assert run is not None
    return run


def test_a_continued_run_that_a_person_has_cancelled_and_removed_does_not_start_again(
    site: Site, daemon: Daemon
) -> None:
    """Dagster forgets the run key with the run; no policy would stop a person's sweep."""
    killed = asked_by_hand(site, daemon, "gc_sweep")
    daemon.kill(killed.run_id)
    (again,) = daemon.sensor("gc_resume")
    run = daemon.instance.get_run_by_id(again)
    assert run is not None
    daemon.instance.report_run_canceled(run)
    daemon.instance.delete_run(again)
    for _ in range(2):
        assert daemon.sensor("gc_resume") == []


def test_a_cursor_of_an_older_version_holds_the_time_only(site: Site, daemon: Daemon) -> None:
    killed = asked_by_hand(site, daemon, "gc")
    daemon.kill(killed.run_id)
    daemon.cursors["gc_resume"] = (utc_now() + timedelta(hours=1)).isoformat()
    assert daemon.sensor("gc_resume") == []
    daemon.cursors["gc_resume"] = (utc_now() - timedelta(hours=1)).isoformat()
    assert len(daemon.sensor("gc_resume")) == 1


@pytest.mark.parametrize(
    ("chosen", "steps", "published", "goes_on"),
    [
        (["store_listing"], None, False, ["gc_mark"]),
        (["storage_attribution"], None, True, []),
        (["gc_report", "swept_set"], None, False, ["gc"]),
        (["gc_report", "swept_set"], None, True, ["gc_sweep"]),
        ([], ["store_listing"], False, ["gc_mark"]),
        ([], ["backup", "swept_set"], True, ["gc_sweep"]),
    ],
)
def test_who_chose_no_sweep_gets_none_when_their_run_goes_on(
    site: Site,
    daemon: Daemon,
    monkeypatch: pytest.MonkeyPatch,
    chosen: list[str],
    steps: list[str] | None,
    published: bool,  # noqa: FBT001 - a parameter of the test
    goes_on: list[str],
) -> None:
    """Neither policy nor approval would have stopped it: a person had asked, for a listing."""
    run = asked_by_hand(site, daemon, "gc", *chosen)
    if steps:
        daemon.succeed(run.run_id)
        run = replace(run, run_id=str(uuid.uuid4()), step_keys_to_execute=steps)
        daemon.instance.add_run(run)
    daemon.kill(run.run_id)
    site.root.new_attempt("weekly", "by-hand")
    monkeypatch.setattr(
        AttemptArtifacts, "has", lambda _, asset: published and asset == "gc_report"
    )
    monkeypatch.setattr(jobs, "read_summary", lambda _store, _run: {})
    monkeypatch.setattr(sensors, "left_to_do", lambda *_: [])
    daemon.sensor("gc_resume")
    assert [job for job, _, source in daemon.log if source == "gc_resume"] == goes_on


def test_who_chose_only_checks_gets_no_sweep_when_their_run_goes_on(
    site: Site, daemon: Daemon
) -> None:
    """Dagster records no assets of such a run, as of a run of all assets of the job."""
    whole = asked_by_hand(site, daemon, "gc")
    check = dg.AssetCheckKey(dg.AssetKey("deletion_candidates"), "none_staged")
    run = replace(whole, run_id=str(uuid.uuid4()), asset_check_selection=frozenset([check]))
    daemon.succeed(whole.run_id)
    daemon.instance.add_run(run)
    daemon.kill(run.run_id)
    daemon.sensor("gc_resume")
    assert [job for job, _, source in daemon.log if source == "gc_resume"] == ["gc_mark"]


def test_a_store_that_never_answers_holds_others_up_for_a_day_at_most(
    site: Site, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_two(site, daemon)
    error = ConnectionFailedError("closed does not answer")
    monkeypatch.setattr(sensors, "left_to_do", left_but_of_closed(error))
    with pytest.raises(ConnectionFailedError):
        daemon.sensor("gc_resume")
    policies = GarbageCollection().policies()
    later = Collection(policies, now=lambda: utc_now() + timedelta(days=1))
    daemon_jobs = list(daemon.definitions.jobs or ())
    daemon.sensor("gc_resume", as_defined=resume_sensor(daemon_jobs, later))
    resumed = [key for _, key, source in daemon.log if source == "gc_resume"]
    assert resumed == [f"weekly|{wave(0)}"]


def test_what_dagster_starts_again_itself_is_left_to_it(
    site: Site, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(site, "weekly", SUNDAY - timedelta(days=1))
    daemon.instance.add_dynamic_partitions("repository", ["weekly"])
    daemon.instance.add_dynamic_partitions("run", ["by-hand"])
    request = dg.RunRequest(
        run_key="by hand", partition_key=partition_key("weekly", "by-hand"), job_name="gc_sweep"
    )
    run_id = daemon.launch(request, "gc_sweep", {})
    daemon.kill(run_id)
    daemon.instance.add_run_tags(run_id, {"dagster/will_retry": "true"})
    run = daemon.instance.get_run_by_id(run_id)
    assert run is not None
    for enabled in (True, False):
        instance = cast("dg.DagsterInstance", SimpleNamespace(run_retries_enabled=enabled))
        assert is_retried(instance, run) is enabled
    plus = type("DagsterCloudInstance", (), {"__module__": "dagster_cloud.instance"})()
    assert is_retried(cast("dg.DagsterInstance", plus), run)
    with monkeypatch.context() as patched:
        patched.setattr(sensors, "is_retried", lambda _, one: one.run_id == run_id)
        assert daemon.sensor("gc_resume") == []
    # Without the daemon of run_retries the tag says nothing.
    daemon.cursors.clear()
    assert len(daemon.sensor("gc_resume")) == 1


@pytest.mark.parametrize("tag", ["dagster/auto_retry_run_id", "dagster/backfill", None])
def test_what_dagster_has_forgotten_to_start_again_goes_on_after_minutes(
    site: Site, daemon: Daemon, monkeypatch: pytest.MonkeyPatch, tag: str | None
) -> None:
    """Its daemon overlooks a failure that has the id of a deleted one, in SQLite."""
    make(site, "weekly", SUNDAY - timedelta(days=1))
    (run_id,) = daemon.schedule(SUNDAY)
    daemon.kill(run_id)
    daemon.instance.add_run_tags(
        run_id, {"dagster/will_retry": "true"} | ({tag: "x"} if tag else {})
    )
    for module in (sensors, names):
        monkeypatch.setattr(module, "is_retried", lambda _, one: one.run_id == run_id)
    assert daemon.sensor("gc_resume") == []
    later = Collection(GarbageCollection().policies(), now=lambda: utc_now() + timedelta(minutes=6))
    resume = resume_sensor(list(daemon.definitions.jobs or ()), later)
    assert len(daemon.sensor("gc_resume", as_defined=resume)) == (tag is None)


def test_the_events_of_runs_of_others_are_not_read(
    site: Site, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Dagster may have thousands of them that have failed, and a tick has a minute."""
    make(site, "weekly", SUNDAY - timedelta(days=1))
    (ours,) = daemon.schedule(SUNDAY)
    daemon.kill(ours)
    for _ in range(3):
        foreign = daemon.instance.add_run(dg.DagsterRun(job_name="somebody's"))
        daemon.kill(foreign.run_id)
    read: list[str] = []
    monkeypatch.setattr(sensors, "failed_for_a_while", lambda _, run: read.append(run.run_id))
    assert len(daemon.sensor("gc_resume")) == 1
    assert read == [ours]


def test_what_a_person_stopped_does_not_go_on(site: Site, daemon: Daemon) -> None:
    make(site, "weekly", SUNDAY - timedelta(days=1))
    (run_id,) = daemon.schedule(SUNDAY)
    run = daemon.instance.get_run_by_id(run_id)
    assert run is not None
    daemon.instance.report_run_canceling(run)
    daemon.instance.report_run_canceled(run)
    assert daemon.sensor("gc_resume") == []


def test_what_is_in_a_backfill_that_a_person_has_cancelled_does_not_go_on(
    site: Site, daemon: Daemon
) -> None:
    """Its process may have died just before, or been too slow to start."""
    make(site, "weekly", SUNDAY - timedelta(days=1))
    (run_id,) = daemon.schedule(SUNDAY)
    daemon.kill(run_id)
    backfill = PartitionBackfill("abc", BulkActionStatus.REQUESTED, False, {}, 0.0)
    daemon.instance.add_backfill(backfill)
    daemon.instance.add_run_tags(run_id, {"dagster/backfill": "abc"})
    for status, resumed in (("CANCELED", 0), ("CANCELING", 0), ("REQUESTED", 1)):
        changed = backfill._replace(status=BulkActionStatus(status))
        daemon.instance.update_backfill(changed)
        daemon.cursors.clear()
        assert len(daemon.sensor("gc_resume")) == resumed


@pytest.mark.parametrize(("job", "resumed"), [("gc_forecast", 1), ("gc_sweep", 0)])
def test_a_later_run_that_only_reads_keeps_none_from_going_on(
    site: Site, daemon: Daemon, job: str, resumed: int
) -> None:
    make(site, "weekly", SUNDAY - timedelta(days=1))
    (run_id,) = daemon.schedule(SUNDAY)
    daemon.launch(dg.RunRequest(partition_key=partition_key("weekly", wave(0))), job, {})
    daemon.kill(run_id)
    assert len(daemon.sensor("gc_resume")) == resumed


_BY_SCHEDULE = {"dagster/schedule_name": "gc_schedule"}


@pytest.mark.parametrize(
    ("stage", "tags", "after"),
    [
        ("list_store", _BY_SCHEDULE, ["gc"]),
        # Who asked for the sweep may have ended the process, too.
        ("list_store", {}, ["gc_mark"]),
        pytest.param("sweep", {}, [], marks=pytest.mark.conformance),
    ],
)
def test_a_mark_that_was_interrupted_from_outside_goes_on_and_a_sweep_does_not(
    site: Site,
    daemon: Daemon,
    monkeypatch: pytest.MonkeyPatch,
    stage: str,
    tags: dict[str, str],
    after: list[str],
) -> None:
    """A pod is evicted or a service restarts: SIGTERM, although nobody has asked Dagster."""

    def evicted(*_: object) -> None:
        raise dg.DagsterExecutionInterruptedError

    make(site, "weekly", SUNDAY - timedelta(days=1))
    daemon.status = dg.DagsterRunStatus.NOT_STARTED
    key = add_partition(daemon.instance, "weekly", "m")
    run_id = daemon.launch(dg.RunRequest(run_key="any", partition_key=key), "gc", tags)
    monkeypatch.setattr(f"lakegc_assets.defs.assets.{stage}", evicted)
    run: Any = daemon.instance.get_run_by_id(run_id)
    execute_run(InMemoryJob(daemon.definitions.resolve_job_def("gc")), run, daemon.instance)
    ended: Any = daemon.instance.get_run_by_id(run_id)
    assert ended.status is dg.DagsterRunStatus.FAILURE
    daemon.sensor("gc_resume")
    assert [job for job, _, source in daemon.log if source == "gc_resume"] == after


@pytest.mark.parametrize(
    "cursor",
    ["{", "[]", *(pytest.param(one, marks=pytest.mark.conformance) for one in ("7", "2026-03-01"))],
)
def test_a_cursor_that_somebody_has_damaged_is_a_new_beginning(
    site: Site, daemon: Daemon, cursor: str
) -> None:
    make(site, "weekly", SUNDAY - timedelta(days=1))
    (run,) = daemon.schedule(SUNDAY)
    daemon.kill(run)
    for name in ("gc_rules", "gc_resume", "gc_staleness"):
        daemon.cursors[name] = cursor
        daemon.sensor(name)
        assert daemon.cursors[name] != cursor
    assert [source for _, _, source in daemon.log] == ["gc_schedule", "gc_resume"]


def test_a_run_whose_attempt_is_damaged_keeps_no_other_from_going_on(
    site: Site, daemon: Daemon
) -> None:
    for name in ("broken", "weekly"):
        make(site, name, SUNDAY - timedelta(days=1))
    for run in daemon.schedule(SUNDAY):
        daemon.kill(run)
    site.root.open("broken", wave(0)).put("attempt.json", b"{")
    daemon.sensor("gc_resume")
    resumed = [key for _, key, source in daemon.log if source == "gc_resume"]
    assert resumed == [f"weekly|{wave(0)}"]


def test_a_run_that_cannot_be_asked_about_keeps_no_other_from_going_on(
    site: Site, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each tick says so, for a day; somebody may give the credentials what they lack."""
    kill_two(site, daemon)
    forbidden = left_but_of_closed(ForbiddenError("GET /repositories/closed: status 403"))

    def resumed() -> list[str]:
        return [key for _, key, source in daemon.log if source == "gc_resume"]

    with monkeypatch.context() as patch:
        patch.setattr(sensors, "left_to_do", forbidden)
        daemon.sensor("gc_resume")
        assert resumed() == [f"weekly|{wave(0)}"]
        with pytest.raises(ForbiddenError, match="status 403"):
            daemon.sensor("gc_resume")
        later = Collection(
            GarbageCollection().policies(), now=lambda: utc_now() + timedelta(days=1)
        )
        daemon_jobs = list(daemon.definitions.jobs or ())
        before = dict(daemon.cursors)
        assert daemon.sensor("gc_resume", as_defined=resume_sensor(daemon_jobs, later)) == []
    daemon.cursors = before
    daemon.sensor("gc_resume")
    assert resumed() == [f"weekly|{wave(0)}", f"closed|{wave(0)}"]


def test_what_was_published_and_not_reported_is_backed_up_before_it_is_swept(
    site: Site, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(site, "daily", SUNDAY - timedelta(days=1))
    (run,) = daemon.schedule(SUNDAY)
    daemon.kill(run)
    site.root.new_attempt("daily", wave(0))
    monkeypatch.setattr(AttemptArtifacts, "has", lambda _, asset: asset == "deletion_candidates")
    monkeypatch.setattr(jobs, "read_summary", lambda _store, _run: {})
    sensor = daemon.definitions.resolve_sensor_def("gc_resume")
    with dg.build_sensor_context(
        daemon.instance,
        instance_ref=daemon.instance.get_ref(),
        resources=daemon.definitions.resources,
        repository_def=daemon.definitions.get_repository_def(),
    ) as context:
        (request,) = sensor.evaluate_tick(context).run_requests or ()
    names = {key.to_user_string() for key in request.asset_selection or ()}
    assert names == {"gc_report", "backup", "swept_set"}


def test_what_a_machine_took_with_it_goes_on_after_a_day(
    site: Site, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody tells Dagster that its processes are gone, and their places in the queue with them."""
    make(site, "weekly", SUNDAY - timedelta(days=1))
    (run_id,) = daemon.schedule(SUNDAY)
    reported = yaml.safe_load((Path(lakegc_assets.__file__).parent / "dagster.yaml").read_text())
    with dg.instance_for_test(overrides=reported) as configured:
        assert configured.run_monitoring_enabled
        longest = configured.run_monitoring_max_runtime_seconds
    (record,) = daemon.instance.get_run_records(dg.RunsFilter(run_ids=[run_id]))
    begun = record._replace(start_time=time.time())
    for passed, resumed in ((longest - 60, 0), (longest + 60, 1)):
        monkeypatch.setattr(
            run_monitoring, "get_current_timestamp", lambda passed=passed: time.time() + passed
        )
        logger = logging.getLogger("dagster")
        run_monitoring.check_run_timeout(daemon.instance, begun, logger, longest)
        assert len(daemon.sensor("gc_resume")) == resumed
