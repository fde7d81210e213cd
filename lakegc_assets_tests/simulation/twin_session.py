"""A session whose data frames are lists of rows, for relations that are the twins of ours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any, Final

import pyarrow as pa
from typing_extensions import Self

from lakegc_assets.engine import datasets
from lakegc_assets.engine.datasets import Part
from lakegc_assets.engine.session import Dataset, OpenStore
from lakegc_assets.mark import comparison_relations, holder_relations, live_relations
from lakegc_assets.mark import relations as of_mark
from lakegc_assets.recovery import relations as of_recovery
from lakegc_assets.run.context import RunContext
from lakegc_assets.sweep import relations as of_sweep
from lakegc_assets_tests.mark import comparison_twins
from lakegc_assets_tests.mark import twins as mark_twins
from lakegc_assets_tests.recovery import twins as recovery_twins
from lakegc_assets_tests.simulation import row_files
from lakegc_assets_tests.sweep import twins as sweep_twins

Rows = list[dict[str, Any]]

#: Modules of relations, and where their twins are.
_TWINS: Final[Sequence[tuple[ModuleType, ModuleType]]] = (
    (of_mark, mark_twins),
    (live_relations, mark_twins),
    (holder_relations, comparison_twins),
    (comparison_relations, comparison_twins),
    (of_sweep, sweep_twins),
    (of_recovery, recovery_twins),
)


class TwinSession:
    """As ``Session``: what is read and written goes through the store."""

    def __init__(self, open_store: OpenStore) -> None:
        self._open = open_store

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def read(self, dataset: Dataset) -> Rows:
        """The rows of a dataset."""
        if not dataset.rows:
            return []
        store, names = self._open(dataset.url), dataset.schema.names
        files = [row_files.rows_of(datasets.fetch_part(store, part)) for part in dataset.parts]
        rows = [row for rows in files for row in rows]
        if rows and rows[0].keys() == set(names):
            return rows
        return [{name: row[name] for name in names} for row in rows]

    def create(self, rows: Any) -> Rows:
        """The rows of a table."""
        found: Rows = rows.to_pylist()
        return found

    def write(self, frame: Rows, url: str, folder: str, schema: Any, _what: str) -> list[Part]:
        """Write rows to a file, if there are any."""
        if not frame:
            return []
        names = schema.names
        rows = [{name: row.get(name) for name in names} for row in frame]
        data = row_files.encode_rows(rows, schema)
        return [datasets.write_file(self._open(url), folder, data, len(rows))]

    def collect(self, frame: Rows, schema: Any, _what: str) -> pa.Table:
        """The rows as a table."""
        return pa.Table.from_pylist(frame, schema)

    def collect_rows(self, frame: Rows, _schema: Any, _what: str) -> Rows:
        """The rows."""
        return frame


def replaced() -> Iterator[tuple[object, str, object]]:
    """What is replaced where: the session, and each relation by its twin."""
    yield RunContext, "frames", lambda _run, connections: TwinSession(connections.open)
    for module, twins in _TWINS:
        for name, value in vars(module).items():
            if hasattr(value, "__wrapped__"):
                yield module, name, getattr(twins, name)
