"""What keeps a namespace that no repository has, before its removal and during it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakegc_assets.embedded.objects import objects
from lakegc_assets.errors import ConfigurationError, RefusedError
from lakegc_assets.graveler.entry import AddressType, Entry
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.lakefs.errors import BadRequestError, ConflictError, ForbiddenError
from lakegc_assets.leftovers import namespace_removal
from lakegc_assets.leftovers.namespace_removal import named_by, plan_namespace, remove_namespace
from lakegc_assets.leftovers.namespaces import guarded
from lakegc_assets.leftovers.server import Server
from lakegc_assets.run.clocks import Clocks
from lakegc_assets.run.context import RunContext
from lakegc_assets.storage.copies import copy_object
from lakegc_assets.storage.local import LocalStore
from lakegc_assets.sweep.hold import HOLD
from lakegc_assets.sweep.lease import repository_lease
from lakegc_assets.sweep.lease_record import LEASE
from lakegc_assets_tests.files import age, contents
from lakegc_assets_tests.lake import REPOSITORY, SmallLake
from lakegc_assets_tests.leftovers.conftest import mark_as
from lakegc_assets_tests.leftovers.old_namespace import SLICE, URL, XID, choices, remove


def with_backups(server: Server, url: str | None) -> Callable[[str], RunContext]:
    """The contexts of a server, with this ``backup_url``."""
    ctx = server.context(REPOSITORY)
    settings = ctx.settings.changed(backup_url=url)
    return lambda _: replace(ctx, settings=settings)


def test_what_keeps_it(
    lake: SmallLake, old: Path, server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(RefusedError, match="add --unclaimed"):
        plan_namespace(server, URL, unclaimed=False)
    with pytest.raises(RefusedError, match="name a place for copies with --backup URL"):
        remove(server)
    for place in (old / "copies", old.parent / "copies", lake.objects, Path(lake.root.url)):
        with pytest.raises(ConfigurationError, match="would lie in"):
            remove(server, place)
    with pytest.raises(ConfigurationError, match="would lie in what is removed"):
        remove(replace(server, namespace_roots=()), old / "copies")
    with pytest.raises(ConfigurationError, match="either --backup or --without-backup"):
        remove(server, tmp_path / "x", without=True)
    (tmp_path / "x/_lakefs").mkdir(parents=True)
    (tmp_path / "x/_lakefs/dummy").touch()
    with pytest.raises(
        ConfigurationError, match="in a storage namespace, perhaps of another lakeFS"
    ):
        remove(server, tmp_path / "x")
    demanding = replace(server, context=with_backups(server, str(tmp_path / "x")))
    with pytest.raises(RefusedError, match="backup_url is set"):
        remove_namespace(demanding, URL, choices(server, without=True), unclaimed=True)
    confirmed = choices(server, without=True)
    (old / "data" / SLICE).mkdir()
    (old / "data" / SLICE / XID).write_text("x")
    with pytest.raises(RefusedError, match="0 days old"):
        remove_namespace(server, URL, confirmed, unclaimed=True)
    age(old, 31)
    with pytest.raises(RefusedError, match="are not those that were confirmed"):
        remove_namespace(server, URL, confirmed, unclaimed=True)

    def create_and_copy(*args: Any, **options: Any) -> None:
        with suppress(ConflictError, BadRequestError):
            lake.client.create_repository("again", f"{URL}/again")
        copy_object(*args, **options)

    before = contents(old).keys()
    monkeypatch.setattr("lakegc_assets.leftovers.removal.copy_object", create_and_copy)
    wanted = choices(server, tmp_path / "backup")
    with pytest.raises(RefusedError, match="namespace of repository 'again'"):
        remove_namespace(server, URL, wanted, unclaimed=True)
    assert before <= contents(old).keys()


@pytest.mark.parametrize(
    "key",
    [
        "notes.txt",
        "other/data/x",
        "dummy.txt",
        "data/report.csv",
        f"data/{SLICE}/report.csv",
        f"data/{SLICE}/{XID}/more",
        f"data/{SLICE}/_lakefs/x",
        f"data/{SLICE}/dummy",
        "_lakefs/retention/dummy",
        "_lakefs/inner/_lakefs/x",
    ],
)
def test_what_lakefs_did_not_write_keeps_it(key: str, old: Path, server: Server) -> None:
    """A repository may have had a whole bucket, with somebody else's objects beside its own."""
    strange = old / key
    strange.parent.mkdir(parents=True, exist_ok=True)
    strange.write_text("somebody else's")
    age(old, 31)
    with pytest.raises(RefusedError, match=f"an object that lakeFS does not write there: '{key}'"):
        plan_namespace(server, URL, unclaimed=True)


