"""Removes objects whose outcomes nobody records: an error names one that could not be removed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.values import require_removed

#: Advice where a prune could not remove an object.
PRUNE_AGAIN: Final = "Let the credentials delete there, then prune again"


def remove_objects(store: ObjectStore, keys: Iterable[str]) -> None:
    """Delete objects that a prune is to remove. Raises StorageError: one could not be removed."""
    require_removed(store.delete_many(keys), store.url, PRUNE_AGAIN)


def remove_listed(
    store: ObjectStore,
    prefix: str = "",
    chosen: Callable[[str], bool] = lambda _: True,
    require: Callable[[], object] = lambda: None,
) -> None:
    """Delete the chosen objects below a prefix; ``require`` raises before each page if it must not.

    They are listed until nothing is found: a list may end early. Raises StorageError.
    """
    found = True
    while found:
        found = False
        for page in store.list(prefix):
            if keys := [key for key in page["key"].to_pylist() if chosen(key)]:
                found = True
                require()
                remove_objects(store, keys)
