"""The witness of ranges, through the cache: each range is witnessed once in its life.

The cache is the witness's own: files of the kind ``witness``, verified on every read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from lakegc_assets.checks.witness import LOOKS, PLACES, VERSION, witness
from lakegc_assets.engine.tasks import bin_pack, thread_map
from lakegc_assets.errors import IntegrityError
from lakegc_assets.graveler.errors import FormatError
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.table_cache import Decoded, Kind, Slot, TableCache, by_file
from lakegc_assets.storage.errors import ObjectNotFoundError

#: What is cached: the rows of ``witness``.
KIND: Final = Kind("witness", VERSION, "range_id")
#: Work on one core, in seconds: to fetch a range, to witness an entry, to read a cached one.
_FETCH_S: Final = 0.02
_WITNESS_S: Final = 1.6e-6
_CACHED_S: Final = 1e-7
_THREADS: Final = 8
#: Rows in a file of the cache, about.
_FILE_ROWS: Final = 1_000_000


class Wanted(NamedTuple):
    """A range to look at.

    Attributes:
        range_id: its id.
        entries: how many it holds, by the metarange's word.
        slot: where it is cached; None where it is not.
    """

    range_id: str
    entries: int
    slot: Slot | None


class Witnessed(NamedTuple):
    """What the witness says of a range; see ``witness``."""

    range_id: str
    places: pa.Table
    looks: pa.Table
    entries: int
    digest: str


def wanted(connections: Connections, entries: Mapping[str, int]) -> list[Wanted]:
    """Ranges, with their numbers of entries, as they are to be looked at."""
    slots = TableCache(connections.cache(), KIND).compact() if entries else {}
    return [Wanted(i, count, slots.get(i)) for i, count in sorted(entries.items())]


def seconds(one: Wanted) -> float:
    """About how much work a range is, on one core."""
    if one.slot is not None:
        return one.slot.rows * _CACHED_S
    return _FETCH_S + one.entries * _WITNESS_S


def spread_wanted(ranges: Sequence[Wanted], most: int) -> list[list[Wanted]]:
    """Ranges for tasks; those of one file stay together, since it is read as a whole."""
    files: dict[str, list[Wanted]] = {}
    for one in ranges:
        files.setdefault(one.slot.file.index if one.slot else one.range_id, []).append(one)
    groups = list(files.values())
    tasks = bin_pack(groups, [sum(map(seconds, group)) for group in groups], most)
    return [[one for group in task for one in group] for task in tasks]


def read_witnessed(connections: Connections, ranges: Sequence[Wanted]) -> Iterator[Witnessed]:
    """What some ranges hold, in no order; what is not cached is read, and kept.

    Raises:
        IntegrityError: a range is missing, damaged, or not of the length that its metarange says.
    """
    missing = [one for one in ranges if one.slot is None]
    known = {id(one.slot): one for one in ranges if one.slot is not None}
    cache = TableCache(connections.cache(), KIND)
    for file, slots in by_file(one.slot for one in known.values() if one.slot):
        of = [known[id(slot)] for slot in slots]
        tables = cache.read(file, slots)
        if tables is None:
            missing += of
            continue
        for one, rows in zip(of, tables, strict=True):
            facts = one.slot.facts if one.slot else {}
            yield _checked(connections, one, Decoded(one.range_id, rows, facts))
    waiting: list[Decoded] = []
    for one, found in _witness(connections, missing):
        yield _checked(connections, one, found)
        waiting.append(found)
        if sum(w.rows.num_rows for w in waiting) >= _FILE_ROWS:
            cache.write(waiting)
            waiting = []
    if waiting:
        cache.write(waiting)


def table_url(connections: Connections, table_id: str) -> str:
    """Where the file of a range or metarange is: its name in messages."""
    return f"{connections.namespace_url}/_lakefs/{table_id}"


def fetch(connections: Connections, table_id: str) -> bytes:
    """The file of a range or metarange.

    Raises:
        IntegrityError: it is missing.
    """
    try:
        return connections.store().get(f"_lakefs/{table_id}")
    except ObjectNotFoundError as error:
        raise IntegrityError(
            f"{table_url(connections, table_id)}, which a branch or tag needs, is missing: restore "
            "it, then run again",
        ) from error


def _witness(
    connections: Connections, missing: Sequence[Wanted]
) -> Iterator[tuple[Wanted, Decoded]]:
    namespace = connections.namespace()
    for at in range(0, len(missing), _THREADS):
        some = missing[at : at + _THREADS]
        files = thread_map(lambda one: fetch(connections, one.range_id), some, _THREADS)
        for one, data in zip(some, files, strict=True):
            try:
                found = witness(data, one.range_id, namespace)
            except FormatError as error:
                url = table_url(connections, one.range_id)
                raise FormatError(url, error.offset, error.reason) from error
            yield one, found


def _checked(connections: Connections, one: Wanted, found: Decoded) -> Witnessed:
    entries, digest = int(found.facts["entries"]), str(found.facts["digest"])
    if entries != one.entries:
        raise IntegrityError(
            f"range {one.range_id} of {connections.namespace_url} holds {entries} entries, but "
            f"its metarange says {one.entries}: the repository is damaged",
        )
    places, looks = found.rows.select(PLACES), found.rows.select(LOOKS)
    return Witnessed(one.range_id, places, looks, entries, digest)
