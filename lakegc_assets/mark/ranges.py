"""The entries of ranges as hashes of the addresses that they keep alive, through the cache.

An entry has a row for every relative address that it may mean. A row has the hash of the address,
the size, the hash of the etag, and the folders of the path. Size and etag show an upload that the
entry may shadow. The etag hash is 0 for an etag that says nothing about the content: it is no MD5,
or another store gave it. Tasks decode ranges that are not cached. Then relations read the cache
itself, which is a dataset.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from math import fsum
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from lakegc_assets.engine.ddl import schema
from lakegc_assets.engine.session import Session
from lakegc_assets.engine.tasks import pack_in_order, thread_each
from lakegc_assets.errors import IntegrityError
from lakegc_assets.graveler.decode import DECODER_VERSION, FOLDER_DEPTH, decode_paths
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.mark.addresses import are_plain, entry_spellings
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import address_hashes, key_digest, signed
from lakegc_assets.run.table_cache import Decoded, Kind, Slot, TableCache, forget_damaged

R = TypeVar("R")

#: Kind of cached ranges, and its columns.
KIND: Final = Kind("ranges", DECODER_VERSION, "range_id", file_rows=2_000_000)
ROWS: Final = schema(
    f"{KIND.id_column} string, hash bigint, size bigint, etag_hash bigint",
    # The outermost folders of the path, with a slash at the end; empty at the root.
    "folder string",
)
#: Seconds of one core to fetch a range, to decode an entry, and to read a cached entry.
_FETCH_S: Final = 0.02
_DECODE_S: Final = 1.5e-6
CACHED_S: Final = 3e-8
_THREADS: Final = 8


class Wanted(NamedTuple):
    """A range to read."""

    range_id: str
    #: Number of entries, from the metarange; None if no metarange names the range.
    entries: int | None
    #: Place in the cache; None if the range is not cached.
    slot: Slot | None


def cached_ranges(connections: Connections) -> dict[str, Slot]:
    """Slots of the ranges that were decoded before."""
    return TableCache(connections.cache(), KIND).slots()


def cache_ranges(
    ctx: RunContext, ranges: pa.Table, *, strict: bool = True
) -> tuple[dict[str, Slot], dict[str, IntegrityError]]:
    """Decode the ranges that are not cached, in tasks, and cache them.

    ``ranges``: range_id and entries; entries are null if no metarange names the range.
    ``strict``: whether a damaged range is an error; else it is noted, and the others are read.

    Returns:
        Slots of the ranges, and the errors of damaged ranges, by range id.

    Raises:
        IntegrityError: a range is missing, damaged, incomplete, or was not read.
    """
    slots = TableCache(ctx.connections.cache(), KIND).compact() if ranges.num_rows else {}
    all_wanted = wanted(ranges, slots)
    missing = [one for one in all_wanted if one.slot is None]
    task = partial(read_into_cache, ctx.connections, strict)
    written = run_on_ranges(ctx, "decode ranges", task, missing)
    new = {i: slot for slots_of_task, _ in written for i, slot in slots_of_task.items()}
    damaged = {i: error for _, errors in written for i, error in errors.items()}
    found: dict[str, Slot] = {}
    for one in all_wanted:
        slot = one.slot or new.get(one.range_id)
        if slot is not None:
            require_whole(ctx.connections, one, slot.rows, slot.facts)
            found[one.range_id] = slot
        elif one.range_id not in damaged:
            raise IntegrityError(
                f"range {ctx.connections.table_url(one.range_id)} was not read: the objects that "
                "it names would count as dead. This is a fault of lakegc: please report it, with "
                "the log of this run and the range",
            )
    return found, damaged


def read_into_cache(
    connections: Connections,
    strict: bool,  # noqa: FBT001 - given to tasks by its place
    ranges: Sequence[Wanted],
) -> tuple[dict[str, Slot], dict[str, IntegrityError]]:
    """Decode ranges into the cache; returns their slots, and the errors of damaged ranges."""
    damaged: dict[str, IntegrityError] = {}
    cache = TableCache(connections.cache(), KIND)
    decoded = _decode(connections, ranges, None if strict else damaged)
    return {one.table_id: slot for one, slot in cache.write_all(decoded)}, damaged


def wanted(ranges: pa.Table, slots: Mapping[str, Slot]) -> list[Wanted]:
    """Ranges (range_id, entries) with their slots in the cache."""
    columns = (ranges[name].to_pylist() for name in ("range_id", "entries"))
    return [Wanted(i, entries, slots.get(i)) for i, entries in zip(*columns, strict=True)]


def seconds(one: Wanted) -> float:
    """Estimated seconds of one core to read a range."""
    if one.slot is not None:
        return one.slot.rows * CACHED_S
    # A range without a metarange is assumed to have lakeFS's usual size.
    return _FETCH_S + (50_000 if one.entries is None else one.entries) * _DECODE_S


def run_on_ranges(
    ctx: RunContext, what: str, task: Callable[[list[Wanted]], R], ranges: Sequence[Wanted]
) -> list[R]:
    """Run a task for ranges; a task gets all ranges in one file of the cache, to read it once.

    A task gets consecutive ranges: it writes an address once that several of these name.
    """
    files: dict[str, list[Wanted]] = {}
    for one in ranges:
        files.setdefault(one.slot.file.index if one.slot else one.range_id, []).append(one)
    together = list(files.values())
    costs = [fsum(map(seconds, of_file)) for of_file in together]
    groups = pack_in_order(together, costs, ctx.settings.address_num_partitions)
    orders = [list(chain.from_iterable(group)) for group in groups]
    return ctx.tasks.run(what, task, orders, fsum(costs))


def read_entries(
    connections: Connections,
    ranges: Sequence[Wanted],
    columns: Sequence[str],
    damaged: dict[str, IntegrityError] | None = None,
) -> Iterator[tuple[Decoded, bool]]:
    """Read columns of ranges, with True for a cached one. Other ranges are decoded and cached.

    ``damaged``: receives the error of a range that cannot be read; None to raise the error.

    Raises:
        IntegrityError: a range is missing, damaged, or differs in length from its metarange.
    """
    of_ids = {one.range_id: one for one in ranges}
    slots = {i: one.slot for i, one in of_ids.items() if one.slot is not None}

    def decode(ids: Sequence[str]) -> Iterator[Decoded]:
        return _decode(connections, [of_ids[i] for i in ids], damaged)

    cache, missing = TableCache(connections.cache(), KIND), of_ids.keys() - slots.keys()
    tables = cache.read_or_decode(slots, sorted(missing), decode, columns)
    for found, is_cached in tables:
        require_whole(connections, of_ids[found.table_id], found.rows.num_rows, found.facts)
        yield found, is_cached


def require_length(connections: Connections, one: Wanted, entries: int) -> None:
    """Require that a range holds as many entries as its metarange says.

    Raises:
        IntegrityError: the numbers differ.
    """
    if one.entries not in {None, entries}:
        raise IntegrityError(
            f"range {connections.table_url(one.range_id)} holds {entries} entries, but its "
            f"metarange says {one.entries}: one of the two files is damaged. Restore it, for "
            "example from an earlier version in the object store, then run again"
        )


def require_whole(
    connections: Connections, one: Wanted, rows: int, facts: Mapping[str, Any]
) -> None:
    """Require that all entries of a range are known.

    Raises:
        IntegrityError: entries are missing.
    """
    entries = facts["entries"]
    require_length(connections, one, entries)
    if rows < entries:
        # Every entry has at least one row.
        raise IntegrityError(
            f"{rows} rows are known of the {entries} entries of range {one.range_id}: the cache at "
            f"{connections.cache_url}/{KIND.folder} is damaged. Remove this folder, which a run "
            "makes anew, then run again",
        )


def _decode(
    connections: Connections,
    missing: Sequence[Wanted],
    damaged: dict[str, IntegrityError] | None,
) -> Iterator[Decoded]:
    namespace = connections.namespace()

    def get(one: Wanted) -> bytes | IntegrityError:
        try:
            return connections.fetch_table(one.range_id)
        except IntegrityError as error:
            return error

    for one, data in thread_each(get, missing, _THREADS):
        try:
            if isinstance(data, IntegrityError):
                raise data
            url = connections.table_url(one.range_id)
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
    """Convert the entries of a range into the columns of the cache.

    ``entries``: from ``decode_range``.
    ``folders``: of the entries' paths; None leaves the column out.
    """
    addresses = entries["address"]
    usual = are_plain(addresses, entries["address_type"]).to_numpy(zero_copy_only=False)
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
            # Another store gave this etag, and a copy in this store keeps it: it says nothing here.
            etags[index] = 0
        # An object outside also has a row: an upload may be served in its place, known by its size.
        spellings = spellings or [address]
        spelled += spellings
        indices += [int(index)] * len(spellings)
    rows = np.concatenate([np.flatnonzero(usual), np.array(indices, np.int64)])
    more = address_hashes(pa.array(spelled, pa.string()))
    signatures = pa.table({"size": entries["size"], "etag_hash": etags}).take(pa.array(rows))
    of_rows = signed(np.concatenate([hashes[usual], more]))
    columns = {"hash": of_rows, "size": signatures["size"], "etag_hash": signatures["etag_hash"]}
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


def range_frame(
    ctx: RunContext, frames: Session, ranges: pa.Table, columns: Sequence[str]
) -> DataFrame:
    """The entries of ranges, all of these ranges and no others, as a data frame.

    Ranges that are not cached, or that are damaged in the cache, are decoded first.

    ``ranges``: range_id and entries; entries are null if no metarange names the range.
    ``columns``: of ``ROWS``; ``hash`` has the type of ``hashing.HASHES``.

    Raises:
        IntegrityError: a range is missing, damaged or incomplete.
    """
    return _frame(ctx, frames, columns, lambda: cache_ranges(ctx, ranges)[0])[0]


def cached_frame(
    ctx: RunContext, frames: Session, range_ids: Collection[str], columns: Sequence[str]
) -> tuple[DataFrame, frozenset[str]]:
    """The entries of cached ranges among ``range_ids``, and the ids of these; none is decoded.

    Raises:
        IntegrityError: the cache is damaged again and again.
    """

    def find() -> dict[str, Slot]:
        cached = cached_ranges(ctx.connections)
        return {i: slot for i, slot in cached.items() if i in range_ids}

    return _frame(ctx, frames, columns, find)


def _frame(
    ctx: RunContext, frames: Session, columns: Sequence[str], find: Callable[[], Mapping[str, Slot]]
) -> tuple[DataFrame, frozenset[str]]:
    """Cached entries and the ids of their ranges; ``find`` runs again after damage in the cache."""
    cache = TableCache(ctx.connections.cache(), KIND)
    # A lazy engine computes the frame later, when damaged ranges cannot be decoded any more.
    late = frames.compares_late(ctx.connections.cache_url)
    most = ctx.settings.address_num_partitions
    forget = partial(forget_damaged, ctx.tasks, ctx.connections, KIND, most=most)
    while True:
        slots = find()
        if late and forget(slots.values()):
            continue
        try:
            frame = cache.frame(frames, ctx.connections.cache_url, slots, ROWS, columns)
        except IntegrityError:
            if not forget(slots.values()):
                raise
        else:
            return frame, frozenset(slots)
