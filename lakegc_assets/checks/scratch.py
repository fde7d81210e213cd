"""Temporary datasets of one evaluation, written beside the candidates."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from lakegc_assets.engine.datasets import Part, write_tables
from lakegc_assets.engine.ddl import schema
from lakegc_assets.run.connections import Connections
from lakegc_assets.storage.base import ObjectStore

#: What tasks and relations write.
ADDRESSES: Final = schema("address string")


@dataclass(frozen=True)
class Scratch:
    """A folder beside the candidates, and how tasks reach it and all else. Picklable."""

    connections: Connections
    #: Of the attempt's artifacts.
    url: str
    #: With a slash at its end.
    folder: str

    def artifacts(self) -> ObjectStore:
        """The store rooted at the attempt."""
        return self.connections.open(self.url)

    def write(self, addresses: Iterable[pa.Array]) -> list[Part]:
        """Write addresses, or what can be made strings, to files, none of which is empty."""
        texts = (pa.table([some.cast(pa.string())], schema=ADDRESSES) for some in addresses)
        return self.write_rows(texts, ADDRESSES)

    def write_rows(self, tables: Iterable[pa.Table], schema: pa.Schema) -> list[Part]:
        """Write rows to files, none of which is empty."""
        return write_tables(self.artifacts(), self.folder, schema, tables)
