"""The datasets of one try to sweep, back up, restore or prune: files without a manifest."""

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

#: The number of lacking objects, and the first address.
LACKING: Final = pa.schema([("objects", pa.int64()), ("first", pa.string())])
#: Least number of objects that a task lists or looks up.
OBJECTS_PER_TASK: Final = 1000


@dataclass(frozen=True)
class Workspace:
    """A folder of an attempt, with a slash at its end, which no other try uses.

    Within ``with`` it is a temporary folder, which is emptied at the end.
    """

    ctx: RunContext
    attempt: AttemptArtifacts
    folder: str

    @property
    def connections(self) -> Connections:
        """The connections that tasks use."""
        return self.ctx.connections

    def below(self, name: str) -> Folder:
        """Return a named folder within this folder, for tasks."""
        return Folder(self.connections, self.attempt.url, f"{self.folder}{name}/")

    def frames(self) -> Session:
        """Return the data frame session of the run, to be used within ``with``."""
        return self.ctx.frames()

    def dataset(self, parts: Iterable[Part], schema: pa.Schema) -> Dataset:
        """Return files of the attempt as a dataset, the input of relations."""
        return Dataset(self.attempt.url, list(parts), schema)

    def tables(self, rows: Dataset) -> Iterator[pa.Table]:
        """Yield the rows of a dataset of the attempt, file by file."""
        return read_parts(self.connections.open(rows.url), rows.parts, rows.schema.names)

    def gather(
        self, name: str, url: str, prefix: str, schema: pa.Schema, *, skip_damaged: bool = True
    ) -> Dataset:
        """Copy the records of tasks below a prefix of the store at ``url``, batch by batch.

        A damaged file counts as absent, or raises IntegrityError; see ``RecordFiles``.
        """
        files = RecordFiles(self.connections, url, prefix, schema, skip_damaged)
        parts = files.gather(self.ctx.tasks, self.attempt.url, self.below(name).name)
        return self.dataset(parts, schema)

    def write_tables(self, name: str, schema: pa.Schema, tables: Iterable[pa.Table]) -> Dataset:
        """Write rows to files in a named folder within this folder."""
        return self.dataset(self.below(name).write(schema, tables), schema)

    def write(
        self, frames: Session, frame: DataFrame, name: str, schema: pa.Schema, what: str
    ) -> Dataset:
        """Compute a frame, and write its rows to files in a named folder within this folder."""
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
        """Apply a relation to datasets, and write its rows as ``write`` does."""
        with self.frames() as frames:
            return self.write(frames, relation(*map(frames.read, datasets)), name, schema, what)

    def in_pieces(
        self, what: str, task: Callable[[Sequence[Stretch]], R], rows: Dataset, row_s: float
    ) -> list[R]:
        """Call a task with pieces of a dataset, about one for each thread.

        A piece has ``OBJECTS_PER_TASK`` to ``ROWS_EACH`` rows; the last one may have fewer.

        ``row_s``: work for a row, in seconds of one core.
        """
        threads = self.ctx.settings.backup_list_threads
        pieces = stretches(
            rows.parts, max(OBJECTS_PER_TASK, min(ROWS_EACH, -(-rows.rows // threads)))
        )
        return self.ctx.tasks.run_or_call(what, task, pieces, rows.rows * row_s, threads)

    def __enter__(self) -> Self:
        """Return the workspace."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Delete all files of the folder; a failure is logged as a warning with its place."""
        remove(self.attempt.store(), self.folder)
