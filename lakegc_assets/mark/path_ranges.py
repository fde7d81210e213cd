"""The ranges of which only what lies below some paths is alive, since rules of ``paths`` say so.

The commits that these rules are about are not active, so that all else in their ranges may be dead.
Of these ranges those are read whose paths, from the first to the last, can begin with what a rule
names; a metarange tells that, and is read for it once in the life of the repository.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.datasets import table_of
from lakegc_assets.engine.tasks import bin_pack
from lakegc_assets.graveler.decode import DECODER_VERSION
from lakegc_assets.graveler.ranges import read_metarange
from lakegc_assets.mark.live_ranges import RANGES, Live, read_live
from lakegc_assets.mark.metaranges import CACHED_S, COUNTED, READ_S, read_tables
from lakegc_assets.retention.retain import prefix_of
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import KeyDigest
from lakegc_assets.run.table_cache import Kind, Slot, TableCache
from lakegc_assets.storage.base import ObjectStore

#: What is cached of metaranges, and its columns.
KIND: Final = Kind("metarange_bounds", DECODER_VERSION, "metarange_id")
_BOUNDS: Final = pa.schema(
    [
        ("range_id", pa.string()),
        ("entries", pa.int64()),
        ("min_key", pa.binary()),
        ("max_key", pa.binary()),
    ]
)
#: Rows: one for each range and each pattern that it can hold paths of, each once.
PATH_RANGES: Final = pa.schema(
    [("range_id", pa.string()), ("entries", pa.int64()), ("pattern", pa.string())]
)
_RANKED: Final = PATH_RANGES.append(pa.field("rank", pa.int64()))

#: The values of a row of ``PATH_RANGES``.
_Row = tuple[str, int, str]


@dataclass(frozen=True)
class _Order:
    """The input of one task."""

    connections: Connections
    slots: Mapping[str, Slot]
    missing: Sequence[str]
    #: A number for each pattern of paths, by the metarange's id.
    ranks: Mapping[str, Mapping[str, int]]


def path_ranges(
    ctx: RunContext,
    connections: Connections,
    metaranges: Mapping[str, Collection[str]],
    without: Collection[str] = frozenset(),
) -> pa.Table:
    """The ranges of some metaranges that can hold paths of some patterns (``PATH_RANGES``).

    ``metaranges``: ids of metaranges, by the pattern.
    ``without``: ids of ranges that are of no interest, as those of active commits.

    Raises:
        IntegrityError: a metarange is missing or damaged.
    """
    ranks = {pattern: dict.fromkeys(ids, 0) for pattern, ids in metaranges.items()}
    rows = ranked_path_ranges(ctx, connections, ranks)
    wanted = pc.invert(pc.is_in(rows["range_id"], pa.array(sorted(without), pa.string())))
    return rows.filter(wanted).select(PATH_RANGES.names)


def ranked_path_ranges(
    ctx: RunContext, connections: Connections, ranks: Mapping[str, Mapping[str, int]]
) -> pa.Table:
    """The same with the highest rank of the metaranges that have the range (column ``rank``).

    ``ranks``: a number for each metarange, by the pattern.

    Raises:
        IntegrityError: a metarange is missing or damaged.
    """
    of_metaranges: dict[str, dict[str, int]] = {}
    for pattern, of_pattern in ranks.items():
        for table_id, rank in of_pattern.items():
            of_metaranges.setdefault(table_id, {})[pattern] = rank
    if not of_metaranges:
        return _RANKED.empty_table()
    names = sorted(of_metaranges)
    slots = TableCache(connections.cache(), KIND).compact()
    costs = [CACHED_S if i in slots else READ_S for i in names]
    orders = [
        _Order(
            connections,
            {i: slots[i] for i in group if i in slots},
            [i for i in group if i not in slots],
            {i: of_metaranges[i] for i in group},
        )
        for group in bin_pack(names, costs, ctx.settings.range_num_partitions)
    ]
    found = ctx.tasks.run("find ranges of paths", _find, orders, sum(costs))
    highest: dict[_Row, int] = {}
    for part in found:
        _keep_highest(highest, part)
    return table_of([(*row, rank) for row, rank in sorted(highest.items())], _RANKED)


def read_path_ranges(
    ctx: RunContext,
    connections: Connections,
    ranges: pa.Table,
    artifacts: ObjectStore,
    folder: str,
) -> Live:
    """The addresses that ranges name below paths, as ``live.read_live`` gives them.

    Of full addresses that nobody can place all of a range count.

    ``ranges``: ``PATH_RANGES``.

    Raises:
        IntegrityError: a range is missing or damaged, or was not read.
    """
    if not ranges.num_rows:
        return Live((), RANGES.empty_table(), (), KeyDigest())
    below: dict[str, list[str]] = {}
    entries: dict[str, int] = {}
    for row in ranges.to_pylist():
        below.setdefault(row["range_id"], []).append(prefix_of(row["pattern"]))
        entries[row["range_id"]] = row["entries"]
    wanted = table_of(entries.items(), COUNTED)
    return read_live(ctx, connections, wanted, artifacts, folder, below=below)


def _find(order: _Order) -> dict[_Row, int]:
    found: dict[_Row, int] = {}
    tables = read_tables(order.connections, KIND, order.slots, order.missing, _bounds)
    for table_id, rows in tables:
        for row in zip(*(rows[name].to_pylist() for name in _BOUNDS.names), strict=True):
            range_id, entries, first, last = row
            held = {
                (range_id, entries, pattern): rank
                for pattern, rank in order.ranks[table_id].items()
                if may_hold(prefix_of(pattern).encode(), first, last)
            }
            _keep_highest(found, held)
    return found


def _keep_highest(found: dict[_Row, int], more: Mapping[_Row, int]) -> None:
    for row, rank in more.items():
        found[row] = max(rank, found.get(row, rank))


def may_hold(prefix: bytes, first: bytes, last: bytes) -> bool:
    """Return whether a path between two others, or one of these, can begin with a prefix."""
    return first[: len(prefix)] <= prefix <= last


def _bounds(data: bytes, url: str) -> pa.Table:
    rows = [(one.id, one.count, one.min_key, one.max_key) for one in read_metarange(data, url)]
    return table_of(rows, _BOUNDS)
