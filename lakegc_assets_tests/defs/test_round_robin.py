"""Hundreds of repositories: a tick looks at some, the next ones go on, and none hides another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from threading import Event
from typing import Any

import dagster as dg
import pytest

from lakegc_assets.defs import round_robin
from lakegc_assets.defs.component import GarbageCollection
from lakegc_assets.defs.pending_marks import waiting_sensor
from lakegc_assets.defs.policy import NoticeSection
from lakegc_assets.defs.round_robin import RoundRobin
from lakegc_assets.defs.rule_changes import rules_sensor
from lakegc_assets.defs.sensors import approvals_sensor
from lakegc_assets.defs.staleness import staleness_sensor
from lakegc_assets.errors import LakegcError
from lakegc_assets.lakefs.client import LakeFSClient, utc_now
from lakegc_assets.run.artifacts import ArtifactRoot, AttemptArtifacts
from lakegc_assets.storage.errors import AccessDeniedError
from lakegc_assets.sweep.approval import Approval
from lakegc_assets_tests.defs.daemon import Daemon
from lakegc_assets_tests.defs.running import own_instance
from lakegc_assets_tests.left import BEGAN, finish, marked
from lakegc_assets_tests.site import Site

_HOOK = NoticeSection(url="http://127.0.0.1:9/hook")
_NAMES = [f"repo-{number:02}" for number in range(20)]
_MINUTE = timedelta(minutes=1)
_SENSORS = {
    "gc_approvals": approvals_sensor,
    "gc_rules": rules_sensor,
    "gc_staleness": staleness_sensor,
    "gc_waiting": waiting_sensor,
}


@pytest.fixture(scope="module")
def repositories(site: Site) -> None:
    """Twenty of them, made long ago."""
    site.calendar.days_ago = 240
    for name in _NAMES:
        site.client.create_repository(name, f"local://{name}")
    site.calendar.days_ago = 0


@pytest.fixture
def daemon(
    site: Site,
    repositories: None,  # noqa: ARG001
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Daemon]:
    """Without artifacts, and with time for one batch of repositories in each tick."""
    artifacts = site.root.open()
    artifacts.delete_many([info.key for info in artifacts.infos("")])
    monkeypatch.setattr(round_robin, "BUDGET_S", 0.0)
    for name in _SENSORS:
        # Looks that another test has begun are forgotten, as of repositories that are gone.
        RoundRobin(name, {}, utc_now()).look([], str)
    with own_instance() as instance:
        instance.add_dynamic_partitions("repository", _NAMES)
        yield Daemon(GarbageCollection().definitions(), instance)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the runs of each repository were listed."""
    found = Counter[str]()
    listed = ArtifactRoot.runs

    def runs(root: ArtifactRoot, repository: str) -> list[str]:
        found[repository] += 1
        return listed(root, repository)

    monkeypatch.setattr(ArtifactRoot, "runs", runs)
    return found


def tick(daemon: Daemon, name: str, at: datetime | None = None) -> list[str]:
    """One tick of a sensor, at some time."""
    moment = at or utc_now()
    collection = replace(GarbageCollection(notices=_HOOK).collection(), now=lambda: moment)
    return daemon.sensor(name, as_defined=_SENSORS[name](collection))


def launched(daemon: Daemon, repository: str, run: str) -> str:
    daemon.instance.add_dynamic_partitions("run", [run])
    return daemon.launch(dg.RunRequest(partition_key=f"{repository}|{run}"), "gc", {})


def to_approve(attempt: AttemptArtifacts) -> None:
    """A mark as the notice of it reads it."""
    facts = {"listed": 100, "listed_bytes": 10_000, "spared": {}}
    attempt.store().delete_many(["deletion_candidates/manifest.json"])
    by_reason = {"expired": {"objects": 40, "bytes": 4000}}
    finish(attempt, "deletion_candidates", 0, {**facts, "by_reason": by_reason})


