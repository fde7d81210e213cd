"""What was read of ranges and metaranges, kept so that each is read once in its life.

They are immutable and named by their content, so what is cached never goes stale. Each reader has
a kind of its own, with a version that it raises when it changes. Many tables share a pack: one file
for each of its columns groups, with the rows of one table after those of another, and an index that
says where each begins. An index is named by the SHA-256 of its content and holds that of its files,
so nothing damaged is ever taken for whole: it is read again. Anything in the cache may be deleted
without harm.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakegc_assets.engine.datasets import Part, read_part, write_part
from lakegc_assets.errors import IntegrityError
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import ObjectNotFoundError
from lakegc_assets.storage.values import LISTING_SCHEMA

_SUFFIX: Final = ".index"
#: Part of the key of everything cached: the form of packs.
_FORM: Final = "packs-1"
_TIME: Final = LISTING_SCHEMA.field("last_modified").type


@dataclass(frozen=True)
class Pack:
    """One pack.

    Attributes:
        index: key of its index, relative to the cache.
        files: its files, by the name of their group of columns; relative to the cache.
    """

    index: str
    files: Mapping[str, Part]


class Slot(NamedTuple):
    """Where a table is.

    Attributes:
        pack: that holds it.
        offset: its first row there.
        rows: number of its rows there.
        facts: what else is known of it.
    """

    pack: Pack
    offset: int
    rows: int
    facts: Mapping[str, Any]


class Decoded(NamedTuple):
    """A table to be kept.

    Attributes:
        table_id: of the range or metarange.
        groups: its rows, by the name of their group of columns; all of one length.
        facts: what else is known of it, as JSON values.
    """

    table_id: str
    groups: Mapping[str, pa.Table]
    facts: Mapping[str, Any]


def read_slots(cache: ObjectStore, kind: str, version: int) -> dict[str, Slot]:
    """Where every cached table is; what is damaged is left out.

    Args:
        cache: of the repository.
        kind: what is kept, and by whom.
        version: of the reader: another one finds nothing.
    """
    slots: dict[str, Slot] = {}
    for batch in cache.list(_folder(kind, version)):
        for key in batch["key"].to_pylist():
            if key.endswith(_SUFFIX):
                slots.update(_read_index(cache, key))
    return slots


def write_pack(cache: ObjectStore, kind: str, version: int, tables: Sequence[Decoded]) -> None:
    """Keep some tables; a reader finds all of them or none."""
    folder = _folder(kind, version)
    files = {
        name: write_part(
            cache, folder, pa.concat_tables([t.groups[name] for t in tables]), plain=True
        ).to_json()
        for name in tables[0].groups
    }
    rows = [next(iter(table.groups.values())).num_rows for table in tables]
    index = pa.table(
        {
            "table_id": [table.table_id for table in tables],
            "rows": pa.array(rows, pa.int64()),
            "facts": [json.dumps(table.facts) for table in tables],
        }
    ).replace_schema_metadata({"files": json.dumps(files)})
    sink = pa.BufferOutputStream()
    pq.write_table(index, sink, compression="zstd")
    data = sink.getvalue().to_pybytes()
    cache.put(f"{folder}{hashlib.sha256(data).hexdigest()}{_SUFFIX}", data)


def read_group(
    cache: ObjectStore, pack: Pack, name: str, slots: Iterable[Slot]
) -> list[pa.Table] | None:
    """The rows of some tables of one pack, in the order of their slots; None if it is damaged.

    A damaged pack is forgotten, so that the next reader does not meet it again.
    """
    try:
        whole = read_part(cache, pack.files[name])
    except (IntegrityError, KeyError):
        cache.delete_many([pack.index])
        return None
    return [whole.slice(slot.offset, slot.rows) for slot in slots]


def by_pack(slots: Iterable[Slot]) -> list[tuple[Pack, list[Slot]]]:
    """Slots by the packs that they are in, so that each pack is read once."""
    found: dict[str, tuple[Pack, list[Slot]]] = {}
    for slot in slots:
        found.setdefault(slot.pack.index, (slot.pack, []))[1].append(slot)
    return list(found.values())


def unneeded(
    cache: ObjectStore, kind: str, version: int, wanted: AbstractSet[str], before: datetime
) -> Iterator[tuple[str, int]]:
    """Key and size (bytes) of what nobody needs of a kind, each index before its files.

    A pack goes as a whole: where it was written before a time, and none of its tables is wanted. So
    do files that no index names, which a killed writer leaves, and files of other versions.

    Args:
        cache: of the repository.
        kind: what is kept, and by whom.
        version: of the reader.
        wanted: ids of the tables that are to stay.
        before: by the store's clock.
    """
    listed = pa.Table.from_batches(list(cache.list(f"{kind}/")), LISTING_SCHEMA)
    old = listed.filter(pc.less(listed["last_modified"], pa.scalar(before, _TIME)))
    sizes = dict(zip(old["key"].to_pylist(), old["size"].to_pylist(), strict=True))
    named: set[str] = set()
    for key in listed["key"].to_pylist():
        if not key.endswith(_SUFFIX) or not key.startswith(_folder(kind, version)):
            continue
        slots = _read_index(cache, key)
        files = {part.key for slot in slots.values() for part in slot.pack.files.values()}
        if key not in sizes or not wanted.isdisjoint(slots):
            named |= {key, *files}
        elif slots:
            yield from ((one, sizes[one]) for one in (key, *sorted(files)) if one in sizes)
            named |= {key, *files}
    yield from ((key, size) for key, size in sizes.items() if key not in named)


def _folder(kind: str, version: int) -> str:
    return f"{kind}/v{version}-{_FORM}/"


def _read_index(cache: ObjectStore, key: str) -> dict[str, Slot]:
    try:
        data = cache.get(key)
    except ObjectNotFoundError:
        return {}
    if f"{hashlib.sha256(data).hexdigest()}{_SUFFIX}" != key.rpartition("/")[2]:
        return {}
    index = pq.read_table(pa.BufferReader(data))
    files = json.loads(index.schema.metadata[b"files"])
    pack = Pack(key, {name: Part(*part) for name, part in files.items()})
    slots: dict[str, Slot] = {}
    offset = 0
    columns = (index[name].to_pylist() for name in ("table_id", "rows", "facts"))
    for table_id, rows, facts in zip(*columns, strict=True):
        slots[table_id] = Slot(pack, offset, rows, json.loads(facts))
        offset += rows
    return slots
