"""Reads of references, on the answers of a real server and on answers it must not believe."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from lakegc_assets.lakefs import errors
from lakegc_assets.lakefs.client import LakeFSClient

from ..replay import Answer, ReplayServer, Request
from .faults import FaultServer, answer
from .pages import in_turn, read_pages_of, results

ALL = ["small", "retention", "orderhz", "identical", "norules", "emptyrepo", "paged"]
BRANCHES = ["dev", "fromold", "hidden", "long", "main", "sq", "stale"]


X1 = "ee7df98a2779324c45438b49c8765f0c4840c89638f591a1fe54bbf4ca142d51"


# The server


def test_a_build_of_ones_own_is_taken_with_one_warning_in_a_process(
    server: ReplayServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(24):
            with server.config(tmp_path).connect() as client:
                assert client.check_supported() == "dev-lab-71a45eeb1"
    assert len(caplog.records) == 1
    assert "has version 'dev-lab-71a45eeb1'" in caplog.text


@pytest.mark.parametrize(
    ("version", "supported"),
    [
        ("0.99.1", False),
        ("v0.9.0", False),
        ("0.100.0", True),
        ("1.84.0", True),
        ("1.84.0-rc.1", True),
        ("v2.0", True),
    ],
)
def test_versions_are_compared_as_numbers(
    version: str,
    supported: bool,  # noqa: FBT001 # a test's parameter
    server: ReplayServer,
    client: LakeFSClient,
) -> None:
    server.overrides["GET", "/config"] = (200, {"version_config": {"version": version}})
    if supported:
        assert client.check_supported() == version
    else:
        with pytest.raises(errors.UnsupportedServerError, match=r"0\.100 or newer: upgrade"):
            client.check_supported()


def test_server_config(server: ReplayServer, client: LakeFSClient) -> None:
    config = client.server_config()
    assert config.version_config.version
    assert client.grace_period() == timedelta(hours=24)
    for status in (404, 500):
        server.overrides["GET", "/config"] = (status, {"message": "invalid API endpoint"})
        assert client.server_config() == config


@pytest.mark.parametrize("status", [404, 500])
def test_a_server_without_usage_reports_tells_no_id(
    status: int, server: ReplayServer, client: LakeFSClient
) -> None:
    missing = (status, {"message": "invalid API endpoint"})
    server.overrides["GET", "/usage-report/summary"] = missing
    assert client.installation_id() is None
    assert len(server.asked("GET", "/usage-report/summary")) == 1


@pytest.mark.parametrize("storage", [{"blockstore_type": ""}, {}, None])
def test_a_server_may_keep_its_block_storage_to_itself(
    storage: dict[str, str] | None, server: ReplayServer, client: LakeFSClient
) -> None:
    # So lakeFS 1.30 to 1.48 answers who may not read the configuration, and 1.50 with many stores.
    body = {"version_config": {"version": "1.48.0"}, "storage_config": storage}
    server.overrides["GET", "/config"] = (200, body)
    assert client.check_supported() == "1.48.0"


def test_the_servers_clock(server: ReplayServer, client: LakeFSClient) -> None:
    theirs = datetime(2026, 11, 21, 4, 41, 48, 900000, tzinfo=timezone.utc)
    server.clock = lambda: theirs
    assert client.server_time() == theirs.replace(microsecond=0)


@pytest.mark.parametrize("date", [{}, {"Date": "yesterday"}])
def test_no_clock_is_an_error(date: dict[str, str], tmp_path: Path) -> None:
    told = pytest.raises(errors.UnexpectedAnswerError, match="clock")
    with FaultServer(answer(200, {}, date)) as server, told:
        server.config(tmp_path).connect().server_time()


def test_wrong_credentials(server: ReplayServer, tmp_path: Path) -> None:
    config = server.config(tmp_path)
    text = (tmp_path / "lakectl.yaml").read_text()
    (tmp_path / "lakectl.yaml").write_text(text.replace("replay-secret-key", "hush"))
    with config.connect() as client, pytest.raises(errors.AuthenticationError) as caught:
        client.repository("retention")
    assert "error authenticating request" in str(caught.value)
    assert "hush" not in str(caught.value)


# Repositories and refs


def test_repositories(client: LakeFSClient) -> None:
    names = [repository.id for repository in client.repositories()]
    assert names == ["emptyrepo", "norules", "orderhz", "paged", "ragged", "retention", "small"]
    assert [repository.id for repository in client.repositories("re")] == ["retention"]
    found = client.repository("retention")
    assert (found.storage_namespace, found.read_only) == ("s3://lab/retention", False)
    assert client.writable_repository("retention") == found
    with pytest.raises(errors.NotFoundError, match="repository not found"):
        client.repository("no-such-repo")


def test_repositories_are_asked_for_again_until_nothing_follows(
    server: ReplayServer, client: LakeFSClient
) -> None:
    """A list that the server ends early looks like a whole one."""
    [*_, first, second] = server.recording.body("repositories")["results"]
    server.overrides["GET", "/repositories"] = in_turn(results(first), results(second), results())
    assert [found.id for found in client.repositories()] == [first["id"], second["id"]]
    asked = [request.params.get("after") for request in server.requests]
    assert asked == [None, first["id"], second["id"]]


def test_a_repository_in_deletion_is_none_any_more(
    server: ReplayServer, client: LakeFSClient
) -> None:
    assert client.may_have_repository("retention")
    server.overrides["GET", "/repositories/retention"] = (410, {"message": "no data"})
    with pytest.raises(errors.GoneError):
        client.may_have_repository("retention")
    server.overrides["GET", "/repositories/retention"] = (
        410,
        {"message": "repository in deletion"},
    )
    assert not client.may_have_repository("retention")


@pytest.mark.parametrize("status", [401, 403])
def test_a_repository_that_nobody_may_look_at_may_be_there(
    status: int, server: ReplayServer, client: LakeFSClient
) -> None:
    server.overrides["GET", "/repositories/retention"] = (status, {"message": "who are you?"})
    assert client.may_have_repository("retention")


def test_a_server_without_the_call_does_not_say_that_there_is_no_repository(
    server: ReplayServer, client: LakeFSClient
) -> None:
    server.overrides["GET", "/repositories/retention"] = (404, {"message": "invalid API endpoint"})
    with pytest.raises(errors.EndpointNotFoundError):
        client.may_have_repository("retention")
    assert not client.may_have_repository("no-such-repo")


def test_another_repository_than_asked_for_is_not_believed(
    server: ReplayServer, client: LakeFSClient
) -> None:
    server.overrides["GET", "/repositories/retention"] = client_json(server, "small")
    with pytest.raises(errors.UnexpectedAnswerError, match="small"):
        client.repository("retention")


def client_json(server: ReplayServer, name: str) -> tuple[int, Any]:
    listed = server.recording.body("repositories")["results"]
    return 200, next(repository for repository in listed if repository["id"] == name)


def test_read_only_repositories_are_refused(server: ReplayServer, client: LakeFSClient) -> None:
    status, body = client_json(server, "retention")
    server.overrides["GET", "/repositories/retention"] = (status, {**body, "read_only": True})
    server.overrides["POST", "/repositories/retention/gc/.*"] = (
        403,
        {"message": "read-only repository"},
    )
    for call in (
        client.writable_repository,
        client.prepare_commits,
        lambda name: list(client.prepare_uncommitted(name)),
    ):
        with pytest.raises(errors.ReadOnlyRepositoryError, match="cannot be collected"):
            call("retention")


@pytest.mark.parametrize("amount", [1, 2, 3, 6, 7, 1000])
def test_branches_in_pages_of_any_size(
    amount: int, client: LakeFSClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_pages_of(amount, client, monkeypatch)
    assert [branch.id for branch in client.branches("retention")] == BRANCHES
    shown = [branch.id for branch in client.branches("retention", show_hidden=False)]
    assert shown == [name for name in BRANCHES if name != "hidden"]


def test_tags(client: LakeFSClient) -> None:
    (tag,) = client.tags("retention")
    assert tag.id == "v1"
    assert client.commit("retention", tag.commit_id).message == "M1"
    with pytest.raises(errors.NotFoundError, match="commit not found"):
        client.commit("retention", "f" * 64)


@pytest.mark.parametrize("server", ALL, indirect=True)
def test_every_recorded_branch_reads_as_recorded(
    server: ReplayServer, client: LakeFSClient
) -> None:
    name, record = server.repository, server.recording
    for branch in client.branches(name):
        found = {
            "log": client.log(name, branch.id, first_parent=False),
            "ls": client.objects(name, branch.id, amount=10),
            "diff_uncommitted": client.diff_branch(name, branch.id),
        }
        for kind, items in found.items():
            expected = record.body(f"{kind}.{branch.id}")["results"]
            for item, recorded in zip(items, expected, strict=True):
                read = item.model_dump(mode="json", exclude_unset=True)
                assert read == {field: recorded[field] for field in read}
                assert len(read) >= 4


@pytest.mark.parametrize("ref", ["main", X1])
def test_log_of_first_parents(ref: str, client: LakeFSClient) -> None:
    messages = [commit.message for commit in client.log("retention", ref)]
    assert messages == [
        "X1", "squash sq", "merge feat", "M6", "M5", "M4", "M3", "M2", "M1", "Repository created",
    ]  # fmt: skip


def test_log_in_pages(
    server: ReplayServer, client: LakeFSClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = list(client.log("retention", "main", first_parent=False))
    server.requests.clear()
    read_pages_of(5, client, monkeypatch)
    assert list(client.log("retention", "main", first_parent=False)) == whole
    assert [r.params.get("after") for r in server.requests] == [None, whole[4].id, whole[9].id]


def test_a_log_that_ends_early_is_not_believed(server: ReplayServer, client: LakeFSClient) -> None:
    body = server.recording.body("log_first_parent.main")
    for kept in (0, 1, 9):
        cut = {**body, "results": body["results"][:kept]}
        cut["pagination"] = {**body["pagination"], "results": kept}
        server.overrides["GET", "/repositories/retention/refs/main/commits"] = (200, cut)
        with pytest.raises(errors.UnexpectedAnswerError, match=f"ends after {kept} commit"):
            list(client.log("retention", "main"))
    with pytest.raises(errors.NotFoundError):
        list(client.log("retention", "no-such-branch"))


def test_the_log_of_an_unknown_id_says_why_it_may_be_unknown(client: LakeFSClient) -> None:
    with pytest.raises(errors.NotFoundError, match="may not find a commit that was cherry-picked"):
        list(client.log("retention", "0123456789abcdef" * 4))


@pytest.mark.parametrize("size", range(1, 10))
def test_a_page_may_end_with_what_was_cherry_picked(
    server: ReplayServer, client: LakeFSClient, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Its id is another one for lakeFS until it reads it again, so that no page follows it."""
    whole = list(client.log("retention", "main"))
    last = whole[size - 1].id

    def answer(request: Request) -> Answer:
        found = server.derived(request)
        if request.params.get("after") == last:
            return results()
        keys = {"cherry-pick-origin": last, "cherry-pick-committer": "lab"}
        told = [
            {**one, "metadata": {**one["metadata"], **keys}} if one["id"] == last else one
            for one in found.body["results"]
        ]
        return Answer(found.status, {**found.body, "results": told})

    server.overrides["GET", ".*/commits"] = answer
    read_pages_of(size, client, monkeypatch)
    assert list(client.log("retention", "main")) == whole


