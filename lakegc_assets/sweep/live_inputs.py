"""The live sets of a delta mark, and their comparison with marked objects.

The comparison is made twice, by two kinds of joins, since no other guard would notice if an engine,
or a plug-in or shuffle service of a cluster, lost rows of one join: an object that is alive would
be deleted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame

from lakegc_assets.engine.datasets import Part
from lakegc_assets.engine.ddl import schema
from lakegc_assets.engine.session import Dataset, Session
from lakegc_assets.errors import IntegrityError
from lakegc_assets.mark import relations as mark_relations
from lakegc_assets.mark.candidates import NAMES
from lakegc_assets.mark.references import REFERENCES
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import HASHES
from lakegc_assets.sweep import relations

SPARED: Final = schema("address string, why string")
#: Objects to spare. If ``certain`` is false, an object is not proven to be alive.
CAME_BACK: Final = schema("address string, size bigint, why string, certain boolean")
_LAST_PARTS: Final = schema("last_part string")


@dataclass(frozen=True)
class LiveInputs:
    """The addresses that are alive now, as far as the mark may not know them.

    Attributes:
        url: the attempt, whose files the inputs are.
        live: files of hashes of live addresses, by the reason.
        unresolved: last path components of live addresses that cannot be resolved.
        named: objects that are spared by their addresses (``SPARED``).
        references: files of the objects that other repositories name (``REFERENCES``).
    """

    ctx: RunContext
    url: str
    live: Mapping[str, Sequence[Part]]
    unresolved: AbstractSet[str]
    named: Sequence[pa.Table]
    references: Sequence[Part]

    def came_back(self, candidates: Dataset, folder: str) -> Dataset:
        """Find the marked objects that are alive (``CAME_BACK``), in files of a folder."""
        if not candidates.rows or self._are_empty():
            return Dataset(self.url, [], CAME_BACK)
        with self.ctx.frames() as frames:
            live, unresolved, named = self._frames(frames)
            back = mark_relations.came_back(frames.read(candidates), live, unresolved, named)
            parts = frames.write(back, self.url, folder, CAME_BACK, "find what came back to life")
            return Dataset(self.url, parts, CAME_BACK)

    def require_dead(self, objects: Dataset) -> None:
        """Verify that nothing alive is among objects (``LISTING``), by another kind of join.

        Raises:
            IntegrityError: the engine has lost rows.
        """
        if not objects.rows or self._are_empty():
            return
        with self.ctx.frames() as frames:
            live, unresolved, named = self._frames(frames)
            hashes = [one for one, _ in live]
            found = mark_relations.still_live(frames.read(objects), hashes, unresolved, named, 1)
            label = "look for what came back to life again"
            if not frames.collect_rows(found, NAMES, label):
                return
        raise IntegrityError(
            f"{self.ctx.engine.kind} has taken live objects for dead: objects of mark "
            f"{self.ctx.run!r} came back to life, and the delta mark lacks them. They were not "
            "deleted. Sweep again with the other engine (--engine), and on a cluster without "
            "plug-ins and shuffle services. Please report it, with the versions of both"
        )

    def _are_empty(self) -> bool:
        live = [*self.live.values(), self.references]
        rows = any(part.rows for parts in live for part in parts)
        return not (rows or self.unresolved or any(rows.num_rows for rows in self.named))

    def _frames(
        self, frames: Session
    ) -> tuple[list[tuple[DataFrame, str]], list[DataFrame], list[DataFrame]]:
        """Return the arguments of relations: live hashes with reasons, last parts, named objects.

        Inputs without rows are left out.
        """

        def read(parts: Sequence[Part], of: pa.Schema) -> DataFrame:
            return frames.read(Dataset(self.url, parts, of))

        live = {why: [part for part in parts if part.rows] for why, parts in self.live.items()}
        named = [frames.create(rows.cast(SPARED)) for rows in self.named if rows.num_rows]
        if references := [part for part in self.references if part.rows]:
            named.append(relations.referenced(read(references, REFERENCES)))
        ends = pa.table([pa.array(sorted(self.unresolved), pa.string())], schema=_LAST_PARTS)
        return (
            [(read(parts, HASHES), why) for why, parts in live.items() if parts],
            [frames.create(ends)] if self.unresolved else [],
            named,
        )
