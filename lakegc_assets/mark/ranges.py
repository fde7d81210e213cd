"""The entries of ranges, as hashes of the addresses that they keep alive, through the cache.

Each entry has a row for every relative address that it may mean: the hash of the address, and the
size and the hash of the etag, by which an upload is known that it may shadow (0 for an etag that
says nothing about the content: no MD5, or given by another store).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.tasks import bin_pack, thread_map
from lakegc_assets.errors import IntegrityError
from lakegc_assets.graveler.decode import DECODER_VERSION, decode_range
from lakegc_assets.graveler.entry import AddressType
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.mark.addresses import UNUSUAL, entry_spellings
from lakegc_assets.mark.metaranges import fetch, table_url
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.hashing import address_hashes, key_digest
from lakegc_assets.run.packs import Decoded, Slot, by_pack, read_group, read_slots, write_pack

#: Groups of columns in a pack of ranges: the hashes, and what the shadow rule compares.
HASHES: Final = "hashes"
LOOKS: Final = "looks"
#: Work on one core, in seconds: to fetch a range, to decode an entry, to read a cached one.
_FETCH_S: Final = 0.02
_DECODE_S: Final = 1.5e-6
_CACHED_S: Final = 3e-8
_THREADS: Final = 8
#: Rows in a pack, about: what a reader holds at a time.
_PACK_ROWS: Final = 2_000_000


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
    """What a range holds.

    Attributes:
        range_id: its id.
        group: the rows of one group of columns: ``hash``; or ``size`` and ``etag_hash``.
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
    """Where the entries of every range are that was decoded before."""
    return read_slots(connections.cache(), "ranges", DECODER_VERSION)


def wanted(ranges: pa.Table, slots: Mapping[str, Slot]) -> list[Wanted]:
    """Ranges (range_id, entries) with the places where they are cached."""
    columns = (ranges[name].to_pylist() for name in ("range_id", "entries"))
    return [Wanted(i, entries, slots.get(i)) for i, entries in zip(*columns, strict=True)]


def seconds(one: Wanted) -> float:
    """About how much work a range is, on one core."""
    if one.slot is not None:
        return one.slot.rows * _CACHED_S
    # A range without a metarange is taken for one of lakeFS's usual size.
    return _FETCH_S + (50_000 if one.entries is None else one.entries) * _DECODE_S


def by_packs(ranges: Sequence[Wanted]) -> list[list[Wanted]]:
    """Ranges that are read together: those of one pack."""
    packs: dict[str, list[Wanted]] = {}
    for one in ranges:
        packs.setdefault(one.slot.pack.index if one.slot else one.range_id, []).append(one)
    return list(packs.values())


def spread_ranges(ranges: Sequence[Wanted], most: int) -> list[list[Wanted]]:
    """Ranges for tasks; those of one pack stay together, since it is read as a whole."""
    groups = by_packs(ranges)
    spreaded = bin_pack(groups, [sum(map(seconds, group)) for group in groups], most)
    return [[one for group in groups for one in group] for groups in spreaded]


def read_entries(
    connections: Connections,
    ranges: Sequence[Wanted],
    group: str,
    damaged: dict[str, IntegrityError] | None = None,
) -> Iterator[Entries]:
    """One group of columns of some ranges; what is not cached is decoded, and kept.

    Args:
        connections: how to reach the store and the cache.
        ranges: to read.
        group: of columns.
        damaged: takes what is wrong with a range that cannot be read, in place of an error.

    Raises:
        IntegrityError: a range is missing, damaged, or not of the length that its metarange says.
    """
    missing = [one for one in ranges if one.slot is None]
    known = {id(one.slot): one for one in ranges if one.slot is not None}
    cache = connections.cache()
    for pack, slots in by_pack(one.slot for one in known.values() if one.slot):
        tables = read_group(cache, pack, group, slots)
        if tables is None:
            missing += [known[id(slot)] for slot in slots]
            continue
        for slot, table in zip(slots, tables, strict=True):
            one = known[id(slot)]
            yield _checked(connections, one, _entries(one.range_id, table, slot.facts, cached=True))
    waiting: list[Decoded] = []
    for one, decoded in _decode(connections, missing, damaged):
        rows, facts = decoded.groups[group], decoded.facts
        yield _checked(connections, one, _entries(one.range_id, rows, facts, cached=False))
        waiting.append(decoded)
        if sum(d.groups[HASHES].num_rows for d in waiting) >= _PACK_ROWS:
            write_pack(cache, "ranges", DECODER_VERSION, waiting)
            waiting = []
    if waiting:
        write_pack(cache, "ranges", DECODER_VERSION, waiting)


def _entries(range_id: str, group: pa.Table, facts: Mapping[str, Any], *, cached: bool) -> Entries:
    entries, digest, unresolved = (facts[n] for n in ("entries", "digest", "unresolved"))
    return Entries(range_id, group, entries, digest, unresolved, cached)


def _checked(connections: Connections, one: Wanted, found: Entries) -> Entries:
    if one.entries is not None and one.entries != found.entries:
        raise IntegrityError(
            f"range {one.range_id} of {connections.namespace_url} holds {found.entries} "
            f"entries, but its metarange says {one.entries}: the repository is damaged",
        )
    if found.group.num_rows < found.entries:
        # Every entry has at least one row.
        raise IntegrityError(
            f"{found.group.num_rows} rows are known of the {found.entries} entries of range "
            f"{one.range_id}: what is cached at {connections.cache_url} is not whole. Remove it",
        )
    return found


def _decode(
    connections: Connections,
    missing: Sequence[Wanted],
    damaged: dict[str, IntegrityError] | None,
) -> Iterator[tuple[Wanted, Decoded]]:
    store, namespace = connections.store(), connections.namespace()

    def get(one: Wanted) -> bytes | IntegrityError:
        try:
            return fetch(store, connections.namespace_url, one.range_id)
        except IntegrityError as error:
            return error

    for at in range(0, len(missing), _THREADS):
        some = missing[at : at + _THREADS]
        for one, data in zip(some, thread_map(get, some, _THREADS), strict=True):
            try:
                if isinstance(data, IntegrityError):
                    raise data
                entries = decode_range(data, table_url(connections.namespace_url, one.range_id))
            except IntegrityError as error:
                if damaged is None:
                    raise
                damaged[one.range_id] = error
                continue
            yield one, decode(namespace, one.range_id, entries)


def decode(namespace: StorageNamespace, range_id: str, entries: pa.RecordBatch) -> Decoded:
    """What is kept of a range.

    Args:
        namespace: of the repository.
        range_id: its id.
        entries: as ``decode_range`` gives them.
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
    looks = pa.table({"size": entries["size"], "etag_hash": etags})
    return Decoded(
        range_id,
        {
            HASHES: pa.table({"hash": np.concatenate([hashes[usual], more])}),
            LOOKS: looks.take(pa.array(rows)),
        },
        {
            "entries": entries.num_rows,
            "digest": str(key_digest(addresses)),
            "unresolved": sorted(unresolved),
        },
    )