def test_a_log_that_goes_on_with_itself_ends(server: ReplayServer, client: LakeFSClient) -> None:
    page = _log(server, ("c", ["b"], 1))
    page.body["results"][0]["metadata"] = {"cherry-pick-origin": "c"}
    server.overrides["GET", ".*/commits"] = page
    with pytest.raises(errors.UnexpectedAnswerError, match="1 of their first parents have not"):
        list(client.log("retention", "main"))


def _log(server: ReplayServer, *told: tuple[str, list[str], int]) -> Answer:
    """A log of commits, by id, parents and version."""
    commit = server.recording.body("log_first_parent.main")["results"][0]
    return results(*({**commit, "id": i, "parents": p, "version": v} for i, p, v in told))


def test_of_an_old_merge_either_parent_may_be_the_main_one(
    server: ReplayServer, client: LakeFSClient
) -> None:
    """Before the parents were switched the merged branch was the first of them."""
    merge, base = ("c", ["merged", "b"], 0), ("b", ["a"], 0)
    server.overrides["GET", ".*/commits"] = _log(server, merge, base, ("a", [], 0))
    assert [commit.id for commit in client.log("retention", "main")] == ["c", "b", "a"]
    for cut in ([merge, base], [("c", ["b", "merged"], 1)]):
        server.overrides["GET", ".*/commits"] = _log(server, *cut)
        with pytest.raises(errors.UnexpectedAnswerError, match="1 of their first parents have not"):
            list(client.log("retention", "main"))


