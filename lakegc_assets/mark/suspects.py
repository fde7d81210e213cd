"""What nothing lists any more, as numbers that are compared by the million."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.datasets import Part
from lakegc_assets.graveler.decode import etag_hashes
from lakegc_assets.mark.lookalikes import Integers
from lakegc_assets.run.artifacts import LISTING
from lakegc_assets.run.hashing import Hashes, address_hashes
from lakegc_assets.run.selection import Selection
from lakegc_assets.storage.base import ObjectStore

Flags = npt.NDArray[np.bool_]


def last_parts(addresses: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """The last path component of each address."""
    return pc.replace_substring_regex(addresses, r"(?s)^.*/", "")


@dataclass(frozen=True)
class Suspects:
    """What nothing lists any more, as numbers; one each, in the order of the files.

    Attributes:
        selection: files of address, size, last_modified and etag.
        rows: that count of each file.
        sizes: in bytes.
        etags: hashes of the etags, 0 of those that are no MD5.
        modified: in microseconds since 1970.
        addresses: hashes of the addresses.
        names: hashes of all addresses and of their last parts, without an order.
    """

    selection: Selection
    rows: Sequence[int]
    sizes: Integers
    etags: Integers
    modified: Integers
    addresses: Hashes
    names: Hashes

    @classmethod
    def read(cls, store: ObjectStore, selection: Selection) -> Suspects:
        """Read them.

        Raises:
            IntegrityError: a file is missing or changed.
        """
        found = [_as_numbers(selection.read(store, part)) for part in selection.parts]
        rows = [len(columns[0]) for columns in found]
        found.append(_as_numbers(LISTING.empty_table()))
        sizes, etags, modified, addresses, last = (
            np.concatenate(column) for column in zip(*found, strict=True)
        )
        names = np.concatenate([addresses, last])
        return cls(selection, rows, sizes, etags, modified, addresses, names)

    @property
    def plain(self) -> Flags:
        """Whether the etag could be an MD5."""
        plain: Flags = np.asarray(self.etags != 0)
        return plain

    def by_part(self, indices: Integers) -> list[tuple[Part, Integers]]:
        """Some of them by their files: which of the rows that count in each."""
        ends = np.cumsum([0, *self.rows])
        found = [
            (part, indices[(indices >= low) & (indices < high)] - low)
            for part, low, high in zip(self.selection.parts, ends[:-1], ends[1:], strict=True)
        ]
        return [(part, rows) for part, rows in found if len(rows)]


def _as_numbers(table: pa.Table) -> tuple[Integers, Integers, Integers, Hashes, Hashes]:
    addresses, etags = (table[name].combine_chunks() for name in ("address", "etag"))
    return (
        table["size"].to_numpy(),
        etag_hashes(etags).to_numpy(),
        table["last_modified"].cast(pa.int64()).to_numpy(),
        address_hashes(addresses),
        address_hashes(last_parts(addresses)),
    )
