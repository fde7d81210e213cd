"""Commits, merges, reverts and resets: files first, then one transaction that makes them valid."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from lakegc_assets.embedded import errors
from lakegc_assets.embedded.faults import Fault
from lakegc_assets.embedded.lake import Lake, catalog
from lakegc_assets.embedded.lake.catalog import Branch, Commit, Repository
from lakegc_assets.embedded.lake.layouts import Layout, set_layout
from lakegc_assets.embedded.lake.trees import commit_changes
from lakegc_assets.embedded.refs import merging, refs, staging
from lakegc_assets.graveler.errors import FormatError
from lakegc_assets.storage.errors import InvalidKeyError, ObjectNotFoundError

MERGE_STRATEGIES = ("", merging.SOURCE_WINS, merging.DEST_WINS)
STRATEGY_KEY = ".lakefs.merge.strategy"


class Overrides(NamedTuple):
    """Message and metadata of a revert or a cherry-pick; empty for the defaults."""

    message: str = ""
    metadata: Mapping[str, str] | None = None


AS_USUAL = Overrides()


def create_repository(lake: Lake, new: Repository, layout: Layout | None = None) -> Repository:
    """Claim the namespace of a repository, and write its first commit and default branch.

    The layout is by default that of the server's settings.

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
        set_layout(db, new.id, layout or lake.settings.layout)
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
    force: bool = False,
) -> Commit:
    """Commit the staged entries of a branch.

    Entries staged while the files are written stay staged. If another commit, a merge or a reset
    changes the branch in that time, this commit fails.

    Raises:
        ApiError: 400 without changes, 403 for a protected branch, or for a read-only repository
            unless ``force``, 412 when the branch moved meanwhile.
    """
    with lake.state.read() as db:
        repo = catalog.writable_repository(db, repository, force=force)
        catalog.require_committable(db, repo, branch)
        target = catalog.branch(db, repo, branch)
        head = catalog.commit(db, repo, target.commit_id)
        until = staging.last_sequence(db)
        trees = lake.stores.trees(repo)
        changes = staging.staged_changes(db, target)
        metarange_id, changed = commit_changes(trees, head.metarange_id, changes)
    if not changed and not allow_empty:
        raise errors.no_changes("commit")
    made = Commit.new(
        message=message,
        metarange_id=metarange_id,
        creation_date=int(lake.now()) if date is None else date,
        metadata=metadata,
        parents=(head,),
    )
    with lake.state.write() as db:
        advance(db, repo, target, made)
        staging.drop_committed(db, target, until)
    return made


def commit_tree(
    lake: Lake,
    repository: str,
    branch: str,
    metarange_id: str,
    *,
    message: str,
    metadata: Mapping[str, str],
    date: int | None,
    force: bool = False,
) -> Commit:
    """Commit a tree that already exists in the namespace, on a branch without staged changes.

    Raises:
        ApiError: 400 for a branch with staged changes, 403 for a protected one, 404 for a metarange
            that is missing or unreadable, 412 when the branch moved meanwhile.
    """
    with lake.state.read() as db:
        repo = catalog.writable_repository(db, repository, force=force)
        catalog.require_committable(db, repo, branch)
        target, head = clean_branch(lake, db, repo, branch)
    try:
        lake.stores.trees(repo).ranges(metarange_id)
    except (ObjectNotFoundError, InvalidKeyError, FormatError):
        raise errors.not_found("metarange") from None
    made = Commit.new(
        message=message,
        metarange_id=metarange_id,
        creation_date=int(lake.now()) if date is None else date,
        metadata=metadata,
        parents=(head,),
    )
    return _make_true(lake, repo, target, made)


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
    force: bool = False,
) -> Commit:
    """Merge a reference into a branch.

    Raises:
        ApiError: 409 for conflicts that no strategy decides, 400 for a branch with staged changes
            or when there is nothing to merge, 412 when the branch moved meanwhile.
    """
    if strategy not in MERGE_STRATEGIES:
        raise errors.bad_request("invalid merge strategy")
    with lake.state.read() as db:
        repo = catalog.writable_repository(db, repository, force=force)
        target, head = clean_branch(lake, db, repo, branch)
        source = refs.resolve_commit(db, repo, source_ref)
        base = refs.merge_base(db, repo, source, head)
    if base.id == source.id and not (allow_empty or force):
        raise errors.no_changes()
    made = Commit.new(
        message=message or f"Merge '{source_ref}' into '{branch}'",
        metarange_id=merging.merge(
            lake.stores.trees(repo),
            base=base.metarange_id,
            source=source.metarange_id,
            dest=head.metarange_id,
            strategy=strategy,
        ),
        creation_date=int(lake.now()),
        metadata={**metadata, STRATEGY_KEY: strategy or "default"},
        parents=(head,) if squash else (head, source),
    )
    # The generation of a squash commit counts the source, too.
    made = replace(made, generation=1 + max(head.generation, source.generation))
    return _make_true(lake, repo, target, made)


