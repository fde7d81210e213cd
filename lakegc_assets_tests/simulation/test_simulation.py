"""Some interleavings lose nothing, recorded schedules lose what they lost, and the tools work."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from lakegc_assets_tests.simulation.choices import Choices
from lakegc_assets_tests.simulation.explore import Change, Planned, explore
from lakegc_assets_tests.simulation.guards import GUARDS, without
from lakegc_assets_tests.simulation.interleaving import MORE, interleave
from lakegc_assets_tests.simulation.minimal import minimal
from lakegc_assets_tests.simulation.recorded_schedules import read_schedules
from lakegc_assets_tests.simulation.search import in_words, search
from lakegc_assets_tests.simulation.themes import LATER_THEMES
from lakegc_assets_tests.simulation.world import Result

_FOUND = sorted(guard for guard, recorded in read_schedules().items() if recorded.schedule)


def _ended(choices: Choices, guard: str | None = None) -> Result:
    with without(guard):
        return interleave(choices)


def _promise(broken: str | None) -> str:
    """What was broken, at whatever step."""
    return re.sub(r"\bstep \d+", "a step", broken or "nothing")


def test_interleavings_break_no_promise() -> None:
    report = search(first=900, runs=80)
    assert report.failures == []
    assert report.interleavings == 80
    # Where nothing happens, nothing is lost: sweeps end well, and some came close to a loss.
    assert report.finished > 25
    assert report.close > 0
    assert {fault for fault, _ in report.covered} >= {"freeze", "late", "kill", "writer"}


@pytest.mark.parametrize("theme", range(len(LATER_THEMES)))
def test_interleavings_of_later_kinds_break_no_promise(theme: int) -> None:
    ended = [_ended(Choices(seed, (seed % 5, MORE + theme))) for seed in range(6)]
    assert [one.failure for one in ended] == [None] * len(ended)
    assert any(one.world.oracle.deletes for one in ended)


def _unlike(what: str) -> int:
    """The number of a kind of interleaving."""
    return MORE + [theme.unlike for theme in LATER_THEMES].index(what)


def _spared(ended: Result) -> str:
    """Why objects were spared by sweeps that ended well."""
    outcomes = [ended.world.outcomes(done.url) for done in ended.world.oracle.finished]
    return "; ".join(why or "" for rows in outcomes for _, how, why in rows if how == "spared")


@pytest.mark.parametrize(
    ("theme", "reached"),
    [
        (MORE, lambda ended: "tag" in _spared(ended) or "active commit" in _spared(ended)),
        (_unlike("single"), lambda ended: "written again" in _spared(ended)),
        (_unlike("drift"), lambda ended: ended.world.covered["clock jumps", "time"] > 0),
        (_unlike("listed"), lambda ended: "written again" in _spared(ended)),
        (_unlike("trash"), lambda ended: ended.world.covered["prune", "removed from the trash"]),
        (_unlike("trash"), lambda ended: bool(ended.world.oracle.brought)),
        (_unlike("others"), lambda ended: "names it by its full address" in _spared(ended)),
    ],
)
def test_later_kinds_reach_what_they_are_for(
    theme: int, reached: Callable[[Result], object]
) -> None:
    for seed in range(200):
        ended = _ended(Choices(seed, (seed % 5, theme)))
        assert ended.failure is None
        if reached(ended):
            return
    raise AssertionError("no interleaving reached it")


def test_a_store_that_ignores_conditions_lets_nobody_sweep() -> None:
    dull = _ended(Choices(None, (0, _unlike("many"))))
    assert dull.world.oracle.deletes
    for seed in range(60):
        ended = _ended(Choices(seed, (0, _unlike("many"))))
        assert ended.failure is None
        if not ended.world.promises.conditions:
            assert not ended.world.oracle.deletes
            return
    raise AssertionError("no store ignored conditions")


@pytest.mark.parametrize("guard", _FOUND)
def test_what_is_lost_without_a_guard_is_not_lost_with_it(guard: str) -> None:
    recorded = read_schedules()[guard]
    # If this fails, the code takes other steps now: --record finds another schedule.
    assert _promise(_ended(recorded.choices(), guard).failure) == _promise(recorded.broken)
    assert _ended(recorded.choices()).failure is None


def test_a_schedule_is_recorded_for_all_guards_but_those_that_docs_name() -> None:
    assert GUARDS.keys() - _FOUND == {
        "union of the snapshot's tries",
    }


def test_the_same_seed_is_the_same_interleaving() -> None:
    first, second = _ended(Choices(7)), _ended(Choices(7))
    assert first.choices == second.choices
    assert first.world.scheduler.now == second.world.scheduler.now
    replayed = _ended(Choices(None, first.choices))
    assert replayed.choices == first.choices


def test_a_dull_interleaving_sweeps_all_that_is_dead() -> None:
    ended = _ended(Choices())
    assert ended.failure is None
    (done,) = ended.world.oracle.finished
    assert {outcome for _, outcome, _ in ended.world.outcomes(done.url)} == {"deleted"}
    assert ended.world.oracle.deletes.keys() == ended.world.oracle.marked["mark-1"]


def _first_where(reached: Callable[[Result], bool]) -> Result:
    """The first interleaving with late requests that reached something."""
    for seed in range(100):
        ended = _ended(Choices(seed, (seed % 4, 3)))
        assert ended.failure is None
        if reached(ended):
            return ended
    raise AssertionError("no interleaving reached it")


def test_what_came_to_life_in_the_window_is_put_back_where_the_store_keeps_versions() -> None:
    def put_back(ended: Result) -> list[str]:
        outcomes = [ended.world.outcomes(done.url) for done in ended.world.oracle.finished]
        return [key for rows in outcomes for key, outcome, _ in rows if outcome == "put_back"]

    ended = _first_where(lambda ended: bool(put_back(ended)))
    assert ended.world.promises.versions
    assert set(put_back(ended)) <= ended.world.oracle.brought.keys()
    assert all(f"repo/{key}" in ended.world.buckets["lake"] for key in put_back(ended))


def test_every_interleaving_with_one_revert_of_a_small_world() -> None:
    with without(None):
        explored = explore(1, ("revert",), arguments=1)
    assert explored.failures == []
    # One before each call that it can matter to, and one without any.
    assert explored.interleavings > 35


def test_exploring_without_a_guard_finds_a_loss() -> None:
    with without("HEADs before a batch"):
        explored = explore(1, ("revert",), arguments=1)
    assert any("was deleted, and is live (branch" in broken for _, broken in explored.failures)


def test_a_plan_makes_its_changes_where_it_says() -> None:
    ended = _ended(Planned([Change(1, "revert"), Change(2, "deleted branch")]))
    assert ended.world.covered["writer", "revert"] == 1
    assert ended.world.covered["writer", "deleted branch"] == 1
    assert ended.failure is None


def test_a_schedule_becomes_minimal() -> None:
    made = [3, 0, 5, 7, 0, 2, 9, 1]

    def fails(choices: Sequence[int]) -> bool:
        return len(choices) > 5 and choices[2] == 5 and choices[5] == 2

    assert minimal(made, fails) == [0, 0, 5, 0, 0, 2]


def test_a_schedule_is_told_in_words() -> None:
    recorded = read_schedules()["HEADs before a batch"]
    told = in_words(recorded.choices(), "HEADs before a batch")
    assert any("begins a delta mark" in line for line in told)
    assert any("asks for deletes of" in line for line in told)
    assert "is live" in told[-1]


def test_a_number_below_64_is_drawn_as_the_standard_library_does() -> None:
    ours, theirs = Choices(5), random.Random(5)
    drawn = [ours.step("", 1.0, 0.0) for _ in range(200)]
    expected = [(theirs.random(), theirs.randrange(64))[1] for _ in range(200)]
    assert drawn == [1 + 2 * number for number in expected]


def test_each_kind_comes_as_often_as_its_weight_says_and_is_replayed() -> None:
    drawn = [Choices(seed).among((2, 1, 0)) for seed in range(600)]
    counted = Counter(drawn)
    assert counted.keys() == {0, 1}
    assert 1.5 < counted[0] / counted[1] < 2.7
    assert [Choices(None, (one,)).among((2, 1, 0)) for one in drawn] == drawn
    assert Choices().among((0, 1)) == 0
