"""The faults of a real lakeFS, each with what falls into it and what shows that it was there."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import ClassVar

from lakegc_assets.embedded.faults import Fault
from lakegc_assets.lakefs.errors import NotFoundError
from lakegc_assets.mark.refs import read_commits_csv
from lakegc_assets_tests.lake import REPOSITORY
from lakegc_assets_tests.races.world import World

RECENT = 5
PAGE = f"POST /api/v1/repositories/{REPOSITORY}/gc/prepare_uncommited"


@dataclass(frozen=True)
class After:
    """What a collection leaves.

    Attributes:
        world: the lake.
        listed: what the mark's list of staged objects held.
    """

    world: World
    listed: AbstractSet[str]


@dataclass
class Trap:
    """A fault, and objects that a collector without safeguards would lose by it.

    Attributes:
        facts: addresses and commits by name.
    """

    fault: ClassVar[Fault]
    facts: dict[str, str] = field(default_factory=dict)

    def prepare(self, world: World) -> None:
        """Tell the history, on a server without faults."""

    def arrange(self, world: World) -> None:
        """Do what only a server with the fault lets one do, before the collection."""

    def see_page(self, world: World, number: int) -> None:
        """A page of staged objects is asked for, the first, second, … of a snapshot."""

    def see_scan(self, world: World, branch: str) -> None:
        """The scan of a page comes to a branch."""

    def between(self, world: World) -> None:
        """The mark is published, its sweep has not begun."""

    def kept(self) -> set[str]:
        """Addresses that must be there afterwards, although they cannot be read at a path."""
        return set()

    def shows(self, after: After) -> bool:
        """Whether the server really answers wrongly."""
        raise NotImplementedError


def _staged(world: World, branch: str, facts: dict[str, str], count: int = 4) -> None:
    world.branch(branch)
    with world.days_ago(RECENT):
        for number in range(count):
            content = f"staged on {branch}, {number} of {count}"
            facts[f"{branch} {number}"] = world.upload(branch, f"s/{number}", content)


class PagesWithoutLocation(Trap):
    """The last page of the list names no file."""

    fault = Fault.PAGES_WITHOUT_LOCATION

    def prepare(self, world: World) -> None:
        for number in range(3):
            _staged(world, f"pages-{number}", self.facts)

    def shows(self, after: After) -> bool:
        pages = list(after.world.lake.client.prepare_uncommitted(REPOSITORY))
        locations = [bool(page.gc_uncommitted_location) for page in pages]
        return any(locations) and not locations[-1]


class RowsLost(Trap):
    """A branch comes and goes within a page, which no list of branches shows, and takes rows."""

    fault = Fault.ROWS_LOST_ON_BRANCH_DELETE

    def prepare(self, world: World) -> None:
        _staged(world, "a-rows", self.facts)

    def see_page(self, world: World, number: int) -> None:
        if number == 1:
            world.branch("a-rows-passing")

    def see_scan(self, world: World, branch: str) -> None:
        if branch == "a-rows-passing" and branch in world.branches():
            world.delete_branch(branch)

    def shows(self, after: After) -> bool:
        return not after.listed & set(self.facts.values())


class ScanEndsEarly(Trap):
    """Half of what is staged on each branch is listed."""

    fault = Fault.SCAN_ENDS_EARLY

    def prepare(self, world: World) -> None:
        for branch, count in (("early", 4), ("early-odd", 5), ("early-one", 1)):
            _staged(world, branch, self.facts, count)

    def shows(self, after: After) -> bool:
        early = {self.facts[f"early {number}"] for number in range(4)}
        return len(after.listed & early) == len(early) // 2


class OrderDependentWalk(Trap):
    """A commit inside its retention is not listed, since another branch's walk passed it first."""

    fault = Fault.ORDER_DEPENDENT_WALK

    def prepare(self, world: World) -> None:
        world.branch("walk")
        with world.days_ago(60):
            self.facts["address"] = world.upload("walk", "file", "the first file of the walk")
            self.facts["parent"] = world.commit("walk")
        with world.days_ago(RECENT):
            world.upload("walk", "file", "replaced just now")
            young = world.commit("walk")
        # Walks start in the order of ids: the other branch must come first.
        for number in itertools.count():
            world.branch("walk-passing", self.facts["parent"])
            with world.days_ago(50):
                world.upload("walk-passing", "file", f"replaced long ago, {number}")
                passing = world.commit("walk-passing")
            if passing < young:
                break
            world.delete_branch("walk-passing")

    def shows(self, after: After) -> bool:
        world = after.world
        prepared = world.lake.client.prepare_commits(REPOSITORY)
        listed = read_commits_csv(world.store, world.namespace, prepared.gc_commits_location)
        return self.facts["parent"] not in listed


class ShadowedUploads(Trap):
    """What equals HEAD's is served from a new address that nothing lists."""

    fault = Fault.SHADOWED_UPLOADS

    def prepare(self, world: World) -> None:
        world.branch("shadowed")
        for days, name in ((40, "first"), (RECENT, "again")):
            with world.days_ago(days):
                for number in range(3):
                    address = world.upload("shadowed", f"f/{number}", f"the same, {number} of 3")
                    self.facts[f"{name} {number}"] = address
                if name == "first":
                    world.commit("shadowed")

    def shows(self, after: After) -> bool:
        again = {self.facts[f"again {number}"] for number in range(3)}
        diff = list(after.world.lake.client.diff_branch(REPOSITORY, "shadowed"))
        return not diff and not after.listed & again


