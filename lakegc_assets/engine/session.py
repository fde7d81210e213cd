"""The session of an engine: reads datasets as data frames, and writes data frames as datasets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from typing_extensions import Self

from lakegc_assets.engine.datasets import Part
from lakegc_assets.storage.base import ObjectStore

#: Opens the store at a URL; picklable, so that tasks on other machines can open it, too.
OpenStore = Callable[[str], ObjectStore]


@dataclass(frozen=True)
class Dataset:
    """Rows in Parquet files, in the form of a manifest.

    Attributes:
        url: URL of the store; the files' keys are relative to it.
        schema: schema of the columns to read; the files may have more.
    """

    url: str
    parts: Sequence[Part]
    schema: pa.Schema

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(part.rows for part in self.parts)

    def select(self, *columns: str) -> Dataset:
        """Return the dataset with some of its columns."""
        return replace(self, schema=pa.schema([self.schema.field(name) for name in columns]))

    def __add__(self, other: Dataset) -> Dataset:
        """Return the rows of both datasets, which must be in one store."""
        return replace(self, parts=[*self.parts, *other.parts])


class Session(ABC):
    """The data frames of one engine, the inputs and results of relations.

    Frames are lazy: only ``write``, ``step`` and ``collect`` compute. A session is used within
    ``with``; its end removes the frames and their temporary data.
    """

    def __enter__(self) -> Self:
        """Return the session."""
        return self

    def __exit__(self, *_: object) -> None:
        """Forget the frames, if the engine does not do so by itself."""
        return

    @abstractmethod
    def read(self, dataset: Dataset) -> DataFrame:
        """Return a frame of a dataset; its files are compared with their SHA-256 on reading.

        A missing or changed file raises ``IntegrityError``, here or when the frame is computed.
        """

    def compares_late(self, url: str) -> bool:  # noqa: ARG002 - for engines of which it depends
        """Return True if files of a store may be compared as late as a frame is computed."""
        return False

    def is_small(self, dataset: Dataset) -> bool:  # noqa: ARG002 - for engines of which it depends
        """Return True if the engine can broadcast a dataset to each task of a join.

        The engine recognizes that the frame of such a dataset is small, but not that a union of
        several is: a union needs a hint.
        """
        return False

    @abstractmethod
    def create(self, rows: pa.Table) -> DataFrame:
        """Return a frame of a few rows of this process, which are sent to all tasks."""

    @abstractmethod
    def write(
        self, frame: DataFrame, url: str, folder: str, schema: pa.Schema, what: str
    ) -> list[Part]:
        """Compute a frame and write its rows to new, non-empty files.

        ``frame``: has the columns of the schema, in any order. ``url``: URL of the store to write
        to. ``folder``: relative to it, with a slash at its end.

        Returns:
            The files; if the frame is ordered, in the order of its rows.

        Raises:
            IntegrityError: a file of a dataset is missing or changed.
        """

    def step(
        self, frame: DataFrame, url: str, folder: str, schema: pa.Schema, what: str
    ) -> DataFrame:
        """Compute an intermediate frame that only one other frame uses, and return its rows.

        The rows are written first, so that an engine does not hold the memory of both
        computations. An engine that holds little memory returns the frame itself. Arguments and
        errors: see ``write``.
        """
        return self.read(Dataset(url, self.write(frame, url, folder, schema, what), schema))

    @abstractmethod
    def collect(self, frame: DataFrame, schema: pa.Schema, what: str) -> pa.Table:
        """Compute a frame of few rows, such as counts, and return them to this process.

        ``frame``: has the columns of the schema, in any order.

        Raises:
            IntegrityError: a file of a dataset is missing or changed.
        """

    def collect_rows(self, frame: DataFrame, schema: pa.Schema, what: str) -> list[dict[str, Any]]:
        """Collect a frame as ``collect`` does, and return its rows as plain values."""
        rows: list[dict[str, Any]] = self.collect(frame, schema, what).to_pylist()
        return rows
