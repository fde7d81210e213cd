"""The rules that end what stores hold of what was deleted, in the form of each store."""

from __future__ import annotations

import json
import re
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import cast

import pytest

from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.leftovers.report import find_leftovers, life_cycle_rule, retained_objects
from lakegc_assets.leftovers.server import Server
from lakegc_assets.storage.local import LocalStore
from lakegc_assets.storage.trash import trash_folder
from lakegc_assets.storage.values import DataProtection, Recovery, Retained
from lakegc_assets_tests.lake import REPOSITORY


@pytest.mark.parametrize(
    ("url", "where", "start"),
    [
        ("s3://b/ns", ("Filter", "Prefix"), "ns/data/"),
        ("s3://b", ("Filter", "Prefix"), "data/"),
        ("gs://b/ns", ("condition", "matchesPrefix"), ["ns/data/"]),
    ],
)
def test_a_rule_is_about_the_data_of_one_namespace(
    url: str, where: tuple[str, ...], start: object
) -> None:
    rule = json.loads(life_cycle_rule(StorageNamespace.parse(url), "repo"))
    for name in where:
        rule = rule[name]
    assert rule == start


class _Versioned:
    """An Azure account with versions that no rule ends, and the server of a repository there."""

    def __init__(self) -> None:
        self.kept = Recovery("versions", None, "versioning is on")

    def chosen(self, _names: object) -> list[SimpleNamespace]:
        url = "https://acc.blob.core.windows.net/box/ns"
        return [SimpleNamespace(id=REPOSITORY, storage_namespace=url)]

    def open(self, _url: str) -> _Versioned:
        return self

    def recovery(self) -> Recovery:
        return self.kept

    def data_protection(self) -> DataProtection:
        return DataProtection.of(self.kept)

    def retained(self, _prefix: str) -> Retained:
        return Retained(1, 2)


def test_no_rule_is_proposed_that_would_end_an_undo_at_once() -> None:
    """Azure's rules for versions count from when one was written: what is swept is mostly older."""
    (found,), problems = retained_objects(cast("Server", _Versioned()))
    assert (found.objects, found.days, found.rule, problems) == (1, None, "", [])
    assert "no rule is proposed: Azure's rules count from the time" in found.notice


def test_the_trash_of_a_repository_is_told(server: Server) -> None:
    store = server.open(f"local://{REPOSITORY}")
    assert retained_objects(server) == ([], [])
    (key,) = [k for page in store.list("data/") for k in page["key"].to_pylist()][:1]
    size = store.head(key).size
    store.delete_many([key], trash=trash_folder("x", store.server_time()))
    (found,), problems = retained_objects(server)
    assert (found.repository, found.kind, found.objects, found.size, found.rule, problems) == (
        REPOSITORY, "trash", 1, size, "", []
    )  # fmt: skip


@pytest.mark.parametrize(
    ("locked", "until", "said"),
    [
        (
            2,
            datetime(2099, 1, 2, tzinfo=timezone.utc),
            "2 objects .*, the last lock until 2099-01-02",
        ),
        (1, None, "1 object locked or on legal hold$"),
        (None, None, "these credentials may not read which of the objects are locked"),
    ],
)
def test_locks_are_told(
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    locked: int | None,
    until: datetime | None,
    said: str,
) -> None:
    held = Retained(2, 3, 0, locked, until)
    monkeypatch.setattr(LocalStore, "retained", lambda *_: held)
    found = find_leftovers(server)
    assert re.search(said, found.retained[0].notice)
    (told,) = json.loads(json.dumps(found.to_json()))["retained"]
    assert (told["locked"], told["locked_until"]) == (locked, until and until.isoformat())
