"""Objects that move at every request of a collection are never in danger."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.conformance.recorder import RACES, conforms
from lakegc_assets_tests.lake import REPOSITORY, STAGES
from lakegc_assets_tests.races.collecting import RUN, tell_garbage
from lakegc_assets_tests.races.world import World, open_world
from lakegc_assets_tests.sessions import Session

_BRANCHES = 3
_OBJECTS = 24
_COMMITS = 20


@dataclass
class Restless:
    """Renames one staged object, by copy and delete, before each request is answered.

    The renames go forwards and backwards in turn, so that objects change from paths that a scan has
    still to reach to paths that it has passed. At every fifth request of the mark a branch is
    committed, too, and something is uploaded; while it is swept, so it is all the time, but not so
    often that no two readings of the HEADs are alike.

    Attributes:
        world: where.
        paths: branch and path of each object, as it is now.
        moves: renames so far.
        swept: whether the sweep has begun.
    """

    world: World
    paths: list[tuple[str, str]] = field(default_factory=list)
    moves: int = 0
    swept: bool = False
    _acting: bool = False

    def prepare(self) -> None:
        """Stage the objects, days ago.

        The first page always has a row: what pages without any may mean is another test.
        """
        self.world.branch("at-rest")
        for number in range(_BRANCHES):
            self.world.branch(f"restless-{number}")
        for number in range(_COMMITS):
            self.world.branch(f"to-commit-{number:02}")
        with self.world.days_ago(5):
            self.world.upload("at-rest", "file", "never touched")
            for number in range(_OBJECTS):
                place = (f"restless-{number % _BRANCHES}", f"z/{number:02}")
                self.world.upload(*place, f"staged once, number {number}")
                self.paths.append(place)
            for number in range(_COMMITS):
                self.world.upload(f"to-commit-{number:02}", "file", f"committed late, {number}")

    def see(self, _method: str, _path: str) -> None:
        """A request has come, and is not answered yet."""
        if not self._acting:
            self._acting = True
            self._move()
            self._acting = False

    def _move(self) -> None:
        number = self.moves % _OBJECTS
        branch, source = self.paths[number]
        target = f"{'az'[source.startswith('a')]}/{number:02}-{self.moves}"
        self.world.copy(branch, source, target)
        self.world.remove(branch, source)
        self.paths[number] = (branch, target)
        self.moves += 1
        turn, rest = divmod(self.moves, 25 if self.swept else 5)
        if rest == 0 and (self.swept or turn <= _COMMITS):
            self.world.commit(f"to-commit-{(turn - 1) % _COMMITS:02}")
            self.world.upload("restless-0", f"new/{turn}", f"uploaded meanwhile, {turn}")


@pytest.mark.conformance
@conforms(
    RACES,
    "a rename, a commit and an upload at every request",
    client="lakegc",
    checked="what moves by copy and delete before each answer is never marked",
)
def test_a_rename_at_every_request(tmp_path: Path, spark: Session) -> None:
    with open_world(tmp_path / "lake", uncommitted_page_steps=7) as world:
        tell_garbage(world)
        garbage = world.lake.keys() - world.live().keys()
        restless = Restless(world)
        restless.prepare()
        alive = world.live().keys()
        world.lake.on_request = restless.see
        for stage in STAGES:
            stage(world.context(spark, RUN))
        marked_after = restless.moves
        restless.swept = True
        sweep(world.context(spark, RUN))
        world.lake.on_request = lambda _method, _path: None

        assert marked_after > 5 * _COMMITS, "the commits did not all happen in the mark"
        assert restless.moves > marked_after + _OBJECTS, "not every object moved in the sweep"
        attempt = world.lake.root.attempt(REPOSITORY, RUN)
        rows = attempt.read("deletion_candidates").to_pylist()
        assert not {row["address"] for row in rows} & alive
        for number, place in enumerate(restless.paths):
            assert world.read(*place) == f"staged once, number {number}".encode()
        for address, place in world.live().items():
            assert world.read(*place) == world.contents[address]
        assert not garbage & world.lake.keys()
