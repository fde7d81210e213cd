"""A week of virtual time: what was started is what should have been, whatever the daemon did."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import dagster as dg

from lakegc_assets.defs.collection import Collection
from lakegc_assets.defs.component import GarbageCollection
from lakegc_assets.defs.connections import LakeFSResource
from lakegc_assets.defs.names import partition_key
from lakegc_assets.defs.policy import Policies
from lakegc_assets.defs.schedules import waves_sensor
from lakegc_assets.defs.sensors import repositories_sensor
from lakegc_assets_tests.defs.daemon import Daemon
from lakegc_assets_tests.defs.week import OVERRIDES, SUNDAY, make, remove, wave
from lakegc_assets_tests.site import Site


def waves(
    daemon: Daemon, at: datetime, lakefs: LakeFSResource | None = None, **more: Any
) -> list[str]:
    """One tick of ``gc_waves``."""
    policies = GarbageCollection(repositories=OVERRIDES).policies()
    server = (lakefs or LakeFSResource()).config
    sensor = waves_sensor(Collection(policies, lakefs=server, now=lambda: at))
    return daemon.sensor("gc_waves", as_defined=sensor, **more)


def test_a_week_starts_what_it_should(site: Site, daemon: Daemon) -> None:  # noqa: PLR0915 - a week is long
    def day(number: int, hours: float = 0) -> datetime:
        return SUNDAY + timedelta(days=number, hours=hours)

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
        make(site, name, SUNDAY - timedelta(days=1))
    runs = [daemon.instance.get_run_by_id(run) for run in daemon.schedule(SUNDAY)]
    found: dict[str, Any] = {run.tags["lakegc/repository"]: run for run in runs if run is not None}
    assert set(found) == {"daily", "weekly"}
    for name, mode, hours in (("daily", "auto", 48), ("weekly", "approved", 24)):
        tags = found[name].tags
        assert tags["lakegc/wave"] == wave(0)
        assert tags["lakegc/mode"] == mode
        assert tags["dagster/partition/repository"] == name
        # Its settings are those of its policy when it begins, however long it has waited.
        assert found[name].run_config == {"resources": {"collector": {"config": {}}}}
        usual = GarbageCollection(repositories=OVERRIDES).usual_settings(name)
        assert (usual["min_age_hours"], usual["max_candidate_share"]) == (hours, 0.5)
    assert found["daily"].tags["team"] == "data"
    assert "team" not in found["weekly"].tags


def test_a_repository_joins_a_wave_for_a_day_only(site: Site, daemon: Daemon) -> None:
    """The weekly one is not started by the daily ticks of the others, nor twice by a late one."""
    make(site, "weekly", SUNDAY - timedelta(days=1))
    assert daemon.schedule(SUNDAY + timedelta(days=1)) == []
    assert "of 1 repository, none is due" in daemon.skipped[-1]
    assert len(daemon.schedule(SUNDAY + timedelta(hours=23))) == 1
    assert daemon.schedule(SUNDAY + timedelta(hours=23, minutes=30)) == []


def test_a_repository_that_waits_in_the_queue_joins_no_other_wave(
    site: Site, daemon: Daemon
) -> None:
    """Or the queue would grow with each wave that takes longer than the next takes to come."""
    make(site, "daily", SUNDAY - timedelta(days=1))
    daemon.status = dg.DagsterRunStatus.QUEUED
    (waits,) = daemon.schedule(SUNDAY)
    assert daemon.schedule(SUNDAY + timedelta(days=1)) == []
    assert "is not in the queue" in daemon.skipped[-1]
    make(site, "fresh", SUNDAY + timedelta(days=1))
    assert len(daemon.schedule(SUNDAY + timedelta(days=2))) == 1
    daemon.succeed(waits)
    daemon.schedule(SUNDAY + timedelta(days=3))
    started = [key for _, key, _ in daemon.log]
    assert started == [f"daily|{wave(0)}", f"fresh|{wave(2)}", f"daily|{wave(3)}"]


def test_there_is_always_a_run_that_nobody_has_used(site: Site, daemon: Daemon) -> None:
    def added(at: datetime) -> list[str]:
        before = set(daemon.instance.get_dynamic_partitions("run"))
        sensor = repositories_sensor(Collection(Policies(), now=lambda: at))
        daemon.sensor("gc_repositories", as_defined=sensor)
        return sorted(set(daemon.instance.get_dynamic_partitions("run")) - before)

    make(site, "weekly", SUNDAY - timedelta(days=1))
    before = SUNDAY - timedelta(hours=1)
    assert added(before) == ["20260301T010000Z"]
    assert added(before + timedelta(minutes=1)) == []
    # The key of a wave is used by its runs, and another one is offered.
    assert len(daemon.schedule(SUNDAY)) == 1
    assert added(SUNDAY) == []
    assert added(SUNDAY + timedelta(minutes=1)) == ["20260301T020100Z"]
    assert added(SUNDAY + timedelta(minutes=2)) == []
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
            scheduled_execution_time=SUNDAY,
            repository_def=daemon.definitions.get_repository_def(),
            resources=daemon.definitions.resources,
        ) as context:
            requests = schedule.evaluate_tick(context).run_requests or ()
        return [str(one.partition_key) for one in requests]

    make(site, "weekly", SUNDAY - timedelta(days=1))
    key = f"weekly|{wave(0)}"
    assert asked() == [key]
    tags = {"lakegc/wave": wave(0), "lakegc/repository": "weekly"}
    job = daemon.definitions.resolve_job_def("gc")
    run = daemon.instance.create_run_for_job(job, tags=tags)
    assert run.status is dg.DagsterRunStatus.NOT_STARTED
    assert asked() == [key]
    daemon.kill(run.run_id)
    assert asked() == []
