"""The staging area of a branch: entries and tombstones over a committed tree."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from lakegc_assets.embedded.lake.catalog import Branch
from lakegc_assets.embedded.lake.trees import Change, Trees
from lakegc_assets.embedded.refs.refs import Resolved
from lakegc_assets.graveler.sstable import Record


def staged_changes(db: sqlite3.Connection, branch: Branch, start: bytes = b"") -> Iterator[Change]:
    """Staged changes of a branch, by key."""
    rows = db.execute(
        "SELECT key, identity, value FROM staged WHERE branch = ? AND key >= ? ORDER BY key",
        (branch.uid, start),
    )
    for key, identity, value in rows:
        yield key, None if value is None else Record(key, identity, value)


def staged_change(db: sqlite3.Connection, branch: Branch, key: bytes) -> Change | None:
    """The staged change at one key, or None."""
    row = db.execute(
        "SELECT identity, value FROM staged WHERE branch = ? AND key = ?", (branch.uid, key)
    ).fetchone()
    if row is None:
        return None
    return key, None if row[1] is None else Record(key, *row)


def stage(db: sqlite3.Connection, branch: Branch, change: Change) -> None:
    """Stage a record, or a tombstone."""
    key, record = change
    (seq,) = db.execute("UPDATE sequence SET next = next + 1 RETURNING next").fetchone()
    identity, value = (record.identity, record.value) if record else (None, None)
    db.execute(
        "INSERT OR REPLACE INTO staged VALUES (?, ?, ?, ?, ?)",
        (branch.uid, key, identity, value, seq),
    )


def last_sequence(db: sqlite3.Connection) -> int:
    """The number of the last staged change on any branch."""
    (last,) = db.execute("SELECT next FROM sequence").fetchone()
    return int(last)


def drop_committed(db: sqlite3.Connection, branch: Branch, until: int) -> None:
    """Drop the entries that a commit contains; entries staged after ``until`` stay."""
    db.execute("DELETE FROM staged WHERE branch = ? AND seq <= ?", (branch.uid, until))


def drop(db: sqlite3.Connection, branch: Branch, prefix: bytes, *, exactly: bool = False) -> None:
    """Drop staged entries at one key or below a prefix; commits in preparation then fail."""
    db.execute(
        "DELETE FROM staged WHERE branch = :branch AND substr(key, 1, length(:prefix)) = :prefix "
        "AND (length(key) = length(:prefix) OR NOT :exactly)",
        {"branch": branch.uid, "prefix": prefix, "exactly": exactly},
    )
    db.execute("UPDATE branches SET version = version + 1 WHERE uid = ?", (branch.uid,))


def find(db: sqlite3.Connection, trees: Trees, at: Resolved, key: bytes) -> Record | None:
    """The record at a key as a reader of this reference sees it, or None."""
    staged = staged_change(db, at.branch, key) if at.branch else None
    return staged[1] if staged else trees.get(at.commit.metarange_id, key)


def scan(
    db: sqlite3.Connection, trees: Trees, at: Resolved, start: bytes = b""
) -> Iterator[tuple[bytes, Record]]:
    """All records as a reader of this reference sees them, from a key on."""
    staged = staged_changes(db, at.branch, start) if at.branch else iter(())
    change = next(staged, None)
    for record in trees.scan(at.commit.metarange_id, start):
        while change is not None and change[0] < record.key:
            if change[1] is not None:
                yield change[0], change[1]
            change = next(staged, None)
        if change is None or change[0] != record.key:
            yield record.key, record
    while change is not None:
        if change[1] is not None:
            yield change[0], change[1]
        change = next(staged, None)
