"""The hold of a namespace that no repository has is shown, and ended by a person."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lakegc_assets.errors import RefusedError
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.leftovers.namespace_removal import accept_hold, known_hold, lines
from lakegc_assets.leftovers.namespaces import guarded
from lakegc_assets.leftovers.server import Server
from lakegc_assets.storage.opening import open_store
from lakegc_assets.sweep.hold import HOLD, RECORDS, write_hold
from lakegc_assets.sweep.lease import repository_lease
from lakegc_assets.sweep.lease_record import owner_of
from lakegc_assets_tests.lake import REPOSITORY, SmallLake
from lakegc_assets_tests.leftovers.conftest import mark_as

URL = "local://team/old"
ALARM = {
    "run": "first",
    "at": "2026-03-01T02:00:00+00:00",
    "alarm": "2 objects of mark 'first' are gone, and are needed",
    "objects": [{"address": "data/there", "why": "staged"}, {"address": "data/gone", "why": "x"}],
    "count": 2,
    "all": "file:///artifacts/old/first/missing",
}


@pytest.fixture
def namespace(lake: SmallLake, server: Server, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The namespace of a deleted repository of this server, which is on hold."""
    monkeypatch.setattr(LakeFSClient, "installation_id", lambda _: "mine")
    folder = lake.server.objects_dir / "team/old"
    mark_as(folder, "mine")
    store = server.open(URL)
    store.put("data/there", b"1")
    write_hold(store, ALARM)
    return folder


def accept(server: Server, hold: str, **options: bool) -> None:
    asked = {"unclaimed": False, "unverified": True, **options}
    accept_hold(server, URL, hold, "ada", **asked)


def test_it_is_shown_and_ended_by_who_says_so(namespace: Path, server: Server) -> None:
    found = known_hold(server, URL)
    said = "\n".join(lines(found))
    for words in (
        f"{URL} is on hold, and no repository of the server has it. Hold {found['id']}",
        "2026-03-01 02:00 UTC: 2 objects of mark 'first' are gone",
        "  data/gone  not at its address: x",
        "  data/there  at its address: staged",
        "  all objects: file:///artifacts/old/first/missing",
        "now: 1 at its address, 1 not at its address",
        f"lakegc hold {URL} --accept --id {found['id']}",
    ):
        assert words in said
    place = StorageNamespace.parse(URL)
    assert f"`lakegc hold {URL}` shows why, and can end it" in guarded(server, place)
    with pytest.raises(RefusedError, match="it is not known what is lost"):
        accept(server, found["id"], unverified=False)
    with pytest.raises(RefusedError, match="is not 0123 any more"):
        accept(server, "0123")
    assert known_hold(server, URL) == found
    accept(server, found["id"])
    now = known_hold(server, URL)
    assert (now["state"], now["by"], now["id"]) == ("accepted", "ada", found["id"])
    assert "ada has accepted it" in "\n".join(lines(now))
    record = json.loads((namespace / RECORDS / f"{found['id']}.json").read_bytes())
    assert record == json.loads((namespace / HOLD).read_bytes())
    assert record["unverified"] == ["data/gone"]
    assert guarded(server, place) == ""
    with pytest.raises(RefusedError, match="any more"):
        accept(server, found["id"])


@pytest.mark.parametrize("content", ["{}", "[", "no alarm"])
def test_a_hold_without_an_alarm_is_ended_only_unverified(
    namespace: Path, server: Server, content: str
) -> None:
    (namespace / HOLD).write_text(content)
    found = known_hold(server, URL)
    assert lines(found)
    with pytest.raises(RefusedError, match="it is not known what is lost"):
        accept(server, found["id"], unverified=False)
    accept(server, found["id"])
    assert known_hold(server, URL)["state"] == "accepted"


def test_a_hold_is_ended_without_more_where_all_objects_are_back(
    namespace: Path, server: Server
) -> None:
    (namespace / "data/gone").write_bytes(b"2")
    accept(server, known_hold(server, URL)["id"], unverified=False)
    assert known_hold(server, URL)["state"] == "accepted"


@pytest.mark.parametrize(
    "url", [f"local://{REPOSITORY}", f"local://{REPOSITORY}/data", "local://team"]
)
def test_the_hold_of_a_repository_is_not_ended_by_a_url(
    lake: SmallLake, namespace: Path, server: Server, url: str
) -> None:
    """One repository is in the last of them."""
    lake.client.create_repository("young", "local://team/young")
    write_hold(open_store(f"local://{REPOSITORY}", server.root.stores), ALARM)
    with pytest.raises(RefusedError, match="the storage namespace of repository"):
        known_hold(server, url)
    with pytest.raises(RefusedError, match="the storage namespace of repository"):
        accept_hold(server, url, "0123", "ada", unclaimed=True, unverified=True)
    assert json.loads((namespace / HOLD).read_bytes()) == ALARM


def test_a_hold_stays_that_another_server_may_have_written(namespace: Path, server: Server) -> None:
    hold = known_hold(server, URL)["id"]
    mark_as(namespace, "another")
    with pytest.raises(RefusedError, match="names another lakeFS server"):
        accept(server, hold, unclaimed=True)
    mark_as(namespace, None)
    with pytest.raises(RefusedError, match="add --unclaimed"):
        accept(server, hold)
    accept(server, hold, unclaimed=True)
    assert known_hold(server, URL)["state"] == "accepted"


def test_a_hold_stays_while_somebody_works_there(namespace: Path, server: Server) -> None:
    store, hold = server.open(URL), known_hold(server, URL)["id"]
    duration = server.context("any").settings.lease_duration
    with (
        repository_lease(store, owner_of(doing="sweep"), duration=duration),
        pytest.raises(RefusedError, match="another process holds the lease"),
    ):
        accept(server, hold)
    assert json.loads((namespace / HOLD).read_bytes()) == ALARM


def test_a_namespace_without_a_hold_says_so(lake: SmallLake, server: Server) -> None:
    assert lake
    assert lines(known_hold(server, URL)) == [f"{URL} is not on hold"]
    with pytest.raises(RefusedError, match="is not on hold: nothing to accept"):
        accept(server, "0123", unclaimed=True)
