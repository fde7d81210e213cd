"""What is sent again, what never is, and what each failure is called."""

from __future__ import annotations

import json
import pickle
import socket
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from pathlib import Path

import pytest

from lakegc_assets import traffic
from lakegc_assets.errors import ConfigurationError, LakegcError, RefusedError
from lakegc_assets.lakefs import errors, transport
from lakegc_assets.lakefs.config import LakeFSConfig
from lakegc_assets.lakefs.transport import LONGEST_WAIT_S, path_of

from ..http_server import Answer as Sent
from ..http_server import Silence
from ..replay import Answer, ReplayServer
from .faults import FaultServer, answer

GRACE = answer(200, {"grace_period": 86400})


@pytest.mark.parametrize(
    "fault",
    [
        answer(429, {"message": "slow down"}),
        answer(500, {"message": "oops"}),
        answer(503, b"<html>busy</html>", {"Content-Type": "text/html"}),
        answer(200, {"grace_period": 86400}, cut=5),
        Silence.CLOSE,
    ],
    ids=["429", "500", "503", "cut body", "broken connection"],
)
def test_passing_faults_of_a_get_are_overcome(fault: Sent | Silence, tmp_path: Path) -> None:
    with FaultServer(fault, fault, GRACE) as server, server.config(tmp_path).connect() as client:
        before = traffic.by_kind()
        assert client.grace_period() == timedelta(days=1)
    assert len(server.asked) == 3
    assert sum(traffic.since(before).values()) == 3


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (answer(429, {"message": "slow down"}), errors.ThrottledError),
        (answer(502, b"bad gateway"), errors.ServerError),
        (answer(500, b"[" * 100_000), errors.ServerError),
        (answer(200, {"grace_period": 1}, cut=3), errors.ConnectionFailedError),
        (Silence.CLOSE, errors.ConnectionFailedError),
    ],
)
def test_lasting_faults_are_told_after_the_last_attempt(
    fault: Sent | Silence, kind: type[Exception], tmp_path: Path
) -> None:
    with FaultServer(fault) as server:
        with server.config(tmp_path, max_attempts=3).connect() as client, pytest.raises(kind):
            client.grace_period()
        assert len(server.asked) == 3


def test_a_refusal_that_is_not_lakefs_own_says_to_look_at_the_endpoint(tmp_path: Path) -> None:
    said = "Check that the endpoint is that of a lakeFS server"
    with (
        FaultServer(answer(400, b"no JSON")) as server,
        server.config(tmp_path).connect() as client,
        pytest.raises(errors.BadRequestError, match=said),
    ):
        client.commit("repo", "abc")


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (400, "no", errors.BadRequestError),
        (401, "error authenticating request", errors.AuthenticationError),
        (401, "insufficient permissions", errors.ForbiddenError),
        (401, "insufficient permissions: missing fs:ReadCommit", errors.ForbiddenError),
        (403, "not allowed", errors.ForbiddenError),
        (403, "read-only repository", errors.ReadOnlyRepositoryError),
        (404, "not found", errors.NotFoundError),
        (404, "invalid API endpoint", errors.EndpointNotFoundError),
        (500, "invalid API endpoint", errors.EndpointNotFoundError),
        (409, "not unique", errors.ConflictError),
        (410, "No data", errors.GoneError),
        (410, "repository in deletion", errors.RepositoryInDeletionError),
        (412, "changed", errors.ConflictError),
        (420, "odd", errors.BadRequestError),
    ],
)
def test_refusals_are_told_at_once_with_the_servers_words(
    status: int, message: str, kind: type[Exception], tmp_path: Path
) -> None:
    with FaultServer(answer(status, {"message": message})) as server:
        with server.config(tmp_path).connect() as client, pytest.raises(kind) as caught:
            client.commit("repo", "abc")
        assert type(caught.value) is kind
        assert message in str(caught.value)
        assert "/repositories/repo/commits/abc" in str(caught.value)
        assert len(server.asked) == 1


def test_a_404_that_lakefs_did_not_write_is_no_fact_about_the_repository(tmp_path: Path) -> None:
    html = answer(404, b"<html>nothing here</html>", {"Content-Type": "text/html"})
    with FaultServer(html) as server, server.config(tmp_path).connect() as client:
        for ask in (client.gc_rules, client.repository, client.prepare_commits):
            with pytest.raises(errors.UnexpectedAnswerError, match="404"):
                ask("repo")


@pytest.mark.parametrize("status", [404, 500])
def test_a_missing_call_is_no_fact_about_an_object(status: int, tmp_path: Path) -> None:
    missing = answer(status, {"message": "invalid API endpoint"})
    with FaultServer(missing) as server, server.config(tmp_path).connect() as client:
        with pytest.raises(errors.UnexpectedAnswerError):
            client.stat("repo", "main", "a")
        with pytest.raises(errors.EndpointNotFoundError):
            client.gc_rules("repo")


