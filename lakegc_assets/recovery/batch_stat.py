"""What a store holds of many objects, by listings where they lie close together."""

from __future__ import annotations

from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.run import strings
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import ObjectNotFoundError

#: Objects that are looked for together.
_STRETCH: Final = 1000
#: A listing that finds less than one of so many is given up: it costs more than asking for each.
_SPARSE: Final = 20
_FOUND: Final = pa.schema(
    [("address", pa.string()), ("size", pa.int64()), ("copy_etag", pa.string())]
)


def listed(store: ObjectStore, addresses: pa.ChunkedArray, threads: int) -> pa.Table:
    """What a listing shows of some objects: address, size (bytes) and copy_etag.

    Args:
        store: that holds them, and hardly any others.
        addresses: sorted.
        threads: that list.
    """
    each_one = max(_STRETCH, -(-len(addresses) // threads))
    stretches = [addresses.slice(at, each_one) for at in range(0, len(addresses), each_one)]
    found = thread_map(partial(_listed, store), stretches, threads)
    return pa.concat_tables([_FOUND.empty_table(), *found])


def missing(store: ObjectStore, objects: pa.Table, threads: int) -> pa.ChunkedArray:
    """Which of some objects a store does not hold: what has another size is another object.

    Args:
        store: that may hold many others.
        objects: address and size (bytes), in the order of the addresses, each once.
        threads: that list and ask.
    """
    stretches = [objects.slice(at, _STRETCH) for at in range(0, objects.num_rows, _STRETCH)]
    return pa.chunked_array(thread_map(partial(_missing, store), stretches, threads), pa.string())


def _listed(store: ObjectStore, addresses: pa.ChunkedArray) -> pa.Table:
    first, last = addresses[0].as_py(), addresses[-1].as_py()
    tables = [_FOUND.empty_table()]
    # All keys in between begin like the first one.
    for page in store.list(start_after=first[:-1] or None, end_before=f"{last}\0"):
        rows = page.filter(strings.among(page["key"], addresses))
        tables.append(pa.table([rows["key"], rows["size"], rows["etag"]], schema=_FOUND))
    return pa.concat_tables(tables)


def _missing(store: ObjectStore, objects: pa.Table) -> pa.Array:
    wanted, sizes = (objects[name].combine_chunks() for name in ("address", "size"))
    first, last = wanted[0].as_py(), wanted[-1].as_py()
    there: list[pa.Array] = [pa.array([], pa.string())]
    passed = 0
    for page in store.list(start_after=first[:-1] or None, end_before=f"{last}\0"):
        keys = page["key"]
        same = pc.equal(page["size"], sizes.take(pc.index_in(keys, wanted)))
        there.append(keys.filter(pc.fill_null(same, False)))
        passed += len(keys)
        if passed > _SPARSE * _STRETCH:
            # What comes behind is not known yet: each of it is asked for.
            behind = objects.filter(pc.greater(wanted, keys[-1])).to_pylist()
            found = [o["address"] for o in behind if _size(store, o["address"]) == o["size"]]
            there.append(pa.array(found, pa.string()))
            break
    return wanted.filter(pc.invert(pc.is_in(wanted, pa.concat_arrays(there))))


def _size(store: ObjectStore, address: str) -> int | None:
    try:
        return store.head(address).size
    except ObjectNotFoundError:
        return None
