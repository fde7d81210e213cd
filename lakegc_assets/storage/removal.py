"""Removes objects whose outcomes nobody records: an error names one that could not be removed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import EXPIRED
from lakegc_assets.storage.values import require_removed

#: Advice where a prune could not remove an object.
PRUNE_AGAIN: Final = "Let the credentials delete there, then prune again"
#: For how long what was required counts, in seconds, where objects go one by one.
_LIFETIME_S: Final = 60.0


def remove_objects(
    store: ObjectStore, keys: Iterable[str], require: Callable[[], object] = lambda: None
) -> None:
    """Delete objects that a prune is to remove. Raises StorageError: one could not be removed.

    ``require`` raises if it must not; of files it is called again where they take long, or this
    process was suspended in the middle.
    """
    ends: dict[str, Any] = {"expires_s": _LIFETIME_S} if store.watches_deadlines else {}
    left = list(keys)
    while True:
        require()
        outcomes = store.delete_many(left, **ends)
        left = [one.key for one in outcomes if one.error_code == EXPIRED]
        answered = [one for one in outcomes if one.error_code != EXPIRED]
        require_removed(answered, store.url, PRUNE_AGAIN)
        if not left:
            return


def remove_listed(
    store: ObjectStore,
    prefix: str = "",
    chosen: Callable[[str], bool] = lambda _: True,
    require: Callable[[], object] = lambda: None,
) -> None:
    """Delete the chosen objects below a prefix, with ``require`` as ``remove_objects`` has it.

    They are listed until nothing is found: a list may end early. Raises StorageError.
    """
    found = True
    while found:
        found = False
        for page in store.list(prefix):
            if keys := [key for key in page["key"].to_pylist() if chosen(key)]:
                found = True
                remove_objects(store, keys, require)
