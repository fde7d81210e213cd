"""A session whose data frames are lists of rows, for relations that are the twins of ours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any, Final

from typing_extensions import Self

from lakegc_assets.engine import datasets
from lakegc_assets.engine.datasets import Part
from lakegc_assets.engine.session import Dataset, OpenStore
from lakegc_assets.mark import comparison_relations, holder_relations
from lakegc_assets.mark import relations as of_mark
from lakegc_assets.recovery import relations as of_recovery
from lakegc_assets.run.context import RunContext
from lakegc_assets.sweep import relations as of_sweep
from lakegc_assets_tests.mark import comparison_twins
from lakegc_assets_tests.mark import twins as mark_twins
from lakegc_assets_tests.recovery import twins as recovery_twins
from lakegc_assets_tests.simulation import rows as pa
from lakegc_assets_tests.sweep import twins as sweep_twins

Rows = list[dict[str, Any]]

#: Modules of relations, and where their twins are.
_TWINS: Final[Sequence[tuple[ModuleType, ModuleType]]] = (
    (of_mark, mark_twins),
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
        store, names = self._open(dataset.url), pa.schema_of(dataset.schema).names
        tables = [datasets.read_part(store, part, names) for part in dataset.parts]
        return [row for table in tables for row in pa.table_of(table).to_pylist()]

    def create(self, rows: Any) -> Rows:
        """The rows of a table."""
        return pa.table_of(rows).to_pylist()

    def write(self, frame: Rows, url: str, folder: str, schema: Any, _what: str) -> list[Part]:
        """Write rows to a file, if there are any."""
        if not frame:
            return []
        table = pa.Table.from_pylist(frame, schema).cast(schema)
        return [datasets.write_part(self._open(url), folder, table)]

    def collect(self, frame: Rows, schema: Any, _what: str) -> pa.Table:
        """The rows as a table."""
        return pa.Table.from_pylist(frame, schema)


def replaced() -> Iterator[tuple[object, str, object]]:
    """What is replaced where: the session, and each relation by its twin."""
    yield RunContext, "frames", lambda _run, connections: TwinSession(connections.open)
    for module, twins in _TWINS:
        for name, value in vars(module).items():
            if hasattr(value, "__wrapped__"):
                yield module, name, getattr(twins, name)
