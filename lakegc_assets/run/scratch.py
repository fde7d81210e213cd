"""Folders below the artifacts in which a command works, and which are gone afterwards."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

import pyarrow as pa

from lakegc_assets.engine.datasets import Part, write_tables
from lakegc_assets.errors import LakegcError
from lakegc_assets.run.artifacts import ArtifactRoot
from lakegc_assets.run.connections import Connections
from lakegc_assets.storage.base import ObjectStore

#: Of a comparison, of a forecast, and of a look at what is needed. What a killed command leaves
#: there is pruned.
COMPARED: Final = "_compared"
FORECAST: Final = "_forecast"
NEEDED: Final = "_needed"


class Folder(NamedTuple):
    """A folder of an attempt, as tasks get it: picklable, and without secrets."""

    connections: Connections
    #: Of the attempt.
    url: str
    #: With a slash at its end.
    name: str

    def store(self) -> ObjectStore:
        """The store rooted at the attempt."""
        return self.connections.open(self.url)

    def write(self, schema: pa.Schema, tables: Iterable[pa.Table]) -> list[Part]:
        """Write rows to new files, none of which is empty."""
        return write_tables(self.store(), self.name, schema, tables)

    def remove(self) -> None:
        """Delete all files of the folder; a warning says where that fails."""
        remove(self.store(), self.name)


@contextmanager
def scratch(root: ArtifactRoot, repository: str, kind: str) -> Iterator[str]:
    """The URL of a new folder in one that is named for a kind of work; it is emptied at the end."""
    name = f"{kind}/{secrets.token_hex(8)}"
    store = root.open(repository, name)
    try:
        yield f"{root.url.rstrip('/')}/{repository}/{name}"
    finally:
        remove(store)


def remove(store: ObjectStore, folder: str = "") -> None:
    """Delete what lies in a folder; where that fails a warning says so.

    It is the last that is done: an error here would hide the one that ended the work.
    """
    try:
        for page in store.list(folder):
            store.delete_many(page["key"].to_pylist())
    except LakegcError as error:
        logging.getLogger("lakegc").warning(
            "%s/%s could not be emptied, and stays until it is pruned: %s", store.url, folder, error
        )
