"""Whether etags are checksums: in the store, and in the entries of branch HEADs.

Stores differ: encryption with managed keys and uploads in parts give etags that are no checksums of
the content. What lakeFS writes into entries is one, unless a client gave another. Both are only
believed as far as objects that were read show it, and one that shows the opposite is enough.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakegc_assets.engine.datasets import Part
from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.graveler.decode import etag_hash
from lakegc_assets.graveler.ranges import read_range
from lakegc_assets.mark.addresses import entry_spellings
from lakegc_assets.mark.lookalikes import Integers
from lakegc_assets.mark.metaranges import fetch, table_url
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.selection import Selection
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import ObjectNotFoundError

#: Objects that are read to learn a habit, in bytes at most.
SAMPLE: Final = 1 << 20
#: Objects that are read to learn a habit: the newest ones, and others at random.
NEWEST: Final = 5
AT_RANDOM: Final = 3
_THREADS: Final = 16
#: Objects that one task reads.
_READ_EACH: Final = 5_000
#: Work on one core to read an object, in seconds.
READ_S: Final = 0.003


def _md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def _get(store: ObjectStore, key: str, size: int) -> bytes | None:
    """The content of an object; None if it is gone, or not of its size any more."""
    try:
        data = store.get(key)
    except ObjectNotFoundError:
        return None
    return data if len(data) == size else None


def agreement(store: ObjectStore, objects: pa.Table) -> tuple[bool | None, int]:
    """Whether the etags of some small objects are the MD5s of their content.

    Args:
        store: of the repository.
        objects: address, size, last_modified and etag, as listed.

    Returns:
        Whether all are, or None where none could be read as it was listed; and when the newest of
        those that were read was written, in microseconds since 1970.
    """
    answers = thread_map(partial(_agrees, store), objects.to_pylist(), _THREADS)
    modified = objects["last_modified"].cast(pa.int64()).to_pylist()
    told = [
        (agrees, at) for agrees, at in zip(answers, modified, strict=True) if agrees is not None
    ]
    if not told:
        return None, 0
    return all(agrees for agrees, _ in told), max(at for _, at in told)


def _agrees(store: ObjectStore, row: dict[str, object]) -> bool | None:
    data = _get(store, str(row["address"]), int(str(row["size"])))
    if data is None:
        return None
    try:
        now = store.head(str(row["address"]))
    except ObjectNotFoundError:
        return None
    listed = row["last_modified"]
    assert isinstance(listed, datetime)  # noqa: S101 - the column's type
    # Some stores answer HEAD with whole seconds only.
    same_time = now.last_modified.replace(microsecond=0) == listed.replace(microsecond=0)
    if now.etag != row["etag"] or not same_time:
        # It was written again meanwhile.
        return None
    return _md5(data) == row["etag"]


def entries_are_checksums(
    connections: Connections, range_ids: Sequence[str], sizes: frozenset[int]
) -> bool:
    """Whether entries have the MD5 of their object's content as their etag, by some of them.

    A copy made by lakeFS keeps the etag of what was copied. Where that is no checksum, a copy
    cannot be known by its content.

    Args:
        connections: how to reach the store.
        range_ids: of ranges to look into.
        sizes: only entries of these sizes count, in bytes.
    """
    store, namespace = connections.store(), connections.namespace()
    told: list[bool] = []
    for range_id in range_ids:
        url = table_url(connections.namespace_url, range_id)
        items = read_range(fetch(store, connections.namespace_url, range_id), url)
        found = [entry for _, entry in items if entry.size in sizes]
        for entry in found[:: max(1, len(found) // (NEWEST + AT_RANDOM))]:
            spellings, resolved = entry_spellings(namespace, entry.address, entry.address_type)
            if not resolved or not spellings:
                # What lies elsewhere has the etag of another store.
                return False
            contents = (_get(store, address, entry.size) for address in spellings)
            data = next((data for data in contents if data is not None), None)
            if data is not None:
                told.append(_md5(data) == entry.e_tag)
    return bool(told) and all(told)


# The content of candidates


@dataclass(frozen=True)
class _Reading:
    """Objects that one task reads: some rows of a part."""

    connections: Connections
    url: str
    selection: Selection
    part: Part
    rows: npt.NDArray[np.int64]
    deadline: float


def read_contents(
    ctx: RunContext,
    connections: Connections,
    url: str,
    selection: Selection,
    chosen: Sequence[tuple[Part, Integers]],
    deadline: float,
) -> list[tuple[npt.NDArray[np.bool_], Integers]]:
    """The hash of the MD5 of small objects.

    Args:
        ctx: the run.
        connections: how tasks reach the store.
        url: of the store of the parts.
        selection: of listed objects.
        chosen: parts of it, and which of their rows that count are to be read.
        deadline: seconds since 1970 after which no more is read.

    Returns:
        For each of the chosen parts which of the rows could be read, and the hash of each (0 where
        it could not).
    """
    orders: list[_Reading] = []
    of_part: list[int] = []
    for number, (part, rows) in enumerate(chosen):
        for at in range(0, len(rows), _READ_EACH):
            some = rows[at : at + _READ_EACH]
            orders.append(_Reading(connections, url, selection, part, some, deadline))
            of_part.append(number)
    seconds = READ_S * sum(len(order.rows) for order in orders)
    answers = ctx.tasks.run("read small candidates", _read_contents, orders, seconds)
    return [
        (
            np.concatenate([a[0] for a, n in zip(answers, of_part, strict=True) if n == number]),
            np.concatenate([a[1] for a, n in zip(answers, of_part, strict=True) if n == number]),
        )
        for number in range(len(chosen))
    ]


def _read_contents(order: _Reading) -> tuple[npt.NDArray[np.bool_], Integers]:
    artifacts = order.connections.open(order.url)
    table = order.selection.read(artifacts, order.part, ["address", "size"]).take(
        pa.array(order.rows)
    )
    rows = list(zip(table["address"].to_pylist(), table["size"].to_pylist(), strict=True))
    store = order.connections.store()
    hashes = thread_map(partial(_content_hash, store, order.deadline), rows, _THREADS)
    known = np.array([found is not None for found in hashes], np.bool_)
    return known, np.array([found or 0 for found in hashes], np.int64)


def _content_hash(store: ObjectStore, deadline: float, row: tuple[str, int]) -> int | None:
    if time.time() > deadline:
        return None
    data = _get(store, *row)
    return None if data is None else etag_hash(_md5(data))