# Paging


def _page(ids: list[str], *, more: bool, offset: str, results: int | None = None) -> Answer:
    count = len(ids) if results is None else results
    paging = {"has_more": more, "next_offset": offset, "results": count, "max_per_page": 1000}
    return Answer(200, {"pagination": paging, "results": [_branch(name) for name in ids]})


def _branch(name: str) -> dict[str, str]:
    return {"id": name, "commit_id": "c"}


@pytest.mark.parametrize(
    "pages",
    [
        [_page(["a", "b"], more=True, offset="b")],
        [_page(["a", "b"], more=True, offset="b"), _page(["b", "c"], more=False, offset="")],
        [_page(["a", "b"], more=True, offset="b"), _page(["a"], more=False, offset="")],
        [_page(["a", "b"], more=True, offset="a"), _page(["b", "c"], more=False, offset="")],
        [_page(["a", "b"], more=True, offset="")],
        [_page([], more=True, offset="b")],
        [_page(["b", "a"], more=False, offset="")],
        [_page(["a", "a"], more=False, offset="")],
        [_page(["a", "b"], more=False, offset="", results=3)],
        [_page(["a"], more=True, offset="b"), _page([], more=True, offset="b")],
    ],
    ids=[
        "loop", "overlap", "back", "offset back", "no offset", "empty", "unsorted", "twice",
        "fewer than announced", "empty later",
    ],
)  # fmt: skip
def test_lists_that_do_not_advance_are_not_believed(
    pages: list[Answer], server: ReplayServer, client: LakeFSClient
) -> None:
    for kind, read in (("branches", client.branches), ("tags", client.tags)):
        server.requests.clear()
        server.overrides["GET", f"/repositories/retention/{kind}"] = in_turn(*pages)
        with pytest.raises(errors.UnexpectedAnswerError):
            list(read("retention"))
        assert len(server.requests) <= 2


