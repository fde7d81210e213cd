"""The ranges of metaranges, read in tasks through the cache."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from lakegc_assets.engine.session import Session
from lakegc_assets.engine.tasks import bin_pack, thread_map
from lakegc_assets.errors import IntegrityError
from lakegc_assets.graveler.decode import DECODER_VERSION, RANGES, decode_metarange
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.table_cache import Decoded, Kind, Slot, TableCache, by_file
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import ObjectNotFoundError

#: What is cached of metaranges; the rows are ``decode.RANGES``.
KIND: Final = Kind("metaranges", DECODER_VERSION, "metarange_id")
#: Rows: one for each range of each metarange, with how many entries the metarange says it holds.
PAIRS: Final = pa.schema(
    [("metarange_id", pa.string()), ("range_id", pa.string()), ("entries", pa.int64())]
)
#: Work of one metarange on one core, in seconds: that is to be fetched and read, and that is not.
READ_S: Final = 0.004
CACHED_S: Final = 0.0005
_THREADS: Final = 8
#: Rows in a file of the cache, about.
_FILE_ROWS: Final = 1_000_000


@dataclass(frozen=True)
class _Order:
    """The input of one task.

    Attributes:
        connections: how to reach the store and the cache.
        slots: of metaranges that are cached, by id.
        missing: ids of the others.
        without: ranges that are of no interest.
        pairs: whether a row for each metarange and range is wanted, or only one for each range.
        ranks: what is told of a range is the highest rank of its metaranges.
    """

    connections: Connections
    slots: Mapping[str, Slot]
    missing: Sequence[str]
    without: pa.Array | None
    pairs: bool
    ranks: Mapping[str, int]


@dataclass(frozen=True)
class RangesRead:
    """The ranges of some metaranges.

    Attributes:
        rows: ``PAIRS``; or range_id, entries and rank, a row for each range.
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
    ctx: RunContext, connections: Connections, metarange_ids: Collection[str]
) -> RangesRead:
    """A row for each range of each metarange (``PAIRS``), for metaranges that are few.

    Raises:
        IntegrityError: one is missing or damaged.
    """
    return _read(ctx, connections, dict.fromkeys(metarange_ids, 0), pairs=True)


def pairs_frame(
    ctx: RunContext, connections: Connections, frames: Session, metarange_ids: Collection[str]
) -> DataFrame:
    """``metarange_id`` and ``range_id`` of each range of each metarange, however many these are.

    Args:
        ctx: the run.
        connections: how tasks reach the store and the cache.
        frames: the session.
        metarange_ids: of the metaranges; those that are not cached are read.

    Raises:
        IntegrityError: one is missing or damaged, or is not cached although it was read.
    """
    cache = TableCache(connections.cache(), KIND)
    slots = cache.compact()
    if missing := set(metarange_ids) - slots.keys():
        pairs_of(ctx, connections, missing)
        slots = cache.slots()
    if missing := set(metarange_ids) - slots.keys():
        url = table_url(connections.namespace_url, min(missing))
        raise IntegrityError(
            f"{connections.cache_url} does not hold {url}, which was just read: remove the cache, "
            "and try again"
        )
    chosen = {i: slots[i] for i in metarange_ids}
    return cache.frame(frames, connections.cache_url, chosen, PAIRS, PAIRS.names[:2])


def ranges_of(
    ctx: RunContext,
    connections: Connections,
    ranks: Mapping[str, int],
    without: pa.Array | None = None,
) -> RangesRead:
    """The ranges of metaranges: range_id, entries, and the highest rank of those that hold it.

    Args:
        ctx: the run.
        connections: how tasks reach the store and the cache.
        ranks: a number for each metarange.
        without: ids of ranges that are of no interest.

    Raises:
        IntegrityError: a metarange is missing or damaged.
    """
    return _read(ctx, connections, ranks, without=without)


def _read(
    ctx: RunContext,
    connections: Connections,
    ranks: Mapping[str, int],
    without: pa.Array | None = None,
    *,
    pairs: bool = False,
) -> RangesRead:
    ids = sorted(ranks.keys() - {""})
    slots = TableCache(connections.cache(), KIND).compact() if ids else {}
    costs = [CACHED_S if i in slots else READ_S for i in ids]
    orders = [
        _Order(
            connections,
            {i: slots[i] for i in group if i in slots},
            [i for i in group if i not in slots],
            without,
            pairs,
            {i: ranks[i] for i in group},
        )
        for group in bin_pack(ids, costs, ctx.settings.range_num_partitions)
    ]
    tables = ctx.tasks.run("read metaranges", _read_order, orders, sum(costs))
    empty = _rows([], pairs=pairs)
    rows = pa.concat_tables([empty, *tables])
    if not pairs:
        rows = _one_each(rows)
    return RangesRead(rows, len(ids), sum(1 for i in ids if i in slots))


def _read_order(order: _Order) -> pa.Table:
    rows = _rows(list(_tables(order)), order.ranks, pairs=order.pairs)
    if order.without is not None:
        rows = rows.filter(pc.invert(pc.is_in(rows["range_id"], order.without)))
    return rows if order.pairs else _one_each(rows)


def _rows(
    tables: Sequence[tuple[str, pa.Table]],
    ranks: Mapping[str, int] | None = None,
    *,
    pairs: bool,
) -> pa.Table:
    """Rows of several metaranges as one table, without repetitions where pairs are not wanted."""
    named = [
        table.append_column(
            *(
                ("metarange_id", pa.array([table_id] * table.num_rows, pa.string()))
                if pairs
                else ("rank", pa.array([(ranks or {})[table_id]] * table.num_rows, pa.int64()))
            )
        )
        for table_id, table in tables
    ]
    label = pa.field("metarange_id", pa.string()) if pairs else pa.field("rank", pa.int64())
    schema = pa.schema([*RANGES, label])
    found = pa.concat_tables([schema.empty_table(), *named])
    return found.select(PAIRS.names) if pairs else found


def _one_each(rows: pa.Table) -> pa.Table:
    grouped = rows.group_by("range_id").aggregate([("entries", "max"), ("rank", "max")])
    return grouped.rename_columns(["range_id", "entries", "rank"])


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
    cache, missing = TableCache(connections.cache(), kind), list(missing)
    ids = {id(slot): table_id for table_id, slot in cached.items()}
    for file, slots in by_file(cached.values()):
        tables = cache.read(file, slots)
        found = [ids[id(slot)] for slot in slots]
        if tables is None:
            missing += found
        else:
            yield from zip(found, tables, strict=True)
    store = connections.store()
    waiting: list[Decoded] = []
    for at in range(0, len(missing), 100):
        some = missing[at : at + 100]
        for table_id, data in zip(
            some,
            thread_map(partial(fetch, store, connections.namespace_url), some, _THREADS),
            strict=True,
        ):
            table = decode(data, table_url(connections.namespace_url, table_id))
            yield table_id, table
            waiting.append(Decoded(table_id, table, {}))
        if sum(d.rows.num_rows for d in waiting) >= _FILE_ROWS:
            cache.write(waiting)
            waiting = []
    if waiting:
        cache.write(waiting)


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

    Args:
        store: rooted at the namespace.
        namespace_url: of the repository.
        table_id: of the file.
        data: that was read of it.

    Raises:
        IntegrityError: the answer was cut, or the file is another one now.
    """
    key = f"_lakefs/{table_id}"
    if len(data) != store.head(key).size or store.get(key) != data:
        raise IntegrityError(
            f"{table_url(namespace_url, table_id)} was not read in full, or is written now: run "
            "again"
        )
