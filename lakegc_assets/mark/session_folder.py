"""The session of a stage, with a folder of a store for the results of its relations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from lakegc_assets.engine.datasets import Part
from lakegc_assets.engine.session import Dataset, Session
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext


@dataclass(frozen=True)
class SessionFolder:
    """The session, the run, and the folder that are needed to compute relations."""

    ctx: RunContext
    frames: Session
    url: str
    #: With a slash at its end.
    folder: str = ""

    @property
    def connections(self) -> Connections:
        """The connections that tasks use."""
        return self.ctx.connections

    def below(self, folder: str) -> SessionFolder:
        """A session folder below this one."""
        return replace(self, folder=f"{self.folder}{folder}")

    def read(self, parts: Sequence[Part], schema: pa.Schema) -> DataFrame:
        """The rows of files of the store."""
        return self.frames.read(Dataset(self.url, parts, schema))

    def write(self, frame: DataFrame, name: str, schema: pa.Schema, what: str) -> list[Part]:
        """Compute a frame, and write its rows to a folder of this name; ``what`` names the job."""
        return self.frames.write(frame, self.url, f"{self.folder}{name}/", schema, what)

    def written(self, frame: DataFrame, name: str, schema: pa.Schema, what: str) -> Dataset:
        """Like ``write``; returns a dataset."""
        return Dataset(self.url, self.write(frame, name, schema, what), schema)

    def step(self, frame: DataFrame, name: str, schema: pa.Schema, what: str) -> DataFrame:
        """The rows of an intermediate frame; the session may write them like ``write``, or not."""
        return self.frames.step(frame, self.url, f"{self.folder}{name}/", schema, what)

    def collect(self, frame: DataFrame, schema: pa.Schema, what: str) -> list[dict[str, Any]]:
        """Compute a frame of few rows; ``what`` names the job."""
        return self.frames.collect_rows(frame, schema, what)
