"""A store that is away is waited for where that does no harm, and never for a delete."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from dataclasses import replace
from time import monotonic
from urllib.parse import urlsplit

import pytest

from lakegc_assets import outages, traffic
from lakegc_assets.errors import ConfigurationError
from lakegc_assets.run.artifacts import ArtifactRoot
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.bucket_store import BucketStore
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.errors import StorageError, StoreThrottledError, StoreUnavailableError
from lakegc_assets.storage.opening import open_store
from lakegc_assets_tests.storage.azure_answers import refusal
from lakegc_assets_tests.storage.conftest import Answer, Script
from lakegc_assets_tests.storage.s3_answers import error, found, page

_LONG = 60.0
_TRIES = 2
_STARTING = Answer(503, error("XMinioServerNotInitialized"))
Open = Callable[[Answer, float], ObjectStore]


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakegc_assets.storage.s3.client.LONGEST_PAUSE_S", 0.01)


@pytest.fixture(params=["s3", "azure", "gcs"])
def opened(request: pytest.FixtureRequest, script: Script) -> Open:
    """Opens a store of each service, whose server gives an answer until the test has another."""
    if request.param == "s3":

        def s3(answer: Answer, wait_s: float) -> ObjectStore:
            script.answers = [answer]
            return open_store("s3://b/ns", replace(script.config(_TRIES), wait_s=wait_s))

        return s3
    opens: Callable[..., BucketStore] = request.getfixturevalue(request.param)  # type: ignore[type-arg]

    def other(answer: Answer, wait_s: float) -> ObjectStore:
        del answer
        store = opens(refusal(503, "ServerBusy"), tries=_TRIES)
        return open_store(store.url, replace(store.config, wait_s=wait_s))

    return other


def test_a_read_waits_for_a_store_that_is_away(opened: Open, script: Script) -> None:
    store = opened(_STARTING, _LONG)
    script.answers = [script.answers[0]] * 7 + [found("data", headers={"x-goog-generation": "1"})]
    assert store.get("k") == b"data"
    assert len(script.requests) == 8


def test_a_put_waits_unless_it_has_a_condition(opened: Open, script: Script) -> None:
    store = opened(_STARTING, 0.5)
    with pytest.raises(StoreThrottledError):
        store.put_if_absent("k", b"data")
    assert len(script.requests) == _TRIES
    with pytest.raises(StoreThrottledError):
        store.put("k", b"data")
    # Google's service takes writes by POST, as it takes batches of deletes.
    assert len(script.requests) > 3 * _TRIES or store.url.startswith("gs:")


def test_a_new_attempt_of_a_run_waits_for_nothing(script: Script) -> None:
    """Else it could hide an attempt that another process has begun, or published, meanwhile."""
    unpublished = [Answer(404), Answer(body=page(""))]
    recorded = found('{"attempt": "a", "earlier": []}')
    script.answers = [recorded, recorded, *unpublished, _STARTING]
    root = ArtifactRoot("s3://b/artifacts", replace(script.config(_TRIES), wait_s=0.5))
    with pytest.raises(StoreThrottledError):
        root.new_attempt("repo", "m1")
    puts = [one for one in script.requests if one.startswith("PUT")]
    assert len(puts) == _TRIES
    assert {one.partition("?")[0] for one in puts} == {"PUT /b/artifacts/repo/m1/attempt.json"}


@pytest.mark.parametrize("singly", [False, True])
def test_a_delete_never_waits(opened: Open, script: Script, *, singly: bool) -> None:
    (outcome,) = opened(_STARTING, _LONG).delete_many(["k"], singly=singly)
    assert outcome.outcome == "failed"
    assert len(script.requests) <= _TRIES


def test_a_wait_ends(opened: Open, script: Script, caplog: pytest.LogCaptureFixture) -> None:
    store = opened(_STARTING, 2.0)
    with pytest.raises(StoreThrottledError):
        store.get("k")
    assert len(script.requests) > 3 * _TRIES
    # Only what takes longer than some seconds is worth a line.
    assert "is away" not in caplog.text


def test_requests_wait_together_for_a_store_that_is_away(opened: Open, script: Script) -> None:
    """Else the waits add up where errors are suppressed: of each earlier run, or repository."""
    store, now, server = opened(_STARTING, _LONG), monotonic(), urlsplit(script.endpoint).netloc
    for ago in (2 * _LONG, 1.5 * _LONG, _LONG, _LONG / 2, 0):
        outages.note_away(server, now - ago)
    for _ in range(3):
        with pytest.raises(StoreThrottledError):
            store.get("k")
    assert len(script.requests) == 3 * _TRIES
    # Any answer ends the outage.
    script.answers = [Answer(403)]
    with pytest.raises(StorageError):
        store.get("k")
    assert outages.note_answer(server, monotonic()) == 0


def test_a_long_wait_is_logged_once_for_all_threads(
    opened: Open, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING, "lakegc_assets.storage.http")
    monkeypatch.setattr("lakegc_assets.outages.QUIET_S", 0.05)
    with pytest.raises(StoreThrottledError):
        opened(_STARTING, 1.0).get("k")
    lines = [one for one in caplog.messages if "the object store is away: waiting for it" in one]
    assert 1 < len(lines) < 21


def _attempts(config: StoreConfig) -> int:
    before = traffic.by_kind()
    with pytest.raises(StoreUnavailableError):
        open_store("s3://b/ns", config).get("k")
    return sum(traffic.since(before).values())


@pytest.mark.usefixtures("script")
def test_refused_connections_are_waited_for_and_unknown_hosts_are_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = StoreConfig(endpoint_url=f"http://127.0.0.1:{port}", max_attempts=_TRIES, wait_s=0.5)
    assert _attempts(config) > 3 * _TRIES
    unknown = replace(config, endpoint_url=f"http://no-such-host.invalid:{port}", wait_s=_LONG)
    assert _attempts(unknown) == _TRIES


def test_an_error_that_stays_is_reported_at_once(opened: Open, script: Script) -> None:
    store = opened(_STARTING, _LONG)
    script.answers = [Answer(403)]
    with pytest.raises(StorageError):
        store.get("k")
    assert len(script.requests) == 1


@pytest.mark.parametrize("wait_s", [-1.0, float("inf"), float("nan")])
def test_nobody_waits_for_ever(wait_s: float) -> None:
    with pytest.raises(ConfigurationError, match="wait_s"):
        StoreConfig(wait_s=wait_s)
