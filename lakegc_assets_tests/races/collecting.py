"""One collection with races in it, and what must hold afterwards."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lakegc_assets.errors import RefusedError
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.lake import REPOSITORY, STAGES, copy_lake
from lakegc_assets_tests.races.scenarios import ALL, Race
from lakegc_assets_tests.races.schedule import SWEEP, Event, Position, Schedule
from lakegc_assets_tests.races.world import World, open_world
from lakegc_assets_tests.sessions import Session

RUN = "mark-1"
AGAIN = "mark-2"
#: Pages of staged objects are so small that a branch has several.
PAGED: dict[str, Any] = {"uncommitted_page_steps": 4}


#: The corners of the prepared repository: in each, every race can happen at another position.
CORNERS = ("-1", "-2", "-3", "-4", "-5")


@dataclass(frozen=True)
class Prepared:
    """A lake in which all races are prepared, and on which no server runs.

    Attributes:
        folder: of the lake.
        contents: what was written, by address.
        races: the races, prepared, by corner.
        dead: what is garbage from the start.
        live: what is alive from the start.
    """

    folder: Path
    contents: Mapping[str, bytes]
    races: Mapping[str, Sequence[Race]]
    dead: frozenset[str]
    live: frozenset[str]


@dataclass(frozen=True)
class Raced:
    """The races of one corner, which happen at a position.

    Attributes:
        world: the corner.
        races: the races.
        position: where they happen.
    """

    world: World
    races: Sequence[Race]
    position: Position

    def happen(self) -> None:
        """Let all of them happen."""
        for race in self.races:
            race.happen(self.world)


@dataclass(frozen=True)
class Collected:
    """What a collection with races did.

    Attributes:
        marked: what the mark named while the races happened.
        spared: what its sweep did not delete, with the reason.
        live: a place (ref, path) of each address that is alive afterwards.
    """

    marked: frozenset[str]
    spared: Mapping[str, str]
    live: Mapping[str, tuple[str, str]]

    def outcome(self, race: Race) -> str:
        """What became of the objects that were there before a race and are alive after it."""
        marked = race.touched() & self.marked & self.live.keys()
        if not marked:
            return NOT_MARKED
        return SPARED if marked <= self.spared.keys() else REFUSED


NOT_MARKED = "not marked"
SPARED = "marked, and spared by the sweep"
REFUSED = "marked, and the mark refused: the next one does not name them"


def prepare(folder: Path) -> Prepared:
    """Tell the history of all races, in each corner."""
    races = {corner: [race() for race in ALL] for corner in CORNERS}
    with open_world(folder, **PAGED) as world:
        tell_garbage(world)
        for corner, found in races.items():
            for race in found:
                race.prepare(world.in_corner(corner))
        live = frozenset(world.live())
        linkable = {a for found in races.values() for race in found for a in race.linkable()}
        dead = frozenset(world.lake.keys() - live - linkable)
        return Prepared(folder, dict(world.contents), races, dead, live)


def tell_garbage(world: World) -> None:
    """Make the repository, with what is garbage whatever happens."""
    with world.days_ago(100):
        world.lake.client.create_repository(REPOSITORY, f"local://{REPOSITORY}")
        world.lake.client.set_gc_rules(REPOSITORY, 20)
        world.upload("main", "base", "what all branches begin with")
        world.commit("main")
    world.branch("garbage")
    for days, version in ((95, "first"), (85, "second"), (75, "third")):
        with world.days_ago(days):
            for number in range(4):
                world.upload("garbage", f"g/{number}", f"the {version} version of garbage {number}")
            world.upload("garbage", "orphan", f"never committed, {version}")
            world.remove("garbage", "orphan")
            world.commit("garbage")


@contextmanager
def raced(
    prepared: Prepared, folder: Path, positions: Sequence[Position]
) -> Iterator[tuple[World, Schedule, Sequence[Raced]]]:
    """A copy of a prepared lake, in whose corners all races happen at a position each."""
    lake = copy_lake(prepared.folder, folder / "lake")
    with open_world(lake, dict(prepared.contents), **PAGED) as world:
        corners = [
            Raced(world.in_corner(corner), copy.deepcopy(prepared.races[corner]), position)
            for corner, position in zip(CORNERS, positions, strict=False)
        ]
        schedule = Schedule([Event(corner.position, corner.happen) for corner in corners])
        world.lake.on_request = schedule.see
        yield world, schedule, corners


def collect(world: World, schedule: Schedule, spark: Session) -> Collected:
    """Mark and sweep; again after a refusal, as an operator does.

    Raises:
        LakegcError: the second try failed, too.
    """
    run = RUN
    try:
        for stage in STAGES:
            schedule.enter(stage.__name__)
            stage(world.context(spark, run))
    except RefusedError:
        run = AGAIN
        for stage in STAGES:
            stage(world.context(spark, run))
    before = world.lake.keys()
    schedule.enter(SWEEP)
    try:
        sweep(world.context(spark, run))
    except RefusedError:
        assert world.lake.keys() >= before, "a sweep that was refused had deleted something"
        sweep(world.context(spark, run))
    for event in schedule.events:
        assert event.happened, f"nothing came by {event.position}"
    attempt = world.lake.root.attempt(REPOSITORY, RUN)
    marked = attempt.read("deletion_candidates").to_pylist()
    swept = world.lake.root.attempt(REPOSITORY, run).read("swept_set").to_pylist()
    return Collected(
        marked=frozenset(row["address"] for row in marked),
        spared={row["address"]: row["detail"] for row in swept if row["outcome"] == "spared"},
        live=world.live(),
    )


def check(world: World, prepared: Prepared, corners: Sequence[Raced], collected: Collected) -> None:
    """Nothing live is lost, nothing was in danger that lived all the time, and the garbage is gone.

    Raises:
        AssertionError: with what is lost, was in danger, or is left.
    """
    live = collected.live
    for address, (ref, path) in sorted(live.items()):
        assert world.read(ref, path) == world.contents[address], f"{path} of {ref} at {address}"
    for corner in corners:
        for race in corner.races:
            for ref, path, content in race.reads():
                found = corner.world.read(ref, path)
                assert found == content.encode(), f"{path} of {ref} after {race.name}"
    lost = collected.marked & prepared.live & live.keys()
    assert not lost, f"marked although alive all the time: {lost}"
    left = (prepared.dead - live.keys()) & world.lake.keys()
    assert not left, f"garbage that is still there: {left}"
