"""Differences between a branch's staging area and its HEAD, and between two references."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lakegc_assets.embedded import errors
from lakegc_assets.embedded.faults import Fault
from lakegc_assets.embedded.lake import Lake, catalog
from lakegc_assets.embedded.lake.catalog import Commit, Repository
from lakegc_assets.embedded.lake.trees import Change as Staged
from lakegc_assets.embedded.lake.trees import Trees
from lakegc_assets.embedded.paging import Paging, page
from lakegc_assets.embedded.refs import merging, refs, staging
from lakegc_assets.embedded.refs.merging import Difference
from lakegc_assets.graveler.entry import decode_entry
from lakegc_assets.graveler.sstable import Record


@dataclass(frozen=True)
class Change:
    """One line of a diff; ``kind`` is added, removed, changed or conflict."""

    path: str
    kind: str
    size: int


def staged_differences(
    lake: Lake, repository: str, branch: str, wanted: Paging
) -> tuple[list[Change | str], bool]:
    """A page of the staged changes of a branch, against its HEAD."""
    with lake.reading(repository) as (db, repo):
        target = catalog.branch(db, repo, branch)
        head = catalog.commit(db, repo, target.commit_id).metarange_id
        trees = lake.stores.trees(repo)
        hidden = Fault.SHADOWED_UPLOADS in lake.settings.faults

        def read(start: bytes) -> Iterator[tuple[bytes, Change]]:
            for key, new in staging.staged_changes(db, target, start):
                old = trees.get(head, key)
                if hidden and new and _identity(old) == new.identity:
                    continue
                found = _staged_change(key, old, new)
                if found:
                    yield key, found

        return page(read, wanted)


def ref_differences(
    lake: Lake, repository: str, left_ref: str, right_ref: str, wanted: Paging, *, two_dot: bool
) -> tuple[list[Change | str], bool]:
    """A page of the differences between two references.

    With ``two_dot`` the two references are compared, and the right one may include staged entries
    of a branch. Otherwise the page has the changes of the right one since their merge base, with
    keys that both sides changed differently as conflicts.
    """
    with lake.reading(repository) as (db, repo):
        left = refs.resolve_commit(db, repo, left_ref)
        at = refs.resolve(db, repo, right_ref)
        with_staged = refs.names_staged(right_ref)
        if with_staged and not two_dot:
            refs.resolve_commit(db, repo, right_ref)
        base = left if two_dot else refs.merge_base(db, repo, left, at.commit)
        trees = lake.stores.trees(repo)

        def read(start: bytes) -> Iterator[tuple[bytes, Change]]:
            found = merging.differences(trees, base.metarange_id, at.commit.metarange_id, start)
            if with_staged and at.branch:
                staged = staging.staged_changes(db, at.branch, start)
                found = _over(trees, base.metarange_id, found, staged)
            for difference in found:
                change = _committed_change(trees, left.metarange_id, difference)
                if change:
                    yield difference.key, change

        return page(read, wanted)


def merge_base(lake: Lake, repository: str, source_ref: str, branch: str) -> dict[str, str]:
    """The merge base of two references, as the API reports it."""
    with lake.reading(repository) as (db, repo):
        source = refs.resolve_commit(db, repo, source_ref)
        destination = refs.resolve_commit(db, repo, branch)
        return {
            "source_commit_id": source.id,
            "destination_commit_id": destination.id,
            "base_commit_id": refs.merge_base(db, repo, source, destination).id,
        }


def touches(
    db: sqlite3.Connection,
    repo: Repository,
    trees: Trees,
    commit: Commit,
    objects: Iterable[str],
    prefixes: Iterable[str],
) -> bool:
    """Return whether a commit, other than a merge, changed one of these paths or prefixes."""
    if len(commit.parents) != 1:
        return False
    before = catalog.commit(db, repo, commit.parents[0]).metarange_id
    for key in (path.encode() for path in objects):
        if _identity(trees.get(before, key)) != _identity(trees.get(commit.metarange_id, key)):
            return True
    for prefix in (path.encode() for path in prefixes):
        found = next(merging.differences(trees, before, commit.metarange_id, prefix), None)
        if found is not None and found.key.startswith(prefix):
            return True
    return False


def is_two_dot(kind: str) -> bool:
    """Return whether the type of a diff is ``two_dot``; 400 for an unknown type."""
    if kind not in {"two_dot", "three_dot"}:
        raise errors.bad_request(
            'parameter "type" in query has an error: value is not one of the allowed values '
            '["two_dot","three_dot"]'
        )
    return kind == "two_dot"


def _over(
    trees: Trees, left: str, committed: Iterable[Difference], staged: Iterator[Staged]
) -> Iterator[Difference]:
    """Differences from a tree, with the staged entries of the right side laid over it."""
    change = next(staged, None)
    for found in committed:
        while change is not None and change[0] < found.key:
            yield Difference(change[0], trees.get(left, change[0]), change[1])
            change = next(staged, None)
        if change is not None and change[0] == found.key:
            yield Difference(found.key, found.left, change[1])
            change = next(staged, None)
        else:
            yield found
    while change is not None:
        yield Difference(change[0], trees.get(left, change[0]), change[1])
        change = next(staged, None)


def _staged_change(key: bytes, old: Record | None, new: Record | None) -> Change | None:
    path = key.decode()
    if new is None:
        return Change(path, "removed", 0) if old else None
    return Change(path, "changed" if old else "added", decode_entry(new.value).size)


def _committed_change(trees: Trees, left: str, found: Difference) -> Change | None:
    ours = trees.get(left, found.key)
    if _identity(ours) == _identity(found.right):
        return None
    if _identity(ours) != _identity(found.left):
        kind = "conflict"
    elif found.left and found.right:
        kind = "changed"
    else:
        kind = "added" if found.right else "removed"
    shown = found.right or found.left
    return Change(found.key.decode(), kind, decode_entry(shown.value).size if shown else 0)


def _identity(record: Record | None) -> bytes | None:
    return record.identity if record else None
