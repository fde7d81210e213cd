"""Entries below the paths of rules, found independently of the mark.

The ranges of a metarange and the folders of a range are stored in a cache that only the checks use,
like the witness's. So each table is read once for this in the life of the repository.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa

from lakegc_assets.checks.witness import paths_of
from lakegc_assets.engine.datasets import table_of
from lakegc_assets.engine.ddl import schema
from lakegc_assets.engine.tasks import Tasks, thread_each
from lakegc_assets.graveler.ranges import read_metarange
from lakegc_assets.retention.retain_rules import MOST_FOLDERS, prefix_of
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.table_cache import Decoded, Kind, Slot, TableCache

T = TypeVar("T")

#: Rows: numbers of the entries of a range below a path: the first, and the one after the last.
SPANS: Final = schema("range_id string, first bigint, behind bigint")
#: Cached tables: the ranges of a metarange; and in a range the spans of consecutive entries in one
#: folder, as deep as path rules go.
METARANGES: Final = Kind("witness_metaranges", 1, "metarange_id")
FOLDERS: Final = Kind("witness_folders", 1, "range_id")
_RANGES: Final = schema("range_id string, entries bigint, min_key binary, max_key binary")
_IN_FOLDER: Final = schema("folder binary, first bigint, behind bigint")
#: Seconds of one core to read a metarange, a range, and a cached table.
_METARANGE_S: Final = 0.01
_RANGE_S: Final = 0.1
_CACHED_S: Final = 0.001
_AT_ONCE: Final = 100
_THREADS: Final = 8


class Below(NamedTuple):
    """Entries of ranges below the paths of rules."""

    #: Number of entries in each range, by range id, according to the metarange.
    entries: Mapping[str, int]
    #: Rows of ``SPANS``.
    spans: pa.Table


class _Part(NamedTuple):
    """A range that may hold entries below a path (``whole``: all of its entries are below it)."""

    range_id: str
    entries: int
    prefix: bytes
    whole: bool


#: A table: its id, its place in the cache if it is cached, and prefixes of paths.
_Table = tuple[str, Slot | None, Sequence[bytes]]


def entries_below(
    connections: Connections, tasks: Tasks, metaranges: Mapping[str, set[str]], most: int
) -> Below:
    """Find the entries in the ranges of some metaranges that lie below paths of rules.

    ``metaranges``: ids of metaranges by the pattern of paths.

    Raises:
        IntegrityError: a metarange or range is missing or damaged.
    """
    prefixes: dict[str, list[bytes]] = {}
    for pattern, ids in metaranges.items():
        for metarange_id in ids:
            prefixes.setdefault(metarange_id, []).append(prefix_of(pattern).encode())
    of = connections, tasks, most
    found = _run(*of, METARANGES, _METARANGE_S, _parts, prefixes)
    parts = set[_Part]().union(*found)
    cut: dict[str, list[bytes]] = {}
    for part in sorted(parts):
        if not part.whole:
            cut.setdefault(part.range_id, []).append(part.prefix)
    rows = [(part.range_id, 0, part.entries) for part in sorted(parts) if part.whole]
    rows += [span for spans in _run(*of, FOLDERS, _RANGE_S, _spans, cut) for span in spans]
    held = {row[0] for row in rows}
    entries = {part.range_id: part.entries for part in parts if part.range_id in held}
    return Below(entries, table_of(rows, SPANS))


def _run(
    connections: Connections,
    tasks: Tasks,
    most: int,
    kind: Kind,
    seconds: float,
    task: Callable[[Connections, Sequence[_Table]], T],
    prefixes: Mapping[str, Sequence[bytes]],
) -> list[T]:
    """Read tables in at most ``most`` tasks; ``seconds``: cost of a table that is not cached."""
    slots = TableCache(connections.cache(), kind).compact() if prefixes else {}
    tables = [(table_id, slots.get(table_id), prefixes[table_id]) for table_id in sorted(prefixes)]
    costs = [seconds if slot is None else _CACHED_S for _, slot, _ in tables]
    label = "check what rules of paths keep"
    return tasks.run_grouped(label, partial(task, connections), tables, costs, most)


def _parts(connections: Connections, tables: Sequence[_Table]) -> set[_Part]:
    found: set[_Part] = set()
    for _, prefixes, rows in _read(connections, METARANGES, _ranges, tables):
        for range_id, entries, first, last in rows:
            found |= {
                _Part(
                    range_id, entries, prefix, first.startswith(prefix) and last.startswith(prefix)
                )
                for prefix in prefixes
                # Paths with a prefix sort after it, and before all paths that are greater there.
                if last >= prefix and first[: len(prefix)] <= prefix
            }
    return found


def _spans(connections: Connections, tables: Sequence[_Table]) -> list[tuple[str, int, int]]:
    found: list[tuple[str, int, int]] = []
    for range_id, prefixes, rows in _read(connections, FOLDERS, _folders, tables):
        for prefix in prefixes:
            below = [(first, behind) for of, first, behind in rows if of.startswith(prefix)]
            # Paths are sorted, so paths with the same prefix follow each other.
            if below:
                found.append((range_id, below[0][0], below[-1][1]))
    return found


def _read(
    connections: Connections,
    kind: Kind,
    read: Callable[[Connections, str], pa.Table],
    tables: Sequence[_Table],
) -> Iterator[tuple[str, Sequence[bytes], list[tuple[Any, ...]]]]:
    """Yield ids, path prefixes and rows of tables; read and cache tables that are not cached."""

    def decode(ids: Sequence[str]) -> Iterator[Decoded]:
        for table_id, table in thread_each(partial(read, connections), ids, _THREADS, _AT_ONCE):
            yield Decoded(table_id, table, {})

    prefixes = {table_id: beginnings for table_id, _, beginnings in tables}
    slots = {table_id: slot for table_id, slot, _ in tables if slot}
    missing = [table_id for table_id in prefixes if table_id not in slots]
    cache = TableCache(connections.cache(), kind)
    for found, _ in cache.read_or_decode(slots, missing, decode):
        rows = list(zip(*(column.to_pylist() for column in found.rows.columns), strict=True))
        yield found.table_id, prefixes[found.table_id], rows


def _ranges(connections: Connections, metarange_id: str) -> pa.Table:
    url = connections.table_url(metarange_id)
    infos = read_metarange(connections.fetch_table(metarange_id), url)
    return table_of([(info.id, info.count, info.min_key, info.max_key) for info in infos], _RANGES)


def _folders(connections: Connections, range_id: str) -> pa.Table:
    url = connections.table_url(range_id)
    paths = paths_of(connections.fetch_table(range_id), url)
    rows: list[tuple[bytes, int, int]] = []
    first = 0
    for folder, in_folder in groupby(paths, _folder):
        behind = first + sum(1 for _ in in_folder)
        rows.append((folder, first, behind))
        first = behind
    return table_of(rows, _IN_FOLDER)


def _folder(path: bytes) -> bytes:
    """Return the outermost folders of a path, as many as rules may name, each with its slash."""
    parts = path.split(b"/", MOST_FOLDERS)
    return b"".join(part + b"/" for part in parts[:-1])
