"""Removes objects whose outcomes nobody records: an error names one that could not be removed."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import StorageError
from lakegc_assets.storage.values import DeleteOutcome
from lakegc_assets.wording import counted


def require_removed(store: ObjectStore, outcomes: Iterable[DeleteOutcome]) -> None:
    """Refuse outcomes of the deletes of a prune among which one was refused.

    Raises:
        StorageError: one was; what to do.
    """
    failed = [one for one in outcomes if one.refused]
    if failed:
        first = failed[0]
        raise StorageError(
            f"{store.url}: {counted(len(failed), 'object')} could not be removed, for "
            f"example {first.key!r}: {first.error_code}: {first.detail}. Let "
            "the credentials delete there, then prune again"
        )


def remove_objects(store: ObjectStore, keys: Iterable[str]) -> None:
    """Delete objects that a prune is to remove.

    Raises:
        StorageError: one could not be removed.
    """
    require_removed(store, store.delete_many(keys))


def remove_listed(
    store: ObjectStore,
    prefix: str = "",
    chosen: Callable[[str], bool] = lambda _: True,
    require: Callable[[], object] = lambda: None,
) -> None:
    """Delete the chosen objects below a prefix; ``require`` raises before each page if it must not.

    They are listed again until nothing is found: a store may end a listing early.

    Raises:
        StorageError: one could not be removed.
    """
    found = True
    while found:
        found = False
        for page in store.list(prefix):
            if keys := [key for key in page["key"].to_pylist() if chosen(key)]:
                found = True
                require()
                remove_objects(store, keys)
