"""Marks under interleavings name nothing live, and overlook nothing dead."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from lakegc_assets_tests.simulation import seams
from lakegc_assets_tests.simulation.choices import Choices
from lakegc_assets_tests.simulation.interleaving import THEMES, interleave
from lakegc_assets_tests.simulation.lake import Lake
from lakegc_assets_tests.simulation.mark_oracle import MarkOracle
from lakegc_assets_tests.simulation.mark_world import MarkWorld
from lakegc_assets_tests.simulation.oracle import Since
from lakegc_assets_tests.simulation.scheduler import Process
from lakegc_assets_tests.simulation.store import STALE_S
from lakegc_assets_tests.simulation.themes import MARK_THEMES
from lakegc_assets_tests.simulation.world import Result


@pytest.fixture(autouse=True)
def _simulated() -> Iterator[None]:
    with seams.installed():
        yield


def _oracle(ended: Result) -> MarkOracle:
    oracle = ended.world.oracle
    assert isinstance(oracle, MarkOracle)
    return oracle


def test_a_dull_interleaving_marks_what_is_dead_and_old() -> None:
    ended = interleave(Choices(None, (0, THEMES)))
    assert ended.failure is None
    marked = _oracle(ended).marked["mark-1"]
    assert marked == _oracle(ended).lists["mark-1"]
    # What two expired commits held, and an upload that nothing ever had; an older one, in parts,
    # was never seen before.
    assert len(marked) == 3
    assert not marked & _oracle(ended).live.keys()


@pytest.mark.parametrize("theme", range(len(MARK_THEMES)))
def test_interleavings_of_marks_break_no_promise(theme: int) -> None:
    ended = [interleave(Choices(seed, (0, THEMES + theme))) for seed in range(8)]
    assert [one.failure for one in ended] == [None] * len(ended)
    assert any(_oracle(one).marked for one in ended)


def _stopped() -> Result:
    """A collector stops before its cutoff is fixed, where objects of any age may be candidates."""
    return interleave(Choices(8_007_172, (0, THEMES + 5)))


def test_a_trial_may_name_what_came_to_be_before_its_cutoff() -> None:
    ended = _stopped()
    assert ended.failure is None
    oracle = _oracle(ended)
    born = [oracle.born[one].step for one in oracle.lists["mark-3"] if one in oracle.born]
    assert oracle.begun["mark-3"].step < max(born) < oracle.listing["mark-3"].step


def test_a_mark_may_not_name_what_came_to_be_since_its_listing_began(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def at_once(oracle: MarkOracle, run: str) -> None:
        oracle.listing[run] = oracle.begun[run]

    monkeypatch.setattr(MarkOracle, "lists_now", at_once)
    failure = _stopped().failure
    assert failure is not None
    assert "came to be at step" in failure


def test_what_lakefs_hid_may_be_committed_and_set_back_before_its_diff_is_asked_for() -> None:
    # A page without a location, a commit of what it held, and a HEAD that leaves that commit.
    chosen = {1: 12, 48: 108, 58: 80, 60: 14, 132: 69, 135: 105, 165: 87, 166: 4}
    ended = interleave(Choices(None, [chosen.get(place, 0) for place in range(167)]))
    assert ended.failure is None
    hidden = _oracle(ended).lists["mark-1"] & _oracle(ended).live.keys()
    assert {way for one in hidden for way in _oracle(ended).live[one]} == {"dangling"}


def _theme(**what: object) -> int:
    """The number of a kind of interleaving that is of marks."""
    (number,) = [
        n for n, one in enumerate(MARK_THEMES) if all(getattr(one, k) == v for k, v in what.items())
    ]
    return THEMES + number


def test_a_dull_mark_of_each_mode_names_what_is_its_business() -> None:
    named = {
        mode: _oracle(interleave(Choices(None, (0, _theme(settings=(("mode", mode),)))))).marked[
            "mark-1"
        ]
        for mode in ("uncommitted", "committed")
    }
    whole = _oracle(interleave(Choices(None, (0, THEMES)))).marked["mark-1"]
    assert all(named.values())
    assert not named["uncommitted"] & named["committed"]
    assert named["uncommitted"] | named["committed"] == whole


def test_no_mark_names_what_another_repository_does() -> None:
    ended = interleave(Choices(None, (0, _theme(unlike="others"))))
    assert ended.failure is None
    # Its commit has expired; a branch of that, and what it names stays.
    assert _oracle(ended).marked["mark-1"]
    for seed in range(40):
        ended = interleave(Choices(seed, (0, _theme(unlike="others"))))
        assert ended.failure is None
        named = {address for _, address in _oracle(ended).named}
        if ended.world.covered["writer", "branch elsewhere"] and _oracle(ended).marked and named:
            break
    else:
        raise AssertionError("no interleaving reached it")


def test_two_servers_of_a_namespace_do_not_both_collect() -> None:
    ended = [interleave(Choices(seed, (0, _theme(unlike="servers")))) for seed in range(30)]
    assert [one.failure for one in ended] == [None] * len(ended)
    servers = [_oracle(one).servers for one in ended]
    # Either may be the first.
    assert {True} in servers
    assert {False} in servers


def _small() -> MarkWorld:
    """A world with one object, in which somebody asks."""
    world = MarkWorld(Choices(), Lake(), {"lake": {}, "artifacts": {}})
    world.write_directly("data/a", b"a")
    return world


def _asked(world: MarkWorld, fault: str) -> list[str]:
    """The keys that a list shows while something is wrong with it."""
    found: list[str] = []

    def ask() -> None:
        world.faulty = frozenset({fault})
        world.scheduler.step = lambda what: len(what[:1])  # type: ignore[method-assign]
        pages = world.store("s3://lake/repo").list("data/")
        found.extend(key for page in pages for key in page["key"].to_pylist())

    with seams.inside(world):
        world.scheduler.spawn("reader", Process("reader", "machine", 0.0), ask)
        world.scheduler.run()
    return found


def test_a_stale_list_lacks_what_was_written_last() -> None:
    world = _small()
    world.write_directly("data/b", b"b", world.store_time() - timedelta(seconds=2 * STALE_S))
    assert _asked(world, "stale list") == ["data/b"]


def test_a_cut_page_lacks_what_comes_last() -> None:
    world = _small()
    world.write_directly("data/b", b"b")
    assert _asked(world, "cut page") == ["data/a"]


def test_what_is_committed_was_live_since_it_was_staged_and_what_is_linked_was_not() -> None:
    oracle = _small().oracle
    early, now = Since(1, 1.0), Since(9, 9.0)
    oracle.held = {"data/a": early}
    assert oracle.since("data/a", "branch", {"data/a": {"staged": early}}, now) == early
    assert oracle.since("data/a", "staged", {"data/a": {"branch": early}}, now) == now
