"""Which entries of ranges lie below the paths of rules, found by the checks' own look at both."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from lakegc_assets.checks.witness import paths_of
from lakegc_assets.checks.witness_cache import fetch, table_url
from lakegc_assets.engine.tasks import Tasks, bin_pack, thread_map
from lakegc_assets.graveler.ranges import read_metarange
from lakegc_assets.retention.retain import prefix_of
from lakegc_assets.run.connections import Connections

#: Rows: the numbers, from the first and behind the last, of the entries of a range below a path.
SPANS: Final = pa.schema([("range_id", pa.string()), ("first", pa.int64()), ("behind", pa.int64())])
#: Work on one core, in seconds: to fetch and read a metarange, and a range.
_METARANGE_S: Final = 0.01
_RANGE_S: Final = 0.1
_THREADS: Final = 8


class Below(NamedTuple):
    """What ranges hold below paths of rules.

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


def entries_below(
    connections: Connections, tasks: Tasks, metaranges: Mapping[str, set[str]], most: int
) -> Below:
    """Find what the ranges of some metaranges hold below paths of rules.

    Args:
        connections: how tasks reach the store.
        tasks: runs them.
        metaranges: ids, by the pattern of paths.
        most: of the tasks.

    Raises:
        IntegrityError: a metarange or range is missing or damaged.
    """
    prefixes: dict[str, list[bytes]] = {}
    for pattern, ids in metaranges.items():
        for one in ids:
            prefixes.setdefault(one, []).append(prefix_of(pattern).encode())
    names = sorted(prefixes)
    orders = [
        (connections, {one: prefixes[one] for one in group})
        for group in bin_pack(names, [_METARANGE_S] * len(names), most)
    ]
    what = "check what rules of paths keep"
    found = tasks.run(what, _parts, orders, _METARANGE_S * len(names))
    parts = sorted({part for some in found for part in some})
    cut = [part for part in parts if not part.whole]
    groups = bin_pack(cut, [_RANGE_S] * len(cut), most)
    spans = tasks.run(what, _spans, [(connections, group) for group in groups], _RANGE_S * len(cut))
    rows = [(part.range_id, 0, part.entries) for part in parts if part.whole]
    rows += [span for some in spans for span in some]
    columns = list(zip(*rows, strict=True)) or [()] * len(SPANS)
    arrays = [pa.array(c, f.type) for c, f in zip(columns, SPANS, strict=True)]
    held = {row[0] for row in rows}
    entries = {part.range_id: part.entries for part in parts if part.range_id in held}
    return Below(entries, pa.Table.from_arrays(arrays, schema=SPANS))


def _parts(order: tuple[Connections, Mapping[str, Sequence[bytes]]]) -> set[_Part]:
    connections, prefixes = order

    def read(metarange_id: str) -> set[_Part]:
        data = fetch(connections, metarange_id)
        infos = read_metarange(data, table_url(connections, metarange_id))
        return {
            _Part(
                info.id,
                info.count,
                prefix,
                info.min_key.startswith(prefix) and info.max_key.startswith(prefix),
            )
            for info in infos
            for prefix in prefixes[metarange_id]
            # What begins with it stands behind it, and before all that is greater in its place.
            if info.max_key >= prefix and info.min_key[: len(prefix)] <= prefix
        }

    found = thread_map(read, list(prefixes), _THREADS)
    return {part for some in found for part in some}


def _spans(order: tuple[Connections, Sequence[_Part]]) -> list[tuple[str, int, int]]:
    connections, parts = order

    def read(part: _Part) -> tuple[str, int, int]:
        data, url = fetch(connections, part.range_id), table_url(connections, part.range_id)
        paths = paths_of(data, url, range(part.entries))
        first = bisect_left(paths, part.prefix)
        length = len(part.prefix)
        behind = bisect_left(paths, True, first, key=lambda path: path[:length] != part.prefix)
        return part.range_id, first, behind

    return [span for span in thread_map(read, parts, _THREADS) if span[1] < span[2]]