def revert(
    lake: Lake,
    repository: str,
    branch: str,
    *,
    ref: str,
    parent_number: int,
    allow_empty: bool,
    overrides: Overrides = AS_USUAL,
    force: bool = False,
) -> Commit:
    """Undo a commit on a branch, relative to one of its parents.

    Parents are counted from 1; the number is 0 for a commit with one parent.

    Raises:
        ApiError: 409 for a merge commit without a parent's number, and for conflicts; 400 for a
            branch with staged changes, or when nothing changes; 412 when the branch moved.
    """
    with lake.state.read() as db:
        repo = catalog.writable_repository(db, repository, force=force)
        undone = refs.resolve_commit(db, repo, ref)
        if len(undone.parents) > 1 and parent_number <= 0:
            raise errors.conflict("must specify 1-based parent number for reverting merge commit")
        before = _parent_tree(db, repo, undone, max(parent_number, 1)) if undone.parents else ""
        if not 0 <= parent_number <= len(undone.parents):
            raise _no_such_parent(parent_number)
        target, head = clean_branch(lake, db, repo, branch)
    metarange_id = merging.merge(
        lake.stores.trees(repo),
        base=undone.metarange_id,
        source=before,
        dest=head.metarange_id,
    )
    if metarange_id == head.metarange_id and not allow_empty:
        raise errors.no_changes()
    made = Commit.new(
        message=overrides.message or f"Revert {ref}",
        metarange_id=metarange_id,
        creation_date=int(lake.now()),
        metadata=overrides.metadata or {},
        parents=(head,),
    )
    return _make_true(lake, repo, target, made)


def cherry_pick(
    lake: Lake,
    repository: str,
    branch: str,
    *,
    ref: str,
    parent_number: int | None,
    overrides: Overrides = AS_USUAL,
    force: bool = False,
) -> Commit:
    """Apply to a branch the changes of a commit, relative to one of its parents.

    Parents are counted from 1; the number is None for a commit with one parent.

    Raises:
        ApiError: 400 for a merge commit without a parent's number, for a missing parent, for a
            branch with staged changes, and for a commit without changes; 409 for conflicts; 412
            when the branch moved.
    """
    with lake.state.read() as db:
        repo = catalog.writable_repository(db, repository, force=force)
        picked = refs.resolve_commit(db, repo, ref)
        if parent_number is None and len(picked.parents) > 1:
            raise errors.bad_request(
                "must specify 1-based parent number for cherry-picking merge commit"
            )
        before = _parent_tree(db, repo, picked, 1 if parent_number is None else parent_number)
        target, head = clean_branch(lake, db, repo, branch)
    if before == picked.metarange_id:
        raise errors.no_changes()
    metadata = picked.metadata if overrides.metadata is None else overrides.metadata
    made = Commit.new(
        message=overrides.message or picked.message,
        metarange_id=merging.merge(
            lake.stores.trees(repo),
            base=before,
            source=picked.metarange_id,
            dest=head.metarange_id,
        ),
        creation_date=int(lake.now()),
        metadata={
            **metadata,
            "cherry-pick-origin": picked.id,
            "cherry-pick-committer": picked.committer,
        },
        parents=(head,),
    )
    return _make_true(lake, repo, target, made)


