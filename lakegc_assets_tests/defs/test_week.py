"""A week of virtual time: what was started is what should have been, whatever the daemon did."""

from __future__ import annotations

import logging
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import dagster as dg
import pytest
import requests
import yaml
from dagster._daemon.monitoring import run_monitoring
from dagster_shared.record import replace

import lakegc_assets
from lakegc_assets.defs import jobs, sensors
from lakegc_assets.defs.collection import Collection
from lakegc_assets.defs.component import GarbageCollection
from lakegc_assets.defs.connections import LakeFSResource
from lakegc_assets.defs.names import is_retried, partition_key
from lakegc_assets.defs.policy import Override, Policies
from lakegc_assets.defs.schedules import waves_sensor
from lakegc_assets.defs.sensors import repositories_sensor, resume_sensor
from lakegc_assets.lakefs.client import utc_now
from lakegc_assets.lakefs.errors import ConnectionFailedError, ForbiddenError
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets_tests.defs.daemon import Daemon
from lakegc_assets_tests.defs.running import own_instance
from lakegc_assets_tests.site import Site

_SUNDAY = datetime(2026, 3, 1, 2, tzinfo=timezone.utc)
_DAY_S = 86_400


_OVERRIDES = [
    Override(include=["daily*", "fresh*"], cron="0 2 * * *", sweep="auto"),
    Override(include=["daily*"], min_age_hours=48, tags={"team": "data"}),
]


def wave(day: int) -> str:
    return f"202603{1 + day:02}T020000Z"


@pytest.fixture(scope="module")
def definitions(site: Site) -> dg.Definitions:  # noqa: ARG001 - its environment
    return GarbageCollection(exclude=["scratch-*"], repositories=_OVERRIDES).definitions()


@pytest.fixture
def daemon(site: Site, definitions: dg.Definitions) -> Iterator[Daemon]:
    for repository in site.client.repositories():
        remove(site, repository.id)
    with own_instance() as instance:
        yield Daemon(definitions, instance)


def make(site: Site, repository: str, at: datetime) -> None:
    site.calendar.days_ago = (time.time() - at.timestamp()) / _DAY_S
    site.client.create_repository(repository, f"local://{repository}-{uuid.uuid4().hex}")


def remove(site: Site, repository: str) -> None:
    done = requests.delete(
        f"{site.server.endpoint}/api/v1/repositories/{repository}",
        auth=(site.server.access_key, site.server.secret_key),
        timeout=60,
    )
    assert done.ok, done.text


def waves(
    daemon: Daemon, at: datetime, lakefs: LakeFSResource | None = None, **more: Any
) -> list[str]:
    """One tick of ``gc_waves``."""
    policies = GarbageCollection(repositories=_OVERRIDES).policies()
    server = (lakefs or LakeFSResource()).config
    sensor = waves_sensor(Collection(policies, lakefs=server, now=lambda: at))
    return daemon.sensor("gc_waves", as_defined=sensor, **more)


def kill_two(site: Site, daemon: Daemon) -> None:
    """Start runs of two repositories, ``closed`` and ``weekly``, whose processes die."""
    for name in ("closed", "weekly"):
        make(site, name, _SUNDAY - timedelta(days=1))
        site.root.new_attempt(name, wave(0))
    for run in daemon.schedule(_SUNDAY):
        daemon.kill(run)


def left_but_of_closed(error: Exception) -> Callable[..., Any]:
    """``left_to_do``, which fails when it is asked about ``closed``."""
    left_to_do = jobs.left_to_do

    def left(job: str, attempt: AttemptArtifacts, *more: Any) -> Any:
        if attempt.repository == "closed":
            raise error
        return left_to_do(job, attempt, *more)

    return left


