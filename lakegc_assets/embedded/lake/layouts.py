"""How a repository arranges its objects: in slices, or flat as older versions of lakeFS did."""

from __future__ import annotations

import secrets
import sqlite3
import uuid
from enum import Enum


class Layout(Enum):
    """Where the objects of a repository go; the value is its name on the command line."""

    SLICES = "slices"
    """``data/<slice>/<id>``."""

    FLAT_DATA = "flat-data"
    """``data/<id>``."""

    FLAT_ROOT = "flat-root"
    """``<id>``, at the root of the storage namespace."""


def new_flat_address(layout: Layout) -> str:
    """A new address in one of the flat layouts, in the form that each of them had."""
    return uuid.uuid4().hex if layout is Layout.FLAT_ROOT else f"data/{secrets.token_urlsafe(16)}"


def set_layout(db: sqlite3.Connection, repository: str, layout: Layout) -> None:
    """Say where the next objects of a repository go; those that it has stay where they are."""
    db.execute("INSERT OR REPLACE INTO layouts VALUES (?, ?)", (repository, layout.value))


def layout_of(db: sqlite3.Connection, repository: str) -> Layout:
    """Where the next objects of a repository go."""
    row = db.execute("SELECT layout FROM layouts WHERE repository = ?", (repository,)).fetchone()
    return Layout(row[0]) if row else Layout.SLICES
