"""The races: each has branches of its own, is prepared in the past, and happens when it is told to.

What was said to be dead may come back to life, what is alive may move, and what is new may arrive.
Whenever that happens before the deletes begin, every object that is alive afterwards must be
readable, byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

from lakegc_assets_tests.lake import REPOSITORY
from lakegc_assets_tests.races.world import World

LINK_AGE = 23 / 24
RECENT = 5
LONG = 365
SHORT = 10


@dataclass
class Race:
    """One thing that happens while a repository is collected.

    Attributes:
        facts: addresses and commits by name, from its preparation.
    """

    name: ClassVar[str]
    #: The position from which on the mark cannot know of it; empty if it needs not know.
    late: ClassVar[str] = ""
    facts: dict[str, str] = field(default_factory=dict)

    def prepare(self, world: World) -> None:
        """Tell the history before it."""

    def happen(self, world: World) -> None:
        """Do it."""
        raise NotImplementedError

    def reads(self) -> Iterable[tuple[str, str, str]]:
        """What must be read afterwards: ref, path and content."""
        return ()

    def touched(self) -> set[str]:
        """Addresses that it brings to life or moves, as they were before it."""
        return {value for value in self.facts.values() if value.startswith("data/")}

    def linkable(self) -> set[str]:
        """Addresses that were handed out, and are neither linked nor expired yet."""
        return set()


class LateLink(Race):
    """An address handed out 23 hours before the run is linked."""

    name = "a late link"

    def prepare(self, world: World) -> None:
        world.branch("link")
        with world.days_ago(LINK_AGE):
            self.facts["full"] = world.link_address("link", "late", "linked late")
            self.facts["committed"] = world.link_address("link", "kept", "linked and committed")

    def happen(self, world: World) -> None:
        world.link("link", "kept", self.facts["committed"])
        world.commit("link")
        world.link("link", "late", self.facts["full"])

    def reads(self) -> Iterable[tuple[str, str, str]]:
        return [("link", "late", "linked late"), ("link", "kept", "linked and committed")]

    def touched(self) -> set[str]:
        return {address.removeprefix(f"local://{REPOSITORY}/") for address in self.facts.values()}

    def linkable(self) -> set[str]:
        return self.touched()


class StagedByHand(Race):
    """An old object that nothing names is staged by its address, and committed."""

    name = "an old address staged by hand"
    late = "HEADs read again, before the logs"

    def prepare(self, world: World) -> None:
        world.branch("hand")
        with world.days_ago(30):
            self.facts["orphan"] = world.upload("hand", "lost", "an orphan by then")
            world.remove("hand", "lost")

    def happen(self, world: World) -> None:
        world.stage("hand", "found", self.facts["orphan"])
        world.commit("hand")

    def reads(self) -> Iterable[tuple[str, str, str]]:
        return [("hand", "found", "an orphan by then")]


class Revert(Race):
    """A commit that removed an object long ago is reverted."""

    name = "a revert"
    late = "HEADs read again, before the logs"

    def prepare(self, world: World) -> None:
        world.branch("undo")
        with world.days_ago(90):
            self.facts["removed"] = world.upload("undo", "gone", "removed long ago")
            world.commit("undo")
        with world.days_ago(80):
            world.remove("undo", "gone")
            self.facts["removal"] = world.commit("undo")
        with world.days_ago(70):
            world.upload("undo", "later", "after the removal")
            world.commit("undo")

    def happen(self, world: World) -> None:
        world.revert("undo", self.facts["removal"])

    def reads(self) -> Iterable[tuple[str, str, str]]:
        return [("undo", "gone", "removed long ago"), ("undo", "later", "after the removal")]


class OldBranch(Race):
    """A branch is made from a commit that expired."""

    name = "a branch from an old commit"
    late = "HEADs read again, before the logs"

    def prepare(self, world: World) -> None:
        world.branch("past")
        with world.days_ago(90):
            self.facts["first"] = world.upload("past", "file", "the first of two")
            self.facts["commit"] = world.commit("past")
        with world.days_ago(80):
            world.upload("past", "file", "the second of two")
            world.commit("past")

    def happen(self, world: World) -> None:
        world.branch("past-again", self.facts["commit"])

    def reads(self) -> Iterable[tuple[str, str, str]]:
        return [("past-again", "file", "the first of two"), ("past", "file", "the second of two")]


class MergedAgain(Race):
    """The expired commit of a deleted branch is merged."""

    name = "a merge of an old commit"
    late = "HEADs read again, before the logs"

    def prepare(self, world: World) -> None:
        world.branch("merging")
        world.branch("given-up")
        with world.days_ago(90):
            self.facts["given up"] = world.upload("given-up", "work", "given up, or not")
            self.facts["commit"] = world.commit("given-up")
        with world.days_ago(80):
            world.delete_branch("given-up")

    def happen(self, world: World) -> None:
        world.merge(self.facts["commit"], "merging")

    def reads(self) -> Iterable[tuple[str, str, str]]:
        return [("merging", "work", "given up, or not")]


def _replaced(world: World, branch: str, facts: dict[str, str]) -> None:
    """A file of a branch, replaced fifteen days ago."""
    with world.days_ago(40):
        facts["first"] = world.upload(branch, "file", f"the first on {branch}")
        facts["commit"] = world.commit(branch)
    with world.days_ago(15):
        world.upload(branch, "file", f"the last one on {branch}")
        world.commit(branch)


class LongerRule(Race):
    """A branch gets a rule by which an expired commit is inside its retention."""

    name = "a longer rule"
    late = "prepare_commits done, HEADs not read again"

    def prepare(self, world: World) -> None:
        world.branch("ruled")
        world.set_rule("ruled", SHORT)
        _replaced(world, "ruled", self.facts)

    def happen(self, world: World) -> None:
        world.set_rule("ruled", 30)

    def reads(self) -> Iterable[tuple[str, str, str]]:
        return [(self.facts["commit"], "file", "the first on ruled")]


class BranchWithLongerRule(Race):
    """A branch for which a longer rule stands ready is made from one with a short rule."""

    name = "a branch with a longer rule"
    late = "HEADs read again, before the logs"

    def prepare(self, world: World) -> None:
        world.branch("shelf")
        world.set_rule("shelf", SHORT)
        world.set_rule("archive", LONG)
        _replaced(world, "shelf", self.facts)

    def happen(self, world: World) -> None:
        world.branch("archive", "shelf")

    def reads(self) -> Iterable[tuple[str, str, str]]:
        return [(self.facts["commit"], "file", "the first on shelf")]


class BranchWithShorterRule(Race):
    """A branch with a shorter rule is made from an existing one, whose retention stays."""

    name = "a branch with a shorter rule"

    def prepare(self, world: World) -> None:
        world.branch("stock")
        world.set_rule("glance", 1)
        _replaced(world, "stock", self.facts)

    def happen(self, world: World) -> None:
        world.branch("glance", "stock")

    def reads(self) -> Iterable[tuple[str, str, str]]:
        return [(self.facts["commit"], "file", "the first on stock")]


class Commit(Race):
    """What is staged is committed, once with a deletion of it right after."""

    name = "a commit"

    def prepare(self, world: World) -> None:
        for branch in ("commit", "commits"):
            world.branch(branch)
            with world.days_ago(RECENT):
                for path in ("a", "z"):
                    self.facts[branch + path] = world.upload(branch, path, f"{path} on {branch}")

    def happen(self, world: World) -> None:
        world.commit("commit")
        self.facts["made"] = world.commit("commits")
        world.remove("commits", "a")
        world.commit("commits")

    def reads(self) -> Iterable[tuple[str, str, str]]:
        found = [("commit", path, f"{path} on commit") for path in "az"]
        return [*found, (self.facts["made"], "a", "a on commits")]


class Rename(Race):
    """Staged objects are copied, and their sources deleted: backwards, forwards, and committed."""

    name = "a rename"
    _moves: ClassVar = (("move", "z", "a"), ("move", "b", "y"), ("moved", "z", "a"))

    def prepare(self, world: World) -> None:
        for branch in ("move", "moved"):
            world.branch(branch)
        with world.days_ago(RECENT):
            for branch, source, _ in self._moves:
                self.facts[branch + source] = world.upload(branch, source, f"{branch} {source}")
            for number in range(4):
                world.upload("move", f"n/{number}", f"between, {number} of 4")

    def happen(self, world: World) -> None:
        for branch, source, target in self._moves:
            world.copy(branch, source, target)
            world.remove(branch, source)
        world.commit("moved")

    def reads(self) -> Iterable[tuple[str, str, str]]:
        return [(branch, target, f"{branch} {source}") for branch, source, target in self._moves]


class DeletedBranch(Race):
    """A branch with staged objects is deleted; another is deleted, and made again at once."""

    name = "a deleted branch"

    def prepare(self, world: World) -> None:
        for branch in ("doomed", "phoenix"):
            world.branch(branch)
            with world.days_ago(RECENT):
                self.facts[branch] = world.upload(branch, "kept", f"committed on {branch}")
                self.facts[f"{branch} commit"] = world.commit(branch)
                for number in range(3):
                    world.upload(branch, f"s/{number}", f"staged on {branch}, {number}")

    def happen(self, world: World) -> None:
        for branch in ("doomed", "phoenix"):
            world.delete_branch(branch)
        world.branch("phoenix")

    def reads(self) -> Iterable[tuple[str, str, str]]:
        """A commit that only a deleted branch held stays for the days by default."""
        return [
            (self.facts[f"{branch} commit"], "kept", f"committed on {branch}")
            for branch in ("doomed", "phoenix")
        ]


class Reset(Race):
    """What is staged on a branch is dropped."""

    name = "a reset branch"

    def prepare(self, world: World) -> None:
        world.branch("reset")
        with world.days_ago(RECENT):
            self.facts["kept"] = world.upload("reset", "kept", "committed before the reset")
            world.commit("reset")
            world.upload("reset", "dropped", "dropped by the reset")

    def happen(self, world: World) -> None:
        world.reset("reset")

    def reads(self) -> Iterable[tuple[str, str, str]]:
        return [("reset", "kept", "committed before the reset")]


class ShadowedUpload(Race):
    """The content of a committed object is uploaded to its path; such an upload is moved, too."""

    name = "a shadowed upload"

    def prepare(self, world: World) -> None:
        world.branch("shadow")
        with world.days_ago(40):
            for path in ("new", "old", "untouched"):
                self.facts[path] = world.upload("shadow", path, f"the same as ever: {path}")
            world.commit("shadow")
        with world.days_ago(RECENT):
            for path in ("old", "untouched"):
                self.facts[f"{path} again"] = world.upload(
                    "shadow", path, f"the same as ever: {path}"
                )

    def happen(self, world: World) -> None:
        world.upload("shadow", "new", "the same as ever: new")
        world.copy("shadow", "old", "a copy")
        world.remove("shadow", "old")

    def reads(self) -> Iterable[tuple[str, str, str]]:
        pairs = [("new", "new"), ("a copy", "old"), ("untouched", "untouched")]
        return [("shadow", path, f"the same as ever: {content}") for path, content in pairs]


class Upload(Race):
    """New objects arrive: at a new path, over a staged one and over a committed one."""

    name = "an upload"

    def prepare(self, world: World) -> None:
        world.branch("upload")
        with world.days_ago(40):
            self.facts["committed"] = world.upload("upload", "committed", "what HEAD has")
            self.facts["commit"] = world.commit("upload")
        with world.days_ago(RECENT):
            world.upload("upload", "staged", "what was staged")

    def happen(self, world: World) -> None:
        for path in ("new", "staged", "committed"):
            world.upload("upload", path, f"uploaded to {path} just now")

    def reads(self) -> Iterable[tuple[str, str, str]]:
        paths = ("new", "staged", "committed")
        found = [("upload", path, f"uploaded to {path} just now") for path in paths]
        return [*found, (self.facts["commit"], "committed", "what HEAD has")]


ALL: tuple[type[Race], ...] = (
    LateLink,
    StagedByHand,
    Revert,
    OldBranch,
    MergedAgain,
    LongerRule,
    BranchWithLongerRule,
    BranchWithShorterRule,
    Commit,
    Rename,
    DeletedBranch,
    Reset,
    ShadowedUpload,
    Upload,
)
