"""The oracle judges each loss by what became of the object after it, and of no other."""

from __future__ import annotations

import pytest

from lakegc_assets_tests.simulation.choices import Choices
from lakegc_assets_tests.simulation.lake import DAY, Entry, Lake
from lakegc_assets_tests.simulation.oracle import START, Finished, LossError, Sent, Since
from lakegc_assets_tests.simulation.scheduler import Actor, Process
from lakegc_assets_tests.simulation.world import World

_KEY = "data/old/one"
_RUN = "mark"


class _Past:
    """A sweep that read HEADs at step 10, and to which an object came to life at step 11."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._world = World(Choices(), Lake(), {"lake": {}, "artifacts": {}})
        self._world.promises.deadlines = False
        self.oracle = self._world.oracle
        self.oracle.marked[_RUN] = frozenset({_KEY})
        self.oracle.live[_KEY] = {"branch": Since(11, 0.55)}
        monkeypatch.setattr(self._world, "digest_of", lambda _url, _asset: "whole")
        monkeypatch.setattr(self._world, "outcomes", lambda _url: [(_KEY, "put_back", None)])
        task = Actor("task", Process("task", "", 0.0), lambda: None, lazy=False, order=1)
        read = Since(10, 0.5)
        self._sent = Sent(task, _RUN, (_KEY,), read.time, read, read, read, ((10, 11),))

    def tell(self, days: int, head: str) -> None:
        """Let the task be told rules, and a HEAD: before the old one a commit has the object."""
        lake = self._world.lake
        lake.rules = {"": 50}
        entry = Entry(_KEY, 1, "e")
        first = lake.add((), {"p": entry}, START - 40 * DAY, "first")
        old = lake.add((first,), {}, START - 20 * DAY, "old")
        new = lake.add((old,), {"p": entry}, START, "new")
        heads = {"main": {"old": old, "new": new}[head]}
        lake.branches = {"main": new}
        self._sent = self._sent._replace(heads=(heads, heads), rules={"": days})

    def at(self, step: int) -> None:
        """Let it be that step."""
        self._world.scheduler.steps, self._world.scheduler.now = step, step * 0.05

    def delete(self, step: int) -> None:
        self.at(step)
        self.oracle.deleted(_KEY, self._sent)

    def bring_back(self, step: int) -> None:
        self.at(step)
        self.oracle.brought_back(_KEY)

    def end_well(self, step: int) -> None:
        self.at(step)
        self.oracle.finished.append(Finished(_RUN, self.oracle.now(), {"previous": "whole"}, ""))


@pytest.fixture
def past(monkeypatch: pytest.MonkeyPatch) -> _Past:
    return _Past(monkeypatch)


def test_a_loss_that_was_mended_is_not_blamed_for_a_late_request_that_no_deadline_ends(
    past: _Past,
) -> None:
    past.delete(14)
    past.bring_back(16)
    past.end_well(20)
    past.delete(40)
    past.oracle.end()


def test_an_object_that_is_lost_again_after_it_came_back_is_a_loss_of_its_own(
    past: _Past,
) -> None:
    past.delete(14)
    past.bring_back(16)
    past.delete(18)
    past.end_well(20)
    with pytest.raises(LossError, match="deleted at step 18 although it was live since step 11"):
        past.oracle.end()


def test_an_object_that_came_back_before_it_was_lost_is_lost(past: _Past) -> None:
    past.bring_back(13)
    past.delete(14)
    past.end_well(20)
    with pytest.raises(LossError, match="deleted at step 14"):
        past.oracle.end()


@pytest.mark.parametrize("listed", [9, None])
def test_an_object_whose_pin_was_listed_before_the_delta_mark_is_lost(
    past: _Past, listed: int | None
) -> None:
    past.oracle.live[_KEY] = {"pinned": Since(3, 0.15)}
    if listed is not None:
        past.oracle.unlisted[_KEY] = listed
    with pytest.raises(LossError, match="is live \\(pinned, since step 3"):
        past.delete(14)


def test_an_object_whose_pin_no_list_of_the_delta_mark_showed_is_not_blamed_on_it(
    past: _Past,
) -> None:
    past.oracle.live[_KEY] = {"pinned": Since(3, 0.15)}
    past.oracle.unlisted[_KEY] = 12
    past.delete(14)
    past.oracle.end()


@pytest.mark.parametrize(
    ("came", "went", "seen"),
    [(9, 12, True), (10, 12, True), (10, 11, False), (11, 13, False)],
)
def test_what_was_on_a_branch_while_the_task_read_all_of_them_is_lost_and_else_is_not_seen(
    past: _Past, came: int, went: int, *, seen: bool
) -> None:
    past.oracle.live[_KEY] = {"dangling": Since(went, went * 0.05)}
    past.oracle.lone[_KEY] = (Since(came, came * 0.05), Since(went, went * 0.05))
    if seen:
        with pytest.raises(LossError, match="is live \\(dangling"):
            past.delete(14)
    else:
        past.delete(14)


@pytest.mark.parametrize(
    ("days", "head", "seen"), [(9, "old", False), (90, "old", True), (9, "new", True)]
)
def test_what_neither_heads_nor_rules_showed_when_they_were_read_is_not_seen(
    past: _Past, days: int, head: str, *, seen: bool
) -> None:
    """Rules kept it until the HEADs were read, and since then a HEAD does."""
    past.tell(days, head)
    past.oracle.live[_KEY] = {"branch": Since(3, 0.15)}
    if seen:
        with pytest.raises(LossError, match="is live \\(branch, since step 3"):
            past.delete(14)
    else:
        past.delete(14)
