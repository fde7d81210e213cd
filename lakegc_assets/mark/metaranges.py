"""The ranges of metaranges, read in tasks through the cache: all of them, or those of some paths.

Of commits that are not active what lies below some paths may stay, since rules of ``paths`` say so.
Of their ranges those count whose paths, from the first to the last, can begin with what a rule
names; a metarange tells that, and is read for it once in the life of the repository.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from lakegc_assets.engine.datasets import table_of
from lakegc_assets.engine.session import Session
from lakegc_assets.engine.tasks import bin_pack, thread_each
from lakegc_assets.errors import IntegrityError
from lakegc_assets.graveler.decode import DECODER_VERSION, RANGES, decode_metarange
from lakegc_assets.graveler.ranges import read_metarange
from lakegc_assets.retention.retain import prefix_of
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.table_cache import Decoded, Kind, Slot, TableCache
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import ObjectNotFoundError

#: What is cached of metaranges; the rows are ``decode.RANGES``.
KIND: Final = Kind("metaranges", DECODER_VERSION, "metarange_id")
#: Rows: one for each range of each metarange, with how many entries the metarange says it holds.
_NAME: Final = pa.dictionary(pa.int32(), pa.string())
PAIRS: Final = pa.schema([("metarange_id", _NAME), ("range_id", _NAME), ("entries", pa.int64())])
_RANKED: Final = pa.schema([*RANGES, ("rank", pa.int64())])
#: Rows: a range, and how many entries metaranges say it holds; null where none names it.
COUNTED: Final = pa.schema([("range_id", pa.string()), ("entries", pa.int64())])
#: Work of one metarange on one core, in seconds: that is to be fetched and read, and that is not.
READ_S: Final = 0.004
CACHED_S: Final = 0.0005
_THREADS: Final = 8
_AT_ONCE: Final = 100
#: Rows in a file of the cache, about.
_FILE_ROWS: Final = 1_000_000


@dataclass(frozen=True)
class _Order:
    """The input of one task."""

    connections: Connections
    #: Of metaranges that are cached, by id.
    slots: Mapping[str, Slot]
    #: Ids of the others.
    missing: Sequence[str]
    #: Ranges that are of no interest.
    without: pa.Array | None
    #: The ranges that are of interest; None for all.
    only: pa.Array | None
    #: Whether a row for each metarange and range is wanted, or only one for each range.
    pairs: bool
    #: A range gets the highest rank of its metaranges.
    ranks: Mapping[str, int]


@dataclass(frozen=True)
class RangesRead:
    """The ranges of some metaranges.

    Attributes:
        rows: range_id, entries and rank, a row for each range; or ``PAIRS``.
        metaranges: how many were read.
        cached: how many of these came from the cache.
    """

    rows: pa.Table
    metaranges: int
    cached: int


def cached_metaranges(connections: Connections) -> dict[str, Slot]:
    """Slots of the metaranges that were read before."""
    return TableCache(connections.cache(), KIND).slots()


def pairs_of(
    ctx: RunContext,
    connections: Connections,
    metarange_ids: Collection[str],
    range_ids: Collection[str] | None = None,
) -> pa.Table:
    """A row for each range of each metarange (``PAIRS``), its ids encoded by dictionaries.

    ``metarange_ids``: of the metaranges: few, or many of which only some ranges are asked for.
    ``range_ids``: of the ranges that are asked for; None for all.

    Raises:
        IntegrityError: a metarange is missing or damaged.
    """
    only = None if range_ids is None else pa.array(sorted(range_ids), pa.string())
    ranks = dict.fromkeys(metarange_ids, 0)
    return _read(ctx, connections, ranks, only=only, pairs=True).rows


def pairs_frame(
    ctx: RunContext, connections: Connections, frames: Session, metarange_ids: Collection[str]
) -> DataFrame:
    """``metarange_id`` and ``range_id`` of each range of each metarange, however many these are.

    ``metarange_ids``: of the metaranges; those that are not cached are read.

    Raises:
        IntegrityError: one is missing or damaged, or is not cached although it was read.
    """
    cache = TableCache(connections.cache(), KIND)
    slots = cache.compact()
    if missing := set(metarange_ids) - slots.keys():
        pairs_of(ctx, connections, missing, ())
        slots = cache.slots()
    if missing := set(metarange_ids) - slots.keys():
        url = table_url(connections.namespace_url, min(missing))
        raise IntegrityError(
            f"{connections.cache_url} does not hold {url}, which was just read: remove the cache, "
            "and try again"
        )
    chosen = {i: slots[i] for i in metarange_ids}
    kinds = pa.schema([("metarange_id", pa.string()), *RANGES])
    return cache.frame(frames, connections.cache_url, chosen, kinds, PAIRS.names[:2])


def ranges_of(
    ctx: RunContext,
    connections: Connections,
    ranks: Mapping[str, int],
    without: pa.Array | None = None,
) -> RangesRead:
    """The ranges of metaranges: range_id, entries, and the highest rank of those that hold it.

    ``ranks``: a number for each metarange.
    ``without``: ids of ranges that are of no interest.

    Raises:
        IntegrityError: a metarange is missing or damaged.
    """
    return _read(ctx, connections, ranks, without=without)


def _read(
    ctx: RunContext,
    connections: Connections,
    ranks: Mapping[str, int],
    without: pa.Array | None = None,
    only: pa.Array | None = None,
    *,
    pairs: bool = False,
) -> RangesRead:
    ids = sorted(ranks.keys() - {""})
    slots = TableCache(connections.cache(), KIND).compact() if ids else {}
    orders = [
        _Order(
            connections,
            {i: slots[i] for i in group if i in slots},
            [i for i in group if i not in slots],
            without,
            only,
            pairs,
            {i: ranks[i] for i in group},
        )
        for group in _groups(ids, slots, ctx.settings.range_num_partitions)
    ]
    seconds = math.fsum(CACHED_S if i in slots else READ_S for i in ids)
    tables = ctx.tasks.run("read metaranges", _read_order, orders, seconds)
    rows = pa.concat_tables([(PAIRS if pairs else _RANKED).empty_table(), *tables])
    rows = rows.unify_dictionaries().combine_chunks() if pairs else _highest(rows)
    return RangesRead(rows, len(ids), sum(1 for i in ids if i in slots))


def _groups(ids: Sequence[str], slots: Mapping[str, Slot], most: int) -> list[list[str]]:
    """Ids of the metaranges of each task; those in one file go together, so it is read once."""
    of_files: dict[str, list[str]] = {}
    for table_id in ids:
        slot = slots.get(table_id)
        of_files.setdefault(slot.file.index if slot else table_id, []).append(table_id)
    together = list(of_files.values())
    costs = [len(some) * (CACHED_S if some[0] in slots else READ_S) for some in together]
    return [list(chain.from_iterable(group)) for group in bin_pack(together, costs, most)]


def _read_order(order: _Order) -> pa.Table:
    """The rows of one task (``PAIRS`` or ``_RANKED``); of others it holds a file at a time."""
    tables = _tables(order)
    found = (PAIRS if order.pairs else _RANKED).empty_table()
    while some := _take(tables, _FILE_ROWS):
        more = _joined(some)
        if order.without is not None:
            more = more.filter(pc.invert(pc.is_in(more["range_id"], order.without)))
        if order.only is not None:
            more = more.filter(pc.is_in(more["range_id"], order.only))
        if order.pairs:
            found = pa.concat_tables([found, _encoded(more)]).unify_dictionaries().combine_chunks()
        else:
            found = _highest(pa.concat_tables([found, _ranked(more, order.ranks)]))
    return found


def _take(tables: Iterator[tuple[str, pa.Table]], at_least: int) -> list[tuple[str, pa.Table]]:
    """The next tables that have so many rows together, or the last ones."""
    found, rows = list[tuple[str, pa.Table]](), 0
    for table_id, table in tables:
        found.append((table_id, table))
        rows += table.num_rows
        if rows >= at_least:
            break
    return found


def _joined(tables: Sequence[tuple[str, pa.Table]]) -> pa.Table:
    """Rows of several metaranges, with the id of each."""
    numbers = np.repeat(
        np.arange(len(tables), dtype=np.int32), [table.num_rows for _, table in tables]
    )
    ids = pa.array([table_id for table_id, _ in tables], pa.string())
    of_rows = pa.DictionaryArray.from_arrays(pa.array(numbers), ids)
    rows = pa.concat_tables([table for _, table in tables])
    return rows.select(RANGES.names).append_column("metarange_id", of_rows)


def _encoded(rows: pa.Table) -> pa.Table:
    names = rows["range_id"].dictionary_encode()
    return pa.table([rows["metarange_id"], names, rows["entries"]], schema=PAIRS)


def _ranked(rows: pa.Table, ranks: Mapping[str, int]) -> pa.Table:
    of_rows = rows["metarange_id"].combine_chunks()
    by_number = pa.array([ranks[i] for i in of_rows.dictionary.to_pylist()], pa.int64())
    return pa.table(
        [rows["range_id"], rows["entries"], by_number.take(of_rows.indices)], schema=_RANKED
    )


def _highest(rows: pa.Table) -> pa.Table:
    """Each range once, with the highest rank that it has in some rows."""
    grouped = rows.group_by("range_id").aggregate([("entries", "max"), ("rank", "max")])
    return grouped.rename_columns(_RANKED.names)


def _tables(order: _Order) -> Iterator[tuple[str, pa.Table]]:
    return read_tables(order.connections, KIND, order.slots, order.missing, _decode)


def _decode(data: bytes, url: str) -> pa.Table:
    return pa.Table.from_batches([decode_metarange(data, url)])


def read_tables(
    connections: Connections,
    kind: Kind,
    cached: Mapping[str, Slot],
    missing: Sequence[str],
    decode: Callable[[bytes, str], pa.Table],
) -> Iterator[tuple[str, pa.Table]]:
    """Contents of metaranges with their ids; those that are not cached are read and cached.

    Args:
        connections: how to reach the store and the cache.
        kind: of what is cached.
        cached: where that is, by the metarange's id.
        missing: ids of the others.
        decode: what is cached of a file that has a name.

    Raises:
        IntegrityError: a metarange is missing or damaged.
    """
    get = partial(fetch, connections.store(), connections.namespace_url)

    def decoded(ids: Sequence[str]) -> Iterator[Decoded]:
        for table_id, data in thread_each(get, ids, _THREADS, _AT_ONCE):
            url = table_url(connections.namespace_url, table_id)
            yield Decoded(table_id, decode(data, url), {})

    cache = TableCache(connections.cache(), kind)
    for found, _ in cache.read_or_decode(cached, missing, decoded, _FILE_ROWS):
        yield found.table_id, found.rows


def each_once(rows: pa.Table) -> pa.Table:
    """Each range once (``COUNTED``)."""
    found = rows.group_by("range_id").aggregate([("entries", "max")])
    return pa.table([found["range_id"].cast(pa.string()), found["entries_max"]], schema=COUNTED)


def uncounted(range_ids: Iterable[str]) -> pa.Table:
    """Ranges of which nobody says how many entries they hold (``COUNTED``)."""
    return table_of(((range_id, None) for range_id in range_ids), COUNTED)


def table_url(namespace_url: str, table_id: str) -> str:
    """The URL of the file of a range or metarange: its name in messages."""
    return f"{namespace_url}/_lakefs/{table_id}"


def fetch(store: ObjectStore, namespace_url: str, table_id: str) -> bytes:
    """The file of a range or metarange.

    Raises:
        IntegrityError: it is missing.
    """
    try:
        return store.get(f"_lakefs/{table_id}")
    except ObjectNotFoundError as error:
        raise IntegrityError(
            f"{table_url(namespace_url, table_id)}, which a commit needs, is missing: "
            "what that commit keeps alive cannot be known. Restore the file, then run again",
        ) from error


def require_in_full(store: ObjectStore, namespace_url: str, table_id: str, data: bytes) -> None:
    """Require that a file is what an answer had: only real damage may be passed over.

    Raises:
        IntegrityError: the answer was cut, or the file is another one now.
    """
    key = f"_lakefs/{table_id}"
    if len(data) != store.head(key).size or store.get(key) != data:
        raise IntegrityError(
            f"{table_url(namespace_url, table_id)} was not read in full, or is written now: run "
            "again"
        )


#: What is cached of metaranges, and its columns.
BOUNDS_KIND: Final = Kind("metarange_bounds", DECODER_VERSION, "metarange_id")
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
_RANKED_PATHS: Final = PATH_RANGES.append(pa.field("rank", pa.int64()))

#: The values of a row of ``PATH_RANGES``.
_Row = tuple[str, int, str]


@dataclass(frozen=True)
class _PathOrder:
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
        return _RANKED_PATHS.empty_table()
    names = sorted(of_metaranges)
    slots = TableCache(connections.cache(), BOUNDS_KIND).compact()
    costs = [CACHED_S if i in slots else READ_S for i in names]
    orders = [
        _PathOrder(
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
    return table_of([(*row, rank) for row, rank in sorted(highest.items())], _RANKED_PATHS)


def _find(order: _PathOrder) -> dict[_Row, int]:
    found: dict[_Row, int] = {}
    tables = read_tables(order.connections, BOUNDS_KIND, order.slots, order.missing, _read_bounds)
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


def _read_bounds(data: bytes, url: str) -> pa.Table:
    rows = [(one.id, one.count, one.min_key, one.max_key) for one in read_metarange(data, url)]
    return table_of(rows, _BOUNDS)
