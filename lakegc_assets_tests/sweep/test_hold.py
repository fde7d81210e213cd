"""Alarms that are raised at the same time all stay in the hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lakegc_assets.storage.errors import StorageError, StoreUnavailableError
from lakegc_assets.storage.local import LocalStore
from lakegc_assets.sweep.hold import ACCEPTED, HOLD, RECORDS, Hold, add_alarm, find_hold, write_hold


def alarm(run: str) -> dict[str, object]:
    return {"run": run, "at": "2026-03-01", "all": f"s3://{run}", "alarm": f"{run} lost this"}


def held(store: LocalStore) -> list[object]:
    found = find_hold(store)
    assert found is not None
    return [one["run"] for one in found.alarms]


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path, "file:///lake")


@pytest.mark.parametrize("before", [True, False])
def test_what_another_writes_between_the_look_and_the_write_stays(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, *, before: bool
) -> None:
    if before:
        add_alarm(store, alarm("first"))
    name = "put_if_match" if before else "put_if_absent"
    put: Callable[..., str] = getattr(LocalStore, name)

    def meanwhile(self: LocalStore, key: str, data: bytes, *etag: str) -> str:
        monkeypatch.setattr(LocalStore, name, put)
        add_alarm(store, alarm("another"))
        return put(self, key, data, *etag)

    monkeypatch.setattr(LocalStore, name, meanwhile)
    add_alarm(store, alarm("mine"))
    assert held(store) == ["mine", "another", *(["first"] if before else [])]


def test_an_alarm_replaces_itself_and_keeps_what_was_there(store: LocalStore) -> None:
    for run in ("first", "mine"):
        add_alarm(store, alarm(run))
    add_alarm(store, {**alarm("mine"), "objects": []})
    assert held(store) == ["mine", "first"]
    found = find_hold(store)
    assert found is not None
    assert found.values["objects"] == []


def test_an_answer_that_was_lost_leaves_one_alarm(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = LocalStore.put_if_absent

    def lose_answer(self: LocalStore, key: str, data: bytes) -> str:
        put(self, key, data)
        raise StoreUnavailableError("the answer was lost")

    monkeypatch.setattr(LocalStore, "put_if_absent", lose_answer)
    add_alarm(store, alarm("mine"))
    assert held(store) == ["mine"]


def test_what_was_accepted_is_kept_elsewhere(store: LocalStore) -> None:
    accepted = {ACCEPTED: {"id": "one", "by": "ada"}}
    write_hold(store, accepted)
    add_alarm(store, alarm("mine"))
    assert held(store) == ["mine"]
    assert Hold(store.get(f"{RECORDS}one.json").decode()).values == accepted


def test_what_nobody_can_read_is_replaced(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise StorageError("it cannot be read")

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "head", fail)
        add_alarm(store, alarm("mine"))
    assert held(store) == ["mine"]
    store.put(HOLD, b"no JSON")
    add_alarm(store, alarm("mine"))
    found = find_hold(store)
    assert found is not None
    assert found.values["earlier"] == "no JSON"
