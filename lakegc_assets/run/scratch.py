"""Folders below the artifacts in which a command works, and which are gone afterwards."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from lakegc_assets.run.artifacts import ArtifactRoot

#: Of a comparison, of a forecast, and of a look at what is needed. What a killed command leaves
#: there is pruned.
COMPARED: Final = "_compared"
FORECAST: Final = "_forecast"
NEEDED: Final = "_needed"


@contextmanager
def scratch(root: ArtifactRoot, repository: str, kind: str) -> Iterator[str]:
    """The URL of a new folder, which is emptied at the end.

    Args:
        root: of the artifacts.
        repository: lakeFS repository.
        kind: of the work; the name of the folder around it.
    """
    name = f"{kind}/{secrets.token_hex(8)}"
    store = root.open(repository, name)
    try:
        yield f"{root.url.rstrip('/')}/{repository}/{name}"
    finally:
        keys = [key for batch in store.list() for key in batch["key"].to_pylist()]
        store.delete_many(keys)
