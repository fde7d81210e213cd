"""Repositories and their refs, commits and rules as rows of the state, one function a query."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from fnmatch import fnmatchcase

from lakegc_assets.embedded import errors
from lakegc_assets.graveler.ident import commit_id
from lakegc_assets.graveler.namespace import StorageNamespace

#: The name of the only user.
COMMITTER = "admin"


@dataclass(frozen=True)
class Repository:
    """One repository; ``rules`` is the JSON of its GC rules, or None."""

    id: str
    namespace: str
    default_branch: str
    creation_date: int
    read_only: bool
    rules: str | None

    @property
    def place(self) -> StorageNamespace:
        """Its storage namespace, parsed."""
        return StorageNamespace.parse(self.namespace)

    def address(self, relative: str) -> str:
        """The full physical address of a relative one."""
        return f"{self.namespace}/{relative}"


@dataclass(frozen=True)
class Branch:
    """One branch.

    ``uid`` is never used again, so a new branch of the same name has no staged entries. ``version``
    counts the changes that must not become part of a commit in preparation.
    """

    uid: int
    name: str
    commit_id: str
    hidden: bool
    version: int


@dataclass(frozen=True)
class Commit:
    """One commit; ``creation_date`` in epoch seconds."""

    id: str
    committer: str
    message: str
    metarange_id: str
    creation_date: int
    metadata: Mapping[str, str]
    parents: tuple[str, ...]
    generation: int

    @classmethod
    def new(
        cls,
        *,
        committer: str = COMMITTER,
        message: str,
        metarange_id: str,
        creation_date: int,
        metadata: Mapping[str, str],
        parents: tuple[Commit, ...],
    ) -> Commit:
        """A commit with lakeFS's own id for its content."""
        ids = tuple(p.id for p in parents)
        content = (committer, message, metarange_id, creation_date, metadata, ids)
        return cls(
            commit_id(*content), *content, 1 + max((p.generation for p in parents), default=0)
        )

    def shown(self) -> dict[str, object]:
        """As the API returns it."""
        return {
            "committer": self.committer,
            "creation_date": self.creation_date,
            "generation": self.generation,
            "id": self.id,
            "message": self.message,
            "meta_range_id": self.metarange_id,
            "metadata": dict(self.metadata),
            "parents": list(self.parents),
            "version": 1,
        }


def repository(db: sqlite3.Connection, name: str) -> Repository:
    """The repository; 404 when there is none."""
    row = db.execute("SELECT * FROM repositories WHERE id = ?", (name,)).fetchone()
    if row is None:
        raise errors.not_found("repository")
    return _repository(row)


def writable_repository(db: sqlite3.Connection, name: str, *, force: bool = False) -> Repository:
    """The repository; 404 when there is none, 403 when it is read-only unless ``force``."""
    found = repository(db, name)
    if found.read_only and not force:
        raise errors.read_only()
    return found


def repositories(db: sqlite3.Connection, prefix: str, after: str, amount: int) -> list[Repository]:
    """Up to ``amount`` repositories with a prefix, by name, after a name."""
    rows = db.execute(
        "SELECT * FROM repositories WHERE id > ? AND substr(id, 1, ?) = ? ORDER BY id LIMIT ?",
        (after, len(prefix), prefix, amount),
    )
    return [_repository(row) for row in rows]


def insert_repository(db: sqlite3.Connection, new: Repository) -> None:
    """Add a repository; 409 when its name is taken."""
    try:
        db.execute("INSERT INTO repositories VALUES (?, ?, ?, ?, ?, ?)", astuple(new))
    except sqlite3.IntegrityError:
        raise errors.conflict("error creating repository: not unique") from None


def delete_repository(db: sqlite3.Connection, name: str) -> None:
    """Delete a repository and all its refs; its objects stay in the store, as in lakeFS."""
    db.execute(
        "DELETE FROM staged WHERE branch IN (SELECT uid FROM branches WHERE repository = ?)",
        (name,),
    )
    for table in (
        "branches",
        "tags",
        "commits",
        "prepare_tasks",
        "copies",
        "link_tokens",
        "layouts",
        "protected_branches",
    ):
        db.execute(f"DELETE FROM {table} WHERE repository = ?", (name,))  # noqa: S608 - fixed names
    db.execute("DELETE FROM repositories WHERE id = ?", (name,))