def test_a_week_starts_what_it_should(site: Site, daemon: Daemon) -> None:  # noqa: PLR0915 - a week is long
    def day(number: int, hours: float = 0) -> datetime:
        return _SUNDAY + timedelta(days=number, hours=hours)

    for name in ("daily", "weekly", "scratch-1"):
        make(site, name, day(-10))
    silent = LakeFSResource(endpoint="http://127.0.0.1:9", max_attempts=1)

    # Sunday: all that are due, once, although the daemon dies in the middle and does it again.
    daemon.sensor("gc_repositories")
    assert daemon.instance.get_dynamic_partitions("repository") == ["daily", "weekly"]
    daemon.sensor("gc_rules")
    first = daemon.schedule(day(0), dies_after=1)
    second = daemon.schedule(day(0))
    assert [len(first), len(second)] == [1, 1]
    assert daemon.schedule(day(0)) == []
    for run in (*first, *second):
        daemon.succeed(run)

    # Monday: one comes after its tick, and is gone before the next one.
    for run in daemon.schedule(day(1)):
        daemon.succeed(run)
    make(site, "visitor", day(1, 1))
    daemon.sensor("gc_repositories")
    assert "visitor" in daemon.instance.get_dynamic_partitions("repository")
    remove(site, "visitor")
    daemon.sensor("gc_repositories")
    assert "visitor" not in daemon.instance.get_dynamic_partitions("repository")

    # Tuesday: the server does not answer. The wave is made up for when it does, once.
    assert daemon.schedule(day(2), lakefs=silent) == []
    assert "Connection refused" in daemon.failed[-1]
    assert waves(daemon, day(2, 0.1), lakefs=silent) == []
    assert "tried again in five minutes" in daemon.skipped[-1]
    (late,) = waves(daemon, day(2, 0.2), dies_after=1)
    daemon.succeed(late)
    assert waves(daemon, day(2, 0.3)) == []

    # Wednesday: a new one is collected from its first tick on; one run is killed again and again.
    make(site, "fresh", day(2, 12))
    started = dict(zip(("daily", "fresh"), daemon.schedule(day(3)), strict=True))
    daemon.succeed(started["fresh"])
    (killed,) = (started["daily"],)
    for _ in range(3):
        daemon.kill(killed)
        # The daemon dies before it has written down how far it is, and looks again.
        (killed,) = daemon.sensor("gc_resume", dies_after=1)
        assert daemon.sensor("gc_resume") == []
    daemon.kill(killed)
    assert daemon.sensor("gc_resume") == []

    # Thursday: a check refuses, which is not tried again; a repository goes that had runs.
    for run in daemon.schedule(day(4)):
        daemon.fail(run, "candidate_share: 9 of 10 listed objects are candidates")
    assert daemon.sensor("gc_resume") == []
    remove(site, "fresh")
    daemon.sensor("gc_repositories")
    assert "fresh" in daemon.instance.get_dynamic_partitions("repository")

    # Friday: rules are changed, and on Saturday changed back: a mark each, and never a sweep.
    for run in daemon.schedule(day(5)):
        daemon.succeed(run)
    site.client.set_gc_rules("weekly", 7, {})
    assert len(daemon.sensor("gc_rules", dies_after=1)) == 1
    assert daemon.sensor("gc_rules") == []
    site.client.set_gc_rules("weekly", 8, {})
    assert len(daemon.sensor("gc_rules")) == 1
    site.client.set_gc_rules("weekly", 7, {})
    assert len(daemon.sensor("gc_rules")) == 1
    assert daemon.sensor("gc_rules") == []

    # Saturday, and the next Sunday, an hour late.
    for number in (6, 7):
        for run in daemon.schedule(day(number)):
            daemon.succeed(run)

    by_schedule = [(job, key) for job, key, source in daemon.log if source == "gc_schedule"]
    should = [("daily", n) for n in (0, 1, 3, 4, 5, 6, 7)]
    made_up = [(job, key) for job, key, source in daemon.log if source == "gc_waves"]
    assert made_up == [("gc", str(partition_key("daily", wave(2))))]
    should += [("weekly", n) for n in (0, 7)] + [("fresh", n) for n in (3, 4)]
    assert sorted(by_schedule) == sorted(
        ("gc", str(partition_key(name, wave(n)))) for name, n in should
    )
    resumed = [(job, key) for job, key, source in daemon.log if source == "gc_resume"]
    assert resumed == [("gc", f"daily|{wave(3)}")] * 3
    by_rules = [(job, key) for job, key, source in daemon.log if source == "gc_rules"]
    assert {job for job, _ in by_rules} == {"gc_mark"}
    assert [key.split("|")[0] for _, key in by_rules] == ["weekly"] * 3
    assert len(set(by_rules)) == 3
    assert len(daemon.log) == len(by_schedule) + len(made_up) + len(resumed) + len(by_rules)


