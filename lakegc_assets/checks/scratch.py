"""What one evaluation writes down for its tasks: sorted hashes, and addresses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from lakegc_assets.checks.hashing import Bools, Hashes, distinct, is_in
from lakegc_assets.engine.datasets import Part, read_part, write_part
from lakegc_assets.run.connections import Connections
from lakegc_assets.storage.base import ObjectStore

#: Hashes in one file: 32 MB.
_LENGTH: Final = 4_000_000


@dataclass(frozen=True)
class Scratch:
    """A folder beside the candidates, and how tasks reach it and all else. Picklable.

    Attributes:
        connections: to lakeFS, the store and the cache.
        url: of the attempt's artifacts.
        folder: relative to them, with a slash at its end.
    """

    connections: Connections
    url: str
    folder: str

    def artifacts(self) -> ObjectStore:
        """The store rooted at the attempt."""
        return self.connections.open(self.url)

    def write(self, arrays: Sequence[Hashes]) -> list[Part]:
        """Write hashes of several arrays, each once and sorted; no file where there are none."""
        store, members = self.artifacts(), one_of(arrays)
        return [
            write_part(
                store,
                self.folder,
                pa.table({"hash": members[at : at + _LENGTH]}),
                plain=True,
            )
            for at in range(0, len(members), _LENGTH)
        ]

    def write_addresses(self, addresses: pa.Array | pa.ChunkedArray) -> Part:
        """Write addresses as they are."""
        return write_part(self.artifacts(), self.folder, pa.table({"address": addresses}))

    def read(self, part: Part) -> Hashes:
        """The hashes of one file, sorted."""
        column = read_part(self.artifacts(), part)["hash"].combine_chunks()
        hashes: Hashes = column.to_numpy(zero_copy_only=False)
        return hashes

    def read_all(self, parts: Sequence[Part]) -> list[Hashes]:
        """The hashes of several files."""
        return [self.read(part) for part in parts]

    def remove(self) -> None:
        """Remove all that was written."""
        store = self.artifacts()
        for batch in store.list(self.folder):
            store.delete_many(batch["key"].to_pylist())


def in_any(runs: Iterable[Hashes], hashes: Hashes) -> Bools:
    """Which of some hashes are in one of several sorted arrays."""
    found = np.zeros(len(hashes), np.bool_)
    for run in runs:
        found |= is_in(run, hashes)
    return found


def one_of(arrays: Sequence[Hashes]) -> Hashes:
    """The members of several arrays, sorted and each once."""
    return distinct(np.concatenate([np.empty(0, np.uint64), *arrays]))
