"""Progress of a sweep: relations of its ledger and the marked objects.

Rows stay in files; this process receives only the names of files, and counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import chain
from pathlib import PurePosixPath
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame

from lakegc_assets.engine.datasets import Part, write_part
from lakegc_assets.engine.ddl import schema
from lakegc_assets.engine.session import Dataset, Session
from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.errors import IntegrityError
from lakegc_assets.mark.live_sets import CAME_BACK
from lakegc_assets.recovery.relations import chosen, without
from lakegc_assets.recovery.workspace import Workspace
from lakegc_assets.run.artifacts import LISTING
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.scratch import Folder
from lakegc_assets.sweep import relations
from lakegc_assets.sweep.ledger import ASSET, FOLDER, GONE, SWEPT, THREADS, ledger_keys, read_file

_ADDRESSES: Final = schema("address string")
_COMPARED: Final = pa.schema([(n, pa.int64()) for n in ("recorded", "strangers", "untold")])
_TOTALS: Final = schema(
    "outcome string, kept boolean, space string, objects bigint, bytes bigint, first timestamp",
)
_PUT_BACK: Final = schema("address string, detail string")
_NOTHING: Final = CAME_BACK.empty_table()
#: Files that one task merges, tasks of one process, and seconds of one core for a file.
_TOGETHER: Final = 500
_TASKS: Final = 4
_FILE_S: Final = 0.005


class Total(NamedTuple):
    """Objects of one outcome.

    Attributes:
        kept: True if the store returned the version under which it kept them.
        space: state of their space, if they were deleted (``DataProtection.space_of``).
        first: time of the first record.
    """

    outcome: str
    kept: bool
    space: str | None
    objects: int
    bytes: int
    first: datetime


def totals_of(frames: Session, outcomes: DataFrame) -> list[Total]:
    """Sum the outcomes that count, with each address once."""
    rows = frames.collect_rows(relations.totals(outcomes), _TOTALS, "add the outcomes up")
    return [Total(**row) for row in rows]


@dataclass
class LedgerState:
    """The ledger of the sweep of a mark, and the marked objects.

    Small files of the ledger are merged into larger ones, each file once. A file that was read
    counts even if a later listing lacks it.

    Attributes:
        space: workspace of the reading sweep; its folder has the sweep's short name.
        marked: all objects of the mark (``LISTING``).
        outcomes: the outcomes that were read so far (``SWEPT``).
    """

    space: Workspace
    marked: Dataset

    def __post_init__(self) -> None:
        """Begin with all marked objects."""
        self.outcomes = self._of_others = self.space.dataset((), SWEPT)
        self._known: set[str] = set()
        self._left, self._applied, self._compared = self.marked, 0, -1

    @property
    def ctx(self) -> RunContext:
        """The run."""
        return self.space.ctx

    def read(self) -> None:
        """Read the records written since the last call.

        Raises:
            IntegrityError: a file is damaged.
            StorageError: the store did not answer.
        """
        own = f"{FOLDER}{PurePosixPath(self.space.folder).name}-"
        new = [key for key in ledger_keys(self.space.attempt.store()) if key not in self._known]
        others = self._together([key for key in new if not key.startswith(own)])
        self.outcomes += others + self._together([key for key in new if key.startswith(own)])
        self._known.update(new)
        self._of_others += others

    def _together(self, keys: Sequence[str]) -> Dataset:
        pieces = [keys[at : at + _TOGETHER] for at in range(0, len(keys), _TOGETHER)]
        task, seconds = partial(_put_together, self.space.below("ledger")), len(keys) * _FILE_S
        found = self.ctx.tasks.run_or_call("read the ledger", task, pieces, seconds, _TASKS)
        return self.space.dataset(chain(*found), SWEPT)

    def remaining(self, name: str) -> Dataset:
        """Return the objects without a final outcome (``LISTING``), in files below ``name``.

        Raises:
            IntegrityError: a file is damaged.
            StorageError: the store did not answer.
        """
        self.read()
        new = self.space.dataset(self.outcomes.parts[self._applied :], SWEPT)
        if new.rows and self._left.rows:
            inputs, label = (self._left, new), "find what is left to do"
            self._left = self.space.derive(name, LISTING, label, relations.remaining, *inputs)
            self._applied = len(self.outcomes.parts)
        return self._left

    def without_spared(self, remaining: Dataset, spared: Dataset, name: str) -> Dataset:
        """Return the remaining objects without those that a delta mark spares (``CAME_BACK``).

        Raises:
            IntegrityError: the engine has lost rows.
        """
        if not spared.rows:
            return remaining
        inputs, label = (remaining, spared.select("address")), "leave out what came back to life"
        left = self.space.derive(name, LISTING, label, without, *inputs)
        if left.rows != remaining.rows - spared.rows:
            raise self.ctx.lost_rows(
                f"{spared.rows} of {remaining.rows} objects came back to life, and {left.rows} are "
                "left"
            )
        return left

    def require_whole(self) -> None:
        """Verify that the outcomes are of the marked objects.

        Raises:
            IntegrityError: the outcomes are of other objects.
        """
        self.read()
        if self._compared == len(self.outcomes.parts):
            return
        marked = self.marked.rows
        with self.space.frames() as frames:
            comparison = relations.compared(frames.read(self.outcomes), frames.read(self.marked))
            label = "compare the outcomes with the mark"
            (found,) = frames.collect_rows(comparison, _COMPARED, label)
        if found != {"recorded": marked, "strangers": 0, "untold": 0}:
            raise IntegrityError(
                f"the ledger of mark {self.ctx.run!r} has {found['recorded']} outcomes, "
                f"{found['strangers']} of them for objects that were not marked, and the mark has "
                f"{marked}, of which {found['untold']} have none: the ledger is damaged. Nothing "
                "more was deleted. Sweep again; if the message stays, please report it, with the "
                f"files below {self.space.attempt.url}/{FOLDER}",
            )
        self._compared = len(self.outcomes.parts)

    def write(self) -> list[Part]:
        """Write the outcome that counts of each object to files of the asset.

        Raises:
            IntegrityError: their number is not the number of marked objects.
        """
        attempt = self.space.attempt
        with self.space.frames() as frames:
            found = relations.outcomes(frames.read(self.outcomes))
            folder, label = f"{ASSET}/data/", "write the outcomes"
            parts = frames.write(found, attempt.url, folder, SWEPT, label)
        if (rows := sum(part.rows for part in parts)) != self.marked.rows:
            raise IntegrityError(
                f"{rows} outcomes were written, and mark {self.ctx.run!r} has "
                f"{self.marked.rows} objects: sweep again. If the message stays, please report it"
            )
        return parts or [write_part(attempt.store(), folder, SWEPT.empty_table())]

    def totals(self) -> list[Total]:
        """Return totals of the outcomes so far."""
        self.read()
        return self._totals(self.outcomes)

    def totals_of_others(self) -> list[Total]:
        """Return totals of the outcomes that other sweeps recorded, as of the last read."""
        return self._totals(self._of_others)

    def _totals(self, recorded: Dataset) -> list[Total]:
        if not recorded.rows:
            return []
        with self.space.frames() as frames:
            return totals_of(frames, relations.outcomes(frames.read(recorded)))

    def gone(self) -> int:
        """Count the objects recorded as gone."""
        return sum(total.objects for total in self.totals() if total.outcome in GONE)

    def totals_in(self, swept: Sequence[Part]) -> list[Total]:
        """Return totals of the outcomes in files of the asset."""
        with self.space.frames() as frames:
            return totals_of(frames, frames.read(self.space.dataset(swept, SWEPT)))

    def put_back(self, swept: Sequence[Part], most: int) -> list[dict[str, str]]:
        """Return address and detail of the first objects that were put back, from asset files."""
        with self.space.frames() as frames:
            back = relations.put_back(frames.read(self.space.dataset(swept, SWEPT)), most)
            return frames.collect_rows(back, _PUT_BACK, "name what was put back")

    # A few objects by their addresses

    def marked_as(self, addresses: pa.ChunkedArray) -> pa.Table:
        """Return the rows of a few objects in the mark (``LISTING``)."""
        wanted = pa.table([addresses], schema=_ADDRESSES)
        with self.space.frames() as frames:
            found = chosen(frames.read(self.marked), frames.create(wanted))
            return frames.collect(found, LISTING, "look marked objects up")

    def outcomes_of(self, addresses: pa.ChunkedArray) -> pa.Table:
        """Return the outcomes of a few objects (``SWEPT``)."""
        self.read()
        if not self.outcomes.rows:
            return SWEPT.empty_table()
        wanted = pa.table([addresses], schema=_ADDRESSES)
        with self.space.frames() as frames:
            found = chosen(frames.read(self.outcomes), frames.create(wanted))
            return frames.collect(relations.outcomes(found), SWEPT, "look outcomes up")

    def thought_gone(self, alive: Dataset, missing: pa.ChunkedArray) -> pa.Table:
        """Return live objects in the store that the ledger records as gone (``CAME_BACK``).

        ``alive``: live objects by a delta mark (``CAME_BACK``). ``missing``: addresses that the
        store does not have.
        """
        if not alive.rows:
            return _NOTHING
        self.read()
        if not self.outcomes.rows:
            return _NOTHING
        with self.space.frames() as frames:
            found = relations.thought_gone(
                relations.outcomes(frames.read(self.outcomes)),
                frames.read(alive),
                frames.create(pa.table([missing], schema=_ADDRESSES)),
            )
            return frames.collect(found, CAME_BACK, "find what is back")


def _put_together(folder: Folder, keys: Sequence[str]) -> list[Part]:
    read = partial(read_file, folder.store())
    return folder.write(SWEPT, thread_map(read, keys, THREADS))
