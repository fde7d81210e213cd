"""Life-cycle rules of a bucket that remove files on which a sweep, or lakeFS itself, relies.

A hold does not expire, and a pin lasts until its day. A life-cycle rule that was written without
them in mind removes their files, and the next sweep does not know of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.sweep.lease_record import FOLDER

#: Folders of a namespace, and the reason why no rule may remove their objects.
_RELIED_ON: Final[Mapping[str, str]] = {
    FOLDER: "sweeps need its holds and pins",
    "data/": "branches may need them",
}


def expiry_warnings(store: ObjectStore) -> list[str]:
    """Return warnings of the store's life-cycle rules, one for each folder that they affect."""
    ends = store.expires_after(list(_RELIED_ON))
    return [
        f"a lifecycle rule removes what is older than {days:g} days below {store.url}/{folder}: "
        f"{why}. Exclude this folder from the rule"
        for days, (folder, why) in zip(ends, _RELIED_ON.items(), strict=True)
        if days is not None
    ]
