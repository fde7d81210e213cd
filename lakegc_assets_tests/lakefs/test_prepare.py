"""The prepare calls of garbage collection, which decide what is alive."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import requests

from lakegc_assets.lakefs import client as client_module
from lakegc_assets.lakefs import errors
from lakegc_assets.lakefs.client import LakeFSClient

from ..replay import Answer, ReplayServer, Request

GC = "/repositories/retention/gc"
DONE = {"run_id": "r", "gc_commits_location": "s3://lab/retention/commits.csv"}
STATUS = f"{GC}/prepare_commits/status"


def test_rules(client: LakeFSClient) -> None:
    rules = client.gc_rules("retention")
    assert rules is not None
    assert rules["default_retention_days"] == 10
    assert [(r["branch_id"], r["retention_days"]) for r in rules["branches"]] == [
        ("dev", 5), ("long", 120), ("no-such-branch", 3), ("main", 20),
    ]  # fmt: skip


@pytest.mark.parametrize("server", ["orderhz"], indirect=True)
def test_rules_without_branches(client: LakeFSClient) -> None:
    assert client.gc_rules("orderhz") == {"default_retention_days": 10, "branches": []}


@pytest.mark.parametrize("server", ["norules"], indirect=True)
def test_no_rules_is_none_and_a_missing_repository_is_an_error(client: LakeFSClient) -> None:
    assert client.gc_rules("norules") is None
    with pytest.raises(errors.NotFoundError, match="repository not found"):
        client.gc_rules("no-such-repo")


@pytest.mark.parametrize("status", [404, 500])
def test_rules_of_an_older_server(status: int, server: ReplayServer, client: LakeFSClient) -> None:
    missing = (status, {"message": "invalid API endpoint"})
    newer = client.gc_rules("retention")
    server.overrides["GET", ".*/settings/gc_rules"] = missing
    assert client.gc_rules("retention") == newer
    server.overrides["GET", ".*/gc/rules"] = missing
    with pytest.raises(errors.EndpointNotFoundError):
        client.gc_rules("retention")


@pytest.mark.parametrize("server", ["small", "retention", "orderhz", "identical"], indirect=True)
def test_prepare_commits(server: ReplayServer, client: LakeFSClient) -> None:
    name = server.repository
    prepared = client.prepare_commits(name)
    assert f"run_id={prepared.run_id}/commits.csv" in prepared.gc_commits_location
    assert prepared.gc_commits_location.startswith(f"s3://lab/{name}/_lakefs/retention/gc/commits/")
    assert not server.asked("POST", ".*/gc/prepare_commits")
    polls = server.asked("GET", ".*/status")
    assert polls[0].params == {"id": polls[-1].params["id"]}
    assert "Signature" not in repr(prepared)


def test_prepare_commits_waits_for_the_task(server: ReplayServer, client: LakeFSClient) -> None:
    client.prepare_commits("retention")
    assert len(server.asked("GET", STATUS)) == 2


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (404, "invalid API endpoint"),
        # So servers before 1.75 say it.
        (500, "invalid API endpoint"),
        (404, "not found"),
        (404, "page not found"),
    ],
)
def test_an_older_server_is_asked_in_the_older_way(
    status: int, message: str, server: ReplayServer, client: LakeFSClient
) -> None:
    server.overrides["POST", f"{GC}/prepare_commits/async"] = (status, {"message": message})
    prepared = client.prepare_commits("retention")
    assert prepared.run_id == "ft6u4ahksdue9psu429g"
    assert server.asked("POST", f"{GC}/prepare_commits")


_UNSIGNED = b'{"message":"local adapter presigned URL: operation not supported"}\n'


def test_an_older_server_that_signs_no_urls_sends_its_answer_behind_an_error(
    server: ReplayServer, client: LakeFSClient
) -> None:
    # So do 1.54 to 1.71 on local storage, and elsewhere with disable_pre_signed.
    missing = (404, {"message": "invalid API endpoint"})
    server.overrides["POST", f"{GC}/prepare_commits/async"] = missing
    server.overrides["POST", f"{GC}/prepare_commits"] = (400, _UNSIGNED + json.dumps(DONE).encode())
    assert client.prepare_commits("retention").gc_commits_location == DONE["gc_commits_location"]


@pytest.mark.parametrize(
    "body", [_UNSIGNED, _UNSIGNED + b"{}", b'{"message":"no disk"}\n' + json.dumps(DONE).encode()]
)
def test_any_other_error_of_an_older_server_stays_one(
    body: bytes, server: ReplayServer, client: LakeFSClient
) -> None:
    missing = (404, {"message": "invalid API endpoint"})
    server.overrides["POST", f"{GC}/prepare_commits/async"] = missing
    server.overrides["POST", f"{GC}/prepare_commits"] = (400, body)
    with pytest.raises(errors.LakeFSError, match="prepare_commits answered 400"):
        client.prepare_commits("retention")


def test_a_missing_repository_is_not_an_older_server(
    server: ReplayServer, client: LakeFSClient
) -> None:
    with pytest.raises(errors.NotFoundError, match="repository not found"):
        client.prepare_commits("no-such-repo")
    assert not server.asked("POST", ".*/gc/prepare_commits")


@pytest.mark.parametrize("server", ["norules", "emptyrepo", "paged"], indirect=True)
@pytest.mark.parametrize("call", ["async", "sync"])
def test_no_rules_is_told_as_such(call: str, server: ReplayServer, client: LakeFSClient) -> None:
    server.has_async = call == "async"
    with pytest.raises(errors.NoRulesError, match=r"no retention rules.*get gc rules: not found"):
        client.prepare_commits(server.repository)


def _status(**fields: Any) -> tuple[int, dict[str, Any]]:
    task = {"task_id": "GCPCsOC9IkWnVKpff6wlItRV", "update_time": "2026-11-21T04:40:54Z"}
    return 200, {**task, **fields}


def test_a_failed_task_says_why(
    server: ReplayServer, client: LakeFSClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "sleep", lambda _: None)
    server.overrides["GET", STATUS] = _status(completed=True, error={"message": "disk full"})
    with pytest.raises(errors.PrepareCommitsFailedError, match=r"disk full.*run again") as caught:
        client.prepare_commits("retention")
    assert not isinstance(caught.value, errors.NoRulesError)


def test_a_task_that_failed_is_begun_again(
    server: ReplayServer, client: LakeFSClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a commit came meanwhile a server did not find it, and the next try does."""
    monkeypatch.setattr(client_module, "sleep", lambda _: None)
    failures = iter([_status(completed=True, error={"message": "commit not found"})])

    def fail_once(_: Request) -> Answer | None:
        return next((Answer(*one) for one in failures), None)

    server.overrides["GET", STATUS] = fail_once
    assert client.prepare_commits("retention").run_id
    assert len(server.asked("POST", f"{GC}/prepare_commits/async")) == 2


