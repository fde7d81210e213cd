"""Restores of swept objects, for people: no decision depends on it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.recovery.restore_record import recorded, restores
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.sweep import ledger

#: By how much the clocks of the machines that swept and restored may differ.
_SKEW: Final = timedelta(minutes=5)


class Restored(NamedTuple):
    """Objects that are back.

    Attributes:
        objects: that the sweep deleted, and a restore brought back since.
        size: of these, in bytes.
        deleted: objects that the sweep deleted.
        at: when the last of them came back, UTC.
    """

    objects: int
    size: int
    deleted: int
    at: datetime

    @property
    def whole(self) -> bool:
        """Return whether all objects are back."""
        return self.objects == self.deleted

    def __str__(self) -> str:
        """In words: restored 94 of 94 on a day."""
        on = f"{self.at:%Y-%m-%d %H:%M} UTC"
        return f"restored {self.objects:,} of {self.deleted:,} on {on}"


def restored(attempt: AttemptArtifacts) -> Restored | None:
    """The result of the restores of a run, finished or not; None without any.

    Args:
        attempt: the artifacts of the mark, of its sweep and its restores.

    Raises:
        IntegrityError: the ledger of the sweep is damaged.
        StorageError: the store of the artifacts did not answer.
    """
    rows = [recorded(attempt, one) for one in restores(attempt)]
    if not rows:
        return None
    back = pa.concat_tables(rows)
    back = back.filter(pc.equal(back["outcome"], "restored"))
    if not back.num_rows:
        return None
    back = back.group_by("address").aggregate([("at", "max")])
    swept = ledger.recorded(attempt)
    deleted = swept.filter(pc.equal(swept["outcome"], "deleted"))
    both = deleted.select(["address", "size", "at"]).join(back, "address", join_type="inner")
    # What was deleted again after it had been restored is not back.
    came = both.filter(pc.greater(pc.add(both["at_max"], pa.scalar(_SKEW)), both["at"]))
    if not came.num_rows:
        return None
    size, last = pc.sum(came["size"]).as_py(), pc.max(came["at_max"]).as_py()
    return Restored(came.num_rows, size, deleted.num_rows, last)
