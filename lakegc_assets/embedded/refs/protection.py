"""Branch protection: only merges change a branch with a name that matches a pattern."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from lakegc_assets.embedded import errors
from lakegc_assets.embedded.lake.catalog import Repository


def patterns(db: sqlite3.Connection, repo: Repository) -> Sequence[str]:
    """The patterns of a repository's rules, where ``*`` is any text and ``?`` any character."""
    rows = db.execute(
        "SELECT pattern FROM protected_branches WHERE repository = ? ORDER BY pattern", (repo.id,)
    )
    return [pattern for (pattern,) in rows]


def etag(rules: Sequence[str]) -> str:
    """The etag of a set of rules; empty for none."""
    return hashlib.sha256("\n".join(rules).encode()).hexdigest() if rules else ""


def set_patterns(db: sqlite3.Connection, repo: Repository, wanted: Iterable[str]) -> None:
    """Replace the rules of a repository."""
    db.execute("DELETE FROM protected_branches WHERE repository = ?", (repo.id,))
    db.executemany(
        "INSERT OR IGNORE INTO protected_branches VALUES (?, ?)",
        [(repo.id, pattern) for pattern in wanted],
    )


def require_writable(db: sqlite3.Connection, repo: Repository, branch: str) -> None:
    """403 for a protected branch: its staged entries cannot change."""
    _require(db, repo, branch, "cannot write to protected branch")


def require_committable(db: sqlite3.Connection, repo: Repository, branch: str) -> None:
    """403 for a protected branch: it takes no commits."""
    _require(db, repo, branch, "cannot commit to protected branch")


def require_movable(db: sqlite3.Connection, repo: Repository, branch: str) -> None:
    """403 for a protected branch: it cannot be reset to another commit."""
    _require(db, repo, branch, "protected branch")


def _require(db: sqlite3.Connection, repo: Repository, branch: str, message: str) -> None:
    if any(fnmatchcase(branch, pattern) for pattern in patterns(db, repo)):
        raise errors.ProtectedBranchError(message)
