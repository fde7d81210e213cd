"""Committed trees: metaranges and ranges in the store, read through a cache and written once.

The metarange id names a tree; the empty id is the tree of the initial commit. A commit or merge
shares all unchanged ranges with its parents, as in lakeFS (its pkg/graveler/committed), so equal
histories have equal ids.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock

from lakegc_assets.graveler.ranges import (
    RangeInfo,
    finish_range,
    is_range_break,
    read_metarange,
    write_metarange,
)
from lakegc_assets.graveler.sstable import Record, read_sstable
from lakegc_assets.graveler.sstable_writer import SSTableWriter
from lakegc_assets.storage.base import ObjectStore

Change = tuple[bytes, Record | None]
"""A key, and its new record or None for its deletion."""

Metadata = Mapping[str, str]
"""Properties of files that are no trees: they say what they are."""

_CACHED_RECORDS = 200_000
_CACHED_METARANGES = 1000


class _Recent:
    """The most recently read files, up to a total weight."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._weight = 0
        self._files: OrderedDict[str, Sequence[object]] = OrderedDict()
        self._lock = Lock()

    def get(self, name: str) -> Sequence[object] | None:
        with self._lock:
            found = self._files.get(name)
            if found is not None:
                self._files.move_to_end(name)
            return found

    def add(self, name: str, content: Sequence[object]) -> None:
        with self._lock:
            if name in self._files:
                return
            self._files[name] = content
            self._weight += len(content) + 1
            while self._weight > self._limit and len(self._files) > 1:
                _, old = self._files.popitem(last=False)
                self._weight -= len(old) + 1


@dataclass(frozen=True)
class Breaks:
    """Limits at which ranges end: ``raggedness`` and ``max_bytes`` as in ``ServerSettings``."""

    raggedness: int
    max_bytes: int


class Trees:
    """The committed trees of one storage namespace, at which the store is rooted."""

    def __init__(self, store: ObjectStore, breaks: Breaks) -> None:
        self._store = store
        self.breaks = breaks
        self._ranges = _Recent(_CACHED_RECORDS)
        self._metaranges = _Recent(_CACHED_METARANGES)

    def ranges(self, metarange_id: str) -> Sequence[RangeInfo]:
        """The ranges of a tree, by key."""
        if not metarange_id:
            return ()
        found = self._metaranges.get(metarange_id)
        if found is None:
            data = self._store.get(f"_lakefs/{metarange_id}")
            found = tuple(read_metarange(data, metarange_id))
            self._metaranges.add(metarange_id, found)
        return found  # type: ignore[return-value] # the cache holds what was put there

    def records(self, range_id: str) -> Sequence[Record]:
        """The records of a range, by key."""
        found = self._ranges.get(range_id)
        if found is None:
            data = self._store.get(f"_lakefs/{range_id}")
            found = read_sstable(data, range_id).records
            self._ranges.add(range_id, found)
        return found  # type: ignore[return-value] # the cache holds what was put there

    def get(self, metarange_id: str, key: bytes) -> Record | None:
        """The record of one key, or None."""
        found = next(self.scan(metarange_id, key), None)
        return found if found is not None and found.key == key else None

    def scan(self, metarange_id: str, start: bytes = b"") -> Iterator[Record]:
        """The records of a tree from a key on."""
        ranges = self.ranges(metarange_id)
        first = bisect_left(ranges, start, key=lambda r: r.max_key)
        for info in ranges[first:]:
            records = self.records(info.id)
            begin = bisect_left(records, start, key=lambda r: r.key)
            yield from records[begin:]

    def cursor(self, metarange_id: str) -> Cursor:
        """A cursor before the first range of a tree."""
        return Cursor(self, self.ranges(metarange_id))

    def save_range(self, writer: SSTableWriter, records: Sequence[Record] | None) -> RangeInfo:
        """Write a range, after the writer has received these records; None if they are no entries.

        It is also written if it is known: the range of another process's repository in this
        namespace may have been removed.
        """
        info, data = finish_range(writer)
        self._store.put(f"_lakefs/{info.id}", data)
        if records is not None:
            self._ranges.add(info.id, records)
        return info

    def save_metarange(self, ranges: Sequence[RangeInfo], metadata: Metadata | None) -> str:
        """Write a metarange; its id. Only ranges of entries have no metadata, and make a tree."""
        name, data = write_metarange(ranges, metadata)
        self._store.put(f"_lakefs/{name}", data)
        if not metadata:
            self._metaranges.add(name, ranges)
        return name


