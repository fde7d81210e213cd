"""The entries of ranges, as hashes of the addresses that they keep alive, through the cache.

Each entry has a row for every relative address that it may mean: the hash of the address, and the
size and the hash of the etag, by which an upload is known that it may shadow (0 for an etag that
says nothing about the content: no MD5, or given by another store); and the folders of its path.
What is not cached is decoded by tasks; then relations read the cache itself, which is a dataset.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from lakegc_assets.engine.session import Session
from lakegc_assets.engine.spark_session import SparkBackedSession
from lakegc_assets.engine.tasks import bin_pack, thread_each
from lakegc_assets.errors import IntegrityError
from lakegc_assets.graveler.decode import DECODER_VERSION, decode_paths
from lakegc_assets.graveler.entry import AddressType
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.graveler.paths import FOLDER_DEPTH
from lakegc_assets.mark.addresses import UNUSUAL, entry_spellings
from lakegc_assets.mark.metaranges import fetch, table_url
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import address_hashes, key_digest, signed, unsigned
from lakegc_assets.run.table_cache import CacheFile, Decoded, Kind, Slot, TableCache, by_file

#: What is cached of ranges, and its columns.
KIND: Final = Kind("ranges", DECODER_VERSION, "range_id")
ROWS: Final = pa.schema(
    [
        (KIND.id_column, pa.string()),
        ("hash", pa.int64()),
        ("size", pa.int64()),
        ("etag_hash", pa.int64()),
        # The outermost folders of the path, with a slash at the end; empty at the root.
        ("folder", pa.string()),
    ]
)
#: Columns that are read together: the hashes, and what the shadow rule compares.
HASHES: Final = ("hash",)
LOOKS: Final = ("size", "etag_hash")
#: Work on one core, in seconds: to fetch a range, to decode an entry, to read a cached one.
_FETCH_S: Final = 0.02
_DECODE_S: Final = 1.5e-6
CACHED_S: Final = 3e-8
_THREADS: Final = 8
#: Rows in a file of the cache, about: what a reader holds at a time.
_FILE_ROWS: Final = 2_000_000


class Wanted(NamedTuple):
    """A range to read.

    Attributes:
        range_id: its id.
        entries: how many it holds, by the metarange's word; None where nobody says.
        slot: where it is cached; None where it is not.
    """

    range_id: str
    entries: int | None
    slot: Slot | None


@dataclass(frozen=True)
class Entries:
    """The entries of a range.

    Attributes:
        range_id: its id.
        group: the columns that were asked for; hashes are unsigned.
        entries: how many it holds.
        digest: ``KeyDigest`` of its addresses as they stand in it, as text.
        unresolved: last path components of full addresses that nobody can place.
        from_cache: whether it was decoded before.
    """

    range_id: str
    group: pa.Table
    entries: int
    digest: str
    unresolved: Sequence[str]
    from_cache: bool


def cached_ranges(connections: Connections) -> dict[str, Slot]:
    """Slots of the ranges that were decoded before."""
    return TableCache(connections.cache(), KIND).slots()


@dataclass(frozen=True)
class CachedRanges:
    """Ranges whose entries are cached."""

    slots: Mapping[str, Slot]
    #: Ids of those that were not cached before.
    decoded: frozenset[str]
    damaged: Mapping[str, IntegrityError]


def cache_ranges(
    ctx: RunContext, connections: Connections, ranges: pa.Table, *, strict: bool = True
) -> CachedRanges:
    """Decode those of some ranges that are not cached, in tasks, and cache them.

    ``ranges``: range_id and entries; these are null where no metarange names the range.
    ``strict``: whether a damaged range is an error; else it is noted, and the others are read.

    Raises:
        IntegrityError: a range is missing or damaged, is not known in full, or was not read.
    """
    slots = TableCache(connections.cache(), KIND).compact() if ranges.num_rows else {}
    all_wanted = wanted(ranges, slots)
    missing = [one for one in all_wanted if one.slot is None]
    orders = spread_ranges(missing, ctx.settings.address_num_partitions)
    task = partial(_cache_order, connections, strict)
    written = ctx.tasks.run("decode ranges", task, orders, sum(map(seconds, missing)))
    new = {i: slot for slots_of_task, _ in written for i, slot in slots_of_task.items()}
    damaged = {i: error for _, errors in written for i, error in errors.items()}
    found: dict[str, Slot] = {}
    for one in all_wanted:
        slot = one.slot or new.get(one.range_id)
        if slot is not None:
            require_whole(connections, one, slot.rows, slot.facts)
            found[one.range_id] = slot
        elif one.range_id not in damaged:
            raise IntegrityError(
                f"range {one.range_id} of {connections.namespace_url} was not read: what it holds "
                "would be taken for dead. This is a fault of the mark, please report it",
            )
    return CachedRanges(found, frozenset(new), damaged)


def _cache_order(
    connections: Connections,
    strict: bool,  # noqa: FBT001 - given to tasks by its place
    ranges: Sequence[Wanted],
) -> tuple[dict[str, Slot], dict[str, IntegrityError]]:
    damaged: dict[str, IntegrityError] = {}
    cache = TableCache(connections.cache(), KIND)
    decoded = _decode(connections, ranges, None if strict else damaged)
    return {one.table_id: slot for one, slot in cache.write_all(decoded, _FILE_ROWS)}, damaged


def wanted(ranges: pa.Table, slots: Mapping[str, Slot]) -> list[Wanted]:
    """Ranges (range_id, entries) with the places where they are cached."""
    columns = (ranges[name].to_pylist() for name in ("range_id", "entries"))
    return [Wanted(i, entries, slots.get(i)) for i, entries in zip(*columns, strict=True)]


def seconds(one: Wanted) -> float:
    """About how much work a range is, on one core."""
    if one.slot is not None:
        return one.slot.rows * CACHED_S
    # A range without a metarange is taken for one of lakeFS's usual size.
    return _FETCH_S + (50_000 if one.entries is None else one.entries) * _DECODE_S


def by_files(ranges: Sequence[Wanted]) -> list[list[Wanted]]:
    """Ranges that are read together: those of one file of the cache."""
    files: dict[str, list[Wanted]] = {}
    for one in ranges:
        files.setdefault(one.slot.file.index if one.slot else one.range_id, []).append(one)
    return list(files.values())


def spread_ranges(ranges: Sequence[Wanted], most: int) -> list[list[Wanted]]:
    """Ranges for tasks; those of one file stay together, since it is read as a whole."""
    groups = by_files(ranges)
    spreaded = bin_pack(groups, [sum(map(seconds, group)) for group in groups], most)
    return [[one for group in groups for one in group] for groups in spreaded]


def read_entries(
    connections: Connections,
    ranges: Sequence[Wanted],
    group: Sequence[str],
    damaged: dict[str, IntegrityError] | None = None,
) -> Iterator[Entries]:
    """Some columns of some ranges; what is not cached is decoded, and cached.

    ``ranges``: to read.
    ``damaged``: takes what is wrong with a range that cannot be read, in place of an error.

    Raises:
        IntegrityError: a range is missing, damaged, or not of the length that its metarange says.
    """
    of_ids = {one.range_id: one for one in ranges}
    slots = {i: one.slot for i, one in of_ids.items() if one.slot is not None}

    def decode(ids: Sequence[str]) -> Iterator[Decoded]:
        return _decode(connections, [of_ids[i] for i in ids], damaged)

    cache, missing = TableCache(connections.cache(), KIND), of_ids.keys() - slots.keys()
    tables = cache.read_or_decode(slots, sorted(missing), decode, _FILE_ROWS, group)
    for found, from_cache in tables:
        require_whole(connections, of_ids[found.table_id], found.rows.num_rows, found.facts)
        yield _entries(found, from_cache=from_cache)


def _entries(found: Decoded, *, from_cache: bool) -> Entries:
    rows = found.rows
    if "hash" in rows.column_names:
        rows = rows.set_column(rows.column_names.index("hash"), "hash", [unsigned(rows["hash"])])
    entries, digest, unresolved = (found.facts[n] for n in ("entries", "digest", "unresolved"))
    return Entries(found.table_id, rows, entries, digest, unresolved, from_cache)


def require_whole(
    connections: Connections, one: Wanted, rows: int, facts: Mapping[str, Any]
) -> None:
    """Require that a range is known in full.

    Raises:
        IntegrityError: it is not.
    """
    entries = facts["entries"]
    if one.entries is not None and one.entries != entries:
        raise IntegrityError(
            f"range {one.range_id} of {connections.namespace_url} holds {entries} "
            f"entries, but its metarange says {one.entries}: the repository is damaged",
        )
    if rows < entries:
        # Every entry has at least one row.
        raise IntegrityError(
            f"{rows} rows are known of the {entries} entries of range "
            f"{one.range_id}: what is cached at {connections.cache_url} is not whole. Remove it",
        )


def _decode(
    connections: Connections,
    missing: Sequence[Wanted],
    damaged: dict[str, IntegrityError] | None,
) -> Iterator[Decoded]:
    store, namespace = connections.store(), connections.namespace()

    def get(one: Wanted) -> bytes | IntegrityError:
        try:
            return fetch(store, connections.namespace_url, one.range_id)
        except IntegrityError as error:
            return error

    for one, data in thread_each(get, missing, _THREADS):
        try:
            if isinstance(data, IntegrityError):
                raise data
            url = table_url(connections.namespace_url, one.range_id)
            entries, paths = decode_paths(data, url)
        except IntegrityError as error:
            if damaged is None:
                raise
            damaged[one.range_id] = error
            continue
        decoded = decode(namespace, one.range_id, entries, paths.folders(FOLDER_DEPTH))
        require_whole(connections, one, decoded.rows.num_rows, decoded.facts)
        yield decoded


def decode(
    namespace: StorageNamespace,
    range_id: str,
    entries: pa.RecordBatch,
    folders: pa.DictionaryArray | None = None,
) -> Decoded:
    """Decode the columns of a range that are cached.

    ``entries``: as ``decode_range`` gives them.
    ``folders``: of their paths; without them the rows have none.
    """
    addresses = entries["address"]
    usual = pc.and_not(
        pc.equal(entries["address_type"], AddressType.RELATIVE),
        pc.match_substring_regex(addresses, UNUSUAL),
    ).to_numpy(zero_copy_only=False)
    hashes = address_hashes(addresses)
    odd = np.flatnonzero(~usual)
    spelled: list[str] = []
    indices: list[int] = []
    unresolved: set[str] = set()
    etags = entries["etag_hash"].to_numpy().copy()
    types = entries["address_type"]
    for index in odd:
        address = addresses[int(index)].as_py()
        spellings, known = entry_spellings(namespace, address, types[int(index)].as_py())
        if not known:
            unresolved.update(spellings)
        if not known or not spellings:
            # The etag of another store, which a copy in this one keeps, says nothing here.
            etags[index] = 0
        # What is outside keeps its row: its size tells what an upload may shadow.
        spellings = spellings or [address]
        spelled += spellings
        indices += [int(index)] * len(spellings)
    rows = np.concatenate([np.flatnonzero(usual), np.array(indices, np.int64)])
    more = address_hashes(pa.array(spelled, pa.string()))
    looks = pa.table({"size": entries["size"], "etag_hash": etags}).take(pa.array(rows))
    of_rows = signed(np.concatenate([hashes[usual], more]))
    columns = {"hash": of_rows, "size": looks["size"], "etag_hash": looks["etag_hash"]}
    if folders is not None:
        columns["folder"] = folders.take(pa.array(rows))
    return Decoded(
        range_id,
        pa.table(columns),
        {
            "entries": entries.num_rows,
            "digest": str(key_digest(addresses)),
            "unresolved": sorted(unresolved),
        },
    )


#: Rows of files that are verified here, since starting tasks takes longer.
_FEW_ROWS: Final = 100_000


def range_frame(
    ctx: RunContext,
    connections: Connections,
    frames: Session,
    ranges: pa.Table,
    columns: Sequence[str],
) -> DataFrame:
    """The entries of some ranges, all of them and no others, as a data frame.

    What is not cached is decoded first, and so is what is damaged in the cache.

    ``ranges``: range_id and entries; these are null where no metarange names the range.
    ``columns``: of ``ROWS``; ``hash`` is as ``hashing.HASHES`` has it.

    Raises:
        IntegrityError: a range is missing or damaged, or is not known in full.
    """
    cache = TableCache(connections.cache(), KIND)
    ids = set(ranges["range_id"].to_pylist())
    while True:
        cached = cache_ranges(ctx, connections, ranges)
        slots = {i: cached.slots[i] for i in ids}
        # Spark compares files when the frame is computed, which is too late to decode them anew.
        late = isinstance(frames, SparkBackedSession)
        if not (late and _forget_damaged(ctx, connections, slots.values())):
            try:
                return cache.frame(frames, connections.cache_url, slots, ROWS, columns)
            except IntegrityError:
                if not _forget_damaged(ctx, connections, slots.values()):
                    raise


def cached_frame(
    ctx: RunContext,
    connections: Connections,
    frames: Session,
    range_ids: Collection[str],
    columns: Sequence[str],
) -> tuple[DataFrame, frozenset[str]]:
    """The entries of those of some ranges that are cached, and which these are; none is decoded.

    Raises:
        IntegrityError: the cache is damaged again and again.
    """
    cache = TableCache(connections.cache(), KIND)
    late = isinstance(frames, SparkBackedSession)
    while True:
        slots = {i: slot for i, slot in cache.slots().items() if i in range_ids}
        if not (late and _forget_damaged(ctx, connections, slots.values())):
            try:
                found = cache.frame(frames, connections.cache_url, slots, ROWS, columns)
            except IntegrityError:
                if not _forget_damaged(ctx, connections, slots.values()):
                    raise
            else:
                return found, frozenset(slots)


def _forget_damaged(ctx: RunContext, connections: Connections, slots: Iterable[Slot]) -> bool:
    """Forget the files of some ranges that are not what they were; whether there are any."""
    files = [file for file, _ in by_file(slots)]
    rows = sum(file.part.rows for file in files)
    task = partial(_damaged, connections)
    if rows <= _FEW_ROWS:
        found = [task(files)]
    else:
        costs = [file.part.rows * CACHED_S for file in files]
        orders = bin_pack(files, costs, ctx.settings.address_num_partitions)
        found = ctx.tasks.run("verify cached ranges", task, orders, sum(costs))
    return any(found)


def _damaged(connections: Connections, files: Sequence[CacheFile]) -> bool:
    cache = TableCache(connections.cache(), KIND)
    # All of them, so that each that is damaged is forgotten.
    return None in [cache.read(file, [], []) for file in files]
