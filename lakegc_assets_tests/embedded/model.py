"""What a lakeFS repository is, as plain dictionaries, for the server to be compared with."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Object:
    """An entry: equal identities are no change, whatever their addresses."""

    content: bytes
    metadata: Metadata
    address: str

    @property
    def identity(self) -> tuple[bytes, Metadata]:
        return self.content, self.metadata


Tree = Mapping[str, Object]


@dataclass(frozen=True)
class Commit:
    id: str
    tree: Tree
    parents: tuple[str, ...]
    date: int
    generation: int


@dataclass
class Branch:
    head: str
    staged: dict[str, Object | None] = field(default_factory=dict)


class ConflictError(Exception):
    """Both sides changed a path, and no strategy says who wins."""


class UnknownRefError(Exception):
    """A reference that names nothing."""


@dataclass
class Model:
    """One repository."""

    commits: dict[str, Commit] = field(default_factory=dict)
    branches: dict[str, Branch] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    def head(self, branch: str) -> Commit:
        return self.commits[self.branches[branch].head]

    def resolve(self, ref: str) -> tuple[Commit, Branch | None]:
        """A commit, and the branch whose staged changes lie over it."""
        base, modifiers = re.fullmatch(r"([^~^@]+)((?:[~^]\d*|@)*)", ref).groups()  # type: ignore[union-attr]
        branch = self.branches.get(base)
        name = branch.head if branch else self.tags.get(base, base)
        for kind, number in re.findall(r"([~^@])(\d*)", modifiers):
            branch = None
            steps = int(number or 1) if kind == "~" else int(kind == "^")
            parent = int(number or 1) if kind == "^" else 1
            for _ in range(steps):
                if name not in self.commits or len(self.commits[name].parents) < parent:
                    raise UnknownRefError
                name = self.commits[name].parents[parent - 1]
        if name not in self.commits:
            raise UnknownRefError
        return self.commits[name], branch

    def visible(self, ref: str) -> Tree:
        """What a reader of a reference sees."""
        commit, branch = self.resolve(ref)
        return overlaid(commit.tree, branch.staged) if branch else commit.tree

    def staged_kinds(self, branch: str) -> dict[str, str]:
        """The diff of a branch."""
        tree = self.head(branch).tree
        kinds = {}
        for path, new in self.branches[branch].staged.items():
            if new is not None:
                kinds[path] = "changed" if path in tree else "added"
            elif path in tree:
                kinds[path] = "removed"
        return kinds

    def staged_addresses(self) -> set[str]:
        """What is staged on any branch."""
        staged = (new for b in self.branches.values() for new in b.staged.values())
        return {new.address for new in staged if new is not None}

    def delete(self, branch: str, path: str) -> None:
        if path in self.visible(branch):
            self.branches[branch].staged[path] = None

    def committed(self, branch: str) -> Tree:
        """The tree that a commit makes: where nothing but the address differs, HEAD's stays."""
        tree, staged = self.head(branch).tree, self.branches[branch].staged
        news = {
            path: tree[path]
            if new and path in tree and tree[path].identity == new.identity
            else new
            for path, new in staged.items()
        }
        return overlaid(tree, news)

    def add(
        self, branch: str, commit_id: str, tree: Tree, parents: tuple[str, ...], date: int
    ) -> None:
        """A branch moves on to a new commit, and nothing is staged any more."""
        generation = 1 + max(self.commits[p].generation for p in parents)
        self.commits[commit_id] = Commit(commit_id, dict(tree), parents, date, generation)
        self.branches[branch] = Branch(commit_id)

    def ancestors(self, commit_id: str) -> set[str]:
        """A commit and all that it is made of."""
        found: set[str] = set()
        waiting = [commit_id]
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += self.commits[name].parents
        return found

    def merge_base(self, left: str, right: str) -> Commit:
        common = self.ancestors(left) & self.ancestors(right)
        return min(
            (self.commits[name] for name in common), key=lambda c: (-c.generation, -c.date, c.id)
        )

    def merged(self, base: Tree, source: Tree, dest: Tree, strategy: str = "") -> Tree:
        """A three-way merge, path by path; addresses are those of either side."""
        result = {}
        for path in base.keys() | source.keys() | dest.keys():
            b, s, d = (identity(tree.get(path)) for tree in (base, source, dest))
            if s in (d, b):
                chosen = dest
            elif d == b or strategy == "source-wins":
                chosen = source
            elif strategy == "dest-wins":
                chosen = dest
            else:
                raise ConflictError(path)
            if path in chosen:
                result[path] = chosen[path]
        return result

    def log(self, commit_id: str) -> Iterator[str]:
        """A commit and its first parents."""
        while True:
            yield commit_id
            if not self.commits[commit_id].parents:
                return
            commit_id = self.commits[commit_id].parents[0]


def identity(found: Object | None) -> tuple[bytes, Metadata] | None:
    return found.identity if found else None


def overlaid(tree: Tree, staged: Mapping[str, Object | None]) -> Tree:
    both = {**tree, **staged}
    return {path: new for path, new in both.items() if new is not None}


def identities(tree: Tree) -> dict[str, tuple[bytes, Metadata]]:
    return {path: found.identity for path, found in tree.items()}


def differences(left: Tree, base: Tree, right: Tree) -> dict[str, str]:
    """What the right side changed since a base, as the left side sees it."""
    found = {}
    for path in base.keys() | right.keys():
        ours, old, new = (identity(tree.get(path)) for tree in (left, base, right))
        if new in (old, ours):
            continue
        if ours != old:
            found[path] = "conflict"
        else:
            found[path] = "added" if old is None else "removed" if new is None else "changed"
    return found


def listing(paths: list[str], prefix: str, delimiter: str) -> list[str]:
    """Paths and common prefixes, in the order of their bytes."""
    found = []
    for path in sorted(paths, key=str.encode):
        if not path.startswith(prefix):
            continue
        cut = path.find(delimiter, len(prefix)) if delimiter else -1
        shown = path if cut < 0 else path[: cut + len(delimiter)]
        if shown not in found:
            found.append(shown)
    return found