def approve(attempt: AttemptArtifacts) -> None:
    now = utc_now()
    mark = attempt.recorded("gc_report").sha256
    ends = now + timedelta(days=7)
    given = Approval(attempt.repository, attempt.run, mark, "", "Ada", now, ends, 0.5)
    attempt.store().put("approvals/1.json", given.to_bytes())


def test_no_artifacts_are_read_of_what_dagster_knows_to_be_marked(
    daemon: Daemon, posted: list[dict[str, Any]], looks: Counter[str]
) -> None:
    for name in _NAMES:
        daemon.succeed(launched(daemon, name, "m1"))
    tick(daemon, "gc_staleness")
    assert (posted, looks.total()) == ([], 0)


def test_each_repository_that_is_stale_is_reported_once_over_several_ticks(
    site: Site, daemon: Daemon, posted: list[dict[str, Any]], looks: Counter[str]
) -> None:
    marked(site.root, "repo-19", "m1", (utc_now() - BEGAN) / timedelta(days=1))
    reported = []
    for _ in range(4):
        tick(daemon, "gc_staleness")
        reported.append(sorted(one["repository"] for one in posted))
        assert looks.total() <= len(reported) * round_robin.AT_ONCE
    assert [len(some) for some in reported] == [8, 16, 19, 19]
    # Whose mark no run of Dagster tells of is looked at, and not again while that is enough.
    assert reported[-1] == _NAMES[:-1]
    assert looks["repo-19"] == 1


def test_an_approval_is_found_when_its_turn_comes_and_one_of_a_run_at_once(
    site: Site, daemon: Daemon, looks: Counter[str]
) -> None:
    approve(marked(site.root, "repo-12", "m1"))
    assert tick(daemon, "gc_approvals") == []
    assert "8 of 20 repositories were read" in daemon.skipped[-1]
    approve(marked(site.root, "repo-19", "m1"))
    # The job gc_approve is a run on it.
    launched(daemon, "repo-19", "m1")
    runs = tick(daemon, "gc_approvals")
    found = [daemon.instance.get_run_by_id(run) for run in runs]
    assert [one.tags["lakegc/repository"] for one in found if one is not None] == [
        "repo-19",
        "repo-12",
    ]
    assert set(looks.values()) == {1}
    assert [run for _ in range(4) for run in tick(daemon, "gc_approvals")] == []


def test_repositories_on_which_runs_change_all_the_time_hide_no_others(
    site: Site, daemon: Daemon, looks: Counter[str]
) -> None:
    """As in a wave, in which more change in each tick than it can look at."""
    begun = utc_now() - 4 * _MINUTE
    tick(daemon, "gc_approvals", begun)
    looks.clear()
    busy = [launched(daemon, name, "m1") for name in _NAMES[:10]]
    approve(marked(site.root, "repo-19", "m2"))
    approve(marked(site.root, "repo-09", "m2"))
    found = set[str]()
    for minute in (1, 2, 3):
        for run in busy:
            daemon.succeed(run)
        asked = tick(daemon, "gc_approvals", begun + minute * _MINUTE)
        runs = [daemon.instance.get_run_by_id(run) for run in asked]
        found |= {run.tags["lakegc/repository"] for run in runs if run is not None}
    assert found == {"repo-09", "repo-19"}
    assert looks.keys() == set(_NAMES)


