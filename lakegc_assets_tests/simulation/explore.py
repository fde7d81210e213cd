"""Every interleaving of a small world up to a depth: two keys, two branches, one collector.

A plan says before which calls of the collector which changes are made. Only calls that a change can
matter to are points; plans that lead to the same world at the same point are explored once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from lakegc_assets.sweep.lease_record import LEASE
from lakegc_assets_tests.simulation.actors import CHANGES_BY_NAME
from lakegc_assets_tests.simulation.choices import Choices
from lakegc_assets_tests.simulation.interleaving import SHAPES, Shape, interleave
from lakegc_assets_tests.simulation.world import Result

_SMALL: Final = SHAPES.index(Shape(1, 1, extras=False))
_CALLS: Final = frozenset(
    {"branches", "rules", "diff", "stat", "log", "prepare_commits", "prepare_uncommitted"}
)
#: What matters most, so that plans of two changes are few enough.
CHANGES: Final = ("revert", "new branch", "link", "commit", "rules", "set back", "deleted branch")


class Change(NamedTuple):
    """One change of a plan.

    Attributes:
        point: before the how many-th call that matters.
        name: of the change.
        argument: which of the branches, objects or rules it is about.
    """

    point: int
    name: str
    argument: int = 0


class Planned(Choices):
    """The choices of a plan: everything is dull but for its changes."""

    planned = True

    def __init__(self, plan: Sequence[Change]) -> None:
        super().__init__()
        self._plan = list(plan)
        self._armed: Change | None = None
        self._arguments: list[int] = []
        self._begun = False
        self.points = 0

    def pick(self, options: int, _odds: float = 1.0) -> int:
        if not self.made:
            value = _SMALL
        elif self._arguments:
            value = self._arguments.pop(0) % options
        elif self._armed is not None and self._begun:
            value = CHANGES_BY_NAME[self._armed.name]
            self._arguments = [self._armed.argument] * 2
            self._armed = None
        else:
            # What a writer asks first: whether to make one change again and again.
            self._begun = self._armed is not None
            value = 0
        self.made.append(value)
        return value

    def step(self, what: str, _switch: float, _fault: float) -> int:
        value = 0
        if what == "a writer":
            self._arguments = []
            value = 2 if self._armed is not None else 0
        elif what in _CALLS or what.startswith("data/") or what == LEASE:
            self.points += 1
            if self._plan and self._plan[0].point == self.points:
                self._armed = self._plan.pop(0)
                value = 1
        self.made.append(value)
        return value


@dataclass
class Explored:
    """What an exploration did.

    Attributes:
        interleavings: how many were run.
        same: plans that were left out, since they lead to a world that was seen.
        failures: plans that broke a promise, with what.
    """

    interleavings: int = 0
    same: int = 0
    failures: list[tuple[Sequence[Change], str]] = field(default_factory=list)


def explore(depth: int, names: Sequence[str] = CHANGES, arguments: int = 2) -> Explored:
    """Run every plan of at most ``depth`` changes, each with so many ``arguments``."""
    explored = Explored()
    seen: set[tuple[int, int]] = set()

    def run(plan: Sequence[Change]) -> tuple[Result, int]:
        planned = Planned(plan)
        ended = interleave(planned)
        explored.interleavings += 1
        if ended.failure:
            explored.failures.append((plan, ended.failure))
        return ended, planned.points

    def extend(plan: Sequence[Change], points: int) -> None:
        first = plan[-1].point if plan else 1
        for change in _changes(first, points, names, arguments):
            longer = [*plan, change]
            ended, more = run(longer)
            state = (change.point, ended.world.moods[-1] if ended.world.moods else 0)
            if len(ended.world.moods) < len(longer) or state in seen:
                explored.same += 1
                continue
            seen.add(state)
            if len(longer) < depth:
                extend(longer, more)

    extend([], run([])[1])
    return explored


def _changes(first: int, points: int, names: Sequence[str], arguments: int) -> Iterator[Change]:
    for point in range(first, points + 1):
        for name in names:
            for argument in range(arguments):
                yield Change(point, name, argument)
