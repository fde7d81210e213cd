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

#: Opens the store at a URL; picklable, so that tasks on other machines open it, too.
OpenStore = Callable[[str], ObjectStore]


@dataclass(frozen=True)
class Dataset:
    """Rows in Parquet files, as a manifest names them.

    Attributes:
        url: of the store that the files' keys are relative to.
        parts: the files.
        schema: of the columns that are read; the files may have more.
    """

    url: str
    parts: Sequence[Part]
    schema: pa.Schema

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(part.rows for part in self.parts)

    def select(self, *columns: str) -> Dataset:
        """The dataset with some of its columns."""
        return replace(self, schema=pa.schema([self.schema.field(name) for name in columns]))

    def __add__(self, other: Dataset) -> Dataset:
        """The rows of both, which are of one store."""
        return replace(self, parts=[*self.parts, *other.parts])


class Session(ABC):
    """One engine's data frames, which relations take and give.

    Nothing is computed before a frame is written or collected. A session is used within ``with``:
    at its end the frames, and what was kept for them, are gone.
    """

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Forget the frames, where the engine does not by itself."""
        return

    @abstractmethod
    def read(self, dataset: Dataset) -> DataFrame:
        """The rows of a dataset, whose files are compared with their SHA-256 when they are read.

        What is missing or changed raises ``IntegrityError`` here, or when the frame is computed.
        """

    def compares_late(self, url: str) -> bool:  # noqa: ARG002 - for engines of which it depends
        """True if files of a store may be compared only when a frame of them is computed."""
        return False

    def is_small(self, dataset: Dataset) -> bool:  # noqa: ARG002 - for engines of which it depends
        """True if the engine sends rows to tasks, and a dataset may be sent to each of a join.

        It sees by itself that the frame of such a dataset is small, and not that a union of several
        is: that takes a hint.
        """
        return False

    @abstractmethod
    def create(self, rows: pa.Table) -> DataFrame:
        """A data frame of rows that this process has: few, for they are sent to all tasks."""

    @abstractmethod
    def write(
        self, frame: DataFrame, url: str, folder: str, schema: pa.Schema, what: str
    ) -> list[Part]:
        """Compute a frame and write its rows to new files, none of which is empty.

        Args:
            frame: has the columns of the schema, in any order.
            url: of the store to write to.
            folder: relative to it, with a slash at its end.
            schema: of the files.
            what: is done, in words, for the log.

        Returns:
            The files, in the order of the rows where the frame is in order.

        Raises:
            IntegrityError: a file of a dataset is missing or changed.
        """

    def step(
        self, frame: DataFrame, url: str, folder: str, schema: pa.Schema, what: str
    ) -> DataFrame:
        """The rows of a frame of which one more frame is made, for which alone it is there.

        Written first, so that an engine does not hold what both take; where it holds little of
        either, the frame itself. Arguments and errors are those of ``write``.
        """
        return self.read(Dataset(url, self.write(frame, url, folder, schema, what), schema))

    @abstractmethod
    def collect(self, frame: DataFrame, schema: pa.Schema, what: str) -> pa.Table:
        """Compute a frame of few rows, such as counts, and give them to this process.

        Args:
            frame: has the columns of the schema, in any order.
            schema: of the table.
            what: is done, in words, for the log.

        Raises:
            IntegrityError: a file of a dataset is missing or changed.
        """

    def collect_rows(self, frame: DataFrame, schema: pa.Schema, what: str) -> list[dict[str, Any]]:
        """As ``collect``; the rows as plain values."""
        rows: list[dict[str, Any]] = self.collect(frame, schema, what).to_pylist()
        return rows