@pytest.mark.parametrize(("raised_s", "limit_s"), [(10.0, 3600.0), (7200.0, 7200.0)])
def test_an_older_server_may_compute_commits_in_one_call_as_long_as_in_a_task(
    raised_s: float,
    limit_s: float,
    server: ReplayServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server.has_async = False
    asked: list[tuple[str, float]] = []
    with server.config(tmp_path, read_timeout_s=raised_s).connect() as client:
        send = client.session.request

        def request(method: str, url: str, **more: Any) -> requests.Response:
            asked.append((url, more["timeout"][1]))
            if url.endswith("/gc/prepare_commits"):
                raise requests.ReadTimeout
            return send(method, url, **more)

        monkeypatch.setattr(client.session, "request", request)
        with pytest.raises(errors.TimedOutError):
            client.prepare_commits("retention")
    # Nor is it computed once more for who has waited so long.
    assert [limit for url, limit in asked if url.endswith("/gc/prepare_commits")] == [limit_s]


def test_a_404_of_the_older_call_with_rules_is_not_taken_for_no_rules(
    server: ReplayServer, client: LakeFSClient
) -> None:
    server.has_async = False
    server.overrides["POST", f"{GC}/prepare_commits"] = (404, {"message": "not found"})
    with pytest.raises(errors.NotFoundError):
        client.prepare_commits("retention")


@pytest.mark.parametrize(
    "answer",
    [
        _status(completed=True),
        _status(completed=True, result={"run_id": "r"}),
        _status(completed=True, result={"run_id": "r", "gc_commits_location": ""}),
        _status(completed="true"),
        _status(completed=True, task_id="another", result=DONE),
        (200, {}),
    ],
)
def test_a_task_that_ends_oddly_is_not_believed(
    answer: tuple[int, Any], server: ReplayServer, client: LakeFSClient
) -> None:
    server.overrides["GET", STATUS] = answer
    with pytest.raises(errors.UnexpectedAnswerError):
        client.prepare_commits("retention")


def test_a_task_that_is_forgotten_is_an_error(server: ReplayServer, client: LakeFSClient) -> None:
    server.overrides["GET", STATUS] = (404, {"message": "not found"})
    with pytest.raises(errors.NotFoundError):
        client.prepare_commits("retention")
    assert not server.asked("POST", f"{GC}/prepare_commits")


def test_a_task_that_never_ends_is_given_up(
    server: ReplayServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(client_module, "sleep", pauses.append)
    monkeypatch.setattr(client_module, "monotonic", lambda: sum(pauses))
    monkeypatch.setattr(client_module, "FIRST_POLL_S", 1.0)
    server.overrides["GET", STATUS] = _status(completed=False)
    config = server.config(tmp_path, prepare_commits_timeout_s=2, read_timeout_s=5)
    expected = r"not completed in 5 s: run again, or raise read_timeout_seconds"
    with config.connect() as client, pytest.raises(errors.TimedOutError, match=expected):
        client.prepare_commits("retention")
    assert pauses == [1.0, 1.5, 2.25]
    assert len(server.asked("GET", STATUS)) == 4


def test_a_task_that_a_restarted_server_has_lost_is_begun_again(
    server: ReplayServer, client: LakeFSClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server answers for such a task as for one that still runs, for ever."""
    pauses: list[float] = []
    monkeypatch.setattr(client_module, "sleep", pauses.append)
    monkeypatch.setattr(client_module, "monotonic", lambda: sum(pauses))
    begun = iter(["lost", "lost too", "third"])
    answers = {"third": _status(task_id="third", completed=True, result=DONE)}

    def begin(_: Request) -> Answer:
        return Answer(202, {"id": next(begun)})

    def answer(asked: Request) -> Answer:
        task = asked.params["id"]
        return Answer(*answers.get(task, _status(task_id=task, completed=False)))

    server.overrides["POST", f"{GC}/prepare_commits/async"] = begin
    server.overrides["GET", STATUS] = answer
    assert client.prepare_commits("retention").run_id == "r"
    assert sum(pauses) < 1800


def test_a_slow_task_is_still_waited_for_once_another_is_begun(
    server: ReplayServer, client: LakeFSClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(client_module, "sleep", pauses.append)
    monkeypatch.setattr(client_module, "monotonic", lambda: sum(pauses))
    begun = iter(["slow", "lost"])

    def answer(asked: Request) -> Answer:
        task = asked.params["id"]
        done = task == "slow" and sum(pauses) > 1000
        return Answer(*_status(task_id=task, completed=done, result=DONE if done else None))

    server.overrides["POST", f"{GC}/prepare_commits/async"] = lambda _: Answer(
        202, {"id": next(begun)}
    )
    server.overrides["GET", STATUS] = answer
    assert client.prepare_commits("retention").run_id == "r"
    assert next(begun, None) is None


def test_a_task_survives_a_busy_server(server: ReplayServer, client: LakeFSClient) -> None:
    busy = [Answer(503), Answer(429, {"message": "slow"}), Answer(503)]
    server.overrides["GET", STATUS] = lambda _request: busy.pop() if busy else None
    server.overrides["POST", f"{GC}/prepare_commits/async"] = lambda _request: (
        busy.pop() if len(busy) == 3 else None
    )
    assert client.prepare_commits("retention").run_id
    assert len(server.asked("GET", STATUS)) == 4


# Staged objects


@pytest.mark.parametrize("server", ["paged"], indirect=True)
@pytest.mark.parametrize(
    ("variant", "pages", "without_location"),
    [("prepare", 1, 0), ("prepare_interval_14ms", 4, 0), ("prepare_interval_9ms", 8, 1)],
)
def test_every_page_is_given(
    variant: str, pages: int, without_location: int, server: ReplayServer, client: LakeFSClient
) -> None:
    server.prepare = variant
    found = list(client.prepare_uncommitted("paged"))
    assert len(found) == pages
    assert len({page.run_id for page in found}) == 1
    assert [page.gc_uncommitted_location for page in found].count(None) == without_location
    assert [page.continuation_token is None for page in found] == [False] * (pages - 1) + [True]
    for page in found:
        location = page.gc_uncommitted_location
        assert location is None or location.startswith(
            f"s3://lab/paged/_lakefs/retention/gc/uncommitted/{page.run_id}/"
        )


@pytest.mark.parametrize("server", ["paged"], indirect=True)
def test_a_token_that_does_not_advance_stops(server: ReplayServer, client: LakeFSClient) -> None:
    server.prepare = "prepare_max_file_size_3"
    with pytest.raises(errors.UnexpectedAnswerError, match="does not advance"):
        list(client.prepare_uncommitted("paged"))
    assert len(server.requests) == 2


@pytest.mark.parametrize("server", ["emptyrepo"], indirect=True)
def test_nothing_staged(client: LakeFSClient) -> None:
    (page,) = client.prepare_uncommitted("emptyrepo")
    assert page.gc_uncommitted_location is None


@pytest.fixture
def broken_third_page(server: ReplayServer) -> list[Answer]:
    """Whatever the test puts here is the answer to the third call."""
    third: list[Answer] = []

    def answer(_request: Request) -> Answer | None:
        return third[0] if len(server.asked("POST", ".*/prepare_uncommited")) >= 3 else None

    server.prepare = "prepare_interval_9ms"
    server.overrides["POST", ".*/prepare_uncommited"] = answer
    return third


@pytest.mark.parametrize("server", ["paged"], indirect=True)
@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (Answer(404, {"message": "branch not found"}), errors.NotFoundError),
        (
            Answer(201, {"run_id": "another", "gc_uncommitted_location": ""}),
            errors.UnexpectedAnswerError,
        ),
        (Answer(201, {"gc_uncommitted_location": ""}), errors.UnexpectedAnswerError),
        (Answer(201, b'{"run_id": "ft6'), errors.UnexpectedAnswerError),
        (Answer(400, {"message": "invalid continuation token"}), errors.BadRequestError),
        (Answer(500, {"message": "oops"}), errors.ServerError),
    ],
)
def test_a_fault_in_the_middle_never_looks_like_the_end(
    answer: Answer,
    kind: type[Exception],
    broken_third_page: list[Answer],
    client: LakeFSClient,
) -> None:
    broken_third_page.append(answer)
    tokens: list[str | None] = []
    with pytest.raises(kind):
        tokens.extend(page.continuation_token for page in client.prepare_uncommitted("paged"))
    assert [token is not None for token in tokens] == [True, True]


@pytest.mark.parametrize("server", ["paged"], indirect=True)
def test_a_token_of_an_earlier_page_stops(
    server: ReplayServer, broken_third_page: list[Answer], client: LakeFSClient
) -> None:
    first = server.recording.variant("prepare_interval_9ms")[0]["body"]
    broken_third_page.append(Answer(201, first))
    with pytest.raises(errors.UnexpectedAnswerError, match="repeated"):
        list(client.prepare_uncommitted("paged"))
    assert len(server.requests) == 3


_DUMP = "/repositories/retention/dump"
_REFS = {
    "commits_meta_range_id": "ab", "branches_meta_range_id": "cd", "tags_meta_range_id": "ef"
}  # fmt: skip


def test_a_dump_of_commits_is_waited_for(server: ReplayServer, client: LakeFSClient) -> None:
    server.overrides["POST", _DUMP] = (202, {"id": "DR1"})
    server.overrides["GET", _DUMP] = (200, {"id": "DR1", "done": True, "refs": _REFS})
    dumped = client.dump_refs("retention")
    assert dumped.commits_meta_range_id == "ab"
    assert dumped.metaranges == {"ab", "cd", "ef"}


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({"done": True, "error": "no space"}, "no space"),
        ({"done": True, "refs": {"commits_meta_range_id": ""}}, "commits_meta_range_id"),
        ({}, "done"),
        ({"id": "DR2", "done": True, "refs": _REFS}, "answered for DR2"),
    ],
)
def test_a_dump_that_ends_oddly_is_not_believed(
    status: dict[str, Any], said: str, server: ReplayServer, client: LakeFSClient
) -> None:
    server.overrides["POST", _DUMP] = (202, {"id": "DR1"})
    server.overrides["GET", _DUMP] = (200, {"id": "DR1", **status})
    with pytest.raises(errors.UnexpectedAnswerError, match=said):
        client.dump_refs("retention")
