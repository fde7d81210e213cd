"""Life-cycle rules of a bucket that remove files on which a sweep, its undo or lakeFS relies.

A hold does not expire, and a pin lasts until its day. A life-cycle rule that was written without
them in mind removes their files, and the next sweep does not know of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.sweep.lease_record import FOLDER

#: Folders of a namespace, and the reason why no rule may remove their objects.
_NAMESPACE: Final[Mapping[str, str]] = {
    FOLDER: "sweeps need its holds and pins",
    "data/": "branches may need them",
}
#: The same for a backup, which is one folder.
_BACKUP: Final[Mapping[str, str]] = {"": "what it removes cannot be restored from this backup"}


def expiry_warnings(store: ObjectStore) -> list[str]:
    """Return warnings of the store's life-cycle rules, one for each folder that they affect."""
    return _warnings(store, _NAMESPACE)


def backup_warnings(store: ObjectStore) -> list[str]:
    """Return a warning of the life-cycle rules that remove the copies of a backup, if any."""
    return _warnings(store, _BACKUP)


def _warnings(store: ObjectStore, relied_on: Mapping[str, str]) -> list[str]:
    ends = store.expires_after(list(relied_on))
    return [
        f"a lifecycle rule removes what is older than {days:g} days below {store.url}/{folder}: "
        f"{why}. Exclude this folder from the rule"
        for days, (folder, why) in zip(ends, relied_on.items(), strict=True)
        if days is not None
    ]