def find_branch(db: sqlite3.Connection, repo: Repository, name: str) -> Branch | None:
    """The branch, or None."""
    row = db.execute(
        "SELECT uid, name, commit_id, hidden, version FROM branches "
        "WHERE repository = ? AND name = ?",
        (repo.id, name),
    ).fetchone()
    return _branch(row) if row else None


def branch(db: sqlite3.Connection, repo: Repository, name: str) -> Branch:
    """The branch; 404 when there is none."""
    found = find_branch(db, repo, name)
    if found is None:
        raise errors.not_found("branch")
    return found


def branches(
    db: sqlite3.Connection,
    repo: Repository,
    *,
    prefix: str = "",
    after: str = "",
    amount: int = -1,
    show_hidden: bool = True,
) -> list[Branch]:
    """Branches by name; ``amount`` -1 for all."""
    rows = db.execute(
        "SELECT uid, name, commit_id, hidden, version FROM branches WHERE repository = ? "
        "AND name > ? AND substr(name, 1, ?) = ? AND hidden <= ? ORDER BY name LIMIT ?",
        (repo.id, after, len(prefix), prefix, show_hidden, amount),
    )
    return [_branch(row) for row in rows]


def insert_branch(
    db: sqlite3.Connection, repo: Repository, name: str, head: str, *, hidden: bool
) -> None:
    """Add a branch; 409 when its name is taken."""
    try:
        db.execute(
            "INSERT INTO branches (repository, name, commit_id, hidden) VALUES (?, ?, ?, ?)",
            (repo.id, name, head, hidden),
        )
    except sqlite3.IntegrityError:
        raise errors.conflict("branch already exists: not unique") from None


def move_branch(db: sqlite3.Connection, seen: Branch, head: str) -> None:
    """Set a branch's HEAD; 412 if the branch has changed since ``seen`` was read."""
    moved = db.execute(
        "UPDATE branches SET commit_id = ?, version = version + 1 WHERE uid = ? AND version = ?",
        (head, seen.uid, seen.version),
    )
    if moved.rowcount != 1:
        raise errors.moved_meanwhile()


def delete_branch(db: sqlite3.Connection, gone: Branch) -> None:
    """Delete a branch and its staged entries."""
    db.execute("DELETE FROM staged WHERE branch = ?", (gone.uid,))
    db.execute("DELETE FROM branches WHERE uid = ?", (gone.uid,))


def tags(
    db: sqlite3.Connection, repo: Repository, *, prefix: str = "", after: str = "", amount: int = -1
) -> list[tuple[str, str]]:
    """Tags and their commits by name; ``amount`` -1 for all."""
    rows = db.execute(
        "SELECT name, commit_id FROM tags WHERE repository = ? AND name > ? "
        "AND substr(name, 1, ?) = ? ORDER BY name LIMIT ?",
        (repo.id, after, len(prefix), prefix, amount),
    )
    return rows.fetchall()


def find_tag(db: sqlite3.Connection, repo: Repository, name: str) -> str | None:
    """The commit of a tag, or None."""
    row = db.execute(
        "SELECT commit_id FROM tags WHERE repository = ? AND name = ?", (repo.id, name)
    ).fetchone()
    return row[0] if row else None


def insert_tag(db: sqlite3.Connection, repo: Repository, name: str, commit_id: str) -> None:
    """Add a tag; 409 when its name is taken."""
    try:
        db.execute("INSERT INTO tags VALUES (?, ?, ?)", (repo.id, name, commit_id))
    except sqlite3.IntegrityError:
        raise errors.conflict("tag already exists: not unique") from None


