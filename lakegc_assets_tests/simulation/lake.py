"""A lakeFS in memory: branches, commits, what is staged, rules, tags, and what it calls active."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple

from lakegc_assets.graveler.ident import commit_id
from lakegc_assets.lakefs.models import Commit

MAIN: Final = "main"
DAY: Final = 86_400


class Entry(NamedTuple):
    """What a path holds.

    Attributes:
        address: of the object, relative to the namespace.
        size: bytes.
        etag: of the object.
    """

    address: str
    size: int
    etag: str


Tree = Mapping[str, Entry]
#: By its id, which tells all that a commit is, and so is the same in all lakes.
_ancestries: Final[dict[str, tuple[Commit, ...]]] = {}
#: Addresses by metarange, whose id tells them all, too.
_held: Final[dict[str, frozenset[str]]] = {}
_MOST: Final = 4096


@lru_cache(maxsize=_MOST)
def _metarange_id(entries: tuple[tuple[str, Entry], ...]) -> str:
    return hashlib.sha256(json.dumps(entries).encode()).hexdigest()


@lru_cache(maxsize=_MOST)
def _commit(parents: tuple[str, ...], metarange: str, date: int, message: str) -> Commit:
    return Commit(
        id=commit_id("writer", message, metarange, date, {}, parents),
        parents=parents,
        committer="writer",
        message=message,
        creation_date=date,
        meta_range_id=metarange,
    )


@dataclass
class Lake:
    """One repository.

    Attributes:
        branches: HEAD of each.
        commits: all that were ever made.
        trees: what each metarange holds.
        staged: of each branch, by path; None for what is staged as deleted.
        tags: commit of each.
        rules: retention days by branch, "" for the default; None without rules.
        handed: until when, in epoch seconds, an address that was handed out may be linked.
        shadows: what is served at (branch, path) although nothing lists it.
        version: grows with every change.
    """

    branches: dict[str, str] = field(default_factory=dict)
    commits: dict[str, Commit] = field(default_factory=dict)
    trees: dict[str, Tree] = field(default_factory=dict)
    staged: dict[str, dict[str, Entry | None]] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    rules: Mapping[str, int] | None = None
    handed: dict[str, float] = field(default_factory=dict)
    shadows: dict[tuple[str, str], Entry] = field(default_factory=dict)
    version: int = 0

    def copy(self) -> Lake:
        """One that can change on its own."""
        return Lake(
            dict(self.branches),
            dict(self.commits),
            dict(self.trees),
            {branch: dict(paths) for branch, paths in self.staged.items()},
            dict(self.tags),
            self.rules,
            dict(self.handed),
            dict(self.shadows),
            self.version,
        )

    def tree(self, commit: str) -> Tree:
        """What a commit holds."""
        return self.trees[self.commits[commit].meta_range_id]

    def held_by(self, commits: Iterable[str]) -> set[str]:
        """The addresses that some commits hold."""
        found: set[str] = set()
        for metarange in {self.commits[commit].meta_range_id for commit in commits}:
            held = _held.get(metarange)
            if held is None:
                if len(_held) > _MOST:
                    _held.clear()
                entries = self.trees[metarange].values()
                held = _held[metarange] = frozenset(entry.address for entry in entries)
            found |= held
        return found

    def add(self, parents: tuple[str, ...], tree: Tree, date: float, message: str) -> str:
        """Make a commit."""
        metarange = _metarange_id(tuple(sorted(tree.items())))
        self.trees[metarange] = tree
        made = _commit(parents, metarange, int(date), message)
        self.commits[made.id] = made
        return made.id

    def served(self, branch: str) -> dict[str, Entry]:
        """What a branch serves, by path."""
        paths = dict(self.tree(self.branches[branch]))
        for path, entry in self.staged.get(branch, {}).items():
            paths.pop(path, None)
            if entry is not None:
                paths[path] = entry
        for (of, path), entry in self.shadows.items():
            # Where the path has another content by now, nothing equals that any more.
            if of == branch and path in paths and paths[path][1:] == entry[1:]:
                paths[path] = entry
        return paths

    def staged_addresses(self) -> set[str]:
        """What is staged on branches."""
        staged = (self.staged.get(branch, {}) for branch in self.branches)
        return {entry.address for paths in staged for entry in paths.values() if entry}

    def shadowing(self) -> set[str]:
        """What branches serve although nothing lists it."""
        return {
            entry.address
            for (branch, path), entry in self.shadows.items()
            if branch in self.branches and self.served(branch).get(path) == entry
        }

    def ancestry(self, commit: str) -> Sequence[Commit]:
        """A commit and those behind it, by first parents."""
        known = _ancestries.get(commit)
        if known is None:
            found = self.commits[commit]
            behind = self.ancestry(found.parents[0]) if found.parents else ()
            if len(_ancestries) > _MOST:
                _ancestries.clear()
            known = _ancestries[commit] = (found, *behind)
        return known

    def days(self, branch: str) -> int:
        """For how long a branch keeps what it no longer shows."""
        assert self.rules is not None
        return self.rules.get(branch, self.rules[""])

    def on_branches(self, now: float) -> set[str]:
        """Commits that a branch keeps alive: HEADs, and what was replaced within its retention."""
        if self.rules is None:
            return set(self.commits)
        active: set[str] = set()
        for branch, head in self.branches.items():
            active.add(head)
            active |= self._inside(head, now - self.days(branch) * DAY)
        return active

    def dangling(self, now: float) -> set[str]:
        """Commits that no branch leads to any more, and that are inside the default retention."""
        if self.rules is None:
            return set()
        reached = {c.id for head in self.branches.values() for c in self.ancestry(head)}
        lone = self.commits.keys() - reached
        if not lone:
            return set()
        since = now - self.rules[""] * DAY
        tips = lone - {c.parents[0] for c in self.commits.values() if c.id in lone and c.parents}
        active = {tip for tip in tips if self.commits[tip].creation_date > since}
        for tip in tips:
            active |= self._inside(tip, since)
        return active

    def named_in(self, namespace: str, now: float) -> set[str]:
        """What it keeps alive in the namespace of another repository; tagged commits, too."""
        commits = self.on_branches(now) | self.dangling(now) | set(self.tags.values())
        found = self.held_by(commits) | self.staged_addresses()
        prefix = f"{namespace}/"
        return {one.removeprefix(prefix) for one in found if one.startswith(prefix)}

    def _inside(self, head: str, since: float) -> set[str]:
        found: set[str] = set()
        for commit in self.ancestry(head):
            if commit.creation_date > since:
                found.add(commit.id)
                found.update(commit.parents[:1])
        return found
