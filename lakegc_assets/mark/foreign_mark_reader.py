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

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from lakegc_assets.engine.datasets import Part, PartWriter
from lakegc_assets.engine.session import Dataset, Session
from lakegc_assets.engine.tasks import bin_pack
from lakegc_assets.errors import IntegrityError
from lakegc_assets.graveler.namespace import StorageNamespace, UnresolvableAddressError
from lakegc_assets.mark import comparison_relations
from lakegc_assets.mark.addresses import in_data
from lakegc_assets.mark.foreign import ForeignMark
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import HASHES, KeyDigest, address_hashes, key_digest, signed
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import ObjectNotFoundError
from lakegc_assets.wording import counted

T = TypeVar("T")

#: An object that a list names, by its address relative to the namespace. ``elsewhere`` says why it
#: cannot be an object of the namespace, and is null otherwise; its address is as it stands. What
#: follows is known of candidates of ours alone.
NAMED: Final = pa.schema(
    [
        *HASHES,
        pa.field("address", pa.string(), nullable=False),
        pa.field("in_place", pa.bool_(), nullable=False),
        pa.field("elsewhere", pa.string()),
        pa.field("size", pa.int64()),
        pa.field("reason", pa.string()),
        pa.field("commit_id", pa.string()),
        pa.field("branch", pa.string()),
    ]
)
#: Work on one core, in seconds, to read a file, and a byte of it.
_FILE_S: Final = 0.02
_BYTE_S: Final = 2e-8
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_UNPLACED: Final = "it is a full address, and nobody can tell which object it names"


def read_mark(
    ctx: RunContext,
    connections: Connections,
    frames: Session,
    mark: ForeignMark,
    url: str,
    folder: str,
) -> Dataset:
    """Read the lists of a mark: the objects that it names, each once (``NAMED``).

    Args:
        ctx: the run.
        connections: how tasks reach the stores.
        frames: the session.
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
    if not found.rows:
        return Dataset(url, [], NAMED)
    once = comparison_relations.each_once(frames.read(Dataset(url, found.parts, NAMED)))
    parts = frames.write(once, url, f"{folder}named/", NAMED, "read a mark of lakeFS's collector")
    return Dataset(url, parts, NAMED)


@dataclass(frozen=True)
class _Read:
    """Contents of some lists of a mark.

    Attributes:
        parts: what they name (``NAMED``), as often as they do.
        rows: how many lines or rows there were.
        lines: digest of the addresses as they stand, split at line breaks as lists in text are.
    """

    parts: Sequence[Part] = ()
    rows: int = 0
    lines: KeyDigest = field(default_factory=KeyDigest)

    def __add__(self, other: _Read) -> _Read:
        return _Read([*self.parts, *other.parts], self.rows + other.rows, self.lines + other.lines)


def _over(ctx: RunContext, task: Callable[[Sequence[str]], T], files: Mapping[str, int]) -> list[T]:
    costs = [_FILE_S + size * _BYTE_S for size in files.values()]
    groups = bin_pack(list(files), costs, ctx.settings.address_num_partitions)
    return ctx.tasks.run("read a mark of lakeFS's collector", task, groups, sum(costs))


def _read_files(connections: Connections, url: str, folder: str, keys: Sequence[str]) -> _Read:
    store, namespace = connections.store(), connections.namespace()
    writer = PartWriter(connections.open(url), f"{folder}listed/", NAMED)
    rows, lines = 0, KeyDigest()
    for addresses in _lists(store, keys):
        rows += len(addresses)
        lines += _digest_of_lines(addresses)
        writer.add(_named(*_placed(namespace, addresses)))
    return _Read([part for part in writer.finish() if part.rows], rows, lines)


def _named(addresses: pa.Array, elsewhere: pa.Array) -> pa.Table:
    known = {
        "hash": signed(address_hashes(addresses)),
        "address": addresses,
        "in_place": in_data(addresses),
        "elsewhere": elsewhere,
    }
    nothing = {f.name: pa.nulls(len(addresses), f.type) for f in NAMED if f.name not in known}
    return pa.table(known | nothing, schema=NAMED)


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
            yield _READERS[key.rpartition(".")[2]](data)
        except ObjectNotFoundError as error:
            raise IntegrityError(f"{store.url}/{key} is missing: something removed it") from error
        except (pa.ArrowException, ValueError, KeyError) as error:
            raise IntegrityError(f"{store.url}/{key} is no list of addresses: {error}") from error


def _column(data: bytes) -> pa.Array:
    return _addresses(pq.ParquetFile(pa.BufferReader(data)).read())


def _csv(data: bytes) -> pa.Array:
    # Arrow takes a quote that is not closed as closed at the end.
    if not data.endswith(b"\n") or data.count(b'"') % 2:
        raise ValueError("it does not end with a whole line")
    rows = pa_csv.read_csv(
        pa.BufferReader(data),
        pa_csv.ReadOptions(use_threads=False),
        pa_csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        pa_csv.ConvertOptions(column_types={"address": pa.string()}),
    )
    if rows.column_names != ["address"]:
        raise ValueError(f"its columns are {rows.column_names}")
    addresses = _addresses(rows)
    if pc.any(pc.equal(addresses, "")).as_py():
        raise ValueError("it has a row without an address")
    return addresses


def _addresses(rows: pa.Table) -> pa.Array:
    column = rows["address"].combine_chunks()
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


_READERS: Final[Mapping[str, Callable[[bytes], pa.Array]]] = {
    "txt": _lines,
    "csv": _csv,
    "parquet": _column,
}


def _placed(namespace: StorageNamespace, addresses: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Addresses relative to the namespace; of those that cannot be, why they are elsewhere."""
    full = pc.match_substring_regex(addresses, f"^{_SCHEME.pattern}")
    found = addresses.filter(pc.invert(full)).to_pylist()
    whys: list[str | None] = [None] * len(found)
    for address in addresses.filter(full).to_pylist():
        try:
            meant = namespace.relatives(address)
        except UnresolvableAddressError:
            found.append(address)
            whys.append(_UNPLACED)
            continue
        found.append(_as_written(address, meant) if meant else address)
        whys.append(None if meant else f"it is not below {namespace.url()}")
    return pa.array(found, pa.string()), pa.array(whys, pa.string())


def _as_written(address: str, meant: AbstractSet[str]) -> str:
    """Of what a full address may mean: the key as it stands, which is how lists have them."""
    return min(meant, key=lambda one: (not address.endswith(one), -len(one), one))