@pytest.mark.parametrize(
    "key",
    [
        "f0" * 16,
        XID,
        f"data/{XID}",
        f"data/{SLICE}/{XID}",
        f"data/{SLICE}/{XID},token",
        f"data/!ab/c/{SLICE}/{XID}",
    ],
)
def test_all_that_lakefs_has_ever_written_goes(key: str, old: Path, server: Server) -> None:
    (old / key).parent.mkdir(parents=True, exist_ok=True)
    (old / key).write_text("x")
    age(old, 31)
    assert key in plan_namespace(server, URL, unclaimed=True).rows["key"].to_pylist()


def test_a_hidden_repository_keeps_it(
    lake: SmallLake, old: Path, server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The server lists only what the user may list: what had artifacts must be there, or gone."""
    wanted = choices(server, tmp_path / "backup")
    lake.client.create_repository("hidden", f"{URL}/hidden")
    age(old, 31)
    listed = [one for one in server.client.repositories() if one.id != "hidden"]
    monkeypatch.setattr(LakeFSClient, "repositories", lambda _: iter(listed))
    for folder in ("hidden", "gone", "_internal"):
        server.root.open(folder).put("run/attempt.json", b"{}")
    match = r"fs:ListRepositories on \*. It lacks 'hidden'"
    with pytest.raises(RefusedError, match=match):
        remove_namespace(server, URL, wanted, unclaimed=True)
    with pytest.raises(RefusedError, match=match):
        named_by(server, StorageNamespace.parse(URL))

    def forbidden(*_: object) -> None:
        raise ForbiddenError("GET /repositories/hidden: 401: insufficient permissions")

    monkeypatch.setattr(LakeFSClient, "repository", forbidden)
    with pytest.raises(RefusedError, match="It lacks 'gone'"):
        plan_namespace(server, URL, unclaimed=True)
    shutil.rmtree(lake.root.url)
    listed.clear()
    with pytest.raises(RefusedError, match="It is empty"):
        plan_namespace(server, URL, unclaimed=True)


def test_the_repository_of_its_marker_must_be_gone(
    lake: SmallLake, old: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = list(server.client.repositories())
    lake.client.create_repository("moved", "local://elsewhere/moved")
    monkeypatch.setattr(LakeFSClient, "repositories", lambda _: iter(listed))
    for name in ("old", "moved"):
        mark_as(old, None, name)
        if name == "old":
            assert plan_namespace(server, URL, unclaimed=True).rows.num_rows
    with pytest.raises(RefusedError, match="It lacks 'moved'"):
        plan_namespace(server, URL, unclaimed=True)


def test_a_folder_that_is_no_namespace_stays(old: Path, server: Server) -> None:
    shutil.rmtree(old / "_lakefs")
    with pytest.raises(RefusedError, match="so it may be no namespace"):
        plan_namespace(server, URL, unclaimed=True)


def test_a_hold_keeps_it(
    old: Path, server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also one that comes while objects are copied."""
    hold = old / HOLD

    def copy_and_hold(*args: Any, **options: Any) -> None:
        copy_object(*args, **options)
        hold.parent.mkdir(parents=True, exist_ok=True)
        hold.write_text("{}")

    before = contents(old)
    monkeypatch.setattr("lakegc_assets.leftovers.removal.copy_object", copy_and_hold)
    wanted = choices(server, tmp_path / "backup")
    with pytest.raises(RefusedError, match="it is on hold"):
        remove_namespace(server, URL, wanted, unclaimed=True)
    assert before.items() <= contents(old).items()
    age(old, 31)
    with pytest.raises(RefusedError, match="it is on hold"):
        plan_namespace(server, URL, unclaimed=True)


def test_a_lease_that_nobody_can_read_keeps_it(old: Path, server: Server) -> None:
    lease = old / LEASE
    lease.parent.mkdir(parents=True, exist_ok=True)
    lease.write_text("{damaged")
    age(old, 31)
    with pytest.raises(RefusedError, match="it is not known whether somebody works on it"):
        plan_namespace(server, URL, unclaimed=True)


def test_who_is_at_work_on_it_keeps_it(old: Path, server: Server) -> None:
    place = StorageNamespace.parse(URL)
    assert old.exists()
    with repository_lease(server.open(URL), {"run": "r"}, duration=timedelta(minutes=3)):
        assert guarded(server, place).startswith("it is in use by somebody since ")
    assert guarded(server, place) == ""


def test_artifacts_and_backups_keep_it(old: Path, server: Server) -> None:
    for there, what in (
        (replace(server, root=replace(server.root, url=str(old.parent))), "the artifacts"),
        (replace(server, context=with_backups(server, f"{URL}/copies")), "backups"),
    ):
        with pytest.raises(RefusedError, match=f"stays: {what} .* lie in it, or around it"):
            plan_namespace(there, URL, unclaimed=True)


def test_an_object_that_is_another_since_the_confirmation_keeps_it(
    old: Path, server: Server
) -> None:
    wanted = choices(server, without=True)
    age(old, 32)
    before = contents(old)
    with pytest.raises(RefusedError, match="are not those that were confirmed"):
        remove_namespace(server, URL, wanted, unclaimed=True)
    assert contents(old) == before


def test_what_any_page_of_its_listing_shows_keeps_it(
    old: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def one_by_one(store: LocalStore, prefix: str = "") -> Iterator[pa.RecordBatch]:
        for page in _list(store, prefix):
            yield from (page.slice(at, 1) for at in range(page.num_rows))

    _list = LocalStore.list_to_the_end
    monkeypatch.setattr(LocalStore, "list_to_the_end", one_by_one)
    first = old / min(contents(old))
    os.utime(first)
    with pytest.raises(RefusedError, match="its newest object is 0 days old"):
        plan_namespace(server, URL, unclaimed=True)
    age(old, 31)
    assert plan_namespace(server, URL, unclaimed=True).rows.num_rows == len(contents(old))
    (old / "!strange").touch()
    age(old, 31)
    with pytest.raises(
        RefusedError, match="an object that lakeFS does not write there: '!strange'"
    ):
        plan_namespace(server, URL, unclaimed=True)


@pytest.mark.parametrize(
    ("what", "where"),
    [
        ("staged", "in what is staged on 'main'"),
        ("committed", "in the range"),
        ("of a deleted branch", "in the range"),
        ("in another spelling", "in the range"),
    ],
)
def test_what_another_repository_has_imported_keeps_it(
    what: str,
    where: str,
    lake: SmallLake,
    old: Path,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (address,) = (key for key in contents(old) if key.startswith("data/"))
    there = f"{URL}/{address}"
    if what == "in another spelling":
        there = there.replace("team", "TEAM")
    branch = "gone" if what == "of a deleted branch" else "main"
    if branch == "gone":
        lake.client.create_branch(REPOSITORY, "gone", "main")
    monkeypatch.setattr(namespace_removal, "STAGED_AT_ONCE", 1)
    for path, imported in (("another", "local://elsewhere/x"), ("imported", there)):
        full = Entry(imported, size=4, e_tag="0" * 32, address_type=AddressType.FULL)
        objects.stage_entry(lake.server.lake, REPOSITORY, branch, path, full)
    if what != "staged":
        lake.commit(branch)
    if branch == "gone":
        lake.client.delete_branch(REPOSITORY, "gone")
    with pytest.raises(
        RefusedError, match=f"repository 'repo' names, or may name, objects in it, .*{where}"
    ):
        remove(server, without=True)
    assert address in contents(old)


def test_a_namespace_stays_if_the_clock_of_the_store_is_ahead(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = server.open(URL).server_time() + timedelta(days=400)
    monkeypatch.setattr(LocalStore, "server_time", lambda _: later)
    with pytest.raises(RefusedError, match="ages cannot be trusted"):
        plan_namespace(server, URL, unclaimed=True)


class _Hours(Clocks):
    """A clock that an hour passes on between two readings."""

    hours = 0

    def elapsed(self) -> float:
        self.hours += 1
        return self.hours * 3600.0


def test_what_is_imported_during_the_removal_keeps_it(
    lake: SmallLake, old: Path, server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A removal may last for hours: what was read at its begin is not enough."""
    (address,) = (key for key in contents(old) if key.startswith("data/"))
    full = Entry(f"{URL}/{address}", size=4, e_tag="0" * 32, address_type=AddressType.FULL)

    def copy_and_import(*args: Any, **options: Any) -> None:
        copy_object(*args, **options)
        objects.stage_entry(lake.server.lake, REPOSITORY, "main", "imported", full)

    wanted = choices(server, tmp_path / "backup")
    monkeypatch.setattr(namespace_removal, "SYSTEM_CLOCKS", _Hours())
    monkeypatch.setattr("lakegc_assets.leftovers.removal.copy_object", copy_and_import)
    with pytest.raises(RefusedError, match=r"objects in it, in what is staged on 'main'"):
        remove_namespace(server, URL, wanted, unclaimed=True)
    assert address in contents(old)
