"""The witness of ranges, through the cache: each range is witnessed once in its life.

The cache is the witness's own: tables of the kind ``witness``, which are compared with their
SHA-256 on every read. What was witnessed is compared, too: the number of entries with what the
metarange says, the digest of their addresses with what the mark's reader found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import fsum
from typing import Final

from pyspark.sql import DataFrame

from lakegc_assets.checks.witness import ENTRIES, KIND, witness
from lakegc_assets.engine.session import Session
from lakegc_assets.engine.tasks import Tasks, pack_in_order, thread_each
from lakegc_assets.errors import IntegrityError
from lakegc_assets.graveler.errors import FormatError
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.table_cache import Decoded, Slot, TableCache

#: Work on one core, in seconds: to fetch a range, to witness an entry.
_FETCH_S: Final = 0.02
_WITNESS_S: Final = 2e-6
_THREADS: Final = 8


@dataclass(frozen=True)
class Witnessed:
    """Ranges that were witnessed, and where what they hold is cached."""

    connections: Connections
    slots: Mapping[str, Slot]

    def digests(self) -> dict[str, str]:
        """The digest of the addresses of each range, as they stand in it, by range id."""
        return {range_id: str(slot.facts["digest"]) for range_id, slot in self.slots.items()}

    def frame(self, frames: Session, range_ids: Iterable[str], columns: Sequence[str]) -> DataFrame:
        """The entries of some ranges, all of them and no others.

        Raises:
            IntegrityError: the cache is damaged, here or when the frame is computed.
        """
        return self._frame(frames, range_ids, columns, summarized=False)

    def named(self, frames: Session, range_ids: Iterable[str], columns: Sequence[str]) -> DataFrame:
        """Rows that tell of what some ranges name what all their entries do (``witness.named``).

        ``columns``: of ``witness.NAMED``.

        Raises:
            IntegrityError: as ``frame``.
        """
        return self._frame(frames, range_ids, columns, summarized=True)

    def _frame(
        self, frames: Session, range_ids: Iterable[str], columns: Sequence[str], *, summarized: bool
    ) -> DataFrame:
        slots = {range_id: self.slots[range_id] for range_id in range_ids}
        cache, url = TableCache(self.connections.cache(), KIND), self.connections.cache_url
        return cache.frame(frames, url, slots, ENTRIES, columns, summarized=summarized)


def witnessed(
    connections: Connections, tasks: Tasks, entries: Mapping[str, int], most: int
) -> Witnessed:
    """Witness ranges, in tasks, but for those that were witnessed before.

    ``entries``: how many each range holds by the metarange's word, by its id. Ranges that name much
    of the same should follow each other, since they share a file.

    Raises:
        IntegrityError: a range is missing, damaged, or not of the length that its metarange says.
    """
    slots = TableCache(connections.cache(), KIND).compact() if entries else {}
    missing = [range_id for range_id in entries if range_id not in slots]
    costs = [_FETCH_S + entries[range_id] * _WITNESS_S for range_id in missing]
    task, groups = partial(_witness_and_cache, connections), pack_in_order(missing, costs, most)
    for new in tasks.run("check what HEADs hold", task, groups, fsum(costs)):
        slots |= new
    for range_id, count in entries.items():
        found = slots[range_id].facts["entries"]
        if found != count:
            raise IntegrityError(
                f"range {range_id} of {connections.namespace_url} holds {found} entries, but "
                f"its metarange says {count}: the repository is damaged",
            )
    return Witnessed(connections, {range_id: slots[range_id] for range_id in entries})


def _witness_and_cache(connections: Connections, range_ids: Sequence[str]) -> dict[str, Slot]:
    """Witness some ranges; a task."""
    cache = TableCache(connections.cache(), KIND)
    tables = cache.write_all(_witness(connections, range_ids))
    return {one.table_id: slot for one, slot in tables}


def _witness(connections: Connections, range_ids: Sequence[str]) -> Iterator[Decoded]:
    namespace = connections.namespace()
    for range_id, data in thread_each(connections.fetch_table, range_ids, _THREADS):
        try:
            yield witness(data, range_id, namespace)
        except FormatError as error:
            url = connections.table_url(range_id)
            raise FormatError(url, error.offset, error.reason) from error
