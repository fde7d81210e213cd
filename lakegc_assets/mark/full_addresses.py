"""The full addresses in the ranges of a repository, through a cache of their own.

Only a full address can name an object in another repository's namespace. Most ranges hold none.
Each range is read for them once in its life, whichever repository is collected.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.tasks import thread_each
from lakegc_assets.graveler.decode import DECODER_VERSION, decode_range
from lakegc_assets.graveler.entry import AddressType
from lakegc_assets.graveler.namespace import StorageNamespace, UnresolvableAddressError
from lakegc_assets.mark.addresses import entry_spellings
from lakegc_assets.mark.ranges import Wanted, require_length
from lakegc_assets.run.connections import Connections, reads_tables
from lakegc_assets.run.table_cache import Decoded, Kind, Slot, TableCache

_KIND: Final = Kind("full", DECODER_VERSION, "range_id", file_rows=500_000)
_SCHEME: Final = r"^[A-Za-z][A-Za-z0-9+.-]*://"
#: Relative addresses that lead out of the namespace in some stores.
_LEAVING: Final = r"(^|[/\\])\.\.([/\\]|$)"
#: The start of an address up to the bucket, or for https up to the container.
_START: Final = r"^(?P<start>(?i:https)://[^/]*/[^/]*|[A-Za-z][A-Za-z0-9+.-]*://[^/]*)"
#: Addresses with more than one possible meaning.
_ODD: Final = r"[%?\\]|//|\.(/|$)|/$"
#: Maximum number of distinct starts that are stored for a range; with more none is stored.
_STARTS: Final = 50
_THREADS: Final = 8
_NONE: Final = pa.array([], pa.string())


class Inside(NamedTuple):
    """Objects of a namespace named by full addresses."""

    #: Relative to the namespace, in every spelling that they may mean.
    addresses: pa.Array
    #: Last path components of addresses that cannot be resolved.
    last_parts: frozenset[str]


def cached_full(connections: Connections) -> dict[str, Slot]:
    """Slots of the ranges whose full addresses were read before."""
    return TableCache(connections.cache(), _KIND).compact()


@reads_tables
def read_full(
    connections: Connections, ranges: Sequence[Wanted], namespace: StorageNamespace
) -> Iterator[tuple[str, pa.Array]]:
    """The full addresses in ranges that may be inside a namespace, range by range.

    ``ranges``: ranges to read; those that are not cached are decoded and cached.
    ``namespace``: the namespace of another repository.

    Raises:
        IntegrityError: a range is missing or damaged, or differs in length from its metarange.
    """
    slots: dict[str, Slot] = {}
    missing: list[str] = []
    for one in ranges:
        if one.slot is None:
            missing.append(one.range_id)
            continue
        require_length(connections, one, one.slot.facts["entries"])
        starts = one.slot.facts["starts"]
        if starts is None or any(map(namespace.may_hold, starts)):
            slots[one.range_id] = one.slot
        else:
            yield one.range_id, _NONE
    decode = partial(_decode, connections, {one.range_id: one for one in ranges})
    cache = TableCache(connections.cache(), _KIND)
    for found, _ in cache.read_or_decode(slots, missing, decode):
        yield found.table_id, _joined(found.rows["address"])


def _decode(
    connections: Connections, ranges: Mapping[str, Wanted], ids: Sequence[str]
) -> Iterator[Decoded]:
    for range_id, data in thread_each(connections.fetch_table, ids, _THREADS):
        entries = decode_range(data, connections.table_url(range_id))
        require_length(connections, ranges[range_id], entries.num_rows)
        addresses = full_addresses(connections.namespace_url, entries)
        starts = pc.unique(starts_of(addresses)).to_pylist()
        facts = {
            "entries": entries.num_rows,
            "starts": starts if len(starts) <= _STARTS else None,
        }
        yield Decoded(range_id, pa.table({"address": addresses}), facts)


def full_addresses(namespace_url: str, entries: pa.RecordBatch) -> pa.Array:
    """The addresses of entries that may be outside of their own namespace, as full addresses.

    ``namespace_url``: of the repository of the entries.
    """
    addresses, types = entries["address"], entries["address_type"]
    schemed = pc.match_substring_regex(addresses, _SCHEME)
    by_prefix = pc.equal(types, AddressType.BY_PREFIX_DEPRECATED)
    full = pc.or_(pc.equal(types, AddressType.FULL), pc.and_(by_prefix, schemed))
    leaving = pc.and_not(pc.match_substring_regex(addresses, _LEAVING), full)
    joined = pc.binary_join_element_wise(namespace_url, addresses.filter(leaving), "/")
    return pc.unique(_joined(pa.chunked_array([addresses.filter(full), joined], pa.string())))


def inside(namespace: StorageNamespace, addresses: pa.Array) -> Inside:
    """Resolve full addresses to objects of a namespace, like ``entry_spellings``."""
    starts = starts_of(addresses)
    rest = pc.replace_substring_regex(addresses, _START, "")
    odd = pc.match_substring_regex(rest, _ODD)
    found, last_parts = [_NONE], set[str]()
    folder = f"/{namespace.prefix}/" if namespace.prefix else "/"
    for start in filter(namespace.may_hold, pc.unique(starts).to_pylist()):
        mine = pc.equal(starts, start)
        doubtful = odd if _is_clear(namespace, f"{start}{folder}") else pa.scalar(True)
        below = pc.and_(pc.and_not(mine, doubtful), pc.starts_with(rest, folder))
        found.append(pc.utf8_slice_codeunits(rest.filter(below), len(folder)))
        for address in addresses.filter(pc.and_(mine, doubtful)).to_pylist():
            spellings, resolved = entry_spellings(namespace, address, AddressType.FULL)
            if resolved:
                found.append(pa.array(spellings, pa.string()))
            else:
                last_parts.update(spellings)
    return Inside(pc.unique(pa.concat_arrays(found)), frozenset(last_parts))


def union_of(found: Sequence[Inside]) -> Inside:
    """The union of several."""
    addresses = pa.concat_arrays([_NONE, *(one.addresses for one in found)])
    return Inside(pc.unique(addresses), frozenset().union(*(one.last_parts for one in found)))


def _is_clear(namespace: StorageNamespace, folder: str) -> bool:
    """Return whether exactly the plain texts below a folder are addresses inside the namespace."""
    if namespace.scheme == "local":
        # The rest of the path may contain the name of the namespace again.
        return False
    try:
        return namespace.relatives(f"{folder}x") == {"x"}
    except UnresolvableAddressError:
        return False


def starts_of(addresses: pa.Array) -> pa.Array:
    """The start of each address up to its bucket; empty if it has no scheme."""
    found = pc.struct_field(pc.extract_regex(addresses, _START), "start")
    return pc.fill_null(found, "")


def _joined(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays([_NONE, *column.chunks])
