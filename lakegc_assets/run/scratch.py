"""Temporary folders below the artifacts, for one command each."""

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

#: Folders of comparisons, of forecasts, and of looks at needed objects. A prune removes the files
#: of killed commands.
COMPARED: Final = "_compared"
FORECAST: Final = "_forecast"
NEEDED: Final = "_needed"


class Folder(NamedTuple):
    """A folder of an attempt, for tasks: picklable, and without secrets."""

    connections: Connections
    #: URL of the attempt.
    url: str
    #: Name of the folder, with a slash at its end.
    name: str

    def store(self) -> ObjectStore:
        """Return the store rooted at the attempt."""
        return self.connections.open(self.url)

    def write(self, schema: pa.Schema, tables: Iterable[pa.Table]) -> list[Part]:
        """Write rows to new, non-empty files."""
        return write_tables(self.store(), self.name, schema, tables)

    def remove(self) -> None:
        """Delete all files of the folder; a failure is logged as a warning with its place."""
        remove(self.store(), self.name)


@contextmanager
def scratch(root: ArtifactRoot, repository: str, kind: str) -> Iterator[str]:
    """Yield the URL of a new folder for a kind of work; the folder is emptied at the end."""
    name = f"{kind}/{secrets.token_hex(8)}"
    store = root.open(repository, name)
    try:
        yield f"{root.url.rstrip('/')}/{repository}/{name}"
    finally:
        remove(store)


def remove(store: ObjectStore, folder: str = "") -> None:
    """Delete the files of a folder; a failure is only logged as a warning.

    This is the last step of a command: an error here would hide an earlier error of its work.
    """
    try:
        for page in store.list(folder):
            store.delete_many(page["key"].to_pylist())
    except LakegcError as error:
        logging.getLogger("lakegc").warning(
            "%s/%s could not be emptied, and stays until it is pruned: %s", store.url, folder, error
        )
