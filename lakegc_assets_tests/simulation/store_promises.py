"""What the object store of a world promises."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class StorePromises:
    """What the store promises.

    Attributes:
        conditions: conditional puts are conditional.
        etags: deletes go by etags.
        deadlines: deletes that come late are refused.
        versions: what is deleted is kept, and can be had back.
        single: deletes of one key go by etags, where all of them do not.
        trash: what is deleted is moved, and can be had back until that is removed.
    """

    conditions: bool = True
    etags: bool = False
    deadlines: bool = True
    versions: bool = False
    single: bool = False
    trash: bool = False
