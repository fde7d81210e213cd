"""Metaranges and ranges read in Spark tasks, through the cache of decoded tables."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from lakegc_assets.errors import IntegrityError
from lakegc_assets.graveler.decode import decode_range
from lakegc_assets.graveler.entry import AddressType
from lakegc_assets.graveler.ranges import read_metarange
from lakegc_assets.mark.addresses import UNUSUAL, entry_spellings
from lakegc_assets.mark.cache import DecodedCache
from lakegc_assets.run.context import Connections
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import ObjectNotFoundError

#: Ranges of metaranges: how many entries each holds by the metarange's word.
RANGES_OF = "metarange_id string, range_id string, entries long, from_cache boolean"
#: What was done for each range: its entries, and whether the cache had them.
RANGE_STATISTICS = "range_id string, entries long, from_cache boolean"
#: Entries of ranges; where ``resolved`` is false, ``address`` is the last part of a full address.
ENTRIES = (
    "range_id string, address string, resolved boolean, size long, etag_hash long, "
    "entry_modified long"
)


def spread(frame: DataFrame, most: int, rows_each: int = 1) -> DataFrame:
    """Spread rows over tasks: at most ``most``, and none with nothing to do. Counts the rows first.

    Args:
        frame: small, and read from files or cached, so that counting it is cheap.
        most: of the tasks.
        rows_each: that are worth a task.
    """
    return frame.repartition(max(1, min(most, -(-frame.count() // rows_each))))


def ranges_of(connections: Connections, metarange_ids: DataFrame, partitions: int) -> DataFrame:
    """The ranges of metaranges (``RANGES_OF``), one row for each pair.

    Args:
        connections: how tasks reach the store and the cache.
        metarange_ids: one column ``metarange_id`` without repetitions or empty ids.
        partitions: the most Spark tasks to read with.
    """
    return spread(metarange_ids, partitions).mapInArrow(
        partial(_read_metaranges, connections), RANGES_OF
    )


def decode_ranges(connections: Connections, ranges: DataFrame, partitions: int) -> DataFrame:
    """Decode the ranges that the cache lacks (``RANGE_STATISTICS``).

    Args:
        connections: how tasks reach the store and the cache.
        ranges: columns ``range_id`` and ``entries``, a row for each range.
        partitions: the most Spark tasks to read with.
    """
    return spread(ranges.select("range_id", "entries"), partitions).mapInArrow(
        partial(_decode_ranges, connections), RANGE_STATISTICS
    )


def entries_of(connections: Connections, ranges: DataFrame, partitions: int) -> DataFrame:
    """The entries of ranges (``ENTRIES``); an address counts as often as it occurs."""
    return spread(ranges.select("range_id", "entries"), partitions).mapInArrow(
        partial(_read_entries, connections), ENTRIES
    )


def _read_metaranges(
    connections: Connections, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    store, cache = connections.store(), DecodedCache(connections.cache())
    for batch in batches:
        for metarange_id in batch["metarange_id"].to_pylist():
            table = cache.get("metaranges", metarange_id)
            from_cache = table is not None
            if table is None:
                infos = read_metarange(fetch(store, connections, metarange_id), metarange_id)
                table = pa.table(
                    {
                        "range_id": pa.array([info.id for info in infos], pa.string()),
                        "entries": pa.array([info.count for info in infos], pa.int64()),
                    },
                )
                cache.put("metaranges", metarange_id, table)
            for page in table.to_batches():
                yield pa.RecordBatch.from_arrays(
                    [
                        pa.array([metarange_id] * page.num_rows, pa.string()),
                        page["range_id"],
                        page["entries"],
                        pa.array([from_cache] * page.num_rows, pa.bool_()),
                    ],
                    names=["metarange_id", "range_id", "entries", "from_cache"],
                )


def _decode_ranges(
    connections: Connections, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    store, cache = connections.store(), DecodedCache(connections.cache())
    for batch in batches:
        rows = []
        for row in batch.to_pylist():
            if cache.has("ranges", row["range_id"]):
                rows.append((row["range_id"], row["entries"], True))
                continue
            table = _decode(store, cache, connections, row["range_id"])
            _check_count(connections, row, table)
            rows.append((row["range_id"], table.num_rows, False))
        yield pa.RecordBatch.from_arrays(
            [
                pa.array([row[0] for row in rows], pa.string()),
                pa.array([row[1] for row in rows], pa.int64()),
                pa.array([row[2] for row in rows], pa.bool_()),
            ],
            names=["range_id", "entries", "from_cache"],
        )


def _read_entries(
    connections: Connections, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    store, cache = connections.store(), DecodedCache(connections.cache())
    for batch in batches:
        for row in batch.to_pylist():
            table = cache.get("ranges", row["range_id"])
            if table is None:
                table = _decode(store, cache, connections, row["range_id"])
            _check_count(connections, row, table)
            for page in table.to_batches(max_chunksize=65_536):
                yield _resolved(connections, row["range_id"], page)


def _resolved(connections: Connections, range_id: str, page: pa.RecordBatch) -> pa.RecordBatch:
    """Entries with their addresses relative to the namespace."""
    usual = pc.and_not(
        pc.equal(page["address_type"], AddressType.RELATIVE),
        pc.match_substring_regex(page["address"], UNUSUAL),
    )
    if pc.all(usual).as_py() is not False:
        addresses, resolved, kept = page["address"], [True] * page.num_rows, page
    else:
        namespace = connections.namespace()
        spelled: list[str] = []
        resolved, indices = [], []
        columns = zip(page["address"].to_pylist(), page["address_type"].to_pylist(), strict=True)
        for index, (address, address_type) in enumerate(columns):
            spellings, known = entry_spellings(namespace, address, address_type)
            # What is outside keeps its row: its size and etag tell what an upload may shadow.
            spellings = spellings or [address]
            spelled += spellings
            resolved += [known] * len(spellings)
            indices += [index] * len(spellings)
        addresses, kept = pa.array(spelled, pa.string()), page.take(pa.array(indices, pa.int64()))
    return pa.RecordBatch.from_arrays(
        [
            pa.array([range_id] * len(addresses), pa.string()),
            addresses,
            pa.array(resolved, pa.bool_()),
            kept["size"],
            kept["etag_hash"],
            kept["last_modified"],
        ],
        names=["range_id", "address", "resolved", "size", "etag_hash", "entry_modified"],
    )


def _decode(
    store: ObjectStore, cache: DecodedCache, connections: Connections, range_id: str
) -> pa.Table:
    table = pa.Table.from_batches([decode_range(fetch(store, connections, range_id), range_id)])
    cache.put("ranges", range_id, table)
    return table


def _check_count(connections: Connections, row: dict[str, object], table: pa.Table) -> None:
    if row["entries"] is not None and row["entries"] != table.num_rows:
        raise IntegrityError(
            f"range {row['range_id']} of {connections.namespace_url} holds {table.num_rows} "
            f"entries, but its metarange says {row['entries']}: the repository is damaged",
        )


def fetch(store: ObjectStore, connections: Connections, table_id: str) -> bytes:
    """The file of a range or metarange.

    Raises:
        IntegrityError: it is missing.
    """
    try:
        return store.get(f"_lakefs/{table_id}")
    except ObjectNotFoundError as error:
        raise IntegrityError(
            f"{connections.namespace_url}/_lakefs/{table_id}, which a commit needs, is missing: "
            "what that commit keeps alive cannot be known. Restore the file, then run again",
        ) from error
