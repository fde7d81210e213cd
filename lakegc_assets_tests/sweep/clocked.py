"""A store whose clock a test sets, and whose calls it can watch."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

from lakegc_assets.storage.local import LocalStore
from lakegc_assets.storage.values import ObjectInfo

START = datetime(2026, 1, 1, tzinfo=timezone.utc)


class ClockedStore(LocalStore):
    """Files below a directory, at a time that only the test changes.

    Attributes:
        time: what ``server_time`` answers.
        key: of the last call.
        before: called with the name of each call before it is carried out.
        after: the same, once it is carried out.
    """

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        super().__init__(root, root.as_uri())
        self.time = START
        self.key = ""
        self.before: Callable[[str], None] = lambda _name: None
        self.after: Callable[[str], None] = lambda _name: None

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.time += timedelta(seconds=seconds)

    def server_time(self) -> datetime:
        self.before("server_time")
        return self.time

    def head(self, key: str) -> ObjectInfo:
        self.key = key
        self.before("head")
        return super().head(key)

    def get(self, key: str) -> bytes:
        self.key = key
        self.before("get")
        return super().get(key)

    def put_if_absent(self, key: str, data: bytes) -> str:
        self.key = key
        self.before("put_if_absent")
        etag = super().put_if_absent(key, data)
        self.after("put_if_absent")
        return etag

    def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        self.key = key
        self.before("put_if_match")
        etag = super().put_if_match(key, data, etag)
        self.after("put_if_match")
        return etag