@pytest.mark.parametrize(
    "fault", [answer(503, {"message": "busy"}), answer(429, {"message": "slow"}), Silence.CLOSE]
)
def test_writes_are_never_sent_twice(fault: Sent | Silence, tmp_path: Path) -> None:
    with FaultServer(fault) as server, server.config(tmp_path).connect_writer() as client:
        with pytest.raises(errors.LakeFSError):
            client.set_gc_rules("repo", 7)
        with pytest.raises(errors.LakeFSError):
            client.delete_branch("repo", "dev")
        with pytest.raises(errors.LakeFSError):
            client.commit_branch("repo", "dev", "message")
    assert [asked.method for asked in server.asked] == ["PUT", "DELETE", "POST"]


def test_prepare_calls_are_repeated(tmp_path: Path) -> None:
    page = answer(201, {"run_id": "r", "gc_uncommitted_location": ""})
    busy = answer(503, {"message": "busy"})
    with (
        FaultServer(Silence.CLOSE, busy, page) as server,
        server.config(tmp_path).connect() as client,
    ):
        pages = list(client.prepare_uncommitted("repo"))
    assert [(p.run_id, p.gc_uncommitted_location) for p in pages] == [("r", None)]
    assert len(server.asked) == 3


def test_a_write_is_repeated_while_no_connection_comes_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "c.yaml").write_text("credentials: {access_key_id: a, secret_access_key: b}")
    with socket.socket() as silent:
        # Whose port is taken, and which nevertheless nobody listens to.
        silent.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        config = LakeFSConfig(
            endpoint, str(tmp_path / "c.yaml"), max_attempts=3, first_backoff_s=0.02
        )
        with (
            config.connect_writer() as client,
            pytest.raises(errors.ConnectionFailedError, match="Check the endpoint") as caught,
        ):
            client.delete_branch("repo", "dev")
    assert caught.value.never_sent
    told = [r.getMessage() for r in caplog.records if r.name == "lakegc_assets.lakefs.transport"]
    assert [line[:17] for line in told] == ["attempt 1 of 3 fa", "attempt 2 of 3 fa"]


@pytest.mark.parametrize("headers_first", [False, True])
def test_a_slow_answer_is_a_timeout(headers_first: bool, tmp_path: Path) -> None:  # noqa: FBT001 # a test's parameter
    begun = replace(answer(200, {"grace_period": 1}, cut=10), rest=Silence.WAIT)
    settings = {"read_timeout_s": 0.1, "max_attempts": 1}
    with (
        FaultServer(begun if headers_first else Silence.WAIT) as server,
        pytest.raises(errors.TimedOutError, match="in time"),
    ):
        server.config(tmp_path, **settings).connect().grace_period()


def test_a_prepare_call_may_take_longer_than_others(tmp_path: Path) -> None:
    page = answer(201, {"run_id": "r", "gc_uncommitted_location": ""})
    settings = {"read_timeout_s": 0.1, "max_attempts": 1}
    with (
        FaultServer(page, pause_s=0.3) as server,
        server.config(tmp_path, **settings).connect() as client,
    ):
        assert len(list(client.prepare_uncommitted("repo"))) == 1


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_retry_after_is_honoured_within_reason(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("lakegc_assets.lakefs.transport.sleep", pauses.append)

    def asks(seconds: int) -> Sent:
        then = datetime.now(timezone.utc) + timedelta(seconds=seconds)
        value = str(seconds) if form == "seconds" else format_datetime(then, usegmt=True)
        return answer(429, {"message": "slow"}, {"Retry-After": value})

    odd = answer(429, {"message": "slow"}, {"Retry-After": "soon"})
    with FaultServer(asks(30), asks(99999), odd, GRACE) as server:
        server.config(tmp_path).connect().grace_period()
    assert 10 <= pauses[0] <= 30
    assert pauses[1] == LONGEST_WAIT_S
    assert pauses[2] < 1


def test_pauses_double_with_jitter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("lakegc_assets.lakefs.transport.sleep", pauses.append)
    with FaultServer(answer(500, {"message": "oops"})) as server:
        config = server.config(tmp_path, max_attempts=11, first_backoff_s=1.0)
        with config.connect() as client, pytest.raises(errors.ServerError):
            client.grace_period()
    longest = [min(2.0**i, LONGEST_WAIT_S) for i in range(10)]
    assert all(top / 2 <= pause <= top for pause, top in zip(pauses, longest, strict=True))
    assert all(pause != top for pause, top in zip(pauses, longest, strict=True))


@pytest.mark.parametrize(
    "fault",
    [
        answer(200, b'{"grace_period": 864'),
        answer(200, b"<html>lakeFS</html>", {"Content-Type": "text/html"}),
        answer(200, b""),
        answer(200, []),
        answer(200, {"grace": 1}),
        answer(200, {"grace_period": "86400"}),
        answer(200, {"grace_period": -1}),
    ],
    ids=["truncated", "html", "empty", "list", "missing", "text", "negative"],
)
def test_answers_of_another_form_are_never_believed(fault: Sent | Silence, tmp_path: Path) -> None:
    told = pytest.raises(errors.UnexpectedAnswerError, match="not the answer of a lakeFS")
    with FaultServer(fault) as server, told:
        server.config(tmp_path).connect().grace_period()
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    "fault",
    [b"", b"[]", b"null", b'{"default_retention_days": 7}', b"{", b"[" * 100_000],
)
def test_rules_of_another_form_are_not_taken_for_none(fault: bytes, tmp_path: Path) -> None:
    told = pytest.raises(errors.UnexpectedAnswerError, match="retention rules")
    with FaultServer(answer(200, fault)) as server, told:
        server.config(tmp_path).connect().gc_rules("repo")


