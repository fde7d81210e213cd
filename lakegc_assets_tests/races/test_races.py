"""Races at every position of a collection: no live object is lost, and the garbage goes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from lakegc_assets_tests.conformance.recorder import RACES, conforms
from lakegc_assets_tests.races.collecting import (
    CORNERS,
    NOT_MARKED,
    REFUSED,
    SPARED,
    Prepared,
    check,
    collect,
    raced,
)
from lakegc_assets_tests.races.scenarios import ALL, Race
from lakegc_assets_tests.races.schedule import POSITIONS, Position
from lakegc_assets_tests.sessions import Session

_NAMES = [position.name for position in POSITIONS]


def _runs() -> list[Sequence[Position]]:
    """Which positions one collection has, in a corner each: all that refuse the mark together.

    The others lie far apart, so that none sees what another one of its run made start again.
    """
    others = [position for position in POSITIONS if not position.refuses]
    count = -(-len(others) // len(CORNERS))
    refusing = [position for position in POSITIONS if position.refuses]
    return [refusing, *(others[number::count] for number in range(count))]


def expected(race: type[Race], position: Position) -> str:
    """What becomes of the objects that a race brings to life, or moves."""
    if not race.late or POSITIONS.index(position) < _NAMES.index(race.late):
        return NOT_MARKED
    return REFUSED if position.refuses else SPARED


def outcomes(race: type[Race]) -> str:
    """The outcomes at all positions, in words: where each begins."""
    found: list[str] = []
    last = ""
    for position in POSITIONS:
        outcome = expected(race, position)
        if outcome != last:
            found.append(f"{position.name}: {outcome}" if last else outcome)
        last = outcome
    return "; from ".join(found)


_ROWS = [conforms(RACES, race.name, client="lakegc", checked=outcomes(race)) for race in ALL]


@pytest.mark.conformance
@pytest.mark.parametrize(
    "positions",
    [
        pytest.param(positions, marks=_ROWS, id="; ".join(p.name for p in positions))
        for positions in _runs()
    ],
)
def test_all_races_at(
    positions: Sequence[Position],
    prepared: Prepared,
    tmp_path: Path,
    spark: Session,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with raced(prepared, tmp_path, positions) as (world, schedule, corners):
        schedule.watch_sweep(monkeypatch)
        collected = collect(world, schedule, spark)
        check(world, prepared, corners, collected)
        assert len(corners) == len(positions)
        for corner in corners:
            found = {race.name: collected.outcome(race) for race in corner.races}
            wanted = {race.name: expected(type(race), corner.position) for race in corner.races}
            assert found == wanted, corner.position.name