def test_each_run_has_its_settings_and_tags(site: Site, daemon: Daemon) -> None:
    for name in ("daily", "weekly"):
        make(site, name, _SUNDAY - timedelta(days=1))
    runs = [daemon.instance.get_run_by_id(run) for run in daemon.schedule(_SUNDAY)]
    found: dict[str, Any] = {run.tags["lakegc/repository"]: run for run in runs if run is not None}
    assert set(found) == {"daily", "weekly"}
    for name, mode, hours in (("daily", "auto", 48), ("weekly", "approved", 24)):
        tags = found[name].tags
        assert tags["lakegc/wave"] == wave(0)
        assert tags["lakegc/mode"] == mode
        assert tags["dagster/partition/repository"] == name
        # Its settings are those of its policy when it begins, however long it has waited.
        assert found[name].run_config == {"resources": {"collector": {"config": {}}}}
        usual = GarbageCollection(repositories=_OVERRIDES).usual_settings(name)
        assert (usual["min_age_hours"], usual["max_candidate_share"]) == (hours, 0.5)
    assert found["daily"].tags["team"] == "data"
    assert "team" not in found["weekly"].tags


def test_a_repository_joins_a_wave_for_a_day_only(site: Site, daemon: Daemon) -> None:
    """The weekly one is not started by the daily ticks of the others, nor twice by a late one."""
    make(site, "weekly", _SUNDAY - timedelta(days=1))
    assert daemon.schedule(_SUNDAY + timedelta(days=1)) == []
    assert "of 1 repository, none is due" in daemon.skipped[-1]
    assert len(daemon.schedule(_SUNDAY + timedelta(hours=23))) == 1
    assert daemon.schedule(_SUNDAY + timedelta(hours=23, minutes=30)) == []


def test_a_repository_that_waits_in_the_queue_joins_no_other_wave(
    site: Site, daemon: Daemon
) -> None:
    """Or the queue would grow with each wave that takes longer than the next takes to come."""
    make(site, "daily", _SUNDAY - timedelta(days=1))
    daemon.status = dg.DagsterRunStatus.QUEUED
    (waits,) = daemon.schedule(_SUNDAY)
    assert daemon.schedule(_SUNDAY + timedelta(days=1)) == []
    assert "is not in the queue" in daemon.skipped[-1]
    make(site, "fresh", _SUNDAY + timedelta(days=1))
    assert len(daemon.schedule(_SUNDAY + timedelta(days=2))) == 1
    daemon.succeed(waits)
    daemon.schedule(_SUNDAY + timedelta(days=3))
    started = [key for _, key, _ in daemon.log]
    assert started == [f"daily|{wave(0)}", f"fresh|{wave(2)}", f"daily|{wave(3)}"]


def test_those_that_a_tick_had_no_time_for_go_on_at_the_next_one(
    site: Site, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sensors, "BUDGET_S", 0.0)
    kill_two(site, daemon)
    assert [len(daemon.sensor("gc_resume")) for _ in range(3)] == [1, 1, 0]
    resumed = {key for _, key, source in daemon.log if source == "gc_resume"}
    assert resumed == {f"closed|{wave(0)}", f"weekly|{wave(0)}"}


@pytest.mark.parametrize("hours", [0, -5, 2])
def test_what_failed_for_a_reason_that_passes_is_tried_once_more_after_minutes(
    hours: int, site: Site, daemon: Daemon
) -> None:
    """Also where the database of the runs has another time zone, as PostgreSQL may."""

    def resume(minutes: float) -> list[str]:
        jobs = list(daemon.definitions.jobs or ())
        policies = GarbageCollection().policies()
        moment = utc_now() + timedelta(minutes=minutes)
        sensor = resume_sensor(jobs, Collection(policies, now=lambda: moment))
        return daemon.sensor("gc_resume", as_defined=sensor)

    make(site, "weekly", _SUNDAY - timedelta(days=1))
    (run,) = daemon.schedule(_SUNDAY)
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
    make(site, "weekly", _SUNDAY - timedelta(days=1))
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
    make(site, "weekly", _SUNDAY - timedelta(days=1))
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
    make(site, "weekly", _SUNDAY - timedelta(days=1))
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