@pytest.mark.parametrize("status", [200, 500])
def test_an_answer_that_does_not_end_is_given_up_beyond_a_limit(
    status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "LARGEST_ANSWER", 1 << 20)
    told = pytest.raises(errors.AnswerTooLargeError, match=r"larger than 1,048,576 bytes")
    # After what is sent nothing comes, and nothing ends.
    body = b" " * (3 << 20)
    endless = replace(answer(status, body, cut=1), rest=Silence.WAIT)
    with FaultServer(endless) as server, told:
        server.config(tmp_path).connect().grace_period()
    assert len(server.asked) == 1


def test_a_page_that_is_too_large_is_asked_for_with_fewer_items(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "LARGEST_ANSWER", 1 << 20)
    large = answer(200, b" " * (2 << 20))
    paging = {"has_more": False, "next_offset": "", "results": 1, "max_per_page": 1000}
    page = answer(200, {"pagination": paging, "results": [{"id": "v1", "commit_id": "c1"}]})
    with FaultServer(large, large, page) as server:
        tags = list(server.config(tmp_path).connect().tags("repo"))
    assert [tag.id for tag in tags] == ["v1"]
    assert [asked.query["amount"] for asked in server.asked] == ["1000", "125", "15"]
    told = pytest.raises(errors.AnswerTooLargeError)
    with FaultServer(large) as server, told:
        list(server.config(tmp_path).connect().tags("repo"))
    assert [asked.query["amount"] for asked in server.asked] == ["1000", "125", "15", "1"]


def test_redirects_are_not_followed_and_the_target_gets_nothing(tmp_path: Path) -> None:
    with FaultServer(GRACE) as target:
        away = answer(307, b"", {"Location": f"{target.endpoint}/x?signature=hidden"})
        told = pytest.raises(errors.UnexpectedAnswerError, match="redirect")
        with FaultServer(away) as server, told as caught:
            server.config(tmp_path).connect().grace_period()
    assert target.asked == []
    assert "hidden" not in str(caught.value)


def test_secrets_show_nowhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(0)
    with FaultServer(answer(500, {"message": "oops"})) as server:
        config = server.config(tmp_path, max_attempts=2)
        with config.connect() as client:
            with pytest.raises(errors.ServerError) as caught:
                client.grace_period()
            shown = [repr(config), repr(client), str(caught.value)]
            assert dict(server.asked[0].headers)["Authorization"].startswith("Basic ")
            assert not any("hush-hush" in text for text in [*shown, caplog.text])
            with pytest.raises(TypeError, match="LakeFSConfig"):
                pickle.dumps(client)
    assert pickle.loads(pickle.dumps(config)) == config


def test_every_error_survives_pickling() -> None:
    kinds = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, LakegcError)]
    assert len(kinds) > 15
    for kind in set(kinds) - {LakegcError, RefusedError}:
        copy = pickle.loads(pickle.dumps(kind("what and where")))
        assert (type(copy), str(copy)) == (kind, "what and where")


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_names_that_would_make_another_call_are_refused(name: str) -> None:
    with pytest.raises(ConfigurationError):
        path_of("repositories", "repo", "branches", name)


def test_names_arrive_as_they_are(server: ReplayServer, tmp_path: Path) -> None:
    name = "a/b c%2F?#ü+&"
    server.overrides["GET", r"/repositories/repo/refs/.*/diff/.*"] = Answer(
        200, {"pagination": {"has_more": False, "next_offset": "", "results": 0}, "results": []}
    )
    with server.config(tmp_path).connect() as client:
        assert list(client.diff_branch("repo", name, after=name)) == []
    request = server.requests[-1]
    assert request.segments == ("repositories", "repo", "refs", f"{name}@", "diff", f"{name}$")
    assert request.params["after"] == name


@pytest.mark.parametrize(
    "settings",
    [
        {"connect_timeout_s": 0},
        {"read_timeout_s": -1},
        {"max_attempts": 0},
        {"first_backoff_s": -0.1},
        {"prepare_read_timeout_s": 0},
        {"prepare_commits_timeout_s": 0},
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError):
        LakeFSConfig(**json.loads(json.dumps(settings)))


def test_proxy_and_certificates_of_the_environment_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "no_proxy", "NO_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "certificates.pem"))
    with FaultServer(GRACE) as proxy, FaultServer(GRACE) as server:
        monkeypatch.setenv("http_proxy", proxy.endpoint)
        config = replace(server.config(tmp_path), endpoint="http://lakefs.example")
        with config.connect() as client:
            client.grace_period()
            assert client.session.verify == str(tmp_path / "certificates.pem")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        server.config(tmp_path).connect().grace_period()
    assert [asked.target.partition("/api")[0] for asked in proxy.asked] == ["http://lakefs.example"]
    assert len(server.asked) == 1
