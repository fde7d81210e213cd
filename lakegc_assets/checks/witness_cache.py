"""The witness of ranges with a cache: each range is witnessed once in its life.

The cache belongs to the witness only: tables of the kind ``witness``, whose SHA-256 is verified on
every read. The contents are verified, too: the number of entries against the metarange, and the
digest of their addresses against the digest of the mark's reader.
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

#: Seconds of one core to fetch a range, and to witness an entry.
_FETCH_S: Final = 0.02
_WITNESS_S: Final = 2e-6
_THREADS: Final = 8


@dataclass(frozen=True)
class Witnessed:
    """Ranges that were witnessed, and the places of their entries in the cache."""

    connections: Connections
    slots: Mapping[str, Slot]

    def digests(self) -> dict[str, str]:
        """Return the digest of the addresses in each range, as written there, by range id."""
        return {range_id: str(slot.facts["digest"]) for range_id, slot in self.slots.items()}

    def frame(
        self,
        frames: Session,
        range_ids: Iterable[str],
        columns: Sequence[str],
        *,
        summarized: bool = False,
    ) -> DataFrame:
        """Return the entries of the given ranges, and of no others.

        ``summarized``: only the addresses that they name, as in ``witness.named``.

        Raises:
            IntegrityError: the cache is damaged, here or when the frame is computed.
        """
        slots = {range_id: self.slots[range_id] for range_id in range_ids}
        cache, url = TableCache(self.connections.cache(), KIND), self.connections.cache_url
        return cache.frame(frames, url, slots, ENTRIES, columns, summarized=summarized)


def witnessed(
    connections: Connections, tasks: Tasks, entries: Mapping[str, int], most: int
) -> Witnessed:
    """Witness ranges in tasks; ranges that were witnessed before are taken from the cache.

    ``entries``: number of entries in each range, by range id, according to the metarange. Ranges
    that name nearly the same addresses should follow each other, since they share a file.

    Raises:
        IntegrityError: a range is missing or damaged, or its metarange has another count.
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
                f"{connections.table_url(range_id)} holds {found} entries, and a metarange that "
                f"names it says {count}: one of the two is damaged. Restore it from a copy of the "
                "bucket, then run again",
            )
    return Witnessed(connections, {range_id: slots[range_id] for range_id in entries})


def _witness_and_cache(connections: Connections, range_ids: Sequence[str]) -> dict[str, Slot]:
    """Witness some ranges; a task."""
    cache = TableCache(connections.cache(), KIND)
    tables = cache.write_all(_witness(connections, range_ids))
    return {table.table_id: slot for table, slot in tables}


def _witness(connections: Connections, range_ids: Sequence[str]) -> Iterator[Decoded]:
    namespace = connections.namespace()
    for range_id, data in thread_each(connections.fetch_table, range_ids, _THREADS):
        try:
            yield witness(data, range_id, namespace)
        except FormatError as error:
            url = connections.table_url(range_id)
            raise FormatError(url, error.offset, error.reason) from error
