"""An age is the longest that any clock tells, and a process notices that it was suspended."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from lakegc_assets.run import clocks
from lakegc_assets.run.clocks import NEVER, SUSPENSION, SYSTEM_CLOCKS, Moment, Watch
from lakegc_assets_tests.clocks import StubClocks
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
        (False, 5, -59, -59),
        (False, 5, -60, float("inf")),
        (False, 5, -7200, float("inf")),
    ],
)
def test_ages(same: bool, by_machine: float, by_store: float, age: float) -> None:  # noqa: FBT001 - parametrized
    assert THEN.age(_later(by_machine, by_store, same=same)) == age


@pytest.mark.parametrize(
    ("same", "by_machine", "by_store", "stood_still"),
    [
        (True, 5, 5, False),
        (True, 5, 65, False),  # the servers of a store differ a little
        (True, 5, 66, True),
        (True, 7200, 5, False),
        (False, 5, 7200, False),  # of another machine's clock nothing is known
    ],
)
def test_a_machine_stood_still_where_only_the_store_went_on(
    same: bool,  # noqa: FBT001 - parametrized
    by_machine: float,
    by_store: float,
    stood_still: bool,  # noqa: FBT001 - parametrized
) -> None:
    assert THEN.stood_still(_later(by_machine, by_store, same=same)) is stood_still


def _later(by_machine: float, by_store: float, *, same: bool) -> Moment:
    return replace(
        THEN,
        boot="this boot" if same else "another",
        elapsed=THEN.elapsed + by_machine,
        store_time=THEN.store_time + timedelta(seconds=by_store),
    )


def test_now_is_never_too_late(tmp_path: Path) -> None:
    """What takes long between the clocks makes the moment older, not younger."""
    store = ClockedStore(tmp_path)
    clock = [100.0]
    stub = StubClocks(since_boot=lambda: clock[0])

    def take_long(_name: str) -> None:
        clock[0] += 50

    store.before = take_long
    first = Moment.now(store, stub)
    assert (first.elapsed, first.store_time) == (100.0, store.time)
    assert first.age(Moment.now(store, stub)) == 50
    assert first.boot


def _read(times: Sequence[float]) -> list[float]:
    """What a watch says at some readings of its clock, behind the one it begins with."""
    readings = iter(times)
    watch = Watch(lambda: next(readings))
    return [watch.resumed() for _ in times[1:]]


@pytest.mark.parametrize(
    ("times", "resumed"),
    [
        ([100, 101, 102], [NEVER, NEVER]),
        ([100, 101, 101 + SUSPENSION], [NEVER, NEVER]),
        ([100, 101, 191, 192], [NEVER, 191, 191]),
        ([100, 190, 191, 300, 301], [190, 190, 300, 300]),
        # Nobody sets this clock back; one who did would not hide what was noticed.
        ([100, 190, 50, 51], [190, 190, 190]),
    ],
)
def test_a_gap_between_readings_is_a_suspension(times: list[float], resumed: list[float]) -> None:
    assert _read(times) == resumed


def test_a_process_has_one_watch_and_a_forked_one_its_own() -> None:
    ours = clocks.watch_of(os.getpid())
    assert clocks.watch_of(os.getpid()) is ours
    assert clocks.watch_of(-1) is not ours
    assert SYSTEM_CLOCKS.resumed() == NEVER
    assert SYSTEM_CLOCKS.watched_since() == ours.since <= SYSTEM_CLOCKS.elapsed()
