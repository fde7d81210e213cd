"""The hold that an alarm leaves in the namespace: nothing is swept while it is there.

``_lakefs/retention/gc/lakegc/hold.json`` does not expire. A person removes it, once it is known
what happened and what was lost is back; restores, which are to bring it back, do not mind it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from lakegc_assets.errors import RefusedError
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import ObjectNotFoundError
from lakegc_assets.sweep.lease_record import FOLDER

HOLD: Final = f"{FOLDER}hold.json"


def read_hold(store: ObjectStore) -> str | None:
    """What the hold says; None without one.

    Args:
        store: rooted at the storage namespace.

    Raises:
        StorageError: nobody can tell.
    """
    try:
        return store.get(HOLD).decode(errors="replace")
    except ObjectNotFoundError:
        return None


def require_no_hold(store: ObjectStore) -> None:
    """Refuse to go on while an alarm has not been looked at.

    Args:
        store: rooted at the storage namespace.

    Raises:
        RefusedError: there is a hold, with what it says.
        StorageError: nobody can tell.
    """
    hold = read_hold(store)
    if hold is None:
        return
    raise RefusedError(
        f"{store.url} is on hold: {hold}. Look at what happened, restore what is needed, then "
        f"remove {store.url}/{HOLD}",
    )


def write_hold(store: ObjectStore, what: Mapping[str, object]) -> None:
    """Keep every sweep from starting until somebody has looked.

    Args:
        store: rooted at the storage namespace.
        what: happened, as JSON values.

    Raises:
        StorageError: the hold was not written.
    """
    store.put(HOLD, json.dumps(what, indent=1).encode())
