"""What must hold of a server's data directory at every moment, whatever happened to its process."""

from __future__ import annotations

import io
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq

from lakegc_assets.graveler.entry import AddressType, decode_entry
from lakegc_assets.graveler.ranges import read_metarange, read_range
from lakegc_assets.graveler.sstable import read_sstable
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.opening import open_store

Contents = dict[str, bytes]


def everything(data: Path) -> dict[str, object]:
    """What is there, without ids and addresses, after every part of it was verified.

    Each commit's metarange and ranges are read with all checksums and against their ids; each
    entry's object is read, too, whether committed or staged.
    """
    found: dict[str, object] = {}
    stores = StoreConfig(local_root=str(data / "objects"))
    with closing(sqlite3.connect(data / "state.db")) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        repositories = db.execute("SELECT id, namespace, rules FROM repositories").fetchall()
        for name, namespace, rules in repositories:
            store = open_store(namespace, stores)
            commits = _commits(db, store, name)
            listed = {commits[commit]["id"] for commit in commits}
            assert listed == set(commits)
            tags = db.execute("SELECT name, commit_id FROM tags WHERE repository = ?", (name,))
            found[name] = {
                "rules": rules,
                "commits": sorted(_shown(commit) for commit in commits.values()),
                "tags": {tag: _shown(commits[head]) for tag, head in tags},
                "branches": _branches(db, store, name, commits),
            }
            _check_lists(store)
        known = {name for name, _, _ in repositories}
        for table in ("branches", "tags", "commits"):
            rows = db.execute(f"SELECT DISTINCT repository FROM {table}")
            assert {row[0] for row in rows} <= known
        uids = "SELECT COUNT(*) FROM staged WHERE branch NOT IN (SELECT uid FROM branches)"
        assert db.execute(uids).fetchone() == (0,)
    return found


def _commits(db: sqlite3.Connection, store: ObjectStore, name: str) -> dict[str, dict[str, object]]:
    rows = db.execute(
        "SELECT id, message, metarange_id, parents FROM commits WHERE repository = ?", (name,)
    ).fetchall()
    ids = {row[0] for row in rows}
    found = {}
    for commit, message, metarange, parents in rows:
        assert set(json.loads(parents)) <= ids
        found[commit] = {"id": commit, "message": message, "tree": tree(store, metarange)}
    return found


def tree(store: ObjectStore, metarange: str) -> Contents:
    """The content of each object of a metarange, all of it verified."""
    found: Contents = {}
    if not metarange:
        return found
    for info in read_metarange(store.get(f"_lakefs/{metarange}"), metarange):
        data = store.get(f"_lakefs/{info.id}")
        assert read_range(data, info.id)
        for record in read_sstable(data, info.id).records:
            found[record.key.decode()] = _content(store, record.value)
    return found


def _branches(
    db: sqlite3.Connection, store: ObjectStore, name: str, commits: dict[str, dict[str, object]]
) -> dict[str, object]:
    found: dict[str, object] = {}
    rows = db.execute("SELECT uid, name, commit_id FROM branches WHERE repository = ?", (name,))
    for uid, branch, head in rows.fetchall():
        staged = db.execute("SELECT key, value FROM staged WHERE branch = ?", (uid,)).fetchall()
        found[branch] = {
            "head": _shown(commits[head]),
            "staged": {
                key.decode(): None if value is None else _content(store, value)
                for key, value in staged
            },
        }
    return found


def _content(store: ObjectStore, value: bytes) -> bytes:
    entry = decode_entry(value)
    assert entry.address_type is AddressType.RELATIVE
    content = store.get(entry.address)
    assert len(content) == entry.size
    return content


def _shown(commit: dict[str, object]) -> str:
    return f"{commit['message']}: {commit['tree']}"


def _check_lists(store: ObjectStore) -> None:
    """Every list that was made for a collector is whole."""
    for batch in store.list("_lakefs/retention/gc/"):
        for key in batch.column("key").to_pylist():
            data = store.get(key)
            if key.endswith("commits.csv"):
                lines = data.decode().split("\n")
                assert lines[0] == "commit_id,expired,metarange_id"
                assert lines[-1] == ""
                assert all(len(line.split(",")[0]) == 64 for line in lines[1:-1])
            else:
                assert pq.read_table(io.BytesIO(data)).column_names
