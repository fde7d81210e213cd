"""The working parts of one server, an argument of every operation."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from lakegc_assets.embedded.lake import catalog
from lakegc_assets.embedded.lake.catalog import Repository
from lakegc_assets.embedded.lake.layouts import Layout, Slices, Xids, layout_of
from lakegc_assets.embedded.lake.settings import ServerSettings
from lakegc_assets.embedded.lake.state import Owner, State
from lakegc_assets.embedded.lake.stores import Stores

__all__ = ["Lake"]


class Lake:
    """State, stores and ids of one server process.

    Attributes:
        settings: of this server.
        state: refs, commits and staged entries.
        stores: objects, ranges and metaranges.
        xids: makes ids.
        slices: makes addresses of new objects.
        owner: this process, as the owner of tasks.
    """

    def __init__(self, settings: ServerSettings) -> None:
        settings.objects_dir.mkdir(parents=True, exist_ok=True)
        self.settings = settings
        self.state = State(settings.data_dir / "state.db")
        self.owner = Owner(settings.data_dir / "processes")
        self.stores = Stores(settings)
        self.xids = Xids()
        self.slices = Slices(
            self.xids, settings.slice_max_age, settings.slice_max_objects, self._layout_of
        )

    def now(self) -> float:
        """The time of the server's clock, in epoch seconds."""
        return self.settings.clock()

    def repository(self, name: str) -> Repository:
        """A repository; 404 when there is none."""
        with self.state.read() as db:
            return catalog.repository(db, name)

    @contextmanager
    def reading(self, repository: str) -> Iterator[tuple[sqlite3.Connection, Repository]]:
        """A view of the state, and a repository; 404 when there is none."""
        with self.state.read() as db:
            yield db, catalog.repository(db, repository)

    @contextmanager
    def writing(
        self, repository: str, *, force: bool = False
    ) -> Iterator[tuple[sqlite3.Connection, Repository]]:
        """A transaction, and a repository; 403 when it is read-only unless ``force``."""
        with self.state.write() as db:
            yield db, catalog.writable_repository(db, repository, force=force)

    def _layout_of(self, repository: str) -> Layout:
        with self.state.read() as db:
            return layout_of(db, repository)

    def close(self) -> None:
        """Close the state's file; unfinished tasks have failed from then on."""
        self.owner.close()
        self.state.close()
