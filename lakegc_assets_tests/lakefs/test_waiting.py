"""A server that is away is waited for, by all that need it together, and by nobody for ever."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
import requests
from urllib3.connection import HTTPConnection
from urllib3.connectionpool import HTTPConnectionPool
from urllib3.exceptions import MaxRetryError, NameResolutionError, NewConnectionError

from lakegc_assets.errors import ConfigurationError
from lakegc_assets.lakefs import errors, transport
from lakegc_assets.lakefs.config import LakeFSConfig

from ..http_server import Answer, Silence
from .faults import FaultServer, answer

GRACE = answer(200, {"grace_period": 86400})
BUSY = answer(503, {"message": "starting"})


_REFUSED = NewConnectionError(HTTPConnection("lakefs"), "Connection refused")
_UNKNOWN = NameResolutionError("lakefs", HTTPConnection("lakefs"), socket.gaierror("not known"))


def _retried(reason: Exception) -> MaxRetryError:
    return MaxRetryError(HTTPConnectionPool("lakefs"), "/", reason)


class Clock:
    """Virtual time in the transport of calls: pauses take no time, and are counted."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.pauses: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("lakegc_assets.lakefs.transport.sleep", clock.sleep)
    monkeypatch.setattr("lakegc_assets.lakefs.transport.monotonic", clock)
    return clock


@pytest.mark.parametrize(
    "fault",
    [
        answer(502, b"<html>bad gateway</html>", {"Content-Type": "text/html"}),
        BUSY,
        answer(504, b""),
        answer(200, {"grace_period": 86400}, cut=5),
        Silence.CLOSE,
    ],
    ids=["502", "503", "504", "cut body", "broken connection"],
)
def test_what_a_restart_looks_like_is_waited_for(
    fault: Answer | Silence, tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"max_attempts": 2, "first_backoff_s": 1.0, "wait_s": 120.0}
    with FaultServer(*[fault] * 12, GRACE) as server:
        server.config(tmp_path, **settings).connect().grace_period()
        assert len(server.asked) == 13
    assert 40 < sum(clock.pauses) < 120
    said = [record.getMessage() for record in caplog.records]
    at = f"lakeFS at {server.endpoint}/api/v1"
    assert said[0].startswith(f"{at} is away: waiting for it, 0 s of 120 s: GET ")
    assert said[-1] == f"{at} answers again, after {sum(clock.pauses):.0f} s"
    assert 4 <= len(said) <= 10


def test_refused_connections_are_waited_for_until_somebody_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (tmp_path / "c.yaml").write_text("credentials: {access_key_id: a, secret_access_key: b}")
    config = LakeFSConfig(
        f"http://127.0.0.1:{port}", str(tmp_path / "c.yaml"), max_attempts=1, wait_s=60.0
    )
    pauses: list[float] = []
    with ExitStack() as stack:

        def sleep(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 8:
                stack.enter_context(FaultServer(GRACE, port=port))

        monkeypatch.setattr("lakegc_assets.lakefs.transport.sleep", sleep)
        config.connect().grace_period()
    assert len(pauses) == 8


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, errors.BadRequestError),
        (401, errors.AuthenticationError),
        (403, errors.ForbiddenError),
        (404, errors.NotFoundError),
        (410, errors.GoneError),
    ],
)
def test_what_does_not_pass_is_not_waited_for(
    status: int, kind: type[Exception], tmp_path: Path, clock: Clock
) -> None:
    with FaultServer(answer(status, {"message": "no"})) as server, pytest.raises(kind):
        server.config(tmp_path, wait_s=1e6).connect().grace_period()
    assert clock.pauses == []


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(
    "fault", [answer(500, {"message": "oops"}), answer(429, {"message": "slow"})]
)
def test_a_server_that_answers_is_not_away(fault: Answer | Silence, tmp_path: Path) -> None:
    with FaultServer(fault) as server:
        with pytest.raises(errors.LakeFSError):
            server.config(tmp_path, wait_s=1e6, max_attempts=3).connect().grace_period()
        assert len(server.asked) == 3