def test_a_repository_that_cannot_be_read_keeps_no_approval_of_another_from_its_sweep(
    site: Site, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    approve(marked(site.root, "repo-01", "m1"))
    listed = ArtifactRoot.runs

    def runs(root: ArtifactRoot, repository: str) -> list[str]:
        if repository == "repo-00":
            raise AccessDeniedError("its folder is closed")
        return listed(root, repository)

    monkeypatch.setattr(ArtifactRoot, "runs", runs)
    assert len(tick(daemon, "gc_approvals")) == 1


def test_a_mark_is_listed_when_its_turn_comes_and_that_of_a_run_at_once(
    site: Site, daemon: Daemon, posted: list[dict[str, Any]], looks: Counter[str]
) -> None:
    now = utc_now() - 3 * _MINUTE
    for name in ("repo-00", "repo-12"):
        to_approve(marked(site.root, name, "m1"))
    counts = []
    for minute in range(3):
        tick(daemon, "gc_waiting", now + minute * _MINUTE)
        counts.append(looks.total())
    assert [one["repository"] for one in posted] == ["repo-00", "repo-12"]
    assert counts == [8, 16, 20]
    # One run has ended: its repository is read, and no other.
    to_approve(marked(site.root, "repo-19", "m1"))
    daemon.succeed(launched(daemon, "repo-19", "m1"))
    tick(daemon, "gc_waiting", now + 3.5 * _MINUTE)
    assert looks.total() == 21
    keys = ["repo-00|m1", "repo-12|m1", "repo-19|m1"]
    assert sorted(daemon.instance.get_dynamic_partitions("waiting")) == keys
    # Nothing has changed, until all are looked at again.
    tick(daemon, "gc_waiting", now + 4 * _MINUTE)
    assert looks.total() == 21
    for minute in range(3):
        tick(daemon, "gc_waiting", now + (65 + minute) * _MINUTE)
    assert looks.total() == 41
    assert sorted(daemon.instance.get_dynamic_partitions("waiting")) == keys
    assert len(posted) == 3
    daemon.instance.delete_dynamic_partition("repository", "repo-12")
    tick(daemon, "gc_waiting", now + 70 * _MINUTE)
    keys.remove("repo-12|m1")
    assert sorted(daemon.instance.get_dynamic_partitions("waiting")) == keys


def test_a_mark_whose_candidates_cannot_be_read_hides_no_other_that_waits(
    site: Site, daemon: Daemon, posted: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("repo-00", "repo-01"):
        to_approve(marked(site.root, name, "m1"))
    recorded = AttemptArtifacts.recorded

    def closes(attempt: AttemptArtifacts, asset: str) -> Any:
        if attempt.repository == "repo-00" and asset == "deletion_candidates":
            raise AccessDeniedError("it was closed while it was read")
        return recorded(attempt, asset)

    monkeypatch.setattr(AttemptArtifacts, "recorded", closes)
    tick(daemon, "gc_waiting")
    assert [one["repository"] for one in posted] == ["repo-01"]


def test_a_mark_that_could_not_be_read_for_a_moment_is_told_before_an_hour_has_passed(
    site: Site, daemon: Daemon, posted: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = utc_now() - 3 * _MINUTE
    for minute in range(3):
        tick(daemon, "gc_waiting", now + minute * _MINUTE)
    to_approve(marked(site.root, "repo-19", "m1"))
    daemon.succeed(launched(daemon, "repo-19", "m1"))
    with monkeypatch.context() as patch:
        patch.setattr(ArtifactRoot, "runs", closed)
        tick(daemon, "gc_waiting", now + 4 * _MINUTE)
    assert posted == []
    for later in (5.0, 9.5):
        tick(daemon, "gc_waiting", now + later * _MINUTE)
    assert [one["repository"] for one in posted] == ["repo-19"]


def closed(_root: ArtifactRoot, _repository: str) -> list[str]:
    raise AccessDeniedError("its folder is closed")


def test_rules_of_few_repositories_are_asked_for_in_a_tick_and_no_change_is_lost(
    site: Site, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Counter[str]()
    rules = LakeFSClient.gc_rules

    def counting(client: LakeFSClient, repository: str) -> Any:
        asked[repository] += 1
        return rules(client, repository)

    monkeypatch.setattr(LakeFSClient, "gc_rules", counting)
    begun = utc_now()
    counts = []
    for number in range(3):
        assert tick(daemon, "gc_rules", begun + number * _MINUTE) == []
        counts.append(asked.total())
    assert counts == [8, 16, 24]
    assert set(asked) == set(_NAMES)
    assert "8 of 20 repositories were read" in daemon.skipped[-1]
    site.client.set_gc_rules("repo-19", 3, {})
    site.client.set_gc_rules("repo-00", 3, {})
    for number in range(3, 6):
        tick(daemon, "gc_rules", begun + number * _MINUTE)
    keys = [key.partition("|")[0] for _, key, _ in daemon.log]
    assert sorted(keys) == ["repo-00", "repo-19"]


def test_a_changed_run_is_known_also_where_the_clock_of_dagster_s_database_is_another(
    site: Site, daemon: Daemon, looks: Counter[str]
) -> None:
    """PostgreSQL has the times of runs in the time zone of its server."""
    ahead = utc_now() + timedelta(hours=5)
    launched(daemon, "repo-00", "m0")
    for minute in range(3):
        tick(daemon, "gc_waiting", ahead + minute * _MINUTE)
    assert looks.keys() == set(_NAMES)
    looks.clear()
    to_approve(marked(site.root, "repo-19", "m1"))
    daemon.succeed(launched(daemon, "repo-19", "m1"))
    for minute in (3, 4, 5):
        tick(daemon, "gc_waiting", ahead + minute * _MINUTE)
    assert looks == {"repo-19": 1}


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Event]:
    """The look at ``repo-00`` does not end before this is set, and gives what was there before."""
    ended, given = Event(), ArtifactRoot.runs

    def runs(root: ArtifactRoot, repository: str) -> list[str]:
        found = given(root, repository)
        if repository == "repo-00":
            ended.wait()
        return found

    monkeypatch.setattr(ArtifactRoot, "runs", runs)
    monkeypatch.setattr(round_robin, "LIMIT_S", 1.0)
    yield ended
    ended.set()


def test_a_look_that_takes_longer_than_a_tick_holds_up_no_other_and_is_taken_by_a_later_one(
    site: Site, daemon: Daemon, looks: Counter[str], slow: Event
) -> None:
    """A repository with thousands of old runs on a slow store."""
    for name in ("repo-00", "repo-03", "repo-19"):
        approve(marked(site.root, name, "m1"))
    begun = utc_now()
    for minute in range(4):
        tick(daemon, "gc_approvals", begun + minute * _MINUTE)
    keys = [key for _, key, _ in daemon.log]
    assert keys == ["repo-03|m1", "repo-19|m1"]
    assert looks["repo-00"] == 1
    slow.set()
    for minute in range(4, 7):
        tick(daemon, "gc_approvals", begun + minute * _MINUTE)
    assert [key for _, key, _ in daemon.log] == [*keys, "repo-00|m1"]


def test_a_mark_that_ends_while_its_repository_is_looked_at_is_told_within_the_hour(
    site: Site, daemon: Daemon, posted: list[dict[str, Any]], looks: Counter[str], slow: Event
) -> None:
    begun = utc_now() - 9 * _MINUTE
    launched(daemon, "repo-00", "m0")
    tick(daemon, "gc_waiting", begun)
    to_approve(marked(site.root, "repo-00", "m1"))
    daemon.succeed(launched(daemon, "repo-00", "m1"))
    tick(daemon, "gc_waiting", begun + _MINUTE)
    assert (looks["repo-00"], posted) == (1, [])
    slow.set()
    for minute in range(2, 6):
        tick(daemon, "gc_waiting", begun + minute * _MINUTE)
    assert [one["repository"] for one in posted] == ["repo-00"]
    assert looks["repo-00"] == 2


def test_a_repository_whose_look_is_slow_takes_no_time_of_the_others(
    daemon: Daemon, looks: Counter[str], slow: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(round_robin, "BUDGET_S", 4.0)
    monkeypatch.setattr(round_robin, "LIMIT_S", 4.0)
    tick(daemon, "gc_approvals")
    assert looks == dict.fromkeys(_NAMES, 1)
    assert not slow.is_set()


@dataclass
class _Slow:
    """Looks that end when they are let, and how often each repository was looked at."""

    goes_on: Event = field(default_factory=Event)
    begun: Counter[str] = field(default_factory=Counter)

    def __call__(self, name: str) -> int:
        self.begun[name] += 1
        number = self.begun[name]
        if name == "broken":
            raise ValueError(name)
        self.goes_on.wait()
        return number


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Slow]:
    """Looks that take longer than a tick."""
    monkeypatch.setattr(round_robin, "LIMIT_S", 0.5)
    made = _Slow()
    yield made
    made.goes_on.set()


def test_no_look_is_begun_twice_at_a_time_whatever_another_one_raises(look: _Slow) -> None:
    for _ in range(3):
        with pytest.raises(ValueError, match="broken"):
            RoundRobin("raises", {}, utc_now()).look(["broken", "slow"], look)
    assert look.begun == {"broken": 3, "slow": 1}


def test_no_more_looks_are_under_way_than_at_once_however_many_ticks_begin_some(
    look: _Slow,
) -> None:
    names = [f"repo-{number}" for number in range(3 * round_robin.AT_ONCE)]
    for some in (names, names[::-1], names[5:] + names[:5]):
        looked = dict.fromkeys(some[round_robin.AT_ONCE :], 1)
        assert RoundRobin("many", {"looked": looked}, utc_now()).look(some, look) == {}
    assert look.begun.total() == round_robin.AT_ONCE


def test_an_answer_is_taken_where_a_run_has_changed_only_before_it_was_begun(
    daemon: Daemon, look: _Slow
) -> None:
    """A tick that fails, since it could look at nothing, leaves the cursor as it was."""
    launched(daemon, "repo-00", "m0")

    def tick() -> dict[str, int]:
        taking = RoundRobin("known", {}, utc_now())
        taking.put_changed_first(daemon.instance)
        return taking.look(["repo-00"], look)

    assert tick() == {}
    look.goes_on.set()
    assert tick() == {"repo-00": 1}


def test_an_answer_that_nobody_asked_for_in_between_is_not_taken(look: _Slow) -> None:
    def tick(at: datetime, *names: str) -> dict[str, int]:
        return RoundRobin("stale", {}, at).look(names, look)

    now = utc_now()
    assert tick(now, "repo") == {}
    # It was removed, or is not stale any more.
    assert tick(now + _MINUTE) == {}
    look.goes_on.set()
    assert tick(now + 2 * _MINUTE, "repo") == {"repo": 2}


def test_an_answer_from_before_a_sensor_was_off_is_not_taken(look: _Slow) -> None:
    now = utc_now()
    given = Event()

    def ending(name: str) -> int:
        found = look(name)
        given.set()
        return found

    assert RoundRobin("off", {}, now).look(["repo"], ending) == {}
    look.goes_on.set()
    assert given.wait(10)
    RoundRobin("other", {}, now).look(["repo"], ending)
    later = RoundRobin("off", {}, now + timedelta(days=2)).look(["repo"], ending)
    assert later["repo"] == look.begun.total()


@pytest.mark.parametrize("sensor", ["gc_approvals", "gc_waiting", "gc_staleness"])
def test_a_tick_that_could_look_at_nothing_fails_but_that_of_staleness(
    sensor: str, daemon: Daemon, posted: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = Event()

    def runs(_root: ArtifactRoot, _repository: str) -> list[str]:
        ended.wait()
        return []

    monkeypatch.setattr(ArtifactRoot, "runs", runs)
    with monkeypatch.context() as patch:
        patch.setattr(round_robin, "LIMIT_S", 0.1)
        slow = pytest.raises(LakegcError, match=r"repo-00, .* could not be read within 0")
        with nullcontext() if sensor == "gc_staleness" else slow:
            tick(daemon, sensor)
    assert posted == []
    ended.set()
    tick(daemon, sensor)