def delete_tag(db: sqlite3.Connection, repo: Repository, name: str) -> None:
    """Delete a tag; 404 when there is none."""
    deleted = db.execute("DELETE FROM tags WHERE repository = ? AND name = ?", (repo.id, name))
    if deleted.rowcount != 1:
        raise errors.not_found("tag")


def find_commit(db: sqlite3.Connection, repo: Repository, wanted: str) -> Commit | None:
    """The commit with this full id, or None."""
    row = db.execute(
        "SELECT * FROM commits WHERE repository = ? AND id = ?", (repo.id, wanted)
    ).fetchone()
    return _commit(row) if row else None


def commit(db: sqlite3.Connection, repo: Repository, wanted: str) -> Commit:
    """The commit with this full id; 404 when there is none."""
    found = find_commit(db, repo, wanted)
    if found is None:
        raise errors.not_found("commit")
    return found


def commits_starting_with(db: sqlite3.Connection, repo: Repository, start: str) -> list[Commit]:
    """At most two commits with ids that begin so: enough to see whether the start is unique."""
    rows = db.execute(
        "SELECT * FROM commits WHERE repository = ? AND id >= ? AND id < ? LIMIT 2",
        (repo.id, start, start + "g"),
    )
    return [_commit(row) for row in rows]


def all_commits(db: sqlite3.Connection, repo: Repository) -> Iterable[Commit]:
    """Every commit of the repository, including commits that no ref reaches."""
    return map(_commit, db.execute("SELECT * FROM commits WHERE repository = ?", (repo.id,)))


def insert_commit(db: sqlite3.Connection, repo: Repository, new: Commit) -> None:
    """Add a commit; adding the same commit twice has no further effect."""
    db.execute(
        "INSERT OR IGNORE INTO commits VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            repo.id,
            new.id,
            new.committer,
            new.message,
            new.metarange_id,
            new.creation_date,
            json.dumps(dict(new.metadata)),
            json.dumps(new.parents),
            new.generation,
        ),
    )


def protected_patterns(db: sqlite3.Connection, repo: Repository) -> Sequence[str]:
    """The patterns of protected branches, where ``*`` is any text and ``?`` any character."""
    rows = db.execute(
        "SELECT pattern FROM protected_branches WHERE repository = ? ORDER BY pattern", (repo.id,)
    )
    return [pattern for (pattern,) in rows]


def set_protected_patterns(db: sqlite3.Connection, repo: Repository, wanted: Iterable[str]) -> None:
    """Replace the patterns of protected branches: only merges change these."""
    db.execute("DELETE FROM protected_branches WHERE repository = ?", (repo.id,))
    db.executemany(
        "INSERT OR IGNORE INTO protected_branches VALUES (?, ?)",
        [(repo.id, pattern) for pattern in wanted],
    )


def require_writable(db: sqlite3.Connection, repo: Repository, branch: str) -> None:
    """403 for a protected branch: its staged entries cannot change."""
    _refuse_protected(db, repo, branch, "cannot write to protected branch")


def require_committable(db: sqlite3.Connection, repo: Repository, branch: str) -> None:
    """403 for a protected branch: it takes no commits."""
    _refuse_protected(db, repo, branch, "cannot commit to protected branch")


def require_movable(db: sqlite3.Connection, repo: Repository, branch: str) -> None:
    """403 for a protected branch: it cannot be reset to another commit."""
    _refuse_protected(db, repo, branch, "protected branch")


def _refuse_protected(db: sqlite3.Connection, repo: Repository, branch: str, message: str) -> None:
    if any(fnmatchcase(branch, pattern) for pattern in protected_patterns(db, repo)):
        raise errors.ProtectedBranchError(message)


def _repository(row: tuple[str, str, str, int, int, str | None]) -> Repository:
    return Repository(*row[:4], bool(row[4]), row[5])


def _branch(row: tuple[int, str, str, int, int]) -> Branch:
    return Branch(*row[:3], bool(row[3]), row[4])


def _commit(row: tuple[str, str, str, str, str, int, str, str, int]) -> Commit:
    return Commit(*row[1:6], json.loads(row[6]), tuple(json.loads(row[7])), row[8])
