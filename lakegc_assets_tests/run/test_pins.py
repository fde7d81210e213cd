"""Pins last until their end by the store's clock, and one that cannot be read stops everything."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pyarrow as pa
import pytest

from lakegc_assets.errors import IntegrityError
from lakegc_assets.run.pins import PINS, Pin, among, pinned, prune_pins, read_pins, write_pin
from lakegc_assets.storage.errors import StorageError
from lakegc_assets.storage.local import LocalStore
from lakegc_assets.storage.values import DeleteOutcome
from lakegc_assets_tests.kills import Killed


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path, "local://repo")


def pin(store: LocalStore, name: str, days: float, *addresses: str) -> Pin:
    until = datetime.now(timezone.utc) + timedelta(days=days)
    made = Pin(name, until, "mark-1", f"restored by {name}", len(addresses))
    write_pin(store, made, pa.array(addresses, pa.string()))
    return made


def test_what_is_pinned_says_until_when_and_why(store: LocalStore) -> None:
    assert pinned(store).num_rows == 0
    odd = "data/s/ü \n#;"
    first = pin(store, "first", 2, "data/a", "data/b", odd)
    second = pin(store, "second", 9, "data/b", "data/c", "data/c")
    pin(store, "ended", -0.001, "data/d")
    assert {row["address"]: row["why"] for row in pinned(store).to_pylist()} == {
        "data/a": first.reason,
        odd: first.reason,
        "data/b": second.reason,
        "data/c": second.reason,
    }
    assert first.reason == f"pinned until {first.until:%Y-%m-%d %H:%M} UTC: restored by first"
    some = pa.chunked_array([["data/c", "data/d", "data/x"]])
    assert among(pinned(store), some)["address"].to_pylist() == ["data/c"]
    assert [(p.id, p.run, p.objects) for p, _ in read_pins(store)] == [
        ("ended", "mark-1", 1), ("first", "mark-1", 3), ("second", "mark-1", 3),
    ]  # fmt: skip


def test_a_listing_that_ends_early_hides_no_pin(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("first", "second", "third"):
        pin(store, name, 1, f"data/{name}")
    whole = store.list

    def cut(prefix: str = "", start_after: str | None = None) -> Iterator[pa.RecordBatch]:
        for page in whole(prefix, start_after):
            yield page.slice(0, 1)
            return

    monkeypatch.setattr(store, "list", cut)
    assert sorted(pinned(store)["address"].to_pylist()) == [
        "data/first",
        "data/second",
        "data/third",
    ]


@pytest.mark.parametrize(("pruned", "stops"), [(1, False), (2, False), (9, True)])
def test_a_pin_that_is_pruned_while_pins_are_read_stops_nobody(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, pruned: int, *, stops: bool
) -> None:
    """Unless a store lists again and again what it does not have."""
    pin(store, "first", 1, "data/a")
    for number in range(pruned):
        pin(store, f"second-{number}", -1, "data/b")
    read, gone = store.get, list[str]()

    def prune_and_read(key: str) -> bytes:
        if "second" in key and len(gone) < pruned:
            gone.append(key)
            store.delete_many([key])
        return read(key)

    monkeypatch.setattr(store, "get", prune_and_read)
    monkeypatch.setattr("lakegc_assets.run.pins.THREADS", 1)
    if stops:
        with pytest.raises(IntegrityError, match="was removed while it was read"):
            read_pins(store)
    else:
        assert [p.id for p, _ in read_pins(store)] == ["first"]


def test_a_pin_that_is_written_again_lasts_longer(store: LocalStore) -> None:
    pin(store, "one", -1, "data/a")
    assert pinned(store).num_rows == 0
    pin(store, "one", 1, "data/a")
    assert pinned(store)["address"].to_pylist() == ["data/a"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],
        lambda _data: b"",
        lambda data: data.replace(b"data/b", b"data/c"),
        lambda data: data[:20] + bytes([data[20] ^ 1]) + data[21:],
        lambda data: data[:60] + bytes([data[60] ^ 1]) + data[61:],
    ],
)
def test_a_damaged_pin_is_an_error(store: LocalStore, damage: object) -> None:
    pin(store, "whole", 1, "data/a")
    pin(store, "torn", 1, "data/b")
    key = f"{PINS}torn.parquet"
    store.put(key, damage(store.get(key)))  # type: ignore[operator]
    with pytest.raises(IntegrityError, match=r"pins/torn\.parquet is damaged"):
        pinned(store)
    with pytest.raises(IntegrityError, match=r"pins/torn\.parquet is damaged"):
        prune_pins(store, store.server_time())
    assert store.exists(f"{PINS}whole.parquet")


def test_what_is_no_pin_is_an_error(store: LocalStore) -> None:
    pin(store, "whole", 1, "data/a")
    store.put(f"{PINS}whole.parquet.bak", store.get(f"{PINS}whole.parquet"))
    with pytest.raises(IntegrityError, match=r"whole\.parquet\.bak is damaged"):
        pinned(store)


def test_only_pins_that_ended_are_pruned(store: LocalStore) -> None:
    pin(store, "lasting", 1, "data/a")
    pin(store, "ended", -1, "data/b")
    pin(store, "too", -2, "data/c")
    assert sorted(found.id for found in prune_pins(store, store.server_time())) == ["ended", "too"]
    assert [found.id for found, _ in read_pins(store)] == ["lasting"]
    assert prune_pins(store, store.server_time()) == []


@pytest.mark.parametrize("at", range(1, 5))
def test_pruning_that_is_killed_is_ended_by_the_next(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    pin(store, "lasting", 1, "data/a")
    for name in ("b", "c"):
        pin(store, f"ended-{name}", -1, f"data/{name}")
    delete, steps = LocalStore.delete_file, iter(range(1, 9))

    def killed(*args: object) -> DeleteOutcome:
        if next(steps) == at:
            raise Killed
        outcome = delete(*args)  # type: ignore[arg-type]
        if next(steps) == at:
            raise Killed
        return outcome

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "delete_file", killed)
        with pytest.raises(Killed):
            prune_pins(store, store.server_time())
    assert pinned(store)["address"].to_pylist() == ["data/a"]
    prune_pins(store, store.server_time())
    assert [found.id for found, _ in read_pins(store)] == ["lasting"]


def test_a_pin_that_was_written_again_while_pins_are_pruned_stays(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    pin(store, "one", -1, "data/a")
    delete = LocalStore.delete_file

    def after_a_restore(*args: object) -> DeleteOutcome:
        pin(store, "one", 1, "data/a")
        return delete(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(LocalStore, "delete_file", after_a_restore)
    assert prune_pins(store, store.server_time()) == []
    assert pinned(store)["address"].to_pylist() == ["data/a"]


def test_a_pin_that_cannot_be_removed_is_an_error(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    pin(store, "one", -1, "data/a")
    failed = DeleteOutcome(f"{PINS}one.parquet", "failed", "AccessDenied", "not you")
    monkeypatch.setattr(LocalStore, "delete_many", lambda *_: [failed])
    with pytest.raises(
        StorageError, match=r"pins of .*: 1 object could not be removed.*AccessDenied"
    ):
        prune_pins(store, store.server_time())
