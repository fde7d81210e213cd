"""Unfinished multipart uploads: rows in the state, and their parts in files next to it.

A part is on disk before its row exists, and an upload's rows are deleted before its files. After a
crash there may be files without a row, which the next start removes. An ended upload stays known
for a day, so that a client that missed the answer can repeat its request.
"""

from __future__ import annotations

import json
import secrets
import shutil
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from lakegc_assets.embedded.gateway import errors
from lakegc_assets.embedded.lake import Lake
from lakegc_assets.errors import LakegcError
from lakegc_assets.storage.errors import ObjectNotFoundError
from lakegc_assets.storage.local import LocalStore

_ENDED_KEPT_SECONDS = 24 * 3600
_SCHEMA = (
    """CREATE TABLE IF NOT EXISTS uploads (
        id TEXT PRIMARY KEY, branch INTEGER NOT NULL, path TEXT NOT NULL,
        content_type TEXT NOT NULL, metadata TEXT NOT NULL, started REAL NOT NULL,
        etag TEXT, ended REAL
    )""",
    """CREATE TABLE IF NOT EXISTS upload_parts (
        upload TEXT NOT NULL, number INTEGER NOT NULL, file TEXT NOT NULL, size INTEGER NOT NULL,
        etag TEXT NOT NULL, written REAL NOT NULL, PRIMARY KEY (upload, number)
    ) WITHOUT ROWID""",
)


class EndedError(LakegcError):
    """An upload was completed or aborted, or its branch deleted, since it was read."""


class Upload(NamedTuple):
    """One upload; ``branch`` is the branch's uid, ``etag`` the object's after completion."""

    id: str
    branch: int
    path: str
    content_type: str
    metadata: Mapping[str, str]
    started: float
    etag: str | None


class Part(NamedTuple):
    """One part: its file, size in bytes, MD5 in hexadecimal, and time (epoch seconds)."""

    number: int
    file: str
    size: int
    etag: str
    written: float


class Uploads:
    """The uploads of one server; safe to use from many threads and processes.

    Files that earlier processes left are removed at the start.
    """

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        root = lake.settings.data_dir.resolve() / "uploads"
        self._files = LocalStore(root, root.as_uri())
        # Files are listed before rows are read: an upload's row exists before its first file.
        seen = list(root.iterdir()) if root.exists() else []
        with lake.state.write() as db:
            for statement in _SCHEMA:
                db.execute(statement)
            self._forget(db)
            known = {row[0] for row in db.execute("SELECT id FROM uploads WHERE etag IS NULL")}
        for directory in seen:
            if directory.name not in known:
                shutil.rmtree(directory, ignore_errors=True)

    def start(self, branch: int, path: str, content_type: str, metadata: Mapping[str, str]) -> str:
        """Begin an upload to a path of a branch; its id."""
        upload = secrets.token_hex(16)
        with self._lake.state.write() as db:
            self._forget(db)
            db.execute(
                "INSERT INTO uploads VALUES (?, ?, ?, ?, ?, ?, NULL, NULL)",
                (upload, branch, path, content_type, json.dumps(dict(metadata)), self._lake.now()),
            )
        return upload

    def find(self, upload: str, branch: int, path: str) -> tuple[Upload, dict[int, Part]]:
        """An upload and its parts by number; NoSuchUpload if the id belongs to another path."""
        with self._lake.state.read() as db:
            row = db.execute(
                "SELECT id, branch, path, content_type, metadata, started, etag FROM uploads "
                "WHERE id = ? AND branch = ? AND path = ?",
                (upload, branch, path),
            ).fetchone()
            if row is None:
                raise errors.no_such_upload()
            parts = db.execute(
                "SELECT number, file, size, etag, written FROM upload_parts WHERE upload = ? "
                "ORDER BY number",
                (upload,),
            )
            return _upload(row), {part[0]: Part(*part) for part in parts}

    def open_in(self, repository: str) -> list[tuple[str, Upload]]:
        """The unfinished uploads of a repository with their keys, by key and id."""
        with self._lake.state.read() as db:
            rows = db.execute(
                "SELECT name || '/' || path, id, branch, path, content_type, metadata, started, "
                "etag FROM uploads JOIN branches ON uid = branch "
                "WHERE repository = ? AND etag IS NULL ORDER BY 1, id",
                (repository,),
            )
            return [(key, _upload(row)) for key, *row in rows]

    def add(self, upload: Upload, number: int, data: bytes, etag: str) -> None:
        """Store a part, and replace one of the same number."""
        file = f"{upload.id}/{number}-{secrets.token_hex(8)}"
        self._files.put(file, data)
        with self._lake.state.write() as db:
            open_row = db.execute(
                "SELECT 1 FROM uploads WHERE id = ? AND etag IS NULL", (upload.id,)
            ).fetchone()
            replaced = db.execute(
                "SELECT file FROM upload_parts WHERE upload = ? AND number = ?",
                (upload.id, number),
            ).fetchone()
            if open_row:
                db.execute(
                    "INSERT OR REPLACE INTO upload_parts VALUES (?, ?, ?, ?, ?, ?)",
                    (upload.id, number, file, len(data), etag, self._lake.now()),
                )
        if not open_row:
            self.drop_files(upload.id)
            raise errors.no_such_upload()
        if replaced:
            self._files.delete_many([replaced[0]])

    def read(self, part: Part) -> bytes:
        """A part's bytes; InvalidPart if it was replaced meanwhile."""
        with suppress(ObjectNotFoundError):
            return self._files.get(part.file)
        raise errors.invalid_part(part.number)

    def end(self, db: sqlite3.Connection, upload: Upload, etag: str) -> None:
        """Record, in a transaction, that an upload became an object; EndedError if it has ended."""
        ended = db.execute(
            "UPDATE uploads SET etag = ?, ended = ? WHERE id = ? AND etag IS NULL",
            (etag, self._lake.now(), upload.id),
        )
        if ended.rowcount != 1:
            raise EndedError
        db.execute("DELETE FROM upload_parts WHERE upload = ?", (upload.id,))

    def abort(self, upload: Upload) -> None:
        """Delete an upload and its parts; NoSuchUpload if it has ended."""
        with self._lake.state.write() as db:
            gone = db.execute("DELETE FROM uploads WHERE id = ? AND etag IS NULL", (upload.id,))
            if gone.rowcount != 1:
                raise errors.no_such_upload()
            db.execute("DELETE FROM upload_parts WHERE upload = ?", (upload.id,))
        self.drop_files(upload.id)

    def _forget(self, db: sqlite3.Connection) -> None:
        """Delete uploads that ended a day ago, and uploads to deleted branches."""
        db.execute(
            "DELETE FROM uploads WHERE ended < ? OR branch NOT IN (SELECT uid FROM branches)",
            (self._lake.now() - _ENDED_KEPT_SECONDS,),
        )
        db.execute("DELETE FROM upload_parts WHERE upload NOT IN (SELECT id FROM uploads)")

    def drop_files(self, upload: str) -> None:
        """Remove the parts of an upload that has ended."""
        for batch in self._files.list(f"{upload}/"):
            self._files.delete_many(batch["key"].to_pylist())


def _upload(row: Sequence[Any]) -> Upload:
    return Upload(*row)._replace(metadata=json.loads(row[4]))
