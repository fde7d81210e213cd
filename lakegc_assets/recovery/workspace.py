"""The datasets of one try to sweep, back up, restore or prune: rows in files of no manifest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame
from typing_extensions import Self

from lakegc_assets.engine.datasets import ROWS_EACH, Part, read_parts
from lakegc_assets.engine.session import Dataset, Session
from lakegc_assets.mark.marked_objects import Stretch, stretches
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.records import RecordFiles
from lakegc_assets.run.scratch import Folder, remove

R = TypeVar("R")

#: What a relation finds lacking: a number, and the first address.
LACKING: Final = pa.schema([("objects", pa.int64()), ("first", pa.string())])
#: Objects that a task lists, or looks up, at least.
OBJECTS_PER_TASK: Final = 1000


@dataclass(frozen=True)
class Workspace:
    """A folder of an attempt, with a slash at its end; no other try has it.

    Used within ``with`` it is a temporary one, which is emptied at the end.
    """

    ctx: RunContext
    attempt: AttemptArtifacts
    folder: str

    @property
    def connections(self) -> Connections:
        """The connections that tasks use."""
        return self.ctx.connections

    def below(self, name: str) -> Folder:
        """The folder of a name in this one, for tasks."""
        return Folder(self.connections, self.attempt.url, f"{self.folder}{name}/")

    def frames(self) -> Session:
        """The data frames of the run, to be used within ``with``."""
        return self.ctx.frames()

    def dataset(self, parts: Iterable[Part], schema: pa.Schema) -> Dataset:
        """Files of the attempt, as relations take them."""
        return Dataset(self.attempt.url, list(parts), schema)

    def tables(self, rows: Dataset) -> Iterator[pa.Table]:
        """The rows of a dataset of the attempt, a file at a time."""
        return read_parts(self.connections.open(rows.url), rows.parts, rows.schema.names)

    def gather(
        self, name: str, url: str, prefix: str, schema: pa.Schema, *, skip_damaged: bool = True
    ) -> Dataset:
        """Copy what tasks have recorded below a prefix of the store at ``url``, batch by batch.

        A damaged file counts as absent, or raises IntegrityError; see ``RecordFiles``.
        """
        files = RecordFiles(self.connections, url, prefix, schema, skip_damaged)
        parts = files.gather(self.ctx.tasks, self.attempt.url, self.below(name).name)
        return self.dataset(parts, schema)

    def write_tables(self, name: str, schema: pa.Schema, tables: Iterable[pa.Table]) -> Dataset:
        """Write rows to files below a name in the folder."""
        return self.dataset(self.below(name).write(schema, tables), schema)

    def write(
        self, frames: Session, frame: DataFrame, name: str, schema: pa.Schema, what: str
    ) -> Dataset:
        """Compute a frame, and write its rows to files below a name in the folder."""
        folder = f"{self.folder}{name}/"
        return self.dataset(frames.write(frame, self.attempt.url, folder, schema, what), schema)

    def derive(
        self,
        name: str,
        schema: pa.Schema,
        what: str,
        relation: Callable[..., DataFrame],
        *datasets: Dataset,
    ) -> Dataset:
        """Write the rows that a relation gives of some datasets, as ``write`` does."""
        with self.frames() as frames:
            return self.write(frames, relation(*map(frames.read, datasets)), name, schema, what)

    def in_pieces(
        self, what: str, task: Callable[[Sequence[Stretch]], R], rows: Dataset, row_s: float
    ) -> list[R]:
        """Call a task with pieces of a dataset: some for each thread, none too large.

        ``row_s``: work for a row, in seconds of one core.
        """
        threads = self.ctx.settings.backup_list_threads
        pieces = stretches(
            rows.parts, max(OBJECTS_PER_TASK, min(ROWS_EACH, -(-rows.rows // threads)))
        )
        return self.ctx.tasks.run_or_call(what, task, pieces, rows.rows * row_s, threads)

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Delete all files of the folder; a warning says where that fails."""
        remove(self.attempt.store(), self.folder)
