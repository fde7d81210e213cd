"""Removing a namespace that no repository has: its copies, kills, other writers, and its hold."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from lakegc_assets.errors import RefusedError
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.leftovers.namespace_removal import (
    accept_hold,
    known_hold,
    lines,
    named_by,
    plan_namespace,
    remove_namespace,
)
from lakegc_assets.leftovers.namespaces import guarded, leftover_namespaces
from lakegc_assets.leftovers.removal import COPIES, FOLDER, PLANNED, Ledger, unfinished
from lakegc_assets.leftovers.server import Server
from lakegc_assets.mark.installation import MARKER
from lakegc_assets.storage.copies import copy_object
from lakegc_assets.storage.errors import StorageError
from lakegc_assets.storage.local import LocalStore
from lakegc_assets.storage.opening import open_store
from lakegc_assets.storage.values import DeleteOutcome
from lakegc_assets.sweep.hold import HOLD, RECORDS, write_hold
from lakegc_assets.sweep.lease import repository_lease
from lakegc_assets.sweep.lease_record import owner_of
from lakegc_assets_tests.files import age, contents
from lakegc_assets_tests.kills import Killed
from lakegc_assets_tests.lake import REPOSITORY, SmallLake
from lakegc_assets_tests.leftovers.conftest import mark_as
from lakegc_assets_tests.leftovers.old_namespace import SLICE, URL, XID, choices, remove

ALARM = {
    "run": "first",
    "at": "2026-03-01T02:00:00+00:00",
    "alarm": "2 objects of mark 'first' are gone, and are needed",
    "objects": [{"address": "data/there", "why": "staged"}, {"address": "data/gone", "why": "x"}],
    "count": 2,
    "all": "file:///artifacts/old/first/missing",
}


def test_it_goes_and_its_copies_stay(old: Path, server: Server, tmp_path: Path) -> None:
    mark_as(old, None)
    before = contents(old)
    plan = plan_namespace(server, URL, unclaimed=True)
    order = plan.rows["key"].to_pylist()
    assert order[-1] == MARKER
    of_lakefs = [key.startswith("_lakefs/") for key in order]
    assert of_lakefs == sorted(of_lakefs)
    found = remove(server, tmp_path / "backup")
    assert found == {"deleted": len(before)}
    assert contents(old) == {}
    (copies,) = (tmp_path / "backup").iterdir()
    kept = contents(copies)
    assert json.loads(kept.pop(COPIES))["where"] == URL
    assert kept == before
    assert not unfinished(server.root)


def test_copies_are_never_left_over(old: Path, server: Server, tmp_path: Path) -> None:
    """Not even where somebody else looks, whose artifacts know of no removal."""
    assert contents(old)
    backup = tmp_path / "backup"
    remove(server, backup)
    age(backup, 31)
    there = replace(server, namespace_roots=(str(backup),))
    whys = (
        f"an object that lakeFS does not write there: '{COPIES}'",
        "copies of removal .* lie in it",
    )
    for why, hidden in zip(whys, (None, COPIES), strict=True):
        (copies,) = backup.iterdir()
        if hidden:
            (copies / hidden).unlink()
        ((found,), problems) = leftover_namespaces(there)
        assert re.search(why, found.stays)
        assert problems == []
        with pytest.raises(RefusedError, match=why):
            plan_namespace(there, found.url, unclaimed=True)


_delete: Callable[..., Any] = LocalStore.delete_many


@pytest.mark.parametrize("deleted", [0, 1, 100])
def test_a_kill_loses_nothing(
    deleted: int,
    old: Path,
    server: Server,
    tmp_path: Path,
) -> None:
    """The plan is in the ledger, and each object in its place or among the copies."""
    before = contents(old)

    def killed(store: LocalStore, keys: Any, *args: Any, **options: Any) -> Any:
        keys = list(keys)
        if not set(keys) & before.keys():
            return _delete(store, keys, *args, **options)
        _delete(store, keys[:deleted], *args, **options)
        raise Killed

    wanted = choices(server, tmp_path / "backup")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalStore, "delete_many", killed)
        with pytest.raises(Killed):
            remove_namespace(server, URL, wanted, unclaimed=True)
    (left,) = unfinished(server.root)
    assert (left.kind, left.where, left.by) == ("namespace", URL, "somebody")
    planned = Path(server.root.url) / FOLDER / left.id / "planned/000000.parquet"
    assert {*pq.read_table(planned)["key"].to_pylist()} == before.keys()
    (copies,) = (tmp_path / "backup").iterdir()
    kept = contents(copies) | contents(old)
    assert kept.pop(COPIES)
    assert kept == before
    others = [replace(left, id=f"{left.id}-1", url="x"), replace(left, id=f"{left.id}-2", kind="x")]
    for one in others:
        Ledger(server.root, one).begin(PLANNED.empty_table())
    # What lakeFS wrote for itself goes after all else.
    data = [key for key in before if not key.startswith("_lakefs/")]
    assert len(contents(old)) == len(before) - min(deleted, len(data))
    remove(server, tmp_path / "backup")
    assert contents(old) == {}
    assert unfinished(server.root) == others


@pytest.mark.parametrize("table", [False, True], ids=["an object", "a table"])
@pytest.mark.parametrize("outcome", ["locked", "failed"])
def test_what_the_store_refuses_keeps_what_tells_whose_it_is(
    outcome: Any,
    table: bool,  # noqa: FBT001 - a parameter
    old: Path,
    server: Server,
    tmp_path: Path,
) -> None:
    """Without that nobody would find the rest again, nor know that this server had it."""
    mark_as(old, None)
    before = contents(old)
    stays = min(key for key in before if key.startswith("_lakefs/") == table and key != MARKER)

    def refuses(store: LocalStore, keys: Any, *args: Any, **options: Any) -> Any:
        some = [key for key in keys if key != stays]
        found = _delete(store, some, *args, **options)
        return [*found, *(DeleteOutcome(key, outcome, "Code") for key in {*keys} - {*some})]

    wanted = choices(server, tmp_path / "backup")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalStore, "delete_many", refuses)
        with pytest.raises(StorageError, match="1 object could not be removed"):
            remove_namespace(server, URL, wanted, unclaimed=True)
    of_lakefs = {key for key in before if key.startswith("_lakefs/")}
    assert MARKER in of_lakefs
    assert contents(old).keys() == {stays, MARKER} | (set() if table else of_lakefs)
    assert unfinished(server.root)
    remove(server, tmp_path / "backup")
    assert contents(old) == {}
    assert not unfinished(server.root)


def _written(old: Path, before: dict[str, bytes], what: str) -> str:
    """Let somebody write into a namespace whose data is being removed; the key that is written."""
    data = sorted(key for key in before if not key.startswith("_lakefs/"))
    key = {
        "another object": data[0],
        "the same content again": data[0],
        "a new object": f"data/{SLICE}/{XID}",
        "a new table": "_lakefs/" + "f0" * 32,
    }[what]
    (old / key).parent.mkdir(parents=True, exist_ok=True)
    (old / key).write_bytes(before[key] if "same" in what else b"of somebody else")
    return key


@pytest.mark.parametrize(
    ("what", "why", "at"),
    [
        ("another object", "has", "the copies"),
        ("another object", "it was written again since", "the delete"),
        ("the same content again", "it was written again since", "the delete"),
        ("another object", "it was written since the plan", "the end of the data"),
        ("a new object", "it was written since the plan", "the end of the data"),
        ("a new table", "it was written since the plan", "the end of the data"),
        ("another object", "has", "the last moment"),
        ("another object", "has", "the last moment, without copies"),
    ],
)
def test_what_somebody_writes_meanwhile_ends_it(
    what: str, why: str, at: str, old: Path, server: Server, tmp_path: Path
) -> None:
    """Whoever writes there needs the tables of lakeFS, too, and the marker of a collection."""
    mark_as(old, None)
    before = contents(old)
    written: list[str] = []

    def write(*_: Any) -> None:
        if not written:
            written.append(_written(old, before, what))

    def copy_late(*args: Any, **options: Any) -> None:
        write()
        copy_object(*args, **options)

    def look(*args: Any) -> str:
        write()
        return guarded(*args)

    def delete(store: LocalStore, keys: Any, *args: Any, **options: Any) -> Any:
        keys = list(keys)
        if set(keys) & before.keys() and "the last moment" in at:
            write()
        found = _delete(store, keys, *args, **options)
        if set(keys) & before.keys():
            write()
        return found

    without = at.endswith("without copies")
    wanted = choices(server, None if without else tmp_path / "backup", without=without)
    with pytest.MonkeyPatch.context() as patch:
        if at == "the copies":
            patch.setattr("lakegc_assets.leftovers.removal.copy_object", copy_late)
        elif at == "the delete":
            patch.setattr("lakegc_assets.leftovers.namespace_removal.guarded", look)
        else:
            patch.setattr(LocalStore, "delete_many", delete)
        with pytest.raises(
            RefusedError, match=f"differs from the plan .*{why}.*somebody writes there"
        ) as raised:
            remove_namespace(server, URL, wanted, unclaimed=True)
    (key,) = written
    assert repr(key) in str(raised.value)
    left = contents(old)
    assert {k for k in before if k.startswith("_lakefs/")} | {key} <= left.keys()
    assert left[key] == (before[key] if "same" in what else b"of somebody else")
    (removal,) = unfinished(server.root)
    assert removal.url.endswith("team/old")


@pytest.mark.parametrize("data", [True, False], ids=["with data", "tables alone"])
def test_nothing_goes_where_somebody_has_written_while_repositories_were_read(
    data: bool,  # noqa: FBT001 - a parameter
    old: Path,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To read all of their ranges may take long; another server may have begun to use the place."""
    if not data:
        shutil.rmtree(old / "data")
    before = contents(old)
    wanted = choices(server, without=True)

    def read(*asked: Any) -> str:
        (old / "data" / SLICE).mkdir(parents=True, exist_ok=True)
        (old / "data" / SLICE / XID).write_bytes(b"of somebody else")
        return named_by(*asked)

    monkeypatch.setattr("lakegc_assets.leftovers.namespace_removal.named_by", read)
    with pytest.raises(RefusedError, match="0 objects were removed before that was seen"):
        remove_namespace(server, URL, wanted, unclaimed=True)
    assert before.items() <= contents(old).items()


