"""An age is the longest that any clock tells, and what cannot be is no age."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from lakegc_assets.sweep import monotonic_age
from lakegc_assets.sweep.monotonic_age import Moment
from lakegc_assets_tests.sweep.clocked import ClockedStore

THEN = Moment("this boot", 1000.0, datetime(2026, 1, 1, tzinfo=timezone.utc))


@pytest.mark.parametrize(
    ("same", "by_machine", "by_store", "age"),
    [
        (True, 30, 30, 30),
        (True, 30, 29, 30),
        (True, 30, -7200, 30),  # the store's clock was set back
        (True, 30, 7200, 7200),  # the machine was paused from outside, and does not know it
        (True, 7200, 30, 7200),
        (True, -1, 30, float("inf")),
        (False, -900, 30, 30),
        (False, 5, 7200, 7200),
        (False, 5, -2, -2),  # the servers of a store differ a little
        (False, 5, -7200, float("inf")),
    ],
)
def test_ages(same: bool, by_machine: float, by_store: float, age: float) -> None:  # noqa: FBT001 - parametrized
    now = replace(
        THEN,
        boot="this boot" if same else "another",
        elapsed=THEN.elapsed + by_machine,
        store_time=THEN.store_time + timedelta(seconds=by_store),
    )
    assert THEN.age(now) == age


def test_now_is_never_too_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes long between the clocks makes the moment older, not younger."""
    store = ClockedStore(tmp_path)
    clock = [100.0]
    monkeypatch.setattr(monotonic_age, "elapsed", lambda: clock[0])

    def take_long(_name: str) -> None:
        clock[0] += 50

    store.before = take_long
    first = Moment.now(store)
    assert (first.elapsed, first.store_time) == (100.0, store.time)
    assert first.age(Moment.now(store)) == 50
    assert first.boot
