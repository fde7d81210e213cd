"""Entries below the paths of rules, found independently of the mark.

What was seen of a metarange, or of the folders in a range, is stored in a cache of the checks' own,
as that of the witness is: so each is read for this once in the life of the repository.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Final, NamedTuple

import pyarrow as pa

from lakegc_assets.checks.witness import paths_of
from lakegc_assets.engine.datasets import table_of
from lakegc_assets.engine.tasks import Tasks, bin_pack, thread_each
from lakegc_assets.graveler.ranges import read_metarange
from lakegc_assets.retention.retain import MOST_FOLDERS, prefix_of
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.table_cache import Decoded, Kind, Slot, TableCache

#: Rows: the numbers, from the first and behind the last, of entries of a range below a path.
SPANS: Final = pa.schema([("range_id", pa.string()), ("first", pa.int64()), ("behind", pa.int64())])
#: What is cached: the ranges of a metarange; and the entries in a range that follow each other in
#: one folder, as deep as rules go.
METARANGES: Final = Kind("witness_metaranges", 1, "metarange_id")
FOLDERS: Final = Kind("witness_folders", 1, "range_id")
_RANGES: Final = pa.schema(
    [
        ("range_id", pa.string()),
        ("entries", pa.int64()),
        ("min_key", pa.binary()),
        ("max_key", pa.binary()),
    ]
)
_IN_FOLDER: Final = pa.schema(
    [("folder", pa.binary()), ("first", pa.int64()), ("behind", pa.int64())]
)
#: Work on one core, in seconds: to read a metarange, and a range; and what is cached of one.
_METARANGE_S: Final = 0.01
_RANGE_S: Final = 0.1
_CACHED_S: Final = 0.001
_AT_ONCE: Final = 100
#: Rows in a file of the cache, about.
_FILE_ROWS: Final = 1_000_000
_THREADS: Final = 8


class Below(NamedTuple):
    """Entries of ranges below the paths of rules.

    Attributes:
        entries: how many each range holds in all, by the metarange's word, by its id.
        spans: ``SPANS``.
    """

    entries: Mapping[str, int]
    spans: pa.Table


class _Part(NamedTuple):
    """A range that may hold something below a path; whether all of it lies there."""

    range_id: str
    entries: int
    prefix: bytes
    whole: bool


@dataclass(frozen=True)
class _Order:
    """The input of one task."""

    connections: Connections
    kind: Kind
    #: Of tables that are cached, by id.
    slots: Mapping[str, Slot]
    #: Beginnings of paths, by the table's id.
    prefixes: Mapping[str, Sequence[bytes]]


def entries_below(
    connections: Connections, tasks: Tasks, metaranges: Mapping[str, set[str]], most: int
) -> Below:
    """Find what the ranges of some metaranges hold below paths of rules.

    ``metaranges``: ids, by the pattern of paths.

    Raises:
        IntegrityError: a metarange or range is missing or damaged.
    """
    prefixes: dict[str, list[bytes]] = {}
    for pattern, ids in metaranges.items():
        for one in ids:
            prefixes.setdefault(one, []).append(prefix_of(pattern).encode())
    orders, cost = _orders(connections, METARANGES, prefixes, _METARANGE_S, most)
    what = "check what rules of paths keep"
    parts = {part for some in tasks.run(what, _parts, orders, cost) for part in some}
    cut: dict[str, list[bytes]] = {}
    for part in sorted(parts):
        if not part.whole:
            cut.setdefault(part.range_id, []).append(part.prefix)
    orders, cost = _orders(connections, FOLDERS, cut, _RANGE_S, most)
    rows = [(part.range_id, 0, part.entries) for part in sorted(parts) if part.whole]
    rows += [span for some in tasks.run(what, _spans, orders, cost) for span in some]
    held = {row[0] for row in rows}
    entries = {part.range_id: part.entries for part in parts if part.range_id in held}
    return Below(entries, table_of(rows, SPANS))


def _orders(
    connections: Connections,
    kind: Kind,
    prefixes: Mapping[str, Sequence[bytes]],
    seconds: float,
    most: int,
) -> tuple[list[_Order], float]:
    """Inputs of the tasks, and the estimated work of all, in seconds on one core."""
    names = sorted(prefixes)
    slots = TableCache(connections.cache(), kind).compact() if names else {}
    costs = [_CACHED_S if one in slots else seconds for one in names]
    orders = [
        _Order(
            connections,
            kind,
            {one: slots[one] for one in group if one in slots},
            {one: prefixes[one] for one in group},
        )
        for group in bin_pack(names, costs, most)
    ]
    return orders, sum(costs)


def _parts(order: _Order) -> set[_Part]:
    found: set[_Part] = set()
    for metarange_id, table in _tables(order, partial(_ranges, order.connections)):
        for row in zip(*(column.to_pylist() for column in table.columns), strict=True):
            range_id, entries, first, last = row
            found |= {
                _Part(
                    range_id, entries, prefix, first.startswith(prefix) and last.startswith(prefix)
                )
                for prefix in order.prefixes[metarange_id]
                # What begins with it stands behind it, and before all that is greater in its place.
                if last >= prefix and first[: len(prefix)] <= prefix
            }
    return found


def _spans(order: _Order) -> list[tuple[str, int, int]]:
    found: list[tuple[str, int, int]] = []
    for range_id, table in _tables(order, partial(_folders, order.connections)):
        rows = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
        for prefix in order.prefixes[range_id]:
            below = [(first, behind) for of, first, behind in rows if of.startswith(prefix)]
            # Paths are in order, so those that begin alike follow each other.
            if below:
                found.append((range_id, below[0][0], below[-1][1]))
    return found


def _tables(order: _Order, read: Callable[[str], pa.Table]) -> Iterator[tuple[str, pa.Table]]:
    """Contents of tables with their ids; tables that are not cached are read and cached."""

    def decode(ids: Sequence[str]) -> Iterator[Decoded]:
        for table_id, table in thread_each(read, ids, _THREADS, _AT_ONCE):
            yield Decoded(table_id, table, {})

    cache = TableCache(order.connections.cache(), order.kind)
    missing = [one for one in order.prefixes if one not in order.slots]
    for found, _ in cache.read_or_decode(order.slots, missing, decode, _FILE_ROWS):
        yield found.table_id, found.rows


def _ranges(connections: Connections, metarange_id: str) -> pa.Table:
    url = connections.table_url(metarange_id)
    infos = read_metarange(connections.fetch_table(metarange_id), url)
    return table_of([(one.id, one.count, one.min_key, one.max_key) for one in infos], _RANGES)


def _folders(connections: Connections, range_id: str) -> pa.Table:
    url = connections.table_url(range_id)
    paths = paths_of(connections.fetch_table(range_id), url)
    rows: list[tuple[bytes, int, int]] = []
    first = 0
    for folder, some in groupby(paths, _folder):
        behind = first + sum(1 for _ in some)
        rows.append((folder, first, behind))
        first = behind
    return table_of(rows, _IN_FOLDER)


def _folder(path: bytes) -> bytes:
    """The outermost folders of a path, as many as rules may name, each with its slash."""
    parts = path.split(b"/", MOST_FOLDERS)
    return b"".join(part + b"/" for part in parts[:-1])
