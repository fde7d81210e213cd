"""Progress of a sweep, by relations: its ledger beside the marked objects.

Rows stay in files; this process gets their names, and counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame

from lakegc_assets.engine.datasets import Part
from lakegc_assets.engine.session import Dataset, Session
from lakegc_assets.errors import IntegrityError
from lakegc_assets.mark.marked_objects import Candidates
from lakegc_assets.run.artifacts import LISTING, AttemptArtifacts
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.sweep import relations
from lakegc_assets.sweep.delta import CAME_BACK
from lakegc_assets.sweep.ledger import ASSET, GONE, SWEPT, Ledger

_ADDRESSES: Final = pa.schema([("address", pa.string())])
_COMPARED: Final = pa.schema([(n, pa.int64()) for n in ("recorded", "strangers", "untold")])
_TOTALS: Final = pa.schema(
    [
        ("outcome", pa.string()),
        ("kept", pa.bool_()),
        ("space", pa.string()),
        ("objects", pa.int64()),
        ("bytes", pa.int64()),
        ("first", pa.timestamp("us", "UTC")),
    ]
)
_PUT_BACK: Final = pa.schema([("address", pa.string()), ("detail", pa.string())])


_NOTHING: Final = CAME_BACK.empty_table()


class Total(NamedTuple):
    """Objects of one outcome.

    Attributes:
        outcome: of each of them.
        kept: whether the store told under which id it kept them.
        space: what became of it where they were deleted (``DataProtection.space_of``).
        objects: how many.
        bytes: of all of them.
        first: when the first of them was recorded.
    """

    outcome: str
    kept: bool
    space: str | None
    objects: int
    bytes: int
    first: datetime


def totals_of(frames: Session, totals: DataFrame) -> list[Total]:
    """Read the rows of the relation ``totals``."""
    rows = frames.collect_rows(totals, _TOTALS, "add the outcomes up")
    return [Total(**row) for row in rows]


@dataclass
class Recorded:
    """The ledger of a sweep, and what the mark names.

    Attributes:
        ctx: the run.
        connections: how tasks reach the artifacts.
        attempt: the artifacts of the mark, and of its sweep.
        ledger: what was recorded.
        marked: all that the mark names.
    """

    ctx: RunContext
    connections: Connections
    attempt: AttemptArtifacts
    ledger: Ledger
    marked: Candidates

    def __post_init__(self) -> None:
        """Begin with all that is marked."""
        self._left, self._applied, self._compared = self.marked, 0, -1

    def remaining(self, folder: str) -> Candidates:
        """The objects that remain.

        Args:
            folder: for the files, below the attempt, with a slash at its end.

        Raises:
            IntegrityError: a file is damaged.
            StorageError: the store did not answer.
        """
        self.ledger.read()
        new = self.ledger.parts[self._applied :]
        if not new or not self._left.rows:
            return self._left
        with self.ctx.frames(self.connections) as frames:
            marked, what = self._marked(frames, self._left), "find what is left to do"
            found = relations.remaining(marked, self._ledger(frames, new))
            parts = frames.write(found, self.attempt.url, folder, LISTING, what)
        self._left, self._applied = Candidates(parts), self._applied + len(new)
        return self._left

    def without_spared(
        self, remaining: Candidates, spared: Sequence[Part], folder: str
    ) -> Candidates:
        """Of what is left to do that which a delta mark does not spare.

        Args:
            remaining: what is left to do.
            spared: what it spares (``CAME_BACK``).
            folder: for the files, below the attempt, with a slash at its end.
        """
        if not spared:
            return remaining
        with self.ctx.frames(self.connections) as frames:
            others = frames.read(Dataset(self.attempt.url, spared, _ADDRESSES))
            found = relations.without(self._marked(frames, remaining), others)
            what = "leave out what came back to life"
            return Candidates(frames.write(found, self.attempt.url, folder, LISTING, what))

    def require_whole(self) -> None:
        """Compare the outcomes with what was marked.

        Raises:
            IntegrityError: they are not of the same objects.
        """
        self.ledger.read()
        if self._compared == len(self.ledger.parts):
            return
        marked = self.marked.rows
        with self.ctx.frames(self.connections) as frames:
            both = relations.compared(self._ledger(frames), self._marked(frames, self.marked))
            what = "compare the outcomes with the mark"
            (found,) = frames.collect_rows(both, _COMPARED, what)
        if found != {"recorded": marked, "strangers": 0, "untold": 0}:
            raise IntegrityError(
                f"the ledger of mark {self.ctx.run!r} has {found['recorded']} outcomes, "
                f"{found['strangers']} of them for objects that were not marked, and the mark has "
                f"{marked}, of which {found['untold']} have none: the ledger is damaged. Nothing "
                "more was deleted",
            )
        self._compared = len(self.ledger.parts)

    def write(self) -> list[Part]:
        """The one outcome of each object that counts, as files of the asset.

        Raises:
            IntegrityError: they are not as many as were marked.
        """
        with self.ctx.frames(self.connections) as frames:
            found = self._outcomes(frames, self.ledger.parts)
            folder, what = f"{ASSET}/data/", "write the outcomes"
            parts = frames.write(found, self.attempt.url, folder, SWEPT, what)
        if (rows := sum(part.rows for part in parts)) != self.marked.rows:
            raise IntegrityError(
                f"{rows} outcomes were written, and mark {self.ctx.run!r} has "
                f"{self.marked.rows} objects: sweep again"
            )
        return parts or self.attempt.writer(ASSET, SWEPT).finish()

    def totals(self) -> list[Total]:
        """Totals of the outcomes so far."""
        self.ledger.read()
        return self._totals(self.ledger.parts)

    def totals_of_others(self) -> list[Total]:
        """The same of what others than this sweep have recorded, as it was read last."""
        return self._totals(self.ledger.of_others)

    def _totals(self, parts: Sequence[Part]) -> list[Total]:
        if not parts:
            return []
        with self.ctx.frames(self.connections) as frames:
            return totals_of(frames, relations.totals(self._outcomes(frames, parts)))

    def gone(self) -> int:
        """The number of objects recorded as gone."""
        return sum(total.objects for total in self.totals() if total.outcome in GONE)

    def totals_in(self, swept: Sequence[Part]) -> list[Total]:
        """Totals of the outcomes in the asset.

        Args:
            swept: its files.
        """
        with self.ctx.frames(self.connections) as frames:
            rows = frames.read(Dataset(self.attempt.url, swept, SWEPT))
            return totals_of(frames, relations.totals(rows))

    def put_back(self, swept: Sequence[Part], most: int) -> list[dict[str, str]]:
        """The first of what was put back, so many of them at most: address and detail.

        Args:
            swept: files of the asset.
            most: rows.
        """
        with self.ctx.frames(self.connections) as frames:
            back = relations.put_back(frames.read(Dataset(self.attempt.url, swept, SWEPT)), most)
            found: list[dict[str, str]] = frames.collect_rows(
                back, _PUT_BACK, "name what was put back"
            )
        return found

    # A few objects by their names

    def marked_as(self, addresses: pa.ChunkedArray) -> pa.Table:
        """Rows of the mark for a few objects (``LISTING``)."""
        with self.ctx.frames(self.connections) as frames:
            some = frames.create(pa.table([addresses], schema=_ADDRESSES))
            found = relations.named(self._marked(frames, self.marked), some)
            return frames.collect(found, LISTING, "look marked objects up")

    def outcomes_of(self, addresses: pa.ChunkedArray) -> pa.Table:
        """Outcomes of a few objects (``SWEPT``)."""
        self.ledger.read()
        if not self.ledger.parts:
            return SWEPT.empty_table()
        with self.ctx.frames(self.connections) as frames:
            some = frames.create(pa.table([addresses], schema=_ADDRESSES))
            found = relations.outcomes(relations.named(self._ledger(frames), some))
            return frames.collect(found, SWEPT, "look outcomes up")

    def thought_gone(self, alive: Sequence[Part], missing: pa.ChunkedArray) -> pa.Table:
        """Of what is alive and there that which the ledger calls gone (``CAME_BACK``).

        Args:
            alive: what a delta mark found (``CAME_BACK``).
            missing: addresses of what the store does not have.
        """
        if not alive:
            return _NOTHING
        self.ledger.read()
        if not self.ledger.parts:
            return _NOTHING
        with self.ctx.frames(self.connections) as frames:
            found = relations.thought_gone(
                self._outcomes(frames, self.ledger.parts),
                frames.read(Dataset(self.attempt.url, alive, CAME_BACK)),
                frames.create(pa.table([missing], schema=_ADDRESSES)),
            )
            return frames.collect(found, CAME_BACK, "find what is back")

    def _marked(self, frames: Session, some: Candidates) -> DataFrame:
        return frames.read(some.dataset(self.attempt))

    def _ledger(self, frames: Session, parts: Sequence[Part] | None = None) -> DataFrame:
        parts = self.ledger.parts if parts is None else parts
        return frames.read(Dataset(self.attempt.url, parts, SWEPT))

    def _outcomes(self, frames: Session, parts: Sequence[Part]) -> DataFrame:
        return relations.outcomes(self._ledger(frames, parts))
