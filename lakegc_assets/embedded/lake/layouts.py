"""New physical addresses, in the layout of their repository: in slices, below shards, or flat.

A slice has one writer: one process. Its name counts the seconds down, so newer slices list first. A
collector can skip slices that are too young without reading them. The names and their limits are
lakeFS's (its pkg/upload/path_provider.go).
"""

from __future__ import annotations

import hashlib
import os
import secrets
import sqlite3
import uuid
from collections.abc import Callable
from datetime import datetime, timezone
from enum import Enum
from threading import Lock

from lakegc_assets.graveler.namespace import Xid, encode_xid, new_slice_name


class Layout(Enum):
    """A layout; the value is its name on the command line."""

    SLICES = "slices"
    """``data/<slice>/<id>``."""

    FLAT_DATA = "flat-data"
    """``data/<id>``."""

    FLAT_ROOT = "flat-root"
    """``<id>``, at the root of the storage namespace."""

    SHARDED = "sharded"
    """``data/!ab/c/<partition>/<id>``: a hash spreads objects, so that no prefix gets hot."""


def set_layout(db: sqlite3.Connection, repository: str, layout: Layout) -> None:
    """Set the layout for new objects of a repository; existing objects stay in their place."""
    db.execute("INSERT OR REPLACE INTO layouts VALUES (?, ?)", (repository, layout.value))


def layout_of(db: sqlite3.Connection, repository: str) -> Layout:
    """The layout for new objects of a repository."""
    row = db.execute("SELECT layout FROM layouts WHERE repository = ?", (repository,)).fetchone()
    return Layout(row[0]) if row else Layout.SLICES


_COUNTER_LIMIT = 1 << 24


class Xids:
    """Makes xids that no other process makes."""

    def __init__(self) -> None:
        #: Sources of ids: machine and process, and the number of the last id.
        self.machine = secrets.token_bytes(3)
        self.pid = os.getpid() & 0xFFFF
        self.counter = secrets.randbelow(_COUNTER_LIMIT)
        self._lock = Lock()

    def new(self, seconds: float) -> str:
        """An xid for a time, in epoch seconds."""
        return encode_xid(Xid(int(seconds), self.machine, self.pid, self._count()))

    def new_slice(self, seconds: float) -> str:
        """The name of a slice or a run for a time: later names sort first.

        This also holds for names of this process within one second, because their counter counts
        down.
        """
        moment = datetime.fromtimestamp(int(seconds), tz=timezone.utc)
        down = _COUNTER_LIMIT - 1 - self._count()
        return new_slice_name(moment, self.machine, self.pid, down)

    def _count(self) -> int:
        with self._lock:
            self.counter = (self.counter + 1) % _COUNTER_LIMIT
            return self.counter


class Slices:
    """The open slices of one process; each is replaced after ``max_age`` seconds at the latest."""

    def __init__(
        self, xids: Xids, max_age: int, max_objects: int, layout_of: Callable[[str], Layout]
    ) -> None:
        self._xids = xids
        self._max_age = max_age
        self._max_objects = max_objects
        self.layout_of = layout_of
        self._open: dict[tuple[str, int | None], tuple[str, float, int]] = {}
        self._lock = Lock()

    def new_address(self, repository: str, now: float, *, backdated: bool = False) -> str:
        """A new relative address, with names by the time ``now`` in epoch seconds.

        A ``backdated`` time is one for a test or the demo. Such objects have separate slices for
        each ``max_age`` seconds, in whatever order they are written.
        """
        layout = self.layout_of(repository)
        if layout is Layout.FLAT_ROOT:
            return uuid.uuid4().hex
        if layout is Layout.FLAT_DATA:
            return f"data/{secrets.token_urlsafe(16)}"
        period = int(now // self._max_age) if backdated else None
        start = now if period is None else float(period * self._max_age)
        with self._lock:
            name, created, count = self._open.get((repository, period), ("", 0.0, 0))
            old = period is None and not 0 <= now - created < self._max_age
            if not name or old or count >= self._max_objects:
                name, created, count = self._xids.new_slice(start), start, 0
            self._open[repository, period] = (name, created, count + 1)
        object_id = self._xids.new(now)
        if layout is not Layout.SHARDED:
            return f"data/{name}/{object_id}"
        shard = hashlib.sha256(object_id.encode()).hexdigest()
        return f"data/!{shard[:2]}/{shard[2]}/{name}/{object_id}"
