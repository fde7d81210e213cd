"""A session whose data frames are lists of rows, for relations that are the twins of ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, Final

import pyarrow as pa
from typing_extensions import Self

from lakegc_assets.engine import datasets
from lakegc_assets.engine.datasets import Part
from lakegc_assets.engine.relation import RelationFrame
from lakegc_assets.engine.session import Dataset, OpenStore
from lakegc_assets.mark import comparison_relations
from lakegc_assets.mark import relations as of_mark
from lakegc_assets.recovery import relations as of_recovery
from lakegc_assets.sweep import relations as of_sweep
from lakegc_assets_tests.mark import comparison_twins
from lakegc_assets_tests.mark import twins as mark_twins
from lakegc_assets_tests.recovery import twins as recovery_twins
from lakegc_assets_tests.simulation import row_files
from lakegc_assets_tests.sweep import twins as sweep_twins

#: Modules of relations, and where their twins are.
_TWINS: Final[Mapping[str, ModuleType]] = {
    of_mark.__name__: mark_twins,
    comparison_relations.__name__: comparison_twins,
    of_sweep.__name__: sweep_twins,
    of_recovery.__name__: recovery_twins,
}


class TwinFrame(list[dict[str, Any]], RelationFrame):
    """Rows; each relation is its twin in plain Python."""

    def apply(
        self, rule: Callable[..., Any], args: Sequence[Any], how: Mapping[str, Any]
    ) -> TwinFrame:
        return TwinFrame(getattr(_TWINS[rule.__module__], rule.__name__)(*args, **how))


class TwinSession:
    """As ``Session``: what is read and written goes through the store."""

    def __init__(self, open_store: OpenStore) -> None:
        self._open = open_store

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def compares_late(self, _url: str) -> bool:
        return False

    def read(self, dataset: Dataset) -> TwinFrame:
        """The rows of a dataset."""
        if not dataset.rows:
            return TwinFrame()
        store, names = self._open(dataset.url), dataset.schema.names
        files = [row_files.rows_of(datasets.fetch_part(store, part)) for part in dataset.parts]
        rows: list[Any] = [row for rows in files for row in rows]
        if rows and rows[0].keys() == set(names):
            return TwinFrame(rows)
        return TwinFrame({name: row[name] for name in names} for row in rows)

    def create(self, rows: Any) -> TwinFrame:
        """The rows of a table."""
        return TwinFrame(rows.to_pylist())

    def write(self, frame: TwinFrame, url: str, folder: str, schema: Any, _what: str) -> list[Part]:
        """Write rows to a file, if there are any."""
        if not frame:
            return []
        names = schema.names
        rows = [{name: row.get(name) for name in names} for row in frame]
        data = row_files.encode_rows(rows, schema)
        return [datasets.write_file(self._open(url), folder, data, len(rows))]

    def collect(self, frame: TwinFrame, schema: Any, _what: str) -> pa.Table:
        """The rows as a table."""
        return row_files.table_of(frame, schema)

    def collect_rows(self, frame: TwinFrame, _schema: Any, _what: str) -> TwinFrame:
        """The rows."""
        return frame