class OldServer(Trap):
    """Calls that lakeFS 0.100 does not have are not there."""

    fault = Fault.OLD_SERVER

    def shows(self, after: After) -> bool:
        try:
            after.world.post("gc", "prepare_commits", "async")
        except NotFoundError:
            return True
        return False


class StatelessLinkTokens(Trap):
    """What was linked, and deleted again, is linked once more while the mark runs."""

    fault = Fault.STATELESS_LINK_TOKENS

    def prepare(self, world: World) -> None:
        world.branch("token")

    def arrange(self, world: World) -> None:
        with world.days_ago(23 / 24):
            self.facts["full"] = world.link_address("token", "linked", "linked twice")
            world.link("token", "linked", self.facts["full"])
            world.remove("token", "linked")

    def see_page(self, world: World, number: int) -> None:
        if number == 2 and "again" not in self.facts:
            world.link("token", "linked", self.facts["full"])
            self.facts["again"] = "yes"

    def shows(self, after: After) -> bool:
        return after.world.read("token", "linked") == b"linked twice"


class StageInsideNamespace(Trap):
    """Addresses of the namespace are staged by hand: to keep, in an odd spelling, and to rename.

    The rename goes from the last page to the first while pages are made, in the mark and in the
    delta mark: neither list has the object, although it is staged all the time.
    """

    fault = Fault.STAGE_INSIDE_NAMESPACE

    def prepare(self, world: World) -> None:
        world.branch("a-inside")
        _staged(world, "zz-inside", {}, 8)
        with world.days_ago(30):
            for name in ("kept", "odd"):
                self.facts[name] = world.upload("zz-inside", name, f"not named by anything, {name}")
                world.remove("zz-inside", name)
        with world.days_ago(RECENT):
            self.facts["moved"] = world.upload("zz-inside", "file", "moved again and again")

    def arrange(self, world: World) -> None:
        world.stage_by_api("zz-inside", "kept", self.facts["kept"])
        odd = self.facts["odd"]
        spelled = f"{odd[:-1]}%{ord(odd[-1]):02X}"
        world.stage_by_api("zz-inside", "odd", spelled, size=len(world.contents[odd]))

    def see_page(self, world: World, number: int) -> None:
        if number == 2:
            self._move(world, "zz-inside", "a-inside")

    def between(self, world: World) -> None:
        self._move(world, "a-inside", "zz-inside")

    def kept(self) -> set[str]:
        return {self.facts["odd"]}

    def _move(self, world: World, source: str, target: str) -> None:
        world.stage_by_api(target, "file", self.facts["moved"])
        world.remove(source, "file")

    def shows(self, after: After) -> bool:
        return self.facts["moved"] not in after.listed


class ResetKeepsStaged(Trap):
    """What is staged equals a HEAD only since the branch was set there, with nothing dropped.

    So it is served from its own address, and named by no list of a server with shadowed uploads.
    """

    fault = Fault.RESET_KEEPS_STAGED

    def prepare(self, world: World) -> None:
        world.branch("set-back")
        for days, content in ((40, "as it is again"), (RECENT + 1, "as it was for a time")):
            with world.days_ago(days):
                self.facts[content] = world.upload("set-back", "file", content)
                self.facts[f"commit {days}"] = world.commit("set-back")
        with world.days_ago(RECENT):
            self.facts["staged"] = world.upload("set-back", "file", "as it is again")

    def arrange(self, world: World) -> None:
        world.reset_hard("set-back", self.facts["commit 40"])

    def shows(self, after: After) -> bool:
        found = after.world.lake.client.stat(REPOSITORY, after.world.on("set-back"), "file")
        return found.physical_address.endswith(self.facts["staged"])


TRAPS: tuple[type[Trap], ...] = (
    PagesWithoutLocation,
    RowsLost,
    ScanEndsEarly,
    OrderDependentWalk,
    ShadowedUploads,
    OldServer,
    StatelessLinkTokens,
    StageInsideNamespace,
    ResetKeepsStaged,
)


class Traps:
    """Several traps on one server.

    Attributes:
        traps: those whose faults the server has.
    """

    def __init__(self, traps: Sequence[Trap]) -> None:
        self.traps = traps
        self._world: World | None = None
        self._pages = 0
        self._acting = False

    def set(self, world: World) -> None:
        """Before the collection."""
        for trap in self.traps:
            trap.arrange(world)
        self._world = world
        world.lake.on_request = self._see

    def release(self) -> None:
        """After the collection."""
        self._world = None

    def new_snapshot(self) -> None:
        """Pages are counted from the first again."""
        self._pages = 0

    def between(self) -> None:
        """Between the mark and its sweep."""
        self.new_snapshot()
        if self._world:
            for trap in self.traps:
                trap.between(self._world)

    def see_scan(self, branch: str) -> None:
        """Every step of a page's scan."""
        if self._world:
            for trap in self.traps:
                trap.see_scan(self._world, branch)

    def _see(self, method: str, path: str) -> None:
        """Every request, before it is answered."""
        if self._acting or self._world is None or not re.fullmatch(PAGE, f"{method} {path}"):
            return
        self._pages += 1
        self._acting = True
        for trap in self.traps:
            trap.see_page(self._world, self._pages)
        self._acting = False
