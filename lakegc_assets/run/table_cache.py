"""The cache of decoded tables: Parquet datasets with the rows of many ranges or metaranges each.

Ranges and metaranges are immutable and named by their content, so cached rows never become stale.
Each reader has its own kind of cache, with a version that it raises when it changes. A file holds
the rows of several tables in sequence, and a column with the id of the table, so engines read it
directly. An index has the tables of a file, their offsets and their facts. Its name is the SHA-256
of its content, and it holds the SHA-256 of its file: damage is always noticed, and the tables are
decoded again. Any file of the cache may be deleted without harm.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from lakegc_assets.engine.datasets import Part, read_part, write_part
from lakegc_assets.engine.relation import relation, union_all
from lakegc_assets.engine.session import Dataset, Session
from lakegc_assets.engine.tasks import Tasks
from lakegc_assets.errors import IntegrityError
from lakegc_assets.run.connections import Connections
from lakegc_assets.storage import parquet
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import ObjectNotFoundError
from lakegc_assets.storage.values import LISTING_SCHEMA

_SUFFIX: Final = ".index"
#: Part of each key: the form of files and indexes.
_FORM: Final = "dataset-1"
_TIME: Final = LISTING_SCHEMA.field("last_modified").type
#: Weight of a table's line in the index, in rows.
_ROWS_OF_TABLE: Final = 50
#: Weight in rows below which a file is small; the number of small files from which they are
#: rewritten; and the weight of about each new file.
_SMALL_ROWS: Final = 250_000
MANY_FILES: Final = 32
COMPACTED_ROWS: Final = 2_000_000
#: Seconds of one core to compare a row with its digest; and the most rows that this process
#: compares itself, since starting tasks takes longer.
_COMPARE_S: Final = 5e-8
FEW_ROWS: Final = 100_000
#: Tries to read all indexes, if listed ones are removed meanwhile.
_LOOKS: Final = 3
#: Errors from reading a foreign file as an index.
_NO_INDEX: Final = (
    pa.ArrowException, LookupError, TypeError, ValueError, AttributeError, OSError, RecursionError,
)  # fmt: skip


class Kind(NamedTuple):
    """A kind of cached table, with the name of the column that has the ids of the tables."""

    name: str
    #: Version of the decoder: a reader of another version finds no tables.
    version: int
    id_column: str
    #: About the number of rows in a file of several tables, which a reader holds at a time.
    file_rows: int = 1_000_000
    #: Summarizes the rows of a file for uses in which the table of a row does not matter: fewer
    #: rows, if tables share most of their rows. The summary is cached next to the file.
    summarize: Callable[[pa.Table], pa.Table] | None = None

    @property
    def folder(self) -> str:
        """The folder of its files, relative to the cache."""
        return f"{self.name}/v{self.version}-{_FORM}/"


@dataclass(frozen=True)
class CacheFile:
    """One file of a cache."""

    #: Key of its index, relative to the cache.
    index: str
    part: Part = field(compare=False)
    #: Ids of its tables, in the order of their rows.
    table_ids: tuple[str, ...] = field(compare=False)
    #: The file with the summary of its rows, if its kind has one.
    summary: Part | None = field(default=None, compare=False)

    @property
    def parts(self) -> list[Part]:
        """The files of its rows and of their summary."""
        return [self.part] if self.summary is None else [self.part, self.summary]

    @property
    def weight(self) -> int:
        """Its rows, plus the weight of its index in rows."""
        return self.part.rows + _ROWS_OF_TABLE * len(self.table_ids)


class Slot(NamedTuple):
    """The place of one table: a file, the rows in it, and the facts of the table."""

    file: CacheFile
    offset: int
    rows: int
    facts: Mapping[str, Any]


class Decoded(NamedTuple):
    """A table to be cached: a range or a metarange."""

    table_id: str
    #: Its rows without the column of its id.
    rows: pa.Table
    #: Other facts of the table, as JSON values.
    facts: Mapping[str, Any]

    def select(self, columns: Sequence[str]) -> Decoded:
        """Return the table with some of its columns."""
        return self._replace(rows=self.rows.select(columns))


class TableCache:
    """The cached tables of one kind, in the store of the caches of a repository."""

    def __init__(self, store: ObjectStore, kind: Kind) -> None:
        self._store, self._kind = store, kind

    def slots(self) -> dict[str, Slot]:
        """Return the slots of all cached tables, without damaged files."""
        return _chosen(self._indexes())

    def write(self, tables: Sequence[Decoded]) -> dict[str, Slot]:
        """Cache tables with equal columns; a reader finds all of their slots or none."""
        # A table that is twice in a file would be read twice.
        tables = list({table.table_id: table for table in tables}.values())
        rows = self._joined(tables)
        parts = {"file": self._write(rows)}
        if self._kind.summarize is not None:
            parts["summary"] = self._write(self._kind.summarize(rows))
        index = pa.table(
            {
                "table_id": [table.table_id for table in tables],
                "rows": pa.array([table.rows.num_rows for table in tables], pa.int64()),
                "facts": [json.dumps(table.facts) for table in tables],
            }
        ).replace_schema_metadata({name: json.dumps(part) for name, part in parts.items()})
        data = parquet.encode(index)
        key = f"{self._kind.folder}{hashlib.sha256(data).hexdigest()}{_SUFFIX}"
        self._store.put(key, data)
        return _slots_of(key, index)

    def _write(self, rows: pa.Table) -> Part:
        return write_part(self._store, self._kind.folder, rows, plain=True)

    def write_all(self, tables: Iterable[Decoded]) -> Iterator[tuple[Decoded, Slot]]:
        """Cache tables from a stream, in files of several; yields each with its slot."""
        waiting: list[Decoded] = []
        weight = 0
        for table in tables:
            waiting.append(table)
            weight += table.rows.num_rows + _ROWS_OF_TABLE
            if weight >= self._kind.file_rows:
                yield from self._written(waiting)
                waiting, weight = [], 0
        yield from self._written(waiting)

    def _written(self, tables: Sequence[Decoded]) -> Iterator[tuple[Decoded, Slot]]:
        slots = self.write(tables) if tables else {}
        yield from ((table, slots[table.table_id]) for table in tables)

    def read_or_decode(
        self,
        slots: Mapping[str, Slot],
        missing: Iterable[str],
        decode: Callable[[Sequence[str]], Iterable[Decoded]],
        columns: Sequence[str] | None = None,
    ) -> Iterator[tuple[Decoded, bool]]:
        """Yield cached tables first, then the missing ones, which are decoded and cached.

        Args:
            slots: slots of the cached tables by id; damaged tables are decoded again.
            missing: ids of the tables to decode.
            decode: decodes tables by their ids.
            columns: columns to read; None for all but the id of the table.

        Yields:
            Each table, and True if it came from the cache.
        """
        others = list(missing)
        ids = {id(slot): table_id for table_id, slot in slots.items()}
        for file, some in by_file(slots.values()):
            tables = self.read(file, some, columns)
            if tables is None:
                others += [ids[id(slot)] for slot in some]
                continue
            for slot, table in zip(some, tables, strict=True):
                yield Decoded(ids[id(slot)], table, slot.facts), True
        for table, _ in self.write_all(decode(others)):
            yield (table if columns is None else table.select(columns)), False

    def _joined(self, tables: Sequence[Decoded]) -> pa.Table:
        rows = pa.concat_tables([table.rows for table in tables]).unify_dictionaries()
        numbers = np.repeat(
            np.arange(len(tables), dtype=np.int32), [table.rows.num_rows for table in tables]
        )
        ids = pa.array([table.table_id for table in tables], pa.string())
        of_rows = pa.DictionaryArray.from_arrays(pa.array(numbers, pa.int32()), ids)
        return pa.table([of_rows, *rows.columns], names=[self._kind.id_column, *rows.column_names])

    def read(
        self, file: CacheFile, slots: Iterable[Slot], columns: Sequence[str] | None = None
    ) -> list[pa.Table] | None:
        """Return the rows of tables of one file, ordered as their slots; None if it is damaged.

        A damaged file is forgotten, so that no later reader tries it.

        ``columns``: columns to read; None for all but the id of the table.
        """
        try:
            whole = read_part(self._store, file.part, columns)
        except IntegrityError:
            self.forget([file])
            return None
        if columns is None:
            whole = whole.drop_columns([self._kind.id_column])
        slots = list(slots)
        chosen = np.zeros(whole.num_rows, np.bool_)
        for slot in slots:
            chosen[slot.offset : slot.offset + slot.rows] = True
        if chosen.all():
            return [whole.slice(slot.offset, slot.rows) for slot in slots]
        # A slice would keep the whole file in memory as long as the slice lives.
        offsets, rows = np.cumsum(chosen) - chosen, whole.filter(pa.array(chosen))
        return [rows.slice(offsets[slot.offset] if slot.rows else 0, slot.rows) for slot in slots]

    def is_whole(self, file: CacheFile) -> bool:
        """Return True if a file and its summary are undamaged; a damaged file is forgotten."""
        try:
            for part in file.parts:
                read_part(self._store, part, [])
        except IntegrityError:
            self.forget([file])
            return False
        return True

    def frame(
        self,
        frames: Session,
        url: str,
        slots: Mapping[str, Slot],
        schema: pa.Schema,
        columns: Sequence[str],
        *,
        summarized: bool = False,
    ) -> DataFrame:
        """Return a frame with exactly the rows of given tables, from the cache at ``url``.

        ``schema``: schema of the files.
        ``summarized``: True if summaries will do, for files in which all tables are wanted.

        Raises:
            IntegrityError: a file is missing or damaged. Some sessions compare files only when the
                frame is computed, and raise it then.
        """
        id_column = self._kind.id_column
        found: list[DataFrame] = []
        for files, ids in _read_together(slots):
            names = list(columns) if ids is None else list(dict.fromkeys([id_column, *columns]))
            kinds = pa.schema([schema.field(name) for name in names])
            parts = [
                file.summary if summarized and ids is None and file.summary else file.part
                for file in files
            ]
            frame = frames.read(Dataset(url, parts, kinds))
            if ids is not None:
                chosen = pa.table({id_column: pa.array(sorted(ids), pa.string())})
                frame = _of_tables(frame, frames.create(chosen), id_column, *columns)
            found.append(frame)
        if not found:
            return frames.create(pa.schema([schema.field(n) for n in columns]).empty_table())
        return union_all(*found)

    def forget(self, files: Iterable[CacheFile]) -> None:
        """Remove the indexes of files; the files themselves stay until a prune.

        A reader that has read an index before may still read its file.
        """
        self._store.delete_many([file.index for file in files])

    def compact(self) -> dict[str, Slot]:
        """Rewrite many small files as larger ones, and return the slots of all tables.

        Readers find a table at every moment: an index is removed after another index has its
        tables. A kill in between leaves tables in two files, of which the larger one is used.
        """
        indexes = self._indexes()
        slots = _chosen(indexes)
        small = [file for file in indexes if file.weight < _SMALL_ROWS]
        if len(small) < MANY_FILES:
            return slots
        for some in _batches(small):
            if len(some) > 1:
                self._rewrite(some, slots)
        return self.slots()

    def _rewrite(self, files: Sequence[CacheFile], slots: Mapping[str, Slot]) -> None:
        """Write the tables of several files to one, except tables that are read from another."""
        found: list[Decoded] = []
        whole: list[CacheFile] = []
        for file in files:
            mine = {i: slots[i] for i in file.table_ids if slots[i].file == file}
            tables = self.read(file, mine.values()) if mine else []
            if tables is None:
                continue
            whole.append(file)
            pairs = zip(mine.items(), tables, strict=True)
            found += [Decoded(table_id, rows, slot.facts) for (table_id, slot), rows in pairs]
        if found:
            self.write(found)
        self.forget(whole)

    def unneeded(self, wanted: AbstractSet[str], before: datetime) -> Iterator[tuple[str, int]]:
        """Yield key and size (bytes) of unneeded files, each index before its file.

        A file is removed as a whole, if it was written before ``before``, by the store's clock, and
        none of its tables is wanted. Files of that age without an index go too, as a killed writer
        or a rewrite leaves them, and files of other versions.
        """
        listed = pa.Table.from_batches(
            list(self._store.list(f"{self._kind.name}/")), LISTING_SCHEMA
        )
        old = listed.filter(pc.less(listed["last_modified"], pa.scalar(before, _TIME)))
        sizes = dict(zip(old["key"].to_pylist(), old["size"].to_pylist(), strict=True))
        named: set[str] = set()
        for key in listed["key"].to_pylist():
            if not key.endswith(_SUFFIX) or not key.startswith(self._kind.folder):
                continue
            slots = self._index(key)
            files = {part.key for slot in (slots or {}).values() for part in slot.file.parts}
            if key not in sizes or not wanted.isdisjoint(slots or {}):
                named |= {key, *files}
            elif slots:
                yield from ((one, sizes[one]) for one in (key, *sorted(files)) if one in sizes)
                named |= {key, *files}
        yield from ((key, size) for key, size in sizes.items() if key not in named)

    def _indexes(self) -> dict[CacheFile, dict[str, Slot]]:
        """Return the tables of each file, by all undamaged indexes."""
        found: dict[str, dict[str, Slot]] = {}
        for _ in range(_LOOKS):
            keys = [
                key
                for batch in self._store.list(self._kind.folder)
                for key in batch["key"].to_pylist()
                if key.endswith(_SUFFIX)
            ]
            read = {key: self._index(key) for key in keys if key not in found}
            found |= {key: slots for key, slots in read.items() if slots is not None}
            # A rewrite has removed an index, and the listing may lack the new one: list again.
            if None not in read.values():
                break
        return {next(iter(slots.values())).file: slots for slots in found.values() if slots}

    def _index(self, key: str) -> dict[str, Slot] | None:
        """Return the tables of an index: empty if it is damaged; None if it does not exist."""
        try:
            data = self._store.get(key)
        except ObjectNotFoundError:
            return None
        if f"{hashlib.sha256(data).hexdigest()}{_SUFFIX}" != key.rpartition("/")[2]:
            return {}
        try:
            return _slots_of(key, parquet.decode(data))
        # A foreign file may be named by its digest as well.
        except _NO_INDEX:
            return {}


@relation
def _of_tables(rows: DataFrame, chosen: DataFrame, id_column: str, *columns: str) -> DataFrame:
    """Return columns of the rows of chosen tables, by their ids."""
    return rows.join(chosen, id_column, "left_semi").select(*columns)


def by_file(slots: Iterable[Slot]) -> list[tuple[CacheFile, list[Slot]]]:
    """Group slots by their files, so that each file is read once."""
    found: dict[str, tuple[CacheFile, list[Slot]]] = {}
    for slot in slots:
        found.setdefault(slot.file.index, (slot.file, []))[1].append(slot)
    return list(found.values())


def forget_damaged(
    tasks: Tasks, connections: Connections, kind: Kind, slots: Iterable[Slot], most: int
) -> bool:
    """Forget the damaged files of given slots; return True if there are any.

    ``most``: largest number of tasks that compare them.
    """
    files = [file for file, _ in by_file(slots)]
    costs = [file.part.rows * _COMPARE_S for file in files]
    task = partial(_are_damaged, connections, kind)
    if sum(file.part.rows for file in files) <= FEW_ROWS:
        return task(files)
    return any(tasks.run_grouped("compare what is cached", task, files, costs, most))


def _are_damaged(connections: Connections, kind: Kind, files: Sequence[CacheFile]) -> bool:
    cache = TableCache(connections.cache(), kind)
    # Without a short cut, so that each damaged file is forgotten.
    return False in [cache.is_whole(file) for file in files]


def _read_together(
    slots: Mapping[str, Slot],
) -> list[tuple[list[CacheFile], set[str] | None]]:
    """Group files that one frame may read, with the ids to choose from it; None for all ids.

    A table may be in several files, and must not be read twice. So if a table of one file is chosen
    by its id, no other file of the same frame has that table.
    """
    whole: list[CacheFile] = []
    mixed: list[tuple[list[CacheFile], set[str], set[str]]] = []
    mine: dict[CacheFile, set[str]] = {}
    for table_id, slot in slots.items():
        mine.setdefault(slot.file, set()).add(table_id)
    for file, chosen in mine.items():
        held = set(file.table_ids)
        if held == chosen:
            whole.append(file)
            continue
        for files, ids, of_files in mixed:
            if ids.isdisjoint(held) and of_files.isdisjoint(chosen):
                files.append(file)
                ids.update(chosen)
                of_files.update(held)
                break
        else:
            mixed.append(([file], set(chosen), held))
    found = [(files, ids) for files, ids, _ in mixed]
    return [(whole, None), *found] if whole else [*found]


def _chosen(indexes: Mapping[CacheFile, Mapping[str, Slot]]) -> dict[str, Slot]:
    """Return one slot for each table: a table in several files is read from the largest."""
    slots: dict[str, Slot] = {}
    for file in sorted(indexes, key=lambda file: (file.weight, file.index)):
        slots.update(indexes[file])
    return slots


def _slots_of(key: str, index: pa.Table) -> dict[str, Slot]:
    parts = {
        name.decode(): Part(*json.loads(text))
        for name, text in index.schema.metadata.items()
        if name in {b"file", b"summary"}
    }
    ids, rows, facts = (index[name].to_pylist() for name in ("table_id", "rows", "facts"))
    file = CacheFile(key, parts["file"], tuple(ids), parts.get("summary"))
    slots: dict[str, Slot] = {}
    offset = 0
    for table_id, count, known in zip(ids, rows, facts, strict=True):
        slots[table_id] = Slot(file, offset, count, json.loads(known))
        offset += count
    return slots


def _batches(files: Iterable[CacheFile]) -> list[list[CacheFile]]:
    """Group files to about ``COMPACTED_ROWS`` rows."""
    batches: list[list[CacheFile]] = []
    weight = COMPACTED_ROWS
    for file in sorted(files, key=lambda file: (file.weight, file.index)):
        if weight + file.weight > COMPACTED_ROWS:
            batches.append([])
            weight = 0
        batches[-1].append(file)
        weight += file.weight
    return batches
