"""References to commits, and walks over the history of commits."""

from __future__ import annotations

import heapq
import re
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass

from lakegc_assets.embedded import errors
from lakegc_assets.embedded.lake import catalog
from lakegc_assets.embedded.lake.catalog import Branch, Commit, Repository

_MODIFIERS = re.compile(r"([~^][0-9]{0,9}|@|\$)")
_BRANCH_NAME = re.compile(r"\w[-\w]*", re.ASCII)
# The rules of git, except for "~".
_NO_TAG = re.compile(r"@|.*(\.|\.lock|/)|.*(\.\.|//|@\{|[\^:?*\[\\\x00-\x20]).*", re.DOTALL)
_SHORTEST_PREFIX = 6


@dataclass(frozen=True)
class Resolved:
    """A resolved reference: a commit, and the branch with its staging area, if any."""

    commit: Commit
    branch: Branch | None


def resolve(db: sqlite3.Connection, repo: Repository, ref: str) -> Resolved:
    """Resolve a reference: a branch, a tag, a commit id or the unique start of one.

    ``~N`` and ``^N`` are ancestors, ``@`` is the committed state of a branch and ``$`` its staged
    state (the default).

    Raises:
        ApiError: 404 when there is nothing of that name.
    """
    base = _MODIFIERS.split(ref, maxsplit=1)[0]
    modifiers = _MODIFIERS.findall(ref)
    if base + "".join(modifiers) != ref or not base:
        raise errors.ref_not_found()
    branch = catalog.find_branch(db, repo, base)
    commit = catalog.commit(db, repo, branch.commit_id) if branch else _named_commit(db, repo, base)
    for modifier in modifiers:
        if modifier == "$":
            continue
        branch = None
        commit = _ancestor(db, repo, commit, modifier)
    return Resolved(commit, branch)


def resolve_commit(db: sqlite3.Connection, repo: Repository, ref: str) -> Commit:
    """The commit that a reference names; 400 for staged entries, which are no commit."""
    found = resolve(db, repo, ref).commit
    if names_staged(ref):
        raise errors.bad_request(
            f"reference '{ref}': reference to staging area with $ is not a commit"
        )
    return found


def names_staged(ref: str) -> bool:
    """Return whether a reference explicitly names the staged entries of a branch."""
    return "$" in _MODIFIERS.findall(ref)


def _named_commit(db: sqlite3.Connection, repo: Repository, name: str) -> Commit:
    tag = catalog.find_tag(db, repo, name)
    if tag:
        return catalog.commit(db, repo, tag)
    if len(name) >= _SHORTEST_PREFIX and re.fullmatch(r"[0-9a-f]+", name):
        found = catalog.commits_starting_with(db, repo, name)
        if len(found) == 1:
            return found[0]
    raise errors.ref_not_found()


def _ancestor(db: sqlite3.Connection, repo: Repository, commit: Commit, modifier: str) -> Commit:
    kind, number = modifier[0], modifier[1:]
    if kind == "@":
        return commit
    parent_number = int(number or 1) if kind == "^" else 1
    steps = int(number or 1) if kind == "~" else min(parent_number, 1)
    for _ in range(steps):
        if len(commit.parents) < parent_number:
            raise errors.ref_not_found()
        commit = catalog.commit(db, repo, commit.parents[parent_number - 1])
    return commit


def check_branch_name(name: str) -> None:
    """400 for an invalid name of a branch in lakeFS."""
    if not _BRANCH_NAME.fullmatch(name):
        raise errors.bad_request(
            "branch id: invalid value: validation error: branch id must consist of letters, "
            "digits, underscores and dashes, and cannot start with a dash"
        )


def check_tag_name(name: str) -> None:
    """400 for an invalid name of a tag in lakeFS."""
    if not name:
        raise errors.bad_request("argument tagID: required value: validation error")
    if _NO_TAG.fullmatch(name):
        raise errors.bad_request("argument tagID: tag id: invalid value: validation error")


def check_free(db: sqlite3.Connection, repo: Repository, name: str, *, kind: str) -> None:
    """409 if the name of a new branch or tag is that of a tag, a branch or a commit."""
    if catalog.find_commit(db, repo, name):
        raise errors.conflict(f"commit ID {name}: conflict found")
    if kind == "branch" and catalog.find_tag(db, repo, name):
        raise errors.conflict(f"tag ID {name}: conflict found")
    if kind == "tag" and catalog.find_branch(db, repo, name):
        raise errors.conflict(f"branch name {name}: conflict found")


def log(
    db: sqlite3.Connection, repo: Repository, start: Commit, *, first_parent: bool = False
) -> Iterator[Commit]:
    """A commit and its ancestors: next is the newest unlisted commit with a listed child."""
    queue = [(-start.creation_date, _Descending(start.id), start)]
    seen = {start.id}
    while queue:
        commit = heapq.heappop(queue)[2]
        yield commit
        for parent in commit.parents[:1] if first_parent else commit.parents:
            if parent not in seen:
                seen.add(parent)
                found = catalog.commit(db, repo, parent)
                heapq.heappush(queue, (-found.creation_date, _Descending(parent), found))


class _Descending(str):
    """A string that sorts before smaller ones."""

    __slots__ = ()

    def __lt__(self, other: str) -> bool:
        return str.__gt__(self, other)


def merge_base(db: sqlite3.Connection, repo: Repository, left: Commit, right: Commit) -> Commit:
    """The newest common ancestor, by generation and then by date.

    Raises:
        ApiError: 400 when there is none, which the initial commit makes impossible here.
    """
    sides: dict[str, int] = {}
    queue: list[tuple[int, int, str, Commit]] = []
    _reach(sides, queue, left, 1)
    _reach(sides, queue, right, 2)
    while queue:
        commit = heapq.heappop(queue)[3]
        if sides[commit.id] == 1 | 2:
            return commit
        for parent in commit.parents:
            _reach(sides, queue, catalog.commit(db, repo, parent), sides[commit.id])
    raise errors.bad_request("no merge base")


def _reach(
    sides: dict[str, int], queue: list[tuple[int, int, str, Commit]], commit: Commit, side: int
) -> None:
    """Record from which sides a commit is reached; all children are visited before a parent."""
    if commit.id not in sides:
        heapq.heappush(queue, (-commit.generation, -commit.creation_date, commit.id, commit))
    sides[commit.id] = sides.get(commit.id, 0) | side