@pytest.mark.parametrize("offset", ["", "A", "a", "c"])
def test_a_list_goes_on_behind_its_last_item_whatever_the_offset(
    offset: str, server: ReplayServer, client: LakeFSClient
) -> None:
    """One that lies further on would hide what is between."""
    server.overrides["GET", "/repositories/retention/branches"] = in_turn(
        _page(["a"], more=True, offset=offset), _page(["b", "d"], more=False, offset="")
    )
    assert [branch.id for branch in client.branches("retention")] == ["a", "b", "d"]
    assert [request.params.get("after") for request in server.requests] == [None, "a"]


def test_a_log_that_goes_in_circles_stops(server: ReplayServer, client: LakeFSClient) -> None:
    body = server.recording.body("log_page1.main")
    other = {**body, "pagination": {**body["pagination"], "next_offset": "x"}}
    server.overrides["GET", ".*/commits"] = in_turn(
        Answer(200, body), Answer(200, other), Answer(200, body)
    )
    with pytest.raises(errors.UnexpectedAnswerError, match="came again"):
        list(client.log("retention", "main"))
    assert len(server.requests) == 3


def test_a_throttled_page_is_asked_for_again(server: ReplayServer, client: LakeFSClient) -> None:
    server.overrides["GET", "/repositories/retention/branches"] = in_turn(
        _page(["a"], more=True, offset="a"),
        Answer(429, {"message": "slow down"}, {"Retry-After": "0"}),
        _page(["b"], more=False, offset=""),
    )
    assert [branch.id for branch in client.branches("retention")] == ["a", "b"]
    assert [request.params.get("after") for request in server.requests] == [None, "a", "a"]