def test_the_events_of_runs_of_others_are_not_read(
    site: Site, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Dagster may have thousands of them that have failed, and a tick has a minute."""
    make(site, "weekly", _SUNDAY - timedelta(days=1))
    (ours,) = daemon.schedule(_SUNDAY)
    daemon.kill(ours)
    for _ in range(3):
        foreign = daemon.instance.add_run(dg.DagsterRun(job_name="somebody's"))
        daemon.kill(foreign.run_id)
    read: list[str] = []
    monkeypatch.setattr(sensors, "failed_for_a_while", lambda _, run_id: read.append(run_id))
    assert len(daemon.sensor("gc_resume")) == 1
    assert read == [ours]


def test_what_a_person_stopped_does_not_go_on(site: Site, daemon: Daemon) -> None:
    make(site, "weekly", _SUNDAY - timedelta(days=1))
    (run_id,) = daemon.schedule(_SUNDAY)
    run = daemon.instance.get_run_by_id(run_id)
    assert run is not None
    daemon.instance.report_run_canceling(run)
    daemon.instance.report_run_canceled(run)
    assert daemon.sensor("gc_resume") == []


def test_there_is_always_a_run_that_nobody_has_used(site: Site, daemon: Daemon) -> None:
    def added(at: datetime) -> list[str]:
        before = set(daemon.instance.get_dynamic_partitions("run"))
        sensor = repositories_sensor(Collection(Policies(), now=lambda: at))
        daemon.sensor("gc_repositories", as_defined=sensor)
        return sorted(set(daemon.instance.get_dynamic_partitions("run")) - before)

    make(site, "weekly", _SUNDAY - timedelta(days=1))
    before = _SUNDAY - timedelta(hours=1)
    assert added(before) == ["20260301T010000Z"]
    assert added(before + timedelta(minutes=1)) == []
    # The key of a wave is used by its runs, and another one is offered.
    assert len(daemon.schedule(_SUNDAY)) == 1
    assert added(_SUNDAY) == []
    assert added(_SUNDAY + timedelta(minutes=1)) == ["20260301T020100Z"]
    assert added(_SUNDAY + timedelta(minutes=2)) == []
    # One that nobody took is not left behind it.
    assert daemon.instance.get_dynamic_partitions("run") == [wave(0), "20260301T020100Z"]


def test_a_run_that_was_made_and_not_launched_is_asked_for_again(
    site: Site, daemon: Daemon
) -> None:
    """The daemon died in between: at its next try Dagster launches that very run."""

    def asked() -> list[str]:
        schedule = daemon.definitions.resolve_schedule_def("gc_schedule")
        with dg.build_schedule_context(
            instance=daemon.instance,
            scheduled_execution_time=_SUNDAY,
            repository_def=daemon.definitions.get_repository_def(),
            resources=daemon.definitions.resources,
        ) as context:
            requests = schedule.evaluate_tick(context).run_requests or ()
        return [str(one.partition_key) for one in requests]

    make(site, "weekly", _SUNDAY - timedelta(days=1))
    key = f"weekly|{wave(0)}"
    assert asked() == [key]
    tags = {"lakegc/wave": wave(0), "lakegc/repository": "weekly"}
    job = daemon.definitions.resolve_job_def("gc")
    run = daemon.instance.create_run_for_job(job, tags=tags)
    assert run.status is dg.DagsterRunStatus.NOT_STARTED
    assert asked() == [key]
    daemon.kill(run.run_id)
    assert asked() == []


@pytest.mark.parametrize(
    "cursor",
    ["{", "[]", *(pytest.param(one, marks=pytest.mark.conformance) for one in ("7", "2026-03-01"))],
)
def test_a_cursor_that_somebody_has_damaged_is_a_new_beginning(
    site: Site, daemon: Daemon, cursor: str
) -> None:
    make(site, "weekly", _SUNDAY - timedelta(days=1))
    (run,) = daemon.schedule(_SUNDAY)
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
        make(site, name, _SUNDAY - timedelta(days=1))
    for run in daemon.schedule(_SUNDAY):
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
    make(site, "daily", _SUNDAY - timedelta(days=1))
    (run,) = daemon.schedule(_SUNDAY)
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
    make(site, "weekly", _SUNDAY - timedelta(days=1))
    (run_id,) = daemon.schedule(_SUNDAY)
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
