"""Removing tables that nothing names: what goes, what comes back, and kills at every step."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lakegc_assets.errors import RefusedError
from lakegc_assets.leftovers.ledger import FOLDER, Ledger, unfinished
from lakegc_assets.leftovers.metadata_removal import (
    plan_metadata,
    remove_metadata,
    settle_killed,
)
from lakegc_assets.leftovers.removal import Choices
from lakegc_assets.leftovers.server import Server
from lakegc_assets.storage.local import LocalStore
from lakegc_assets_tests.lake import REPOSITORY, SmallLake
from lakegc_assets_tests.leftovers.conftest import Orphan, age, commit_of, orphan


class KilledError(BaseException):
    """What ends a process at once: nothing that follows is done."""


@pytest.fixture
def lost(lake: SmallLake) -> Orphan:
    """A range and a metarange that nothing has named for a month."""
    found = orphan(lake, "lost")
    age(lake.objects / "_lakefs", 31)
    return found


def choices(server: Server, backup: Path | None = None) -> Choices:
    plan = plan_metadata(server, REPOSITORY)
    return Choices("somebody", plan.id, str(backup) if backup else None)


def tables(lake: SmallLake) -> set[str]:
    return {f"_lakefs/{p.name}" for p in (lake.objects / "_lakefs").iterdir() if len(p.name) == 64}


def ended(lake: SmallLake) -> list[dict[str, Any]]:
    folder = Path(lake.root.url) / FOLDER
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*/end.json"))]


def test_they_go_into_the_trash_and_the_ledger_says_so(
    lake: SmallLake, server: Server, lost: Orphan
) -> None:
    before = tables(lake)
    assert remove_metadata(server, REPOSITORY, choices(server)) == {"deleted": 2}
    assert before - tables(lake) == {*lost}
    assert tables(lake) >= before - {*lost}
    assert ended(lake) == [{"deleted": 2, "put_back": []}]
    assert not unfinished(server.root)
    trash = [p for p in (lake.objects / "_lakefs").rglob("trash/*/_lakefs/*") if p.is_file()]
    assert {f"_lakefs/{p.name}" for p in trash} == {*lost}
    assert lake.client.get_object(REPOSITORY, "main", "a") == b"second"


def test_only_what_was_confirmed_goes(lake: SmallLake, server: Server, lost: Orphan) -> None:
    confirmed = choices(server)
    orphan(lake, "another")
    age(lake.objects / "_lakefs", 31)
    with pytest.raises(RefusedError, match="is not what was confirmed"):
        remove_metadata(server, REPOSITORY, confirmed)
    assert {*lost} <= tables(lake)
    assert not (Path(lake.root.url) / FOLDER).exists()


def test_what_is_committed_while_it_is_removed_stays_or_comes_back(
    lake: SmallLake,
    server: Server,
    lost: Orphan,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """A commit takes the metarange: before the last look it is spared, behind it, put back."""
    begin, delete = Ledger.begin, LocalStore.delete_many
    other = orphan(lake, "other")
    age(lake.objects / "_lakefs", 31)

    def begin_and_commit(ledger: Ledger, planned: Any) -> None:
        begin(ledger, planned)
        commit_of(lake, lost)

    monkeypatch.setattr(Ledger, "begin", begin_and_commit)
    found = remove_metadata(server, REPOSITORY, choices(server))
    assert found == {"spared": 2, "deleted": 2}
    assert {*lost} <= tables(lake)
    monkeypatch.setattr(Ledger, "begin", begin)

    third = orphan(lake, "third")
    age(lake.objects / "_lakefs", 31)

    def delete_and_commit(store: LocalStore, keys: Any, *args: Any, **options: Any) -> Any:
        keys = list(keys)
        if set(keys) == {*third}:
            commit_of(lake, third)
        return delete(store, keys, *args, **options)

    monkeypatch.setattr(LocalStore, "delete_many", delete_and_commit)
    found = remove_metadata(server, REPOSITORY, choices(server, tmp_path / "backup"))
    assert found == {"deleted": 2, "put_back": 2}
    assert {*third} <= tables(lake)
    assert not {*other} & tables(lake)
    assert set(ended(lake)[-1]["put_back"]) == {*third}


_delete = LocalStore.delete_many


def _kill(*_: Any, **__: Any) -> Any:
    raise KilledError


def _kill_after_delete(store: LocalStore, keys: Any, *args: Any, **options: Any) -> Any:
    keys = list(keys)
    found = _delete(store, keys, *args, **options)
    if any(len(key) == len("_lakefs/") + 64 for key in keys):
        raise KilledError
    return found


@pytest.mark.parametrize("with_backup", [False, True])
@pytest.mark.parametrize(
    ("step", "killer", "deleted"),
    [
        ("leftovers.metadata_removal.remove_objects", _kill, False),
        ("storage.local.LocalStore.delete_many", _kill_after_delete, True),
        ("leftovers.metadata_removal.put_back", _kill, True),
    ],
)
def test_nothing_is_lost_by_a_kill(
    step: str,
    killer: Callable[..., Any],
    deleted: bool,  # noqa: FBT001 - a parameter
    with_backup: bool,  # noqa: FBT001 - a parameter
    lake: SmallLake,
    server: Server,
    lost: Orphan,
    tmp_path: Path,
) -> None:
    """What a killed removal has deleted comes back with the next one, if it is named by then."""
    backup = tmp_path / "backup" if with_backup else None
    wanted = choices(server, backup)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"lakegc_assets.{step}", killer)
        with pytest.raises(KilledError):
            remove_metadata(server, REPOSITORY, wanted)
    (left,) = unfinished(server.root)
    assert set(Ledger(server.root, left).planned()["key"].to_pylist()) == {*lost}
    gone = {*lost} - tables(lake)
    assert gone == ({*lost} if deleted else set())
    commit_of(lake, lost)
    settle_killed(server, REPOSITORY)
    assert {*lost} <= tables(lake)
    assert not unfinished(server.root)
    assert set(ended(lake)[-1]["put_back"]) == gone
