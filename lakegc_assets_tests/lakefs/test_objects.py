"""Reads of objects and of changes, on answers of a real server and on others."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count

import pytest

from lakegc_assets.lakefs import errors, transport
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.lakefs.models import DiffEntry

from ..replay import Answer, ReplayServer
from .pages import in_turn, read_pages_of, results


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
    server.overrides["GET", ".*/objects/ls"] = in_turn(*map(results, bodies), results())
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
    server.overrides["GET", ".*/diff/.*"] = results({"path": "a", **_ADDED}, odd)
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
    server.overrides["GET", ".*/diff/.*"] = results({"path": "a", **_ADDED}, **paging)
    assert_same_error(client)


def test_a_change_may_have_more_and_less_than_is_read(
    server: ReplayServer, client: LakeFSClient
) -> None:
    bare = {"path": "b", "path_type": "object", "type": "added"}
    null = {**bare, "path": "c", "size_bytes": None}
    server.overrides["GET", ".*/diff/.*"] = in_turn(
        results({"path": "a", **_ADDED, "right": {"x": 1}}, bare, null), results()
    )
    assert list(client.changes("retention", "main")) == [[{"path": "a", **_ADDED}, bare, null]]


def test_a_diff_that_ends_early_is_read_to_its_end(
    server: ReplayServer, client: LakeFSClient
) -> None:
    """The error of a scan is forgotten, and the answer has what was found until then."""
    first, second, third = ({"path": path, **_ADDED} for path in "abc")
    for read in (client.diff_branch, client.changes):
        more = results(first, has_more=True, next_offset="a")
        answers = (more, results(second), results(third), results())
        server.overrides["GET", ".*/diff/.*"] = in_turn(*answers)
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
    server.overrides["GET", ".*/diff/.*"] = lambda _: results({"path": next(paths), **_ADDED})
    server.requests.clear()
    with pytest.raises(errors.UnexpectedAnswerError, match="the list does not end"):
        list(client.changes("retention", "main"))
    assert len(server.requests) == 3
