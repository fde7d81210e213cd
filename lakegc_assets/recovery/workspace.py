"""The datasets of one try to back up or to restore: rows in files, of which no manifest knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame

from lakegc_assets.engine.datasets import Part
from lakegc_assets.engine.session import Dataset, Session
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.scratch import remove


@dataclass(frozen=True)
class Workspace:
    """A folder of an attempt, with a slash at its end; no other try has it."""

    ctx: RunContext
    connections: Connections
    attempt: AttemptArtifacts
    folder: str

    def frames(self) -> Session:
        """The data frames of the run, to be used within ``with``."""
        return self.ctx.frames(self.connections)

    def read(self, frames: Session, parts: Sequence[Part], schema: pa.Schema) -> DataFrame:
        """The rows of files of the attempt."""
        return frames.read(Dataset(self.attempt.url, parts, schema))

    def write(
        self, frames: Session, frame: DataFrame, name: str, schema: pa.Schema, what: str
    ) -> list[Part]:
        """Compute a frame, and write its rows to files below a name in the folder."""
        return frames.write(frame, self.attempt.url, f"{self.folder}{name}/", schema, what)

    def clear(self) -> None:
        """Delete all files of the folder; a warning says where that fails."""
        remove(self.attempt.store(), self.folder)
