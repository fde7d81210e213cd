"""Tests of whether etags are checksums, in the store and in the entries of branch HEADs.

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

import pyarrow as pa

from lakegc_assets.engine.datasets import Part, read_part, write_part
from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.graveler.decode import etag_hash
from lakegc_assets.graveler.ranges import read_range
from lakegc_assets.mark.addresses import entry_spellings
from lakegc_assets.mark.lookalikes import CONTENTS
from lakegc_assets.mark.metaranges import fetch, table_url
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
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
    """Test whether the etags of some small objects are the MD5s of their content.

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
    """Return whether entries have the MD5 of their object's content as their etag, by some of them.

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
    """Objects that one task reads: some rows of a file."""

    connections: Connections
    url: str
    folder: str
    part: Part
    offset: int
    deadline: float


def read_contents(
    ctx: RunContext,
    connections: Connections,
    url: str,
    folder: str,
    parts: Sequence[Part],
    deadline: float,
) -> list[Part]:
    """The hashes of the MD5s of small objects, as far as they can be read.

    Args:
        ctx: the run.
        connections: how tasks reach the store.
        url: of the store of working files.
        folder: to write to, with a slash at its end.
        parts: files of address and size.
        deadline: seconds since 1970 after which no more is read.

    Returns:
        Files of ``CONTENTS``.
    """
    orders = [
        _Reading(connections, url, folder, part, offset, deadline)
        for part in parts
        for offset in range(0, part.rows, _READ_EACH)
    ]
    seconds = READ_S * sum(part.rows for part in parts)
    answers = ctx.tasks.run("read small candidates", _read_contents, orders, seconds)
    return [part for written in answers for part in written]


def _read_contents(order: _Reading) -> list[Part]:
    artifacts = order.connections.open(order.url)
    table = read_part(artifacts, order.part, ["address", "size"])
    some = table.slice(order.offset, _READ_EACH)
    rows = list(zip(some["address"].to_pylist(), some["size"].to_pylist(), strict=True))
    store = order.connections.store()
    hashes = thread_map(partial(_content_hash, store, order.deadline), rows, _THREADS)
    known = [(row[0], found) for row, found in zip(rows, hashes, strict=True) if found is not None]
    if not known:
        return []
    columns = [pa.array(c, f.type) for c, f in zip(zip(*known, strict=True), CONTENTS, strict=True)]
    return [write_part(artifacts, order.folder, pa.Table.from_arrays(columns, schema=CONTENTS))]


def _content_hash(store: ObjectStore, deadline: float, row: tuple[str, int]) -> int | None:
    if time.time() > deadline:
        return None
    data = _get(store, *row)
    return None if data is None else etag_hash(_md5(data))
