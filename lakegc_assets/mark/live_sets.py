"""The addresses that are alive, as far as they were read, and the objects that are among them.

Whatever is to be deleted is compared twice, by two kinds of joins, since no other guard would
notice if an engine, or a plug-in or shuffle service of a cluster, lost rows of one join: an object
that is alive would be deleted.
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
from lakegc_assets.mark import relations
from lakegc_assets.mark.references import REFERENCES
from lakegc_assets.mark.served_candidates import SPARED
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import HASHES

#: Objects that are alive. If ``certain`` is false, an object is not proven to be alive.
CAME_BACK: Final = schema("address string, size bigint, why string, certain boolean")
#: Last path components of live addresses that cannot be resolved.
UNRESOLVED: Final = schema("last_part string")
_NAMES: Final = schema("name string")


@dataclass(frozen=True)
class LiveSets:
    """The addresses that are alive; sets without rows may be among them.

    Attributes:
        url: the store of the files.
        hashes: files of hashes (``HASHES``) of live addresses, by the reason.
        unresolved: last path components of live addresses that cannot be resolved.
        named: objects that are spared by their addresses (``SPARED``).
        references: files of the objects that other repositories name (``REFERENCES``).
    """

    ctx: RunContext
    url: str
    hashes: Mapping[str, Sequence[Part]]
    unresolved: AbstractSet[str]
    named: Sequence[pa.Table] = ()
    references: Sequence[Part] = ()

    def came_back(self, frames: Session, objects: Dataset, folder: str) -> Dataset:
        """Find the objects that are alive (``CAME_BACK``), and write them to files of a folder.

        ``objects``: at least address, hash and size.
        """
        live = self._frames(frames) if objects.rows else ()
        if not any(live):
            return Dataset(self.url, [], CAME_BACK)
        found = relations.came_back(frames.read(objects), *live)
        parts = frames.write(found, self.url, folder, CAME_BACK, "find what came back to life")
        return Dataset(self.url, parts, CAME_BACK)

    def require_dead(self, frames: Session, objects: Dataset, but: Dataset | None = None) -> None:
        """Verify that none of the objects is alive, by another kind of join.

        Args:
            frames: the session of an engine.
            objects: at least address and hash.
            but: addresses of objects that need not be dead.

        Raises:
            IntegrityError: the engine has lost rows.
        """
        live, unresolved, named = self._frames(frames)
        if not (live or unresolved or named):
            return
        rows, hashes = frames.read(objects), [hashes for hashes, _ in live]
        if but is not None and but.rows:
            rows = relations.without_spared(rows, frames.read(but))
        found = relations.still_live(rows, hashes, unresolved, named, 1)
        if frames.collect_rows(found, _NAMES, "look again for what is alive"):
            raise self.ctx.lost_rows("live objects were taken for dead")

    def _frames(
        self, frames: Session
    ) -> tuple[list[tuple[DataFrame, str]], list[DataFrame], list[DataFrame]]:
        """Return the live hashes with reasons, the last parts, and the named objects.

        Inputs without rows are left out.
        """

        def read(parts: Sequence[Part], of: pa.Schema) -> list[DataFrame]:
            some = [part for part in parts if part.rows]
            return [frames.read(Dataset(self.url, some, of))] if some else []

        named = [frames.create(rows.cast(SPARED)) for rows in self.named if rows.num_rows]
        named += map(relations.referenced, read(self.references, REFERENCES))
        ends = pa.table([pa.array(sorted(self.unresolved), pa.string())], schema=UNRESOLVED)
        return (
            [(rows, why) for why, parts in self.hashes.items() for rows in read(parts, HASHES)],
            [frames.create(ends)] if self.unresolved else [],
            named,
        )
