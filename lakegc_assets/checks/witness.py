"""A second reader of ranges, fast enough to read every HEAD before every sweep, and its cache.

It uses the frame of the slow reader (``graveler.sstable``: footer, properties, index, checksums),
and decodes entries in a loop of its own. It shares no code with the decoder of the mark. If the two
disagree about the addresses in a range, the run stops.

Each range is witnessed once in its life. The cache belongs to the witness only: tables of the kind
``witness``, whose SHA-256 is verified on every read. The contents are verified, too: the number of
entries against the metarange, and the digest of the addresses against that of the mark's reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import fsum
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from lakegc_assets.checks import witness_kernels as kernels
from lakegc_assets.engine.ddl import schema
from lakegc_assets.engine.session import Session
from lakegc_assets.engine.tasks import Tasks, pack_in_order, thread_each
from lakegc_assets.errors import IntegrityError
from lakegc_assets.graveler.entry import AddressType
from lakegc_assets.graveler.errors import FormatError
from lakegc_assets.graveler.namespace import StorageNamespace, UnresolvableAddressError
from lakegc_assets.graveler.sstable import Blocks, read_blocks
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.table_cache import Decoded, Kind, Slot, TableCache

#: A row for each relative address that an entry may mean, or a row with null if it means none.
ENTRIES: Final = schema(
    "range_id string",
    # Number of the entry in its range, from 0.
    "number bigint",
    # Null if the entry means no address in the namespace, or if its meaning is unclear.
    "address string",
    # Time of modification in microseconds since 1970.
    "modified bigint, size bigint",
    # Null if the etag is no MD5, or if the object is outside of the namespace.
    "etag string",
)
#: Columns of ``ENTRIES`` that show the named addresses, with their sizes and earliest times.
NAMED: Final = ("address", "modified", "size")
_MD5: Final = "^[0-9a-f]{32}$"
#: Bytes of an entry in a block: lengths, the key's kind, and lengths within the value.
_SMALLEST_ENTRY: Final = 13
#: Most seconds that fit into an int64 of microseconds.
_MOST_SECONDS: Final = 9_000_000_000_000

_Bytes = npt.NDArray[np.uint8]
_Longs = npt.NDArray[np.int64]
#: Seconds of one core to fetch a range, and to witness an entry.
_FETCH_S: Final = 0.02
_WITNESS_S: Final = 2e-6
_THREADS: Final = 8


def named(entries: pa.Table) -> pa.Table:
    """Return the addresses that entries name, once for each size, with their earliest time.

    ``entries``: the columns of ``NAMED``, and optionally more. The result has the columns of
    ``NAMED``. It answers the same as all entries: is an address named, is it named with another
    size, and is it named by an entry from before some time. A null address names nothing.
    """
    placed = entries.select(NAMED)
    # Nearly always no address is null, and a filter would copy all addresses of a file.
    if placed["address"].null_count:
        placed = placed.filter(placed["address"].is_valid())
    least = placed.group_by(["address", "size"], use_threads=False).aggregate([("modified", "min")])
    return least.select(["address", "modified_min", "size"]).rename_columns(NAMED)


#: Cached entries of ranges. Raise the number when the form or the meaning of ``ENTRIES`` changes.
KIND: Final = Kind("witness", 7, "range_id", summarize=named)


def witness(data: bytes, range_id: str, namespace: StorageNamespace) -> Decoded:
    """Decode the entries of a range.

    ``range_id``: id of the range, for errors.

    Returns:
        ``ENTRIES`` without the range's id, in the order of the entries. The facts are ``entries``,
        and ``digest``: of the addresses as written in the entries, in the form of the mark's.

    Raises:
        FormatError: the file is damaged, truncated, or no range. The content id is not verified
            here: the mark verifies it.
    """
    text, _, fields = _fields(read_blocks(data, range_id), range_id)
    count = len(fields.size)
    addresses = _texts(text, fields.address_at, fields.address_end)
    try:
        addresses.validate(full=True)
    except pa.ArrowInvalid as error:
        raise FormatError(range_id, 0, f"an address is not UTF-8: {error}") from None
    numbers, meant = _meant(addresses.cast(pa.string()), fields.address_type, namespace)
    etags = _texts(text, fields.etag_at, fields.etag_end, pa.large_binary())
    # An object outside of the namespace may have the etag of another store.
    is_md5 = pc.and_(pc.match_substring_regex(etags, _MD5).take(numbers), meant.is_valid())
    seconds = np.clip(fields.seconds, -_MOST_SECONDS, _MOST_SECONDS)
    rows = numbers.to_numpy()
    columns = {
        "number": numbers,
        "address": meant,
        "modified": (seconds * 1_000_000 + fields.nanos // 1000)[rows],
        "size": fields.size[rows],
        "etag": pc.if_else(is_md5, etags.take(numbers), None).cast(pa.string()),
    }
    first, second = kernels.digest(text, fields.address_at, fields.address_end)
    facts = {"entries": count, "digest": f"{count}-{int(first):016x}{int(second):016x}"}
    return Decoded(range_id, pa.table(columns, schema=ENTRIES.remove(0)), facts)


def paths_of(data: bytes, range_id: str, numbers: Sequence[int] | None = None) -> list[bytes]:
    """Return the paths of some entries of a range.

    ``range_id``: id of the range, for errors.
    ``numbers``: numbers of entries as in ``ENTRIES``, distinct and sorted; None for all entries.

    Raises:
        FormatError: as ``witness``; or the range has no such entry.
    """
    text, starts, fields = _fields(read_blocks(data, range_id), range_id)
    wanted = np.zeros(len(fields.size), np.bool_)
    if numbers is None:
        numbers = range(len(wanted))
    if numbers and not 0 <= numbers[0] <= numbers[-1] < len(wanted):
        raise FormatError(range_id, 0, f"it has no entry {numbers[-1]}")
    wanted[np.array(numbers, np.int64)] = True
    ends = np.empty(int(wanted.sum()), np.int64)
    key = np.empty(int(np.diff(starts).max(initial=0)), np.uint8)
    kernels.copy_keys(text, starts, wanted, key, np.empty(0, np.uint8), ends)
    copied = np.empty(ends[-1] if len(ends) else 0, np.uint8)
    kernels.copy_keys(text, starts, wanted, key, copied, ends)
    begins = [0, *ends.tolist()]
    return [bytes(copied[a:b]) for a, b in pairwise(begins)]


def _texts(text: _Bytes, begins: _Longs, ends: _Longs, kind: pa.DataType | None = None) -> pa.Array:
    """Return the substrings of a text between pairs of positions, without a check of UTF-8."""
    offsets = np.zeros(len(begins) + 1, np.int64)
    np.cumsum(ends - begins, out=offsets[1:])
    copied = np.empty(offsets[-1], np.uint8)
    kernels.copy_spans(text, begins, ends, copied)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(copied)]
    return pa.Array.from_buffers(kind or pa.large_string(), len(begins), buffers)


def _meant(
    addresses: pa.Array, types: _Longs, namespace: StorageNamespace
) -> tuple[pa.Array, pa.Array]:
    """Return pairs of the number of an entry and a relative address that the entry may mean."""
    usual = pa.array(types == AddressType.RELATIVE)
    by_prefix = types == AddressType.BY_PREFIX_DEPRECATED
    if by_prefix.any():
        plain = pc.invert(pc.match_substring(addresses, ":"))
        usual = pc.or_(usual, pc.and_(pa.array(by_prefix), plain))
    numbers = pa.array(np.arange(len(addresses)))
    if pc.all(usual, min_count=0).as_py():
        return numbers, addresses
    odd = [
        (number, meaning)
        for number in numbers.filter(pc.invert(usual)).to_pylist()
        for meaning in meanings(
            namespace, addresses[number].as_py(), AddressType(int(types[number]))
        )
    ]
    more = pa.array([number for number, _ in odd], pa.int64())
    spelled = pa.array([meaning for _, meaning in odd], pa.string())
    rows = pa.concat_arrays([numbers.filter(usual), more])
    meant = pa.concat_arrays([addresses.filter(usual), spelled])
    order = pc.sort_indices(rows)
    return rows.take(order), meant.take(order)


def _fields(blocks: Blocks, range_id: str) -> tuple[_Bytes, _Longs, kernels.Fields]:
    """Return the joined blocks, their starts, and the positions of the fields of all entries."""
    text = np.frombuffer(b"".join(blocks.payloads), np.uint8)
    sizes = [len(payload) for payload in blocks.payloads]
    starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).astype(np.int64)
    claimed = blocks.properties.get("count", b"")
    # A damaged file may claim any count: allocate no memory that its size does not justify.
    if not claimed.isdigit() or int(claimed) > len(text) // _SMALLEST_ENTRY:
        raise FormatError(range_id, 0, f"it cannot hold {claimed!r} entries")
    fields = kernels.Fields(*(np.empty(int(claimed), np.int64) for _ in kernels.Fields._fields))
    key = np.empty(max(sizes, default=0), np.uint8)
    code, block, found, length = kernels.walk(text, starts, key, fields)
    if code != kernels.FINE:
        raise FormatError(range_id, blocks.offsets[block], kernels.REASONS[code])
    if found != int(claimed):
        raise FormatError(
            range_id, 0, f"it holds {found} entries, and its properties say {int(claimed)}"
        )
    last = bytes(key[: max(length - 8, 0)])
    if blocks.properties.get("max_key", b"") != last:
        raise FormatError(range_id, 0, f"its last key is {last!r}, and its properties say another")
    return text, starts, fields


def meanings(
    namespace: StorageNamespace, address: str, address_type: AddressType
) -> list[str | None]:
    """Return every relative address that an entry may mean; None if it has none or is unclear."""
    try:
        return [*sorted(namespace.resolve(address, address_type))] or [None]
    except UnresolvableAddressError:
        return [None]


@dataclass(frozen=True)
class Witnessed:
    """Ranges that were witnessed, and the places of their entries in the cache."""

    connections: Connections
    slots: Mapping[str, Slot]

    def digests(self) -> dict[str, str]:
        """Return the digest of the addresses in each range, as written there, by range id."""
        return {range_id: str(slot.facts["digest"]) for range_id, slot in self.slots.items()}

    def frame(
        self,
        frames: Session,
        range_ids: Iterable[str],
        columns: Sequence[str],
        *,
        summarized: bool = False,
    ) -> DataFrame:
        """Return the entries of the given ranges, and of no others.

        ``summarized``: only the addresses that they name, as in ``witness.named``.

        Raises:
            IntegrityError: the cache is damaged, here or when the frame is computed.
        """
        slots = {range_id: self.slots[range_id] for range_id in range_ids}
        cache, url = TableCache(self.connections.cache(), KIND), self.connections.cache_url
        return cache.frame(frames, url, slots, ENTRIES, columns, summarized=summarized)


def witnessed(
    connections: Connections, tasks: Tasks, entries: Mapping[str, int], most: int
) -> Witnessed:
    """Witness ranges in tasks; ranges that were witnessed before are taken from the cache.

    ``entries``: number of entries in each range, by range id, according to the metarange. Ranges
    that name nearly the same addresses should follow each other, since they share a file.

    Raises:
        IntegrityError: a range is missing or damaged, or its metarange has another count.
    """
    slots = TableCache(connections.cache(), KIND).compact() if entries else {}
    missing = [range_id for range_id in entries if range_id not in slots]
    costs = [_FETCH_S + entries[range_id] * _WITNESS_S for range_id in missing]
    task, groups = partial(_witness_and_cache, connections), pack_in_order(missing, costs, most)
    for new in tasks.run("check what HEADs hold", task, groups, fsum(costs)):
        slots |= new
    for range_id, count in entries.items():
        found = slots[range_id].facts["entries"]
        if found != count:
            raise IntegrityError(
                f"{connections.table_url(range_id)} holds {found} entries, and a metarange that "
                f"names it says {count}: one of the two is damaged. Restore it from a copy of the "
                "bucket, then run again",
            )
    return Witnessed(connections, {range_id: slots[range_id] for range_id in entries})


def _witness_and_cache(connections: Connections, range_ids: Sequence[str]) -> dict[str, Slot]:
    """Witness some ranges; a task."""
    cache = TableCache(connections.cache(), KIND)
    tables = cache.write_all(_witness(connections, range_ids))
    return {table.table_id: slot for table, slot in tables}


def _witness(connections: Connections, range_ids: Sequence[str]) -> Iterator[Decoded]:
    namespace = connections.namespace()
    for range_id, data in thread_each(connections.fetch_table, range_ids, _THREADS):
        try:
            yield witness(data, range_id, namespace)
        except FormatError as error:
            url = connections.table_url(range_id)
            raise FormatError(url, error.offset, error.reason) from error
