"""Layouts of a repository's objects: in slices, below shards, or flat as in older lakeFS."""

from __future__ import annotations

import hashlib
import secrets
import sqlite3
import uuid
from enum import Enum
from typing import Final


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


_FLAT: Final = (Layout.FLAT_DATA, Layout.FLAT_ROOT)


def is_flat(layout: Layout) -> bool:
    """Return whether all objects are in one folder."""
    return layout in _FLAT


def in_layout(layout: Layout, partition: str, object_id: str) -> str:
    """The address of an object in a layout with partitions, which are slices or below shards."""
    if layout is not Layout.SHARDED:
        return f"data/{partition}/{object_id}"
    shard = hashlib.sha256(object_id.encode()).hexdigest()
    return f"data/!{shard[:2]}/{shard[2]}/{partition}/{object_id}"


def new_flat_address(layout: Layout) -> str:
    """A new address in one of the flat layouts, in the form of that layout."""
    return uuid.uuid4().hex if layout is Layout.FLAT_ROOT else f"data/{secrets.token_urlsafe(16)}"


def set_layout(db: sqlite3.Connection, repository: str, layout: Layout) -> None:
    """Set the layout for new objects of a repository; existing objects stay in their place."""
    db.execute("INSERT OR REPLACE INTO layouts VALUES (?, ?)", (repository, layout.value))


def layout_of(db: sqlite3.Connection, repository: str) -> Layout:
    """The layout for new objects of a repository."""
    row = db.execute("SELECT layout FROM layouts WHERE repository = ?", (repository,)).fetchone()
    return Layout(row[0]) if row else Layout.SLICES
