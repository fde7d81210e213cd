"""What automation does when something is wrong: its ticks fail, and people hear of it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import dagster as dg
import pytest
from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool
from urllib3.connection import HTTPConnection
from urllib3.exceptions import NameResolutionError

from lakegc_assets.defs import notices
from lakegc_assets.defs.collection import Collection
from lakegc_assets.defs.component import GarbageCollection
from lakegc_assets.defs.connections import LakeFSResource
from lakegc_assets.defs.failures import TRIED_AGAIN, failed_steps
from lakegc_assets.defs.names import PLAIN, partition_key
from lakegc_assets.defs.pending_marks import waiting_sensor
from lakegc_assets.defs.policy import NoticeSection, Override, ServerSection
from lakegc_assets.defs.schedules import waves_sensor
from lakegc_assets.defs.staleness import CHECK, REPOSITORIES, staleness_sensor
from lakegc_assets.errors import ConfigurationError, LakegcError
from lakegc_assets.estate.notices import NoticeError
from lakegc_assets.lakefs.client import utc_now
from lakegc_assets.lakefs.config import LakeFSConfig
from lakegc_assets.lakefs.errors import AuthenticationError, ConnectionFailedError, LakeFSError
from lakegc_assets.run.artifacts import ArtifactRoot
from lakegc_assets.storage.errors import StoreUnavailableError
from lakegc_assets_tests.defs.daemon import Daemon, schedule_failed, ticked
from lakegc_assets_tests.defs.running import QUIET, own_instance
from lakegc_assets_tests.defs.week import make, remove
from lakegc_assets_tests.site import Site

_SUNDAY = datetime(2026, 3, 1, 2, tzinfo=timezone.utc)
_HOUR = timedelta(hours=1)
_HOOK = NoticeSection(url="http://127.0.0.1:9/hook")
_SILENT_CONFIG: dict[str, Any] = {"endpoint": "http://127.0.0.1:9", "max_attempts": 1}
_SILENT = LakeFSResource(**_SILENT_CONFIG)


@pytest.fixture
def daemon(site: Site) -> Iterator[Daemon]:
    for repository in site.client.repositories():
        remove(site, repository.id)
    with own_instance() as instance:
        yield Daemon(GarbageCollection().definitions(), instance)


def _collection(at: datetime, lakefs: Callable[[], LakeFSConfig] | None) -> Collection:
    made = replace(GarbageCollection(notices=_HOOK).collection(), now=lambda: at)
    return made if lakefs is None else replace(made, lakefs=lakefs)


def waves(
    daemon: Daemon, at: datetime, lakefs: Callable[[], LakeFSConfig] | None = None
) -> list[str]:
    return daemon.sensor("gc_waves", as_defined=waves_sensor(_collection(at, lakefs)))


def stale(daemon: Daemon, at: datetime, lakefs: Callable[[], LakeFSConfig] | None = None) -> None:
    daemon.sensor("gc_staleness", as_defined=staleness_sensor(_collection(at, lakefs)))


def results(daemon: Daemon) -> list[tuple[bool, str]]:
    """The results of the check, the last one first."""
    key = dg.AssetCheckKey(PLAIN.key(REPOSITORIES), CHECK)
    storage = daemon.instance.event_log_storage
    found = []
    for record in storage.get_asset_check_execution_history(key, limit=100):
        assert record.event is not None
        assert record.event.dagster_event is not None
        one = record.event.dagster_event.asset_check_evaluation_data
        found.append((one.passed, one.description or ""))
    return found


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"access_key_id": "rotated", "secret_access_key": "rotated"}, "401"),
        ({"endpoint": "lakefs.example.com"}, "is not a URL like"),
        (
            {"endpoint": "http://no-such-host.example.invalid", "max_attempts": 1},
            "Failed to resolve",
        ),
        ({"endpoint": "http://127.0.0.1:9", "max_attempts": 1}, "Connection refused"),
    ],
)
def test_a_server_that_cannot_be_asked_fails_each_tick(
    site: Site, daemon: Daemon, wrong: dict[str, Any], words: str
) -> None:
    make(site, "weekly", _SUNDAY - 24 * _HOUR)
    lakefs = LakeFSResource(**wrong)
    daemon.schedule(_SUNDAY, lakefs=lakefs)
    assert words in daemon.failed[-1]
    for name in ("gc_repositories", "gc_rules", "gc_approvals"):
        with pytest.raises(LakegcError, match=words):
            daemon.sensor(name, lakefs=lakefs)


def test_a_server_that_has_never_listed_a_repository_passes_no_check(daemon: Daemon) -> None:
    stale(daemon, _SUNDAY, _SILENT.config)
    ((passed, said),) = results(daemon)
    assert not passed
    assert "0 of 0 repositories were not marked for too long. lakeFS does not list its" in said


def test_a_check_by_hand_says_what_is_wrong(daemon: Daemon) -> None:
    job = daemon.definitions.resolve_job_def("__ASSET_JOB").get_subset(
        asset_check_selection={dg.AssetCheckKey(PLAIN.key(REPOSITORIES), CHECK)}
    )
    done = job.execute_in_process(
        instance=daemon.instance,
        raise_on_error=False,
        run_config={**QUIET, "resources": {"lakefs": {"config": _SILENT_CONFIG}}},
    )
    (failed,) = failed_steps(daemon.instance, done.run_id)
    assert failed.step_failure_data.error is not None
    assert failed.step_failure_data.error.message.startswith("failed: GET http://127.0.0.1:9/")
    assert failed.step_failure_data.user_failure_data is not None
    # No sensor repeats a check.
    said = failed.step_failure_data.user_failure_data.metadata[TRIED_AGAIN]
    assert "Any other run: launch it again" in str(said.value)


def test_a_repository_that_is_included_and_does_not_exist_fails_the_tick(
    site: Site, daemon: Daemon
) -> None:
    make(site, "weekly", _SUNDAY - 24 * _HOUR)
    daemon.definitions = GarbageCollection(include=["weekly", "weakly", "m*"]).definitions()
    daemon.schedule(_SUNDAY)
    assert "`include` names 'weakly', which the lakeFS server does not have" in daemon.failed[-1]
    daemon.definitions = GarbageCollection(include=["weakl*"]).definitions()
    daemon.schedule(_SUNDAY)
    assert "leave nothing of the lakeFS server, which has 1 repository" in daemon.failed[-1]
    never = [Override(include=["weakly", "later*"], sweep="never")]
    daemon.definitions = GarbageCollection(sweep="auto", repositories=never).definitions()
    daemon.schedule(_SUNDAY)
    assert "`repositories` names 'weakly', which the lakeFS server does not" in daemon.failed[-1]
    daemon.definitions = GarbageCollection(exclude=["legal-hodl", "m*"]).definitions()
    daemon.schedule(_SUNDAY)
    assert "`exclude` names 'legal-hodl', which the lakeFS server does not" in daemon.failed[-1]
    daemon.definitions = GarbageCollection(include=["weekly", "m*"]).definitions()
    assert len(daemon.schedule(_SUNDAY)) == 1


def test_artifacts_that_cannot_be_read_fail_the_tick_that_looks_for_approvals(
    site: Site, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(site, "weekly", _SUNDAY - 24 * _HOUR)

    def no_answer(*_: object) -> list[str]:
        raise StoreUnavailableError("no answer")

    monkeypatch.setattr(ArtifactRoot, "runs", no_answer)
    with pytest.raises(StoreUnavailableError):
        daemon.sensor("gc_approvals")


def test_a_wave_that_waits_for_a_person_is_reported_at_once_and_made_up_for(
    site: Site, daemon: Daemon, posted: list[dict[str, Any]]
) -> None:
    make(site, "weekly", _SUNDAY - 24 * _HOUR)
    rotated = LakeFSResource(access_key_id="rotated", secret_access_key="rotated")
    daemon.schedule(_SUNDAY, lakefs=rotated)
    assert waves(daemon, _SUNDAY + _HOUR, rotated.config) == []
    (one,) = posted
    assert (one["event"], one["wave"]) == ("wave", "20260301T020000Z")
    assert "401" in one["sentence"]
    assert "until 2026-03-02 02:00 UTC" in one["what_to_do"]
    # It was reported, so that now the tick can fail.
    with pytest.raises(AuthenticationError):
        waves(daemon, _SUNDAY + _HOUR, rotated.config)
    (run,) = waves(daemon, _SUNDAY + 23 * _HOUR)
    found = daemon.instance.get_run_by_id(run)
    assert found is not None
    assert found.tags["dagster/partition"] == str(partition_key("weekly", "20260301T020000Z"))
    assert waves(daemon, _SUNDAY + 25 * _HOUR) == []
    assert len(posted) == 1


def test_a_wave_that_nobody_could_start_in_a_day_is_reported_as_lost(
    site: Site, daemon: Daemon, posted: list[dict[str, Any]]
) -> None:
    make(site, "weekly", _SUNDAY - 24 * _HOUR)
    daemon.schedule(_SUNDAY, lakefs=_SILENT)
    for hours in (1, 23):
        waves(daemon, _SUNDAY + hours * _HOUR, _SILENT.config)
    assert posted == []
    waves(daemon, _SUNDAY + 24 * _HOUR, _SILENT.config)
    waves(daemon, _SUNDAY + 25 * _HOUR)
    (one,) = posted
    assert one["title"] == "wave 20260301T020000Z was lost"
    assert "Connection refused" in one["sentence"]
    assert [source for _, _, source in daemon.log] == []


def test_a_sensor_that_has_failed_for_an_hour_is_reported_once_until_it_does_not(
    daemon: Daemon, posted: list[dict[str, Any]]
) -> None:
    """Dagster ends a tick after a minute, say, and tells nobody."""
    now = utc_now()

    def tick(name: str, hours: float, error: str = "") -> None:
        ticked(daemon.instance, name, "here", now + hours * _HOUR, error)

    for hours in (0.1, 0.6, 1.0):
        tick("gc_approvals", hours, "DagsterUserCodeUnreachableError: it took over 60 seconds\n")
        tick("gc_waiting", hours, "" if hours == 0.6 else "RefusedError: no\n")
        tick("somebody_s", hours, "Error: no\n")
    waves(daemon, now + 1.05 * _HOUR)
    assert posted == []
    tick("gc_approvals", 1.1, "DagsterUserCodeUnreachableError: it took over 60 seconds\n")
    for hours in (1.15, 1.2):
        waves(daemon, now + hours * _HOUR)
        assert [one["sensor"] for one in posted] == ["gc_approvals"]
    assert posted[0]["event"] == "sensor"
    assert posted[0]["sentence"].endswith("The last error: it took over 60 seconds")
    tick("gc_approvals", 1.3)
    waves(daemon, now + 1.4 * _HOUR)
    tick("gc_approvals", 1.5, "RefusedError: no\n")
    waves(daemon, now + 1.6 * _HOUR)
    assert len(posted) == 1
    tick("gc_approvals", 2.5, "RefusedError: no\n")
    waves(daemon, now + 2.6 * _HOUR)
    assert [one["sentence"][-2:] for one in posted[1:]] == ["no"]


@pytest.mark.parametrize("hours", [2, 24])
def test_a_sensor_that_ticks_seldom_and_fails_is_reported_once(
    hours: int, daemon: Daemon, posted: list[dict[str, Any]]
) -> None:
    """As often as `every_seconds` of `metrics` says."""
    now = utc_now()
    for number in range(4):
        at = now + number * hours * _HOUR
        ticked(daemon.instance, "gc_metrics", "here", at, "RefusedError: no\n", hours * 3600)
        for later in (0.1, 0.9):
            waves(daemon, at + later * hours * _HOUR)
    assert [one["sensor"] for one in posted] == ["gc_metrics"]


def test_staleness_is_known_and_reported_without_lakefs(
    site: Site, daemon: Daemon, posted: list[dict[str, Any]]
) -> None:
    now = utc_now()
    make(site, "marked", now - 240 * _HOUR)
    make(site, "forgotten", now - 240 * _HOUR)
    stale(daemon, now)
    daemon.succeed(_run_of(daemon, "marked"))
    # A run of a few assets makes no mark, nor does one of checks alone.
    for few in (["store_listing"], []):
        daemon.succeed(_run_of(daemon, "forgotten", few))
    assert results(daemon)[0][0]
    later = now + 6 * 24 * _HOUR
    stale(daemon, later, _SILENT.config)
    (one,) = posted
    assert (one["event"], one["repository"]) == ("stale", "forgotten")
    assert "forgotten was made 16.0 days ago and never marked" in one["sentence"]
    assert "lakeFS does not list its repositories" in one["sentence"]
    assert "; `lakegc mark forgotten` marks it now" in one["what_to_do"]
    passed, said = results(daemon)[0]
    assert not passed
    assert "1 of 2 repositories was not marked for too long: forgotten. lakeFS does not" in said
    # People are reported once, and Dagster each day.
    stale(daemon, later, _SILENT.config)
    assert (len(posted), len(results(daemon))) == (1, 2)
    stale(daemon, later + 24 * _HOUR)
    assert (len(posted), len(results(daemon))) == (1, 3)


def test_a_server_with_one_repository_has_its_check_in_the_singular(
    site: Site, daemon: Daemon
) -> None:
    make(site, "only", utc_now())
    stale(daemon, utc_now())
    ((passed, said),) = results(daemon)
    assert passed
    assert said == "0 of 1 repository was not marked for too long"


def _run_of(daemon: Daemon, repository: str, assets: list[str] | None = None) -> str:
    daemon.instance.add_dynamic_partitions("run", ["m1"])
    chosen = None if assets is None else [PLAIN.key(asset) for asset in assets]
    request = dg.RunRequest(partition_key=partition_key(repository, "m1"), asset_selection=chosen)
    return daemon.launch(request, "gc", {})


def test_staleness_is_reported_where_neither_variables_nor_artifacts_are_there(
    site: Site, daemon: Daemon, posted: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    make(site, "weekly", utc_now() - 240 * _HOUR)
    stale(daemon, utc_now())

    def no_answer(*_: object) -> list[str]:
        raise StoreUnavailableError("no answer")

    monkeypatch.setattr(ArtifactRoot, "runs", no_answer)
    variables = ServerSection(
        access_key_id_variable="NOT_SET", secret_access_key_variable="NOT_SET"
    )
    unset = GarbageCollection(lakefs=variables).collection().lakefs
    stale(daemon, utc_now() + 5 * 24 * _HOUR, unset)
    (one,) = posted
    assert "weekly was made 15.0 days ago" in one["sentence"]
    assert "the variable 'NOT_SET' is not set, which `lakefs`" in one["sentence"]
    assert "Its artifacts cannot be read: no answer" in one["sentence"]


def _resolution(number: int) -> socket.gaierror:
    return socket.gaierror(number, "as the name server says")


@pytest.mark.parametrize(
    ("number", "transient"), [(socket.EAI_NONAME, False), (socket.EAI_AGAIN, True)]
)
def test_a_name_that_nobody_knows_does_not_pass_and_a_silent_name_server_does(
    number: int, *, transient: bool
) -> None:
    class Unresolved(HTTPConnection):
        def connect(self) -> None:
            error = _resolution(number)
            raise NameResolutionError(self.host, self, error) from error

    class Pool(HTTPConnectionPool):
        ConnectionCls = Unresolved

    adapter = HTTPAdapter()
    adapter.poolmanager.pool_classes_by_scheme = {"http": Pool}
    resource = LakeFSResource(
        endpoint="http://lakefs.example.com", access_key_id="a", secret_access_key="b",
        max_attempts=1,
    )  # fmt: skip
    with resource.config().connect() as client:
        client.session.mount("http://", adapter)
        with pytest.raises(ConnectionFailedError) as failed:
            list(client.repositories())
    assert failed.value.transient is transient
    assert not ConfigurationError("x").transient
    assert not LakeFSError("x").transient


def waiting(daemon: Daemon, at: datetime) -> list[str]:
    return daemon.sensor("gc_waiting", as_defined=waiting_sensor(_collection(at, None)))


def test_that_the_sensor_which_tells_of_others_fails_itself_is_reported_once_by_another(
    daemon: Daemon, posted: list[dict[str, Any]]
) -> None:
    now = utc_now()
    for hours in (0.1, 0.6, 1.1):
        for name in ("gc_waves", "somebody_s"):
            ticked(daemon.instance, name, "here", now + hours * _HOUR, "RefusedError: no\n")
    for hours in (1.15, 1.2):
        waiting(daemon, now + hours * _HOUR)
        assert [one["sensor"] for one in posted] == ["gc_waves"]


def test_a_notice_of_a_failing_sensor_waits_beside_those_of_marks_until_it_is_taken(
    daemon: Daemon, posted: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = utc_now()
    for hours in (0.1, 1.1):
        ticked(daemon.instance, "gc_waves", "here", now + hours * _HOUR, "RefusedError: no\n")

    def refuses(*_: object) -> None:
        raise NoticeError("status 503")

    with monkeypatch.context() as patch:
        patch.setattr(notices, "post", refuses)
        waiting(daemon, now + 1.15 * _HOUR)
    waiting(daemon, now + 1.2 * _HOUR)
    assert [one["sensor"] for one in posted] == ["gc_waves"]


def test_a_failed_tick_of_another_schedule_is_reported_once(
    site: Site, daemon: Daemon, posted: list[dict[str, Any]]
) -> None:
    """A prune that does not begin is due again in a week; and a wave waits for a person, too."""
    make(site, "weekly", _SUNDAY - 24 * _HOUR)
    rotated = LakeFSResource(access_key_id="rotated", secret_access_key="rotated")
    daemon.schedule(_SUNDAY, lakefs=rotated)
    at = _SUNDAY + 10 * _HOUR
    for name in ("gc_prune_schedule", "somebody_s_schedule"):
        schedule_failed(daemon.instance, name, at, RuntimeError("no key"))
    for minutes in (5, 10, 15):
        with suppress(AuthenticationError):
            waves(daemon, at + minutes * _HOUR / 60, rotated.config)
    assert [one["event"] for one in posted] == ["wave", "schedule"]
    assert posted[1]["schedule"] == "gc_prune_schedule"
    assert "2026-03-01 12:00 UTC started nothing: no key" in posted[1]["sentence"]
    assert "launch gc_prune by hand" in posted[1]["what_to_do"]
