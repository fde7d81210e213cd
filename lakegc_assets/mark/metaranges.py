"""The ranges of metaranges, read in tasks through the cache: all ranges, or those of some paths.

Rules of ``paths`` may keep a part of a commit that is not active. Of such a commit, a range counts
if a path between its first and its last path can begin with the prefix of a rule. The metarange has
these bounds; it is read for them once in the life of the repository.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from lakegc_assets.engine.datasets import table_of
from lakegc_assets.engine.ddl import schema
from lakegc_assets.engine.session import Session
from lakegc_assets.engine.tasks import bin_pack, thread_each
from lakegc_assets.errors import IntegrityError
from lakegc_assets.graveler.decode import DECODER_VERSION, RANGES, decode_metarange
from lakegc_assets.graveler.ranges import read_metarange
from lakegc_assets.retention.retain_rules import prefix_of
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.table_cache import Decoded, Kind, Slot, TableCache

T = TypeVar("T")
V = TypeVar("V")

#: Kinds of cached metaranges: rows of ``decode.RANGES``, or with bounds rows of ``_BOUNDS``.
KIND: Final = Kind("metaranges", DECODER_VERSION, "metarange_id")
BOUNDS_KIND: Final = Kind("metarange_bounds", DECODER_VERSION, "metarange_id")
_BOUNDS: Final = schema(RANGES, "min_key binary, max_key binary")
#: Rows: one for each range of each metarange, with the number of entries from the metarange.
_NAME: Final = pa.dictionary(pa.int32(), pa.string())
PAIRS: Final = schema([("metarange_id", _NAME)], [("range_id", _NAME)], "entries bigint")
#: The position of a range in its metarange: 0 is the begin, 1 the end.
_RANKED: Final = schema(RANGES, "rank bigint", [("position", pa.float64())])
#: Rows: one for each range and each pattern whose paths the range can hold.
PATH_RANGES: Final = schema(RANGES, "pattern string, rank bigint")
#: Rows: a range, and its number of entries from metaranges; null if no metarange names it.
COUNTED: Final = RANGES
#: Seconds of one core for a metarange that must be fetched, and for a cached one.
READ_S: Final = 0.004
CACHED_S: Final = 0.0005
_THREADS: Final = 8
_AT_ONCE: Final = 100


#: The metaranges of a task: id, slot in the cache or None, and a value for the task.
_Order = Sequence[tuple[str, Slot | None, V]]


@dataclass(frozen=True)
class RangesRead:
    """The ranges of metaranges, and the numbers of metaranges and of cached ones among them."""

    #: range_id, entries and rank: a row for each range, about in the order of paths. So ranges
    #: that share addresses, like two versions of one range, are close to each other.
    rows: pa.Table
    metaranges: int
    cached: int


def cached_metaranges(connections: Connections) -> dict[str, Slot]:
    """Slots of the metaranges that were read before."""
    return TableCache(connections.cache(), KIND).slots()


def pairs_of(
    ctx: RunContext, metarange_ids: Collection[str], range_ids: Collection[str] | None = None
) -> pa.Table:
    """A row for each range of each metarange (``PAIRS``), with dictionary-encoded ids.

    ``metarange_ids``: few ids, or many with few ``range_ids``: the result is held in memory.
    ``range_ids``: the ranges to return; None for all.

    Raises:
        IntegrityError: a metarange is missing or damaged.
    """
    only = None if range_ids is None else pa.array(sorted(range_ids), pa.string())
    values = dict.fromkeys(metarange_ids)
    tables, _ = _run(ctx, KIND, values, partial(_read_pairs, ctx.connections, only))
    rows = pa.concat_tables([PAIRS.empty_table(), *tables])
    return rows.unify_dictionaries().combine_chunks()


def pairs_frame(ctx: RunContext, frames: Session, metarange_ids: Collection[str]) -> DataFrame:
    """``metarange_id`` and ``range_id`` of each range of each metarange, for any number of them.

    Metaranges that are not cached are read first.

    Raises:
        IntegrityError: a metarange is missing or damaged, or not in the cache after it was read.
    """
    cache = TableCache(ctx.connections.cache(), KIND)
    slots = cache.compact()
    if missing := set(metarange_ids) - slots.keys():
        pairs_of(ctx, missing, ())
        slots = cache.slots()
    if missing := set(metarange_ids) - slots.keys():
        url = ctx.connections.table_url(min(missing))
        raise IntegrityError(
            f"the cache at {ctx.connections.cache_url}/{KIND.folder} lacks {url}, which was just "
            "written there: make sure that this process may list that folder and that nothing "
            "removes files from it, then run again"
        )
    chosen = {i: slots[i] for i in metarange_ids}
    kinds = schema("metarange_id string", RANGES)
    return cache.frame(frames, ctx.connections.cache_url, chosen, kinds, PAIRS.names[:2])


def ranges_of(
    ctx: RunContext, ranks: Mapping[str, int], without: pa.Array | None = None
) -> RangesRead:
    """The ranges of metaranges: range_id, entries, and the highest rank of their metaranges.

    ``ranks``: rank of each metarange, by its id.
    ``without``: ids of ranges to leave out.

    Raises:
        IntegrityError: a metarange is missing or damaged.
    """
    task = partial(_read_ranked, ctx.connections, without)
    tables, cached = _run(ctx, KIND, ranks, task)
    rows = _highest(tables, _RANKED).sort_by([("position", "ascending"), ("range_id", "ascending")])
    return RangesRead(rows.drop_columns(["position"]), len(ranks.keys() - {""}), cached)


def path_ranges(
    ctx: RunContext, ranks: Mapping[str, Mapping[str, int]], without: Collection[str] = frozenset()
) -> pa.Table:
    """The ranges of metaranges that can hold paths of patterns (``PATH_RANGES``).

    ``ranks``: rank of each metarange, by pattern; a range gets the highest rank.
    ``without``: ids of ranges to leave out, such as ranges of active commits.

    Raises:
        IntegrityError: a metarange is missing or damaged.
    """
    of_metaranges: dict[str, dict[str, int]] = {}
    for pattern, of_pattern in ranks.items():
        for table_id, rank in of_pattern.items():
            of_metaranges.setdefault(table_id, {})[pattern] = rank
    task = partial(_read_paths, ctx.connections)
    tables, _ = _run(ctx, BOUNDS_KIND, of_metaranges, task)
    keys = [("range_id", "ascending"), ("pattern", "ascending")]
    rows = _highest(tables, PATH_RANGES).sort_by(keys)
    return rows.filter(pc.invert(pc.is_in(rows["range_id"], pa.array([*without], pa.string()))))


def _run(
    ctx: RunContext, kind: Kind, values: Mapping[str, V], task: Callable[[_Order[V]], pa.Table]
) -> tuple[list[pa.Table], int]:
    """Run a task that reads metaranges; returns its results, and the number of cached metaranges.

    ``values``: a value for the task, by metarange id. A task gets all metaranges in one file of
        the cache, to read it once.
    """
    ids = sorted(values.keys() - {""})
    slots = TableCache(ctx.connections.cache(), kind).compact() if ids else {}
    of_files: dict[str, list[tuple[str, Slot | None, V]]] = {}
    for one in ids:
        slot = slots.get(one)
        of_files.setdefault(slot.file.index if slot else one, []).append((one, slot, values[one]))
    together = list(of_files.values())
    costs = [len(of_file) * (CACHED_S if of_file[0][1] else READ_S) for of_file in together]
    groups = bin_pack(together, costs, ctx.settings.range_num_partitions)
    orders = [list(chain.from_iterable(group)) for group in groups]
    found = ctx.tasks.run("read metaranges", task, orders, math.fsum(costs))
    return found, len(slots.keys() & set(ids))


def _read_pairs(connections: Connections, only: pa.Array | None, order: _Order[None]) -> pa.Table:
    """The rows of one task (``PAIRS``)."""
    found = [PAIRS.empty_table()]
    for rows, of_rows, tables in _batches(connections, order):
        ids = pa.array([table_id for table_id, _ in tables], pa.string())
        metaranges = pa.DictionaryArray.from_arrays(of_rows, ids)
        names = rows["range_id"].dictionary_encode()
        more = pa.table([metaranges, names, rows["entries"]], schema=PAIRS)
        found.append(more if only is None else more.filter(pc.is_in(rows["range_id"], only)))
    return pa.concat_tables(found).unify_dictionaries().combine_chunks()


def _read_ranked(
    connections: Connections, without: pa.Array | None, order: _Order[int]
) -> pa.Table:
    """The rows of one task (``_RANKED``), each range once."""
    found = _RANKED.empty_table()
    for rows, of_rows, tables in _batches(connections, order):
        ranks = pa.array([rank for _, rank in tables], pa.int64()).take(of_rows)
        positions = _positions(of_rows.to_numpy())
        more = pa.table([rows["range_id"], rows["entries"], ranks, positions], schema=_RANKED)
        if without is not None:
            more = more.filter(pc.invert(pc.is_in(more["range_id"], without)))
        found = _highest([found, more], _RANKED)
    return found


def _positions(of_rows: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
    """The position of each row in its metarange, from 0 to below 1.

    ``of_rows``: number of the metarange of each row; rows of one metarange are consecutive.
    """
    rows = np.bincount(of_rows)
    begins = np.cumsum(rows) - rows
    positions: npt.NDArray[np.float64] = (np.arange(len(of_rows)) - begins[of_rows]) / rows[of_rows]
    return positions


def _read_paths(connections: Connections, order: _Order[Mapping[str, int]]) -> pa.Table:
    """The rows of one task (``PATH_RANGES``): ranges that can hold paths of patterns."""
    found: list[pa.Table] = []
    for rows, (_, ranks) in _read(connections, BOUNDS_KIND, _read_bounds, order):
        bounds = list(zip(rows["min_key"].to_pylist(), rows["max_key"].to_pylist(), strict=True))
        for pattern, rank in ranks.items():
            prefix = prefix_of(pattern).encode()
            held = rows.filter(pa.array([may_hold(prefix, *one) for one in bounds], pa.bool_()))
            same = [pa.repeat(value, held.num_rows) for value in (pattern, rank)]
            columns = [held["range_id"], held["entries"], *same]
            found.append(pa.table(columns, schema=PATH_RANGES))
    return _highest(found, PATH_RANGES)


def may_hold(prefix: bytes, first: bytes, last: bytes) -> bool:
    """Return whether a path from ``first`` to ``last``, inclusive, can begin with the prefix."""
    return first[: len(prefix)] <= prefix <= last


def _highest(tables: Sequence[pa.Table], schema: pa.Schema) -> pa.Table:
    """Each range once per pattern, with its highest rank in the tables."""
    rows = pa.concat_tables([schema.empty_table(), *tables])
    values = [name for name in schema.names if name in {"entries", "rank", "position"}]
    keys = [name for name in schema.names if name not in values]
    grouped = rows.group_by(keys).aggregate([(name, "max") for name in values])
    found = {name: grouped[name if name in keys else f"{name}_max"] for name in schema.names}
    return pa.table(found, schema=schema)


def _batches(
    connections: Connections, order: _Order[V]
) -> Iterator[tuple[pa.Table, pa.Array, list[tuple[str, V]]]]:
    """The rows of metaranges in batches, so that memory is bounded and few files are held.

    Yields:
        Rows (``RANGES``), the number of the metarange of each row, and id and value of each.
    """
    tables = _read(connections, KIND, _decode, order)
    while batch := _take(tables, KIND.file_rows):
        lengths = [rows.num_rows for rows, _ in batch]
        numbers = np.repeat(np.arange(len(batch), dtype=np.int32), lengths)
        rows = pa.concat_tables([rows.select(RANGES.names) for rows, _ in batch])
        yield rows, pa.array(numbers), [table for _, table in batch]


def _take(tables: Iterator[tuple[pa.Table, T]], at_least: int) -> list[tuple[pa.Table, T]]:
    """The next tables with at least so many rows together, or all that remain."""
    found, rows = list[tuple[pa.Table, T]](), 0
    for table in tables:
        found.append(table)
        rows += table[0].num_rows
        if rows >= at_least:
            break
    return found


def _read(
    connections: Connections,
    kind: Kind,
    decode: Callable[[bytes, str], pa.Table],
    order: _Order[V],
) -> Iterator[tuple[pa.Table, tuple[str, V]]]:
    """Contents of metaranges, with id and value of each; those not cached are fetched."""
    get = connections.fetch_table

    def decoded(ids: Sequence[str]) -> Iterator[Decoded]:
        for table_id, data in thread_each(get, ids, _THREADS, _AT_ONCE):
            url = connections.table_url(table_id)
            yield Decoded(table_id, decode(data, url), {})

    values = {table_id: value for table_id, _, value in order}
    cached = {table_id: slot for table_id, slot, _ in order if slot}
    missing = [table_id for table_id in values if table_id not in cached]
    cache = TableCache(connections.cache(), kind)
    for found, _ in cache.read_or_decode(cached, missing, decoded):
        yield found.rows, (found.table_id, values[found.table_id])


def _decode(data: bytes, url: str) -> pa.Table:
    return pa.Table.from_batches([decode_metarange(data, url)])


def _read_bounds(data: bytes, url: str) -> pa.Table:
    rows = [(one.id, one.count, one.min_key, one.max_key) for one in read_metarange(data, url)]
    return table_of(rows, _BOUNDS)


def each_once(rows: pa.Table) -> pa.Table:
    """Each range once (``COUNTED``)."""
    found = rows.group_by("range_id").aggregate([("entries", "max")])
    return pa.table([found["range_id"].cast(pa.string()), found["entries_max"]], schema=COUNTED)


def uncounted(range_ids: Iterable[str]) -> pa.Table:
    """Ranges with an unknown number of entries (``COUNTED``)."""
    return table_of(((range_id, None) for range_id in range_ids), COUNTED)


def require_in_full(connections: Connections, table_id: str, data: bytes) -> None:
    """Require that ``data`` is the whole file: only a damaged file may be passed over.

    Raises:
        IntegrityError: the answer was cut, or the file has changed.
    """
    store, key = connections.store(), f"_lakefs/{table_id}"
    if len(data) != store.head(key).size or store.get(key) != data:
        raise IntegrityError(
            f"{connections.table_url(table_id)} was not read in full, or is written now: run again"
        )
