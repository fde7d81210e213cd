"""Commits, merges, reverts and resets: files first, then one transaction that makes them true."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from lakegc_assets.embedded import catalog, errors, merging, refs, staging
from lakegc_assets.embedded.catalog import Branch, Commit, Repository
from lakegc_assets.embedded.lake import Lake
from lakegc_assets.embedded.merging import Difference
from lakegc_assets.embedded.paging import Paging, page
from lakegc_assets.embedded.trees import Trees, commit_changes
from lakegc_assets.graveler.entry import decode_entry
from lakegc_assets.graveler.sstable import Record

COMMITTER = "admin"
MERGE_STRATEGIES = ("", merging.SOURCE_WINS, merging.DEST_WINS)
_STRATEGY_KEY = ".lakefs.merge.strategy"


@dataclass(frozen=True)
class Change:
    """One line of a diff; ``kind`` is added, removed, changed or conflict."""

    path: str
    kind: str
    size: int


def create_repository(lake: Lake, new: Repository) -> Repository:
    """Claim its namespace, and write its first commit and its default branch.

    Raises:
        ApiError: 409 when the name is taken, 400 when the namespace is in use or not usable.
    """
    with lake.state.read() as db:
        if db.execute("SELECT 1 FROM repositories WHERE id = ?", (new.id,)).fetchone():
            raise errors.conflict("error creating repository: not unique")
    lake.stores.claim(new.namespace)
    first = Commit.new(
        committer="",
        message="Repository created",
        metarange_id="",
        creation_date=new.creation_date,
        metadata={},
        parents=(),
    )
    with lake.state.write() as db:
        catalog.insert_repository(db, new)
        catalog.insert_commit(db, new, first)
        catalog.insert_branch(db, new, new.default_branch, first.id, hidden=False)
    return new


def commit(
    lake: Lake,
    repository: str,
    branch: str,
    *,
    message: str,
    metadata: Mapping[str, str],
    date: int | None,
    allow_empty: bool,
) -> Commit:
    """Commit what is staged on a branch.

    What is staged while the files are written stays staged. Another commit, a merge or a reset of
    the branch in that time makes this one fail.

    Raises:
        ApiError: 400 without changes, 412 when the branch moved meanwhile.
    """
    with lake.state.read() as db:
        repo = catalog.writable_repository(db, repository)
        target = catalog.branch(db, repo, branch)
        head = catalog.commit(db, repo, target.commit_id)
        until = staging.last_sequence(db)
        trees = lake.stores.trees(repo)
        changes = staging.staged_changes(db, target)
        metarange_id, changed = commit_changes(trees, head.metarange_id, changes)
    if not changed and not allow_empty:
        raise errors.no_changes("commit")
    made = Commit.new(
        committer=COMMITTER,
        message=message,
        metarange_id=metarange_id,
        creation_date=int(lake.now()) if date is None else date,
        metadata=metadata,
        parents=(head,),
    )
    with lake.state.write() as db:
        _advance(db, repo, target, made)
        staging.drop_committed(db, target, until)
    return made


def merge(
    lake: Lake,
    repository: str,
    source_ref: str,
    branch: str,
    *,
    message: str,
    metadata: Mapping[str, str],
    strategy: str,
    squash: bool,
    allow_empty: bool,
) -> Commit:
    """Merge a reference into a branch.

    Raises:
        ApiError: 409 for conflicts that no strategy decides, 400 for a branch with staged changes
            or when there is nothing to merge, 412 when the branch moved meanwhile.
    """
    if strategy not in MERGE_STRATEGIES:
        raise errors.bad_request("invalid merge strategy")
    with lake.state.read() as db:
        repo = catalog.writable_repository(db, repository)
        target, head = _clean_branch(lake, db, repo, branch)
        source = refs.resolve(db, repo, source_ref).commit
        base = refs.merge_base(db, repo, source, head)
    if base.id == source.id and not allow_empty:
        raise errors.no_changes()
    made = Commit.new(
        committer=COMMITTER,
        message=message or f"Merge '{source_ref}' into '{branch}'",
        metarange_id=merging.merge(
            lake.stores.trees(repo),
            base=base.metarange_id,
            source=source.metarange_id,
            dest=head.metarange_id,
            strategy=strategy,
        ),
        creation_date=int(lake.now()),
        metadata={**metadata, _STRATEGY_KEY: strategy or "default"},
        parents=(head,) if squash else (head, source),
    )
    with lake.state.write() as db:
        _require_clean(lake, db, repo, target)
        _advance(db, repo, target, made)
    return made


def revert(
    lake: Lake, repository: str, branch: str, *, ref: str, parent_number: int, allow_empty: bool
) -> Commit:
    """Undo a commit on a branch, relative to one of its parents.

    Args:
        lake: the server.
        repository: its name.
        branch: where it is undone.
        ref: the commit.
        parent_number: from 1; 0 for a commit with one parent.
        allow_empty: make a commit even if nothing changes.

    Raises:
        ApiError: 409 for a merge commit without a parent's number, and for conflicts; 400 for a
            branch with staged changes, or when nothing changes; 412 when the branch moved.
    """
    with lake.state.read() as db:
        repo = catalog.writable_repository(db, repository)
        target, head = _clean_branch(lake, db, repo, branch)
        undone = refs.resolve(db, repo, ref).commit
        if len(undone.parents) > 1 and parent_number <= 0:
            raise errors.conflict("must specify 1-based parent number for reverting merge commit")
        if not 0 <= parent_number <= len(undone.parents):
            raise errors.bad_request("given commit does not have the given parent number")
        before = ""
        if undone.parents:
            parent = undone.parents[max(parent_number, 1) - 1]
            before = catalog.commit(db, repo, parent).metarange_id
    metarange_id = merging.merge(
        lake.stores.trees(repo),
        base=undone.metarange_id,
        source=before,
        dest=head.metarange_id,
    )
    if metarange_id == head.metarange_id and not allow_empty:
        raise errors.no_changes()
    made = Commit.new(
        committer=COMMITTER,
        message=f"Revert {undone.id}",
        metarange_id=metarange_id,
        creation_date=int(lake.now()),
        metadata={},
        parents=(head,),
    )
    with lake.state.write() as db:
        _require_clean(lake, db, repo, target)
        _advance(db, repo, target, made)
    return made


def reset(lake: Lake, repository: str, branch: str, *, kind: str, path: str) -> None:
    """Forget what is staged: all of it (``reset``), below a ``common_prefix``, or an ``object``."""
    if kind not in {"reset", "common_prefix", "object"}:
        raise errors.bad_request("unknown reset type")
    with lake.state.write() as db:
        repo = catalog.writable_repository(db, repository)
        target = catalog.branch(db, repo, branch)
        prefix = b"" if kind == "reset" else path.encode()
        staging.drop(db, target, prefix, exactly=kind == "object")


def staged_differences(
    lake: Lake, repository: str, branch: str, wanted: Paging
) -> tuple[list[Change | str], bool]:
    """A page of what is staged on a branch, against its HEAD."""
    with lake.state.read() as db:
        repo = catalog.repository(db, repository)
        target = catalog.branch(db, repo, branch)
        head = catalog.commit(db, repo, target.commit_id).metarange_id
        trees = lake.stores.trees(repo)

        def read(start: bytes) -> Iterator[tuple[bytes, Change]]:
            for key, new in staging.staged_changes(db, target, start):
                found = _staged_change(key, trees.get(head, key), new)
                if found:
                    yield key, found

        return page(read, wanted)


def ref_differences(
    lake: Lake, repository: str, left_ref: str, right_ref: str, wanted: Paging, *, two_dot: bool
) -> tuple[list[Change | str], bool]:
    """A page of what differs between two commits.

    With ``two_dot`` the two themselves; else what the right one changed since their merge base,
    with what both changed differently as conflicts.
    """
    with lake.state.read() as db:
        repo = catalog.repository(db, repository)
        left = refs.resolve(db, repo, left_ref).commit
        right = refs.resolve(db, repo, right_ref).commit
        base = left if two_dot else refs.merge_base(db, repo, left, right)
    trees = lake.stores.trees(repo)

    def read(start: bytes) -> Iterator[tuple[bytes, Change]]:
        for found in merging.differences(trees, base.metarange_id, right.metarange_id, start):
            change = _committed_change(trees, left.metarange_id, found)
            if change:
                yield found.key, change

    return page(read, wanted)


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


def _clean_branch(
    lake: Lake, db: sqlite3.Connection, repo: Repository, name: str
) -> tuple[Branch, Commit]:
    target = catalog.branch(db, repo, name)
    _require_clean(lake, db, repo, target)
    return target, catalog.commit(db, repo, target.commit_id)


def _require_clean(lake: Lake, db: sqlite3.Connection, repo: Repository, target: Branch) -> None:
    head = catalog.commit(db, repo, target.commit_id).metarange_id
    trees = lake.stores.trees(repo)
    for key, new in staging.staged_changes(db, target):
        if new is not None or trees.get(head, key) is not None:
            raise errors.dirty_branch()


def _advance(db: sqlite3.Connection, repo: Repository, seen: Branch, made: Commit) -> None:
    catalog.insert_commit(db, repo, made)
    catalog.move_branch(db, seen, made.id)