def hard_reset(lake: Lake, repository: str, branch: str, ref: str, *, force: bool = False) -> None:
    """Set a branch to another commit; its old commit is dangling if no other ref reaches it.

    Raises:
        ApiError: 400 for a branch with staged changes, 403 for a protected one, or for a read-only
            repository unless ``force``.
    """
    with lake.writing(repository, force=force) as (db, repo):
        catalog.require_movable(db, repo, branch)
        target = catalog.branch(db, repo, branch)
        keeps_staged = Fault.RESET_KEEPS_STAGED in lake.settings.faults
        if not keeps_staged:
            require_clean(lake, db, repo, target)
        catalog.move_branch(db, target, refs.resolve_commit(db, repo, ref).id)
        if not keeps_staged:
            # A tombstone for a path that HEAD lacks is no change there, but may be one on the new
            # HEAD.
            staging.drop(db, target, b"")


def reset(
    lake: Lake, repository: str, branch: str, *, kind: str, path: str, force: bool = False
) -> None:
    """Drop staged entries: all (``reset``), those below a ``common_prefix``, or one ``object``.

    Raises:
        ApiError: 403 for a protected branch, or for a read-only repository unless ``force``.
    """
    if kind not in {"reset", "common_prefix", "object"}:
        raise errors.bad_request("unknown reset type")
    with lake.writing(repository, force=force) as (db, repo):
        catalog.require_writable(db, repo, branch)
        target = catalog.branch(db, repo, branch)
        prefix = b"" if kind == "reset" else path.encode()
        staging.drop(db, target, prefix, exactly=kind == "object")


def clean_branch(
    lake: Lake, db: sqlite3.Connection, repo: Repository, name: str
) -> tuple[Branch, Commit]:
    """A branch and its HEAD; 400 when it has staged changes."""
    target = catalog.branch(db, repo, name)
    require_clean(lake, db, repo, target)
    return target, catalog.commit(db, repo, target.commit_id)


def require_clean(lake: Lake, db: sqlite3.Connection, repo: Repository, target: Branch) -> None:
    """400 for a branch with staged changes."""
    head = catalog.commit(db, repo, target.commit_id).metarange_id
    trees = lake.stores.trees(repo)
    for key, new in staging.staged_changes(db, target):
        if new is not None or trees.get(head, key) is not None:
            raise errors.dirty_branch()


def advance(db: sqlite3.Connection, repo: Repository, seen: Branch, made: Commit) -> None:
    """Set a branch to a new commit; 412 if it has changed since ``seen`` was read."""
    catalog.insert_commit(db, repo, made)
    catalog.move_branch(db, seen, made.id)


def advance_clean(
    lake: Lake, db: sqlite3.Connection, repo: Repository, seen: Branch, made: Commit
) -> None:
    """Set a branch without staged changes to a new commit; errors as ``advance``, 400 if staged."""
    require_clean(lake, db, repo, seen)
    advance(db, repo, seen, made)
    # A tombstone for a path that the old HEAD lacked would hide the path of the new HEAD.
    staging.drop_committed(db, seen, staging.last_sequence(db))


def _make_true(lake: Lake, repo: Repository, target: Branch, made: Commit) -> Commit:
    with lake.state.write() as db:
        advance_clean(lake, db, repo, target, made)
    return made


def _parent_tree(db: sqlite3.Connection, repo: Repository, commit: Commit, number: int) -> str:
    if not 1 <= number <= len(commit.parents):
        raise _no_such_parent(number)
    return catalog.commit(db, repo, commit.parents[number - 1]).metarange_id


def _no_such_parent(number: int) -> errors.ApiError:
    return errors.bad_request(
        f"parent {number}: given commit does not have the given parent number"
    )
