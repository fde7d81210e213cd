"""The calls of a collector, on the answers of a real server and on answers it must not believe."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from lakegc_assets.lakefs import errors, transport
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.lakefs.models import DiffEntry

from ..replay import Answer, ReplayServer, Request
from .faults import FaultServer, answer

ALL = ["small", "retention", "orderhz", "identical", "norules", "emptyrepo", "paged"]
BRANCHES = ["dev", "fromold", "hidden", "long", "main", "sq", "stale"]


X1 = "ee7df98a2779324c45438b49c8765f0c4840c89638f591a1fe54bbf4ca142d51"


def read_pages_of(amount: int, client: LakeFSClient, monkeypatch: pytest.MonkeyPatch) -> None:
    page = client.first_page
    monkeypatch.setattr(client, "first_page", lambda listing: page(replace(listing, amount=amount)))


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
    server.overrides["GET", "/repositories"] = _in_turn(
        _results(first), _results(second), _results()
    )
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
            return _results()
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
    return _results(*({**commit, "id": i, "parents": p, "version": v} for i, p, v in told))


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


# Objects


def test_stat(client: LakeFSClient) -> None:
    odd = "dir with space/ü-ключ+%25&?.txt"
    assert client.stat("retention", "main", odd).path == odd
    external = client.stat("retention", "main", "st/external")
    assert external.physical_address == "s3://lab/external/one.bin"
    assert external.metadata == {"m": "1"}
    with pytest.raises(errors.NotFoundError):
        client.stat("retention", "main", "nope")
    with pytest.raises(errors.NotFoundError):
        client.stat("retention", "main", "a/20")


@pytest.mark.parametrize("server", ["identical"], indirect=True)
def test_stat_gives_the_address_that_is_served(client: LakeFSClient) -> None:
    served = {found.path: found for found in client.objects("identical", "main")}
    assert client.stat("identical", "main", "same") == served["same"]
    assert served["same"].physical_address.endswith("/dc0iol1ksdubnt8ra49g")
    assert served["same"].size_bytes == 10
    assert served["empty"].size_bytes == 0


def test_stat_of_another_path_than_asked_for(server: ReplayServer, client: LakeFSClient) -> None:
    other = server.recording.body("stat.00")
    server.overrides["GET", ".*/objects/stat"] = (200, other)
    with pytest.raises(errors.UnexpectedAnswerError, match="a/07"):
        client.stat("retention", "main", "a/07")


def test_collected_objects_are_gone(server: ReplayServer, client: LakeFSClient) -> None:
    server.overrides["GET", ".*/refs/main/objects"] = Answer(200, b"\x00bytes")
    assert client.get_object("retention", "main", "a/02") == b"\x00bytes"
    server.overrides["GET", ".*/refs/main/objects"] = (410, {"message": "No data"})
    with pytest.raises(errors.GoneError, match="No data"):
        client.get_object("retention", "main", "a/02")


def test_objects_from_anywhere(client: LakeFSClient) -> None:
    whole = list(client.objects("retention", "main"))
    paths = [found.path for found in whole]
    assert paths == sorted(paths)
    assert list(client.objects("retention", "main", prefix="st/", amount=2)) == [
        found for found in whole if found.path.startswith("st/")
    ]
    page, more = client.objects_page("retention", "main", after=paths[3], amount=4)
    assert ([found.path for found in page], more) == (paths[4:8], True)
    page, more = client.objects_page("retention", "main", after=paths[-2])
    assert ([found.path for found in page], more) == (paths[-1:], False)
    with pytest.raises(errors.NotFoundError):
        client.objects_page("retention", "nope")


def test_objects_are_asked_for_again_until_nothing_follows(
    server: ReplayServer, client: LakeFSClient
) -> None:
    """What such a list hid would not be restored, and nobody would be told."""
    first, second = list(client.objects("retention", "main", prefix="st/"))[:2]
    bodies = [found.model_dump() for found in (first, second)]
    server.requests.clear()
    server.overrides["GET", ".*/objects/ls"] = _in_turn(*map(_results, bodies), _results())
    assert list(client.objects("retention", "main", prefix="st/")) == [first, second]
    asked = [(request.params["prefix"], request.params.get("after")) for request in server.requests]
    assert asked == [("st/", None), ("st/", first.path), ("st/", second.path)]


def test_diff(client: LakeFSClient) -> None:
    diff = {entry.path: entry.type for entry in client.diff_branch("retention", "main")}
    assert diff["a/20"] == "removed"
    assert diff["st/external"] == "added"
    later = [e.path for e in client.diff_branch("retention", "main", after="st/live1")]
    assert later[:3] == ["st/live2", "st/over", "st/weird"]


@pytest.mark.parametrize("amount", [1, 2, 1000])
def test_changes_are_those_of_the_diff(
    amount: int, client: LakeFSClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    diff = list(client.diff_branch("retention", "main"))
    read_pages_of(amount, client, monkeypatch)
    pages = list(client.changes("retention", "main"))
    assert [DiffEntry.model_validate(change) for page in pages for change in page] == diff
    assert max(map(len, pages)) == min(amount, len(diff))


_ADDED: Mapping[str, object] = {"path_type": "object", "type": "added", "size_bytes": 7}


def _results(*changes: object, **paging: object) -> Answer:
    told = {"has_more": False, "next_offset": "", "results": len(changes), **paging}
    return Answer(200, {"pagination": told, "results": list(changes)})


@pytest.mark.parametrize(
    "odd",
    [
        {"path": "b"},
        {"path": 1, **_ADDED},
        {"path": None, **_ADDED},
        {**_ADDED},
        {"path": "b", **_ADDED, "type": "renamed"},
        {"path": "b", **_ADDED, "path_type": 0},
        {"path": "b", **_ADDED, "size_bytes": "7"},
        {"path": "b", **_ADDED, "size_bytes": 7.5},
        {"path": "b", **_ADDED, "size_bytes": True},
        {"path": "a", **_ADDED},
        {"path": "", **_ADDED},
        ["b"],
        None,
    ],
)
def test_odd_changes_are_the_same_error_to_both_readers(
    odd: object, server: ReplayServer, client: LakeFSClient
) -> None:
    server.overrides["GET", ".*/diff/.*"] = _results({"path": "a", **_ADDED}, odd)
    assert_same_error(client)


def assert_same_error(client: LakeFSClient) -> None:
    """One of the readers of a diff reads models, and the other dicts."""
    told = []
    for read in (client.diff_branch, client.changes):
        with pytest.raises(errors.UnexpectedAnswerError) as caught:
            list(read("retention", "main"))
        told.append(str(caught.value))
    assert told[0] == told[1]


@pytest.mark.parametrize(
    "paging",
    [
        {"results": 2},
        {"results": None},
        {"results": "1"},
        {"has_more": True},
        {"has_more": True, "next_offset": "A"},
        {"has_more": 1},
        {"next_offset": None},
    ],
)
def test_odd_pages_of_a_diff_are_the_same_error_to_both_readers(
    paging: dict[str, object], server: ReplayServer, client: LakeFSClient
) -> None:
    server.overrides["GET", ".*/diff/.*"] = _results({"path": "a", **_ADDED}, **paging)
    assert_same_error(client)


def test_a_change_may_have_more_and_less_than_is_read(
    server: ReplayServer, client: LakeFSClient
) -> None:
    bare = {"path": "b", "path_type": "object", "type": "added"}
    null = {**bare, "path": "c", "size_bytes": None}
    server.overrides["GET", ".*/diff/.*"] = _in_turn(
        _results({"path": "a", **_ADDED, "right": {"x": 1}}, bare, null), _results()
    )
    assert list(client.changes("retention", "main")) == [[{"path": "a", **_ADDED}, bare, null]]


def test_a_diff_that_ends_early_is_read_to_its_end(
    server: ReplayServer, client: LakeFSClient
) -> None:
    """The error of a scan is forgotten, and the answer has what was found until then."""
    first, second, third = ({"path": path, **_ADDED} for path in "abc")
    for read in (client.diff_branch, client.changes):
        more = _results(first, has_more=True, next_offset="a")
        answers = (more, _results(second), _results(third), _results())
        server.overrides["GET", ".*/diff/.*"] = _in_turn(*answers)
        server.requests.clear()
        assert len(list(read("retention", "main"))) == 3
        asked = [request.params.get("after") for request in server.requests]
        assert asked == [None, "a", "b", "c"]


@pytest.mark.parametrize(
    ("branch", "error"), [("main", errors.BadRequestError), ("abc", errors.NotFoundError)]
)
def test_a_branch_that_is_gone_may_have_the_name_of_a_tag(
    branch: str, error: type[errors.LakeFSError], server: ReplayServer, client: LakeFSClient
) -> None:
    """LakeFS answers that such a reference is invalid, not that there is none."""
    server.overrides["GET", ".*/diff/.*"] = (400, {"message": "invalid ref"})
    for read in (client.diff_branch, client.changes):
        with pytest.raises(error):
            list(read("retention", branch))


def test_a_diff_to_which_something_is_added_all_the_time_is_refused(
    server: ReplayServer, client: LakeFSClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "ENDS", 3)
    paths = (f"{number:05}" for number in count())
    server.overrides["GET", ".*/diff/.*"] = lambda _: _results({"path": next(paths), **_ADDED})
    server.requests.clear()
    with pytest.raises(errors.UnexpectedAnswerError, match="the list does not end"):
        list(client.changes("retention", "main"))
    assert len(server.requests) == 3


# Paging


def _page(ids: list[str], *, more: bool, offset: str, results: int | None = None) -> Answer:
    count = len(ids) if results is None else results
    paging = {"has_more": more, "next_offset": offset, "results": count, "max_per_page": 1000}
    return Answer(200, {"pagination": paging, "results": [_branch(name) for name in ids]})


def _branch(name: str) -> dict[str, str]:
    return {"id": name, "commit_id": "c"}


def _in_turn(*answers: Answer) -> Callable[[Request], Answer]:
    left = list(answers)
    return lambda _request: left.pop(0) if len(left) > 1 else left[0]


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
        server.overrides["GET", f"/repositories/retention/{kind}"] = _in_turn(*pages)
        with pytest.raises(errors.UnexpectedAnswerError):
            list(read("retention"))
        assert len(server.requests) <= 2


@pytest.mark.parametrize("offset", ["", "A", "a", "c"])
def test_a_list_goes_on_behind_its_last_item_whatever_the_offset(
    offset: str, server: ReplayServer, client: LakeFSClient
) -> None:
    """One that lies further on would hide what is between."""
    server.overrides["GET", "/repositories/retention/branches"] = _in_turn(
        _page(["a"], more=True, offset=offset), _page(["b", "d"], more=False, offset="")
    )
    assert [branch.id for branch in client.branches("retention")] == ["a", "b", "d"]
    assert [request.params.get("after") for request in server.requests] == [None, "a"]


def test_a_log_that_goes_in_circles_stops(server: ReplayServer, client: LakeFSClient) -> None:
    body = server.recording.body("log_page1.main")
    other = {**body, "pagination": {**body["pagination"], "next_offset": "x"}}
    server.overrides["GET", ".*/commits"] = _in_turn(
        Answer(200, body), Answer(200, other), Answer(200, body)
    )
    with pytest.raises(errors.UnexpectedAnswerError, match="came again"):
        list(client.log("retention", "main"))
    assert len(server.requests) == 3


def test_a_throttled_page_is_asked_for_again(server: ReplayServer, client: LakeFSClient) -> None:
    server.overrides["GET", "/repositories/retention/branches"] = _in_turn(
        _page(["a"], more=True, offset="a"),
        Answer(429, {"message": "slow down"}, {"Retry-After": "0"}),
        _page(["b"], more=False, offset=""),
    )
    assert [branch.id for branch in client.branches("retention")] == ["a", "b"]
    assert [request.params.get("after") for request in server.requests] == [None, "a", "a"]
