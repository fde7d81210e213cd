"""How etags of what is listed compare with those of the entries at branch HEADs.

What a range and some files of the listing say together never changes: ranges are named by their
content, and files are known by their digest. So it is kept in the cache for each range, below the
digest of these files. A sweep compares with the files of its mark, and an optimized run has those
that it carried forward: what they say was found before, but for new ranges and new files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakegc_assets.engine.datasets import Part, read_part
from lakegc_assets.engine.tasks import bin_pack
from lakegc_assets.errors import IntegrityError
from lakegc_assets.graveler.decode import DECODER_VERSION
from lakegc_assets.mark import evidence_kernels
from lakegc_assets.mark.ranges import HASHES, LOOKS, Wanted, by_files, read_entries, seconds
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import Hashes
from lakegc_assets.run.sets import Members, places_of
from lakegc_assets.run.table_cache import Decoded, Kind, TableCache, by_file
from lakegc_assets.storage.base import ObjectStore

Integers = npt.NDArray[np.int64]

#: Kind of what is kept, and its version: raised with what is compared, or how.
KIND: Final = "evidence"
VERSION: Final = 1
#: Objects that may be read to know their checksum, in bytes.
SMALL: Final = 64 << 10
#: What listed objects are compared by: sorted by ``hash``, that of the address.
ETAGS: Final = pa.schema(
    [("hash", pa.uint64()), ("etag_hash", pa.int64()), ("modified", pa.int64())]
)
#: ``Evidence`` of a range, as it is kept; ``agree`` is null where there is none.
_KEPT: Final = pa.schema(
    [("agree", pa.bool_()), ("newest", pa.int64()), ("small_agree", pa.bool_())]
)
#: Entries that are compared with the listing at a time, about.
_HELD: Final = 8_000_000
#: Listed objects that are few enough to look for entries of them first.
_FEW: Final = 500_000
#: Work on one core, in seconds: to look for an entry, to compare one, and a listed object.
_LOOK_S: Final = 1e-8
_ENTRY_S: Final = 3e-7
_LISTED_S: Final = 1e-7


@dataclass(frozen=True)
class EtagFiles:
    """Files of ``ETAGS``, of all that is listed.

    Attributes:
        parts: the files.
        kept: so many of the first ones another run has, too.
    """

    parts: Sequence[Part] = ()
    kept: Sequence[int] = ()


@dataclass(frozen=True)
class Evidence:
    """How etags of listed objects compare with those of the entries at branch HEADs.

    Attributes:
        agree: whether all of them do; None where there are none.
        newest: of the objects compared, when the last was written, in microseconds since 1970.
        small_agree: whether one of a size that may be read has the etag of its entry.
    """

    agree: bool | None = None
    newest: int = 0
    small_agree: bool = False

    def __add__(self, other: Evidence) -> Evidence:
        """What both say together."""
        both = [e.agree for e in (self, other) if e.agree is not None]
        return Evidence(
            all(both) if both else None,
            max(self.newest, other.newest),
            self.small_agree or other.small_agree,
        )


def evidence_of(
    ctx: RunContext,
    connections: Connections,
    ranges: Sequence[Wanted],
    store: ObjectStore,
    etags: EtagFiles,
) -> Evidence:
    """Compare the etags of all entries of some ranges with those of all that is listed.

    Args:
        ctx: the run.
        connections: how tasks reach the store and the cache.
        ranges: of branch HEADs.
        store: of the files of etags.
        etags: what is listed.

    Raises:
        IntegrityError: a range or a file is missing or damaged, or was not compared.
    """
    cache = connections.cache()
    lengths = sorted({length for length in (*etags.kept, len(etags.parts)) if length})
    keys = {length: _key(etags.parts[:length]) for length in lengths}
    known = {length: _read(cache, keys[length]) for length in lengths} if ranges else {}
    # The most files of which it is known what they say beside the range.
    begins = {
        one.range_id: max((n for n in lengths if one.range_id in known[n]), default=0)
        for one in ranges
    }
    found = _compared(ctx, connections, ranges, store.url, etags.parts, begins, lengths)
    total = Evidence()
    new: dict[int, dict[str, Evidence]] = {length: {} for length in lengths}
    for range_id, begin in begins.items():
        so_far = known[begin][range_id] if begin else Evidence()
        for length in lengths:
            if length > begin:
                so_far += _one(found, range_id, length)
                new[length][range_id] = so_far
        total += so_far
    for length, rows in new.items():
        if rows:
            _write(cache, keys[length], rows)
    return total


def _one(found: Mapping[tuple[str, int], Evidence], range_id: str, length: int) -> Evidence:
    """What a range says: that it says nothing is known only if it was looked at, and is kept."""
    if (range_id, length) not in found:
        raise IntegrityError(
            f"etags of range {range_id} were not compared with the listing. This is a fault of the "
            "mark, please report it",
        )
    return found[range_id, length]


# The cache


def _key(parts: Sequence[Part]) -> str:
    """Names some files by their content, in whatever order, and by how ranges are read."""
    digests = sorted(part.sha256 for part in parts)
    return hashlib.sha256("-".join([str(DECODER_VERSION), *digests]).encode()).hexdigest()


def _read(cache: ObjectStore, key: str) -> dict[str, Evidence]:
    """What is known of ranges beside the files of a key; what is damaged is not."""
    kept = _kept(cache, key)
    slots = kept.slots()
    ids = {id(slot): range_id for range_id, slot in slots.items()}
    found: dict[str, Evidence] = {}
    for file, some in by_file(slots.values()):
        tables = kept.read(file, some)
        rows = pa.concat_tables(tables).to_pylist() if tables else []
        if len(rows) == len(some):
            found |= {ids[id(slot)]: Evidence(**row) for slot, row in zip(some, rows, strict=True)}
    return found


def _write(cache: ObjectStore, key: str, found: Mapping[str, Evidence]) -> None:
    rows = [[one.agree, one.newest, one.small_agree] for one in found.values()]
    columns = zip(zip(*rows, strict=True), _KEPT.types, strict=True)
    table = pa.table([pa.array(column, kind) for column, kind in columns], schema=_KEPT)
    _kept(cache, key).write(
        [Decoded(range_id, table.slice(at, 1), {}) for at, range_id in enumerate(found)]
    )


def _kept(cache: ObjectStore, key: str) -> TableCache:
    return TableCache(cache, Kind(f"{KIND}/{key}", VERSION, "range_id"))


# The comparison


@dataclass(frozen=True)
class _Order:
    """What one task compares.

    Attributes:
        connections: how to reach the cache.
        url: of the store of the files.
        chunks: ranges that are read together.
        segments: files, by how many of them all come before the end of the segment.
    """

    connections: Connections
    url: str
    chunks: Sequence[Sequence[Wanted]]
    segments: Mapping[int, Sequence[Part]]


def _compared(
    ctx: RunContext,
    connections: Connections,
    ranges: Sequence[Wanted],
    url: str,
    parts: Sequence[Part],
    begins: Mapping[str, int],
    lengths: Sequence[int],
) -> dict[tuple[str, int], Evidence]:
    """What ranges say beside the files that end with each length, from where they begin on."""
    orders: list[_Order] = []
    cost = 0.0
    for begin in sorted({begin for begin in begins.values() if begin < len(parts)}):
        ends = [length for length in lengths if length > begin]
        segments = {b: parts[a:b] for a, b in pairwise([begin, *ends])}
        chunks = by_files([one for one in ranges if begins[one.range_id] == begin])
        listed = sum(part.rows for part in parts[begin:])
        each = _LOOK_S if listed <= _FEW else _ENTRY_S
        costs = [sum(seconds(one) + _rows(one) * each for one in chunk) for chunk in chunks]
        # Each task goes through all files, so there are no more of them than memory asks for.
        most = -(-sum(_rows(one) for chunk in chunks for one in chunk) // _HELD)
        tasks = bin_pack(chunks, costs, max(1, min(most, ctx.settings.address_num_partitions)))
        orders += [_Order(connections, url, some, segments) for some in tasks]
        cost += sum(costs) + len(tasks) * listed * _LISTED_S
    answers = ctx.tasks.run("compare etags at branch HEADs", _compare, orders, cost)
    return {key: of for answer in answers for key, of in answer.items()}


def _rows(one: Wanted) -> int:
    return one.slot.rows if one.slot is not None else one.entries or 0


@dataclass(frozen=True)
class Entries:
    """What is compared of a range; both of one length.

    Attributes:
        range_id: its id.
        hashes: of the addresses.
        etags: their hashes.
        small: whether each is small.
    """

    range_id: str
    hashes: Hashes
    etags: Integers
    small: npt.NDArray[np.bool_]


def _compare(order: _Order) -> dict[tuple[str, int], Evidence]:
    store = order.connections.open(order.url)
    listed = sum(part.rows for parts in order.segments.values() for part in parts)
    likely = _members(store, order.segments) if listed <= _FEW else None
    found: dict[tuple[str, int], Evidence] = {}
    held: list[Entries] = []
    for chunk in order.chunks:
        for one in _entries(order.connections, chunk):
            held.append(one if likely is None else _chosen(one, likely))
            if sum(len(some.hashes) for some in held) >= _HELD:
                found |= compared(store, order.segments, held)
                held = []
    return found | compared(store, order.segments, held)


def _members(store: ObjectStore, segments: Mapping[int, Sequence[Part]]) -> Members:
    """The hashes of what is listed in some files, each of which is sorted."""
    return Members(
        [
            read_part(store, part, ["hash"])["hash"].to_numpy()
            for parts in segments.values()
            for part in parts
        ]
    )


def _chosen(one: Entries, likely: Members) -> Entries:
    rows = np.flatnonzero(likely.may_hold(one.hashes))
    return Entries(one.range_id, one.hashes[rows], one.etags[rows], one.small[rows])


def _entries(connections: Connections, chunk: Sequence[Wanted]) -> Iterator[Entries]:
    """What is compared of some ranges, each once."""
    looks = {
        one.range_id: (one.group["etag_hash"].to_numpy(), one.group["size"].to_numpy() <= SMALL)
        for one in read_entries(connections, chunk, LOOKS)
    }
    for one in read_entries(connections, chunk, HASHES):
        yield Entries(one.range_id, one.group["hash"].to_numpy(), *looks[one.range_id])


def compared(
    store: ObjectStore, segments: Mapping[int, Sequence[Part]], some: Sequence[Entries]
) -> dict[tuple[str, int], Evidence]:
    """What ranges say beside each segment of the listing.

    Args:
        store: of the files.
        segments: files of ``ETAGS``, each of them sorted, by a number.
        some: what is in the ranges.

    Raises:
        IntegrityError: a file is missing or changed.
    """
    if not some:
        return {}
    hashes = np.concatenate([one.hashes for one in some])
    order = np.argsort(hashes)
    etags = np.concatenate([one.etags for one in some])[order]
    small = np.concatenate([one.small for one in some])[order]
    numbers = np.arange(len(some), dtype=np.int32)
    ranges = np.repeat(numbers, [len(one.hashes) for one in some])[order]
    entries = (hashes[order], etags, small, ranges)
    found: dict[tuple[str, int], Evidence] = {}
    for segment, parts in segments.items():
        told = _told(store, parts, entries, len(some))
        for at, one in enumerate(some):
            did, differs, small_agrees, newest = (column[at].item() for column in told)
            found[one.range_id, segment] = Evidence(
                not differs if did else None, newest, small_agrees
            )
    return found


def _told(
    store: ObjectStore,
    parts: Sequence[Part],
    entries: tuple[Hashes, Integers, npt.NDArray[np.bool_], npt.NDArray[np.int32]],
    n: int,
) -> tuple[npt.NDArray[np.generic], ...]:
    """What n ranges say: see ``evidence_kernels.compare_all``."""
    flags = tuple(np.zeros(n, np.bool_) for _ in range(3))
    told = (*flags, np.zeros(n, np.int64))
    for part in parts:
        table = read_part(store, part)
        # Compiled once: for arrays that cannot be written to.
        listed = tuple(table[name].combine_chunks().to_numpy() for name in ETAGS.names)
        places = places_of(entries[0], listed[0])
        evidence_kernels.compare_all(listed, places, entries, told)
    return told
