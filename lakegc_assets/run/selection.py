"""Candidates that are to be judged or deleted: files of a mark, without what a sweep left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.datasets import Part, read_part
from lakegc_assets.storage.base import ObjectStore


@dataclass(frozen=True)
class Selection:
    """Rows of some files, but for those whose address is in other files.

    Attributes:
        parts: the files, with a column ``address``.
        without: files with a column ``address``: what is done, or spared. Addresses that no part
            has are of no consequence, and so is one that several of them have.
    """

    parts: Sequence[Part]
    without: Sequence[Part] = ()

    @property
    def rows(self) -> int:
        """Number of rows at most: those of the parts, with what is left out."""
        return sum(part.rows for part in self.parts)

    def read(
        self, store: ObjectStore, part: Part, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """The rows of one part that count, in its order.

        Addresses are compared as they are, never by their hashes: one wrongly left out would not
        be judged.

        Args:
            store: that all files were written to.
            part: one of ``parts``.
            columns: to read, ``address`` among them; None for all.

        Raises:
            IntegrityError: a file is not what its manifest says.
        """
        table = read_part(store, part, columns)
        for other in self.without:
            left_out = read_part(store, other, ["address"])["address"].combine_chunks()
            table = table.filter(pc.invert(pc.is_in(table["address"], left_out)))
        return table

    def pieces(self, rows: int) -> list[Selection]:
        """Selections that make up this one, of about so many rows each; none is without parts."""
        pieces: list[list[Part]] = []
        filled = rows
        for part in self.parts:
            if filled >= rows:
                pieces.append([])
                filled = 0
            pieces[-1].append(part)
            filled += part.rows
        return [Selection(tuple(piece), tuple(self.without)) for piece in pieces]
