"""Whoever asks first whether a process was suspended is told, and a busy one is not."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

from lakegc_assets.sweep import suspension
from lakegc_assets.sweep.suspension import NEVER, SUSPENSION, Watch


def _read(times: Sequence[float]) -> list[float]:
    """What a watch says at some readings of its clock, behind the one it begins with."""
    readings = iter(times)
    watch = Watch(lambda: next(readings))
    return [watch.thawed() for _ in times[1:]]


@pytest.mark.parametrize(
    ("times", "thawed"),
    [
        ([100, 101, 102], [NEVER, NEVER]),
        ([100, 101, 101 + SUSPENSION], [NEVER, NEVER]),
        ([100, 101, 191, 192], [NEVER, 191, 191]),
        ([100, 190, 191, 300, 301], [190, 190, 300, 300]),
        # Nobody sets this clock back; one who did would not hide what was noticed.
        ([100, 190, 50, 51], [190, 190, 190]),
    ],
)
def test_a_gap_between_readings_is_a_suspension(times: list[float], thawed: list[float]) -> None:
    assert _read(times) == thawed


def test_a_process_has_one_watch_and_a_forked_one_its_own() -> None:
    ours = suspension._watch_of(os.getpid())
    assert suspension._watch_of(os.getpid()) is ours
    assert suspension._watch_of(-1) is not ours
    assert suspension.thawed() == NEVER
