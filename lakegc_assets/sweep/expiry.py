"""Life-cycle rules of a bucket that remove what a sweep, or all of lakeFS, relies on.

A hold does not expire, and a pin lasts until its day; a rule that nobody wrote with them in mind
removes their files all the same, and the next sweep does not know of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.sweep.lease_record import FOLDER

#: Folders of a namespace, and why no rule may remove what is there.
_RELIED_ON: Final[Mapping[str, str]] = {
    FOLDER: "holds and pins are there, and sweeps would go on without them",
    "data/": "it asks no branch whether it needs them",
}


def expiry_warnings(store: ObjectStore) -> list[str]:
    """Sentences on what the rules of a store remove by themselves, one for each folder."""
    ends = store.expires_after(list(_RELIED_ON))
    return [
        f"a lifecycle rule removes what is older than {days:g} days below {store.url}/{folder}: "
        f"{why}. Leave that out of the rule"
        for days, (folder, why) in zip(ends, _RELIED_ON.items(), strict=True)
        if days is not None
    ]