class Cursor:
    """A place in a tree: at the head of a range, at a record inside one, or at the end.

    Attributes:
        range: the current range, or None at the end.
        record: the current record, or None at the head of a range.
    """

    def __init__(self, trees: Trees, ranges: Sequence[RangeInfo]) -> None:
        self._trees = trees
        self._ranges = ranges
        self._at = 0
        self._inside = -1
        self.range = ranges[0] if ranges else None
        self.record: Record | None = None

    def advance(self) -> None:
        """Move from a head to the first record, or from a record to the next record or head."""
        if self.range is None:
            return
        self._inside += 1
        records = self._trees.records(self.range.id)
        if self._inside < len(records):
            self.record = records[self._inside]
        else:
            self.skip_range()

    def skip_range(self) -> None:
        """Move to the head of the next range."""
        self._at += 1
        self._inside = -1
        self.record = None
        self.range = self._ranges[self._at] if self._at < len(self._ranges) else None


class TreeWriter:
    """Builds one tree from records and whole ranges in the order of their keys.

    All files get the ``metadata``, if the records are not entries.
    """

    def __init__(self, trees: Trees, metadata: Metadata | None = None) -> None:
        self._trees = trees
        self._metadata = metadata
        self._done: list[RangeInfo] = []
        self._records: list[Record] = []
        self._open = SSTableWriter("ranges", metadata)

    def add_record(self, record: Record) -> None:
        """Append one record, and end the range if the break rule requires it."""
        self._open.add(record)
        self._records.append(record)
        breaks = self._trees.breaks
        if self._open.estimated_size >= breaks.max_bytes or is_range_break(
            record.key, breaks.raggedness
        ):
            self._close()

    def add_range(self, info: RangeInfo) -> None:
        """Append a whole existing range."""
        self._close()
        self._done.append(info)

    def finish(self) -> str:
        """Write the open range and the metarange; its id."""
        self._close()
        return self._trees.save_metarange(tuple(self._done), self._metadata)

    def _close(self) -> None:
        if self._records:
            records = None if self._metadata else tuple(self._records)
            self._done.append(self._trees.save_range(self._open, records))
            self._records = []
            self._open = SSTableWriter("ranges", self._metadata)


def commit_changes(trees: Trees, base: str, changes: Iterable[Change]) -> tuple[str, bool]:
    """Apply changes, by key, to a tree (a metarange id).

    A deletion of a missing key is no change. Neither is a record with the identity of the base's
    record, which keeps its own address. Returns the new metarange id, and whether anything changed.
    """
    writer = TreeWriter(trees)
    at = trees.cursor(base)
    changed = False
    for key, new in changes:
        _copy_until(writer, at, key)
        old = at.record if at.record is not None and at.record.key == key else None
        if old is not None:
            at.advance()
        if new is not None and old is not None and new.identity == old.identity:
            writer.add_record(old)
            continue
        if new is not None:
            writer.add_record(new)
        changed = changed or new is not None or old is not None
    _copy_until(writer, at, None)
    return writer.finish(), changed


def _copy_until(writer: TreeWriter, at: Cursor, key: bytes | None) -> None:
    """Copy all records before a key, as whole ranges where possible; all remaining ones for None.

    A range that ends at or after the key is read even if it begins after it, as in lakeFS.
    """
    while at.range is not None:
        if at.record is None and (key is None or at.range.max_key < key):
            writer.add_range(at.range)
            at.skip_range()
        elif at.record is None:
            at.advance()
        elif key is None or at.record.key < key:
            writer.add_record(at.record)
            at.advance()
        else:
            return
