"""Remove objects without a ledger: an error names an object that could not be removed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import EXPIRED
from lakegc_assets.storage.values import require_removed

#: Advice where a prune could not remove an object.
PRUNE_AGAIN: Final = "Let the credentials delete there, then prune again"
#: Seconds for which one ``require`` counts, where objects are removed one by one.
_LIFETIME_S: Final = 60.0


def remove_objects(
    store: ObjectStore, keys: Iterable[str], require: Callable[[], object] = lambda: None
) -> None:
    """Delete the objects of a prune. Raises StorageError: an object could not be removed.

    ``require`` raises if the delete is not allowed. For files it is called again if the deletes
    take long, or if this process was suspended meanwhile.
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
    """Delete the chosen objects below a prefix, with ``require`` as in ``remove_objects``.

    Lists again until nothing is found, because a list may end early. Raises StorageError.
    """
    found = True
    while found:
        found = False
        for page in store.list(prefix):
            if keys := [key for key in page["key"].to_pylist() if chosen(key)]:
                found = True
                remove_objects(store, keys, require)
