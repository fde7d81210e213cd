"""A namespace is collected by one lakeFS server, and refused to another one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from lakegc_assets.errors import IntegrityError
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.lakefs.models import Repository
from lakegc_assets.mark.candidates import find_candidates
from lakegc_assets.mark.commits import find_active_commits
from lakegc_assets.mark.committed_addresses import read_committed_addresses
from lakegc_assets.mark.installation import (
    BY_DATE,
    BY_ID,
    MARKER,
    OtherServerError,
    require_one_server,
)
from lakegc_assets.mark.listing import list_store
from lakegc_assets.mark.uncommitted_snapshot import snapshot_uncommitted
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.opening import open_store
from lakegc_assets_tests.lake import REPOSITORY, SmallLake, running
from lakegc_assets_tests.sessions import Session


class Told:
    """A server that tells of itself what it is given."""

    def __init__(self, installation_id: str | None, made: int = 100) -> None:
        self.id = installation_id
        self.made = made

    def installation_id(self) -> str | None:
        return self.id

    def repository(self, name: str) -> Repository:
        return Repository.model_construct(id=name, creation_date=self.made)


def require(store: ObjectStore, server: Told, repository: str = "repo") -> str:
    return require_one_server(cast("LakeFSClient", server), repository, store)


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path / "namespace"), StoreConfig())


def test_the_first_server_is_remembered_and_may_come_back(store: ObjectStore) -> None:
    assert require(store, Told("one")) == BY_ID
    assert require(store, Told("one")) == BY_ID
    # Told of itself no more.
    assert require(store, Told(None)) == BY_DATE


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Told("one"), Told("two")),
        # A second repository of one server, made bare and restored for one, or the same made anew.
        (Told("one"), Told("one", made=200)),
        (Told("one"), Told(None, made=200)),
        (Told(None), Told("two", made=200)),
        (Told(None), Told(None, made=200)),
    ],
)
def test_another_server_is_refused_until_the_marker_is_removed(
    store: ObjectStore, first: Told, second: Told
) -> None:
    require(store, first)
    kept = store.get(MARKER)
    with pytest.raises(OtherServerError, match=r"another lakeFS server .* remove .*server\.json"):
        require(store, second)
    assert store.get(MARKER) == kept
    store.delete_many([MARKER])
    require(store, second)


def test_another_repository_of_the_same_server_is_refused(store: ObjectStore) -> None:
    require(store, Told("one"))
    with pytest.raises(OtherServerError, match=r"repository 'repo' .* repository 'restored'"):
        require(store, Told("one"), "restored")


def test_an_id_that_is_told_later_is_remembered(store: ObjectStore) -> None:
    assert require(store, Told(None)) == BY_DATE
    assert require(store, Told("one")) == BY_ID
    with pytest.raises(OtherServerError, match="installation id one"):
        require(store, Told("two"))


def test_of_two_that_come_at_once_one_is_refused(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = type(store).put_if_absent

    def behind_another(self: ObjectStore, key: str, data: bytes) -> str:
        monkeypatch.setattr(type(store), "put_if_absent", put)
        require(store, Told("two"))
        return put(self, key, data)

    monkeypatch.setattr(type(store), "put_if_absent", behind_another)
    with pytest.raises(OtherServerError, match="installation id two"):
        require(store, Told("one"))


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff", b'{"installation_id": "x"}'])
def test_a_damaged_marker_stops_the_run(store: ObjectStore, content: bytes) -> None:
    store.put(MARKER, content)
    with pytest.raises(IntegrityError, match=r"server\.json is damaged"):
        require(store, Told("one"))


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[SmallLake]:
    with running(tmp_path / "lake") as found:
        found.client.create_repository(REPOSITORY, f"local://{REPOSITORY}")
        yield found


def test_a_mark_is_refused_to_another_server(
    lake: SmallLake, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The embedded one tells no id, as a server that makes no report of its use."""
    listing = list_store(lake.context(spark, "first"))
    assert listing.facts["server_known_by"] == BY_DATE
    monkeypatch.setattr(LakeFSClient, "installation_id", lambda _: "one")
    assert list_store(lake.context(spark, "second")).facts["server_known_by"] == BY_ID
    monkeypatch.setattr(LakeFSClient, "installation_id", lambda _: "two")
    with pytest.raises(OtherServerError, match="installation id one"):
        list_store(lake.context(spark, "third"))


def test_a_mark_is_not_gone_on_with_by_another_server(
    lake: SmallLake, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A retry from failure begins with the stage that failed, whatever server is set by then."""
    ctx = lake.context(spark, "first")
    stages = (snapshot_uncommitted, find_active_commits, read_committed_addresses, find_candidates)
    monkeypatch.setattr(LakeFSClient, "installation_id", lambda _: "one")
    list_store(ctx)
    for stage in stages:
        monkeypatch.setattr(LakeFSClient, "installation_id", lambda _: "two")
        with pytest.raises(OtherServerError, match="installation id one"):
            stage(ctx)
        monkeypatch.setattr(LakeFSClient, "installation_id", lambda _: "one")
        stage(ctx)
