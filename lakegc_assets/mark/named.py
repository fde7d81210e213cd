"""The objects that a mark of lakeFS's collector names: its lists read, and held against each other.

What a list says is never believed about an object; but it must be whole, or a difference would say
nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakegc_assets.engine.datasets import Part, PartWriter, read_part, write_part
from lakegc_assets.engine.tasks import bin_pack
from lakegc_assets.errors import IntegrityError
from lakegc_assets.graveler.namespace import StorageNamespace, UnresolvableAddressError
from lakegc_assets.mark.foreign import ForeignMark
from lakegc_assets.mark.served import SPARED
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import Hashes, KeyDigest, address_hashes, key_digest
from lakegc_assets.run.sets import members_of, union, write_set
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import ObjectNotFoundError
from lakegc_assets.wording import counted

T = TypeVar("T")

ADDRESSES: Final = pa.schema([pa.field("address", pa.string(), nullable=False)])
#: Work on one core, in seconds, to read a file, and a byte of it.
_FILE_S: Final = 0.02
_BYTE_S: Final = 2e-8
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_UNPLACED: Final = "it is a full address, and nobody can tell which object it names"


@dataclass(frozen=True)
class Named:
    """The objects that a list names, each once.

    Attributes:
        url: of the store of all files.
        parts: addresses relative to the namespace (``ADDRESSES``).
        hashes: runs of their hashes.
        elsewhere: what cannot be an object of the namespace, as it stands, and why (``SPARED``).
        objects: how many there are, those elsewhere included.
    """

    url: str
    parts: Sequence[Part]
    hashes: Sequence[Part]
    elsewhere: Sequence[Part]
    objects: int


def read_mark(
    ctx: RunContext, connections: Connections, mark: ForeignMark, url: str, folder: str
) -> Named:
    """Read the lists of a mark.

    Args:
        ctx: the run.
        connections: how tasks reach the stores.
        mark: to read.
        url: of the store to write to.
        folder: relative to it, with a slash at its end.

    Raises:
        IntegrityError: a list is missing, damaged, or not of the length that the summary says, or
            the lists in text name other objects than those in Parquet.
    """
    read = partial(_read_files, connections, url, folder)
    found = sum(_over(ctx, read, mark.lists or mark.texts), _Read())
    if mark.objects not in {None, found.rows}:
        raise IntegrityError(
            f"{mark.url} names {counted(found.rows, 'object')}, and the summary of mark "
            f"{mark.id!r} says {mark.objects}: it is not whole"
        )
    texts = sum(_over(ctx, partial(_lines_of, connections), mark.texts), KeyDigest())
    if mark.lists and mark.texts and texts != found.lines:
        raise IntegrityError(
            f"the lists of mark {mark.id!r} in text do not name what those in {mark.url} do: one "
            "of them is not whole"
        )
    store = connections.open(url)
    parts, hashes = _each_once(store, folder, found)
    elsewhere = sum(part.rows for part in found.elsewhere)
    return Named(
        url,
        parts,
        write_set(store, f"{folder}hashes/", [hashes]),
        found.elsewhere,
        sum(part.rows for part in parts) + elsewhere,
    )


@dataclass(frozen=True)
class _Read:
    """What some lists hold.

    Attributes:
        parts: addresses inside the namespace, in each part once.
        hashes: of these, for each part.
        elsewhere: what is not inside it, and why.
        rows: how many lines or rows there were.
        lines: digest of the addresses as they stand, split at line breaks as lists in text are.
    """

    parts: Sequence[Part] = ()
    hashes: Sequence[Hashes] = ()
    elsewhere: Sequence[Part] = ()
    rows: int = 0
    lines: KeyDigest = field(default_factory=KeyDigest)

    def __add__(self, other: _Read) -> _Read:
        return _Read(
            [*self.parts, *other.parts],
            [*self.hashes, *other.hashes],
            [*self.elsewhere, *other.elsewhere],
            self.rows + other.rows,
            self.lines + other.lines,
        )


def _over(ctx: RunContext, task: Callable[[Sequence[str]], T], files: Mapping[str, int]) -> list[T]:
    costs = [_FILE_S + size * _BYTE_S for size in files.values()]
    groups = bin_pack(list(files), costs, ctx.settings.address_num_partitions)
    return ctx.tasks.run("read a mark of lakeFS's collector", task, groups, sum(costs))


def _read_files(connections: Connections, url: str, folder: str, keys: Sequence[str]) -> _Read:
    store, namespace = connections.store(), connections.namespace()
    writer = PartWriter(connections.open(url), f"{folder}named/", ADDRESSES)
    outside = PartWriter(connections.open(url), f"{folder}elsewhere/", SPARED)
    rows, lines = 0, KeyDigest()
    for addresses in _lists(store, keys):
        rows += len(addresses)
        lines += _digest_of_lines(addresses)
        inside, elsewhere = _placed(namespace, addresses)
        writer.add(pa.table([inside], schema=ADDRESSES))
        outside.add(elsewhere)
    artifacts = connections.open(url)
    parts = _unique(artifacts, folder, writer.finish())
    hashes = [address_hashes(read_part(artifacts, part)["address"]) for part in parts]
    return _Read(parts, hashes, [part for part in outside.finish() if part.rows], rows, lines)


def _lines_of(connections: Connections, keys: Sequence[str]) -> KeyDigest:
    return sum(map(_digest_of_lines, _lists(connections.store(), keys)), KeyDigest())


def _digest_of_lines(addresses: pa.Array) -> KeyDigest:
    """The digest of addresses as a list in text has them: one with a line break is two lines."""
    return key_digest(pc.list_flatten(pc.split_pattern(addresses, "\n")))


def _lists(store: ObjectStore, keys: Sequence[str]) -> Iterator[pa.Array]:
    """The addresses in each of some files.

    Raises:
        IntegrityError: one is missing, or no list.
    """
    for key in keys:
        try:
            data = store.get(key)
            yield _lines(data) if key.endswith(".txt") else _column(data)
        except ObjectNotFoundError as error:
            raise IntegrityError(f"{store.url}/{key} is missing: something removed it") from error
        except (pa.ArrowException, ValueError, KeyError) as error:
            raise IntegrityError(f"{store.url}/{key} is no list of addresses: {error}") from error


def _column(data: bytes) -> pa.Array:
    column = pq.ParquetFile(pa.BufferReader(data)).read()["address"].combine_chunks()
    column.validate(full=True)
    if column.null_count:
        raise ValueError("it has a row without an address")
    if not (pa.types.is_string(column.type) or pa.types.is_binary(column.type)):
        raise ValueError(f"its column address is of the type {column.type}")
    return column.cast(pa.string())


def _lines(data: bytes) -> pa.Array:
    if data and not data.endswith(b"\n"):
        raise ValueError("it does not end with a whole line")
    return pa.array(data.decode().split("\n")[:-1], pa.string())


def _placed(namespace: StorageNamespace, addresses: pa.Array) -> tuple[pa.Array, pa.Table]:
    """Addresses relative to the namespace, and those that cannot be, with the reason."""
    full = pc.match_substring_regex(addresses, f"^{_SCHEME.pattern}")
    inside, outside = [], []
    for address in addresses.filter(full).to_pylist():
        try:
            meant = namespace.relatives(address)
        except UnresolvableAddressError:
            outside.append((address, _UNPLACED))
            continue
        if meant:
            inside.append(_as_written(address, meant))
        else:
            outside.append((address, f"it is not below {namespace.url()}"))
    relative = pa.concat_arrays([addresses.filter(pc.invert(full)), pa.array(inside, pa.string())])
    columns = list(zip(*outside, strict=True)) or [(), ()]
    arrays = [pa.array(column, pa.string()) for column in columns]
    return relative, pa.table(arrays, schema=SPARED)


def _as_written(address: str, meant: AbstractSet[str]) -> str:
    """Of what a full address may mean: the key as it stands, which is how lists have them."""
    return min(meant, key=lambda one: (not address.endswith(one), -len(one), one))


def _unique(store: ObjectStore, folder: str, parts: Sequence[Part]) -> list[Part]:
    """Parts without repetitions inside one of them, and without empty ones."""
    found = []
    for part in parts:
        rows = read_part(store, part)
        unique = pc.unique(rows["address"])
        if len(unique) < len(rows):
            part = write_part(store, f"{folder}named/", pa.table([unique], schema=ADDRESSES))  # noqa: PLW2901
        if part.rows:
            found.append(part)
    return found


def _each_once(store: ObjectStore, folder: str, found: _Read) -> tuple[list[Part], Hashes]:
    """Parts that have no address in common, and the hashes of all their addresses.

    An address that only has the hash of another one is left out: nobody deletes it then.
    """
    seen = union(found.hashes)
    if len(seen) == sum(len(hashes) for hashes in found.hashes):
        return list(found.parts), seen
    parts: list[Part] = []
    seen = np.empty(0, np.uint64)
    for part, hashes in zip(found.parts, found.hashes, strict=True):
        new = ~members_of([seen], hashes)
        rows = read_part(store, part).filter(pa.array(new))
        if rows.num_rows:
            parts.append(write_part(store, f"{folder}named/", rows))
        seen = union([seen, hashes])
    return parts, seen