def test_what_is_gone_meanwhile_ends_nothing(old: Path, server: Server, tmp_path: Path) -> None:
    before = contents(old)
    first = min(key for key in before if not key.startswith("_lakefs/"))

    def copy_and_lose(source: LocalStore, key: str, *args: Any, **options: Any) -> None:
        (old / first).unlink(missing_ok=True)
        copy_object(source, key, *args, **options)

    wanted = choices(server, tmp_path / "backup")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lakegc_assets.leftovers.removal.copy_object", copy_and_lose)
        found = remove_namespace(server, URL, wanted, unclaimed=True)
    assert found == {"deleted": len(before) - 1, "already_missing": 1}
    assert contents(old) == {}
    assert not unfinished(server.root)


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
    # Who waits for a lease refuses once it was renewed.
    with (
        repository_lease(store, owner_of(doing="sweep"), duration=timedelta(minutes=1)),
        pytest.raises(RefusedError, match="another process holds the lease"),
    ):
        accept(server, hold)
    assert json.loads((namespace / HOLD).read_bytes()) == ALARM


def test_a_namespace_without_a_hold_says_so(lake: SmallLake, server: Server) -> None:
    assert lake
    assert lines(known_hold(server, URL)) == [f"{URL} is not on hold"]
    with pytest.raises(RefusedError, match="is not on hold: nothing to accept"):
        accept(server, "0123", unclaimed=True)