@pytest.mark.parametrize(
    ("error", "away"),
    [
        (requests.ConnectionError(_retried(_REFUSED)), True),
        (requests.ConnectionError(_retried(_UNKNOWN)), False),
        (requests.exceptions.ProxyError(_retried(_REFUSED)), False),
        (requests.exceptions.InvalidURL("no host"), False),
        (requests.exceptions.SSLError("expired"), False),
    ],
)
def test_names_proxies_and_certificates_are_nothing_to_wait_for(
    error: requests.RequestException,
    away: bool,  # noqa: FBT001 # a test's parameter
) -> None:
    assert transport.failure_of("GET http://lakefs", error).away is away


def test_a_server_without_tls_is_not_waited_for(tmp_path: Path, clock: Clock) -> None:
    """Nor is one whose certificate is not accepted: both are told as one kind of error."""
    (tmp_path / "c.yaml").write_text("credentials: {access_key_id: a, secret_access_key: b}")

    def answer_in_plain_words(listener: socket.socket) -> None:
        for _ in range(2):
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        answering = pool.submit(answer_in_plain_words, listener)
        endpoint = f"https://127.0.0.1:{listener.getsockname()[1]}"
        config = LakeFSConfig(endpoint, str(tmp_path / "c.yaml"), max_attempts=2, wait_s=1e6)
        with pytest.raises(errors.ConnectionFailedError, match="certificate or TLS") as told:
            config.connect().grace_period()
        answering.result()
    assert len(clock.pauses) == 1
    assert "Write http:// if it has none, or name the file of its CA" in str(told.value)
    assert "Max retries exceeded" not in str(told.value)


def test_all_calls_of_a_process_wait_no_longer_than_one(tmp_path: Path, clock: Clock) -> None:
    settings = {"max_attempts": 2, "first_backoff_s": 1.0, "wait_s": 120.0}
    began = clock.now
    with FaultServer(BUSY) as server:
        config = server.config(tmp_path, **settings)
        with pytest.raises(errors.ServerError, match=r"waited for 120 s \(lakefs_wait_seconds\)"):
            config.connect().grace_period()
        assert clock.now - began == pytest.approx(120)
        asked = len(server.asked)
        for _ in range(10):
            with pytest.raises(errors.ServerError):
                config.connect().grace_period()
        assert len(server.asked) == asked + 20
    assert clock.now - began < 120 + 10


@pytest.mark.usefixtures("clock")
def test_threads_that_wait_together_say_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each has a client of its own, as tasks do; the clock stands still."""
    settings = {"max_attempts": 1, "first_backoff_s": 0.0, "wait_s": 120.0}
    with FaultServer(*[BUSY] * 8, GRACE) as server:
        config = server.config(tmp_path, **settings)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: config.connect().grace_period(), range(4)))
    said = [record.getMessage() for record in caplog.records if "is away" in record.getMessage()]
    # One more where a thread was answered between two that were not.
    assert 1 <= len(said) <= 4


def test_an_outage_of_an_hour_ago_is_another_one(tmp_path: Path, clock: Clock) -> None:
    settings = {"max_attempts": 1, "first_backoff_s": 1.0, "wait_s": 30.0}
    with FaultServer(BUSY) as server:
        config = server.config(tmp_path, **settings)
        for _ in range(2):
            began = clock.now
            with pytest.raises(errors.ServerError, match="waited for 30 s"):
                config.connect().grace_period()
            assert clock.now - began == pytest.approx(30)
            clock.now += 3600


def test_a_write_that_may_have_arrived_is_not_sent_again(tmp_path: Path, clock: Clock) -> None:
    with FaultServer(BUSY) as server, pytest.raises(errors.ServerError):
        server.config(tmp_path, wait_s=120.0).connect_writer().delete_branch("repo", "dev")
    assert len(server.asked) == 1
    assert clock.pauses == []


@pytest.mark.parametrize("wait_s", [-1.0, float("inf"), float("nan")])
def test_nobody_waits_for_ever(wait_s: float) -> None:
    with pytest.raises(ConfigurationError, match="wait_s"):
        LakeFSConfig(wait_s=wait_s)
