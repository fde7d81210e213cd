"""Differences between trees, and the three-way merge for merges and reverts."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from lakegc_assets.embedded import errors
from lakegc_assets.embedded.lake.trees import Cursor, Trees, TreeWriter
from lakegc_assets.graveler.ranges import RangeInfo
from lakegc_assets.graveler.sstable import Record

SOURCE_WINS = "source-wins"
DEST_WINS = "dest-wins"


@dataclass(frozen=True)
class Difference:
    """A key with different records in two trees; None for a tree without the key."""

    key: bytes
    left: Record | None
    right: Record | None


def differences(trees: Trees, left: str, right: str, start: bytes = b"") -> Iterator[Difference]:
    """Differences of two trees (metarange ids), by key; equal ranges are not read."""
    a, b = trees.cursor(left), trees.cursor(right)
    while a.range is not None or b.range is not None:
        at_heads = a.record is None and b.record is None
        if at_heads and a.range is not None and b.range is not None and a.range.id == b.range.id:
            a.skip_range()
            b.skip_range()
        elif not _enter(a, start) and not _enter(b, start):
            found = _difference(a.record, b.record)
            for cursor, record in ((a, found.left), (b, found.right)):
                if record is not None:
                    cursor.advance()
            same = found.left and found.right and found.left.identity == found.right.identity
            if not same and found.key >= start:
                yield found


def _enter(cursor: Cursor, start: bytes) -> bool:
    """Return whether the cursor was at the head of a range, and has moved to its records."""
    if cursor.range is None or cursor.record is not None:
        return False
    if cursor.range.max_key < start:
        cursor.skip_range()
    else:
        cursor.advance()
    return True


def _difference(a: Record | None, b: Record | None) -> Difference:
    if a is not None and (b is None or a.key < b.key):
        return Difference(a.key, a, None)
    if b is not None and (a is None or b.key < a.key):
        return Difference(b.key, None, b)
    if a is None or b is None:
        raise AssertionError("one of two cursors is at a record")
    return Difference(a.key, a, b)


def merge(trees: Trees, *, base: str, source: str, dest: str, strategy: str = "") -> str:
    """Apply to ``dest`` the changes from ``base`` to ``source``; all are metarange ids.

    The strategy is ``source-wins``, ``dest-wins``, or empty: then a conflict is an error.

    Raises:
        ApiError: 409 when both changed one key differently and there is no strategy.
    """
    if dest == base:
        return source
    merging = _Merge(trees, base, strategy)
    a = _Side(trees.cursor(source), SOURCE_WINS)
    b = _Side(trees.cursor(dest), DEST_WINS)
    while a.at.range is not None and b.at.range is not None:
        merging.step(a, b)
    for side in (a, b):
        while side.at.range is not None:
            merging.lone(side)
    return merging.writer.finish()


@dataclass(frozen=True)
class _Side:
    """One of the two trees of a merge, and the strategy that prefers it."""

    at: Cursor
    strategy: str

    @property
    def first_key(self) -> bytes:
        """The smallest key that may still follow."""
        return self.at.record.key if self.at.record else self._range.min_key

    @property
    def last_key(self) -> bytes:
        """The largest key of the current place: a record, or a whole range."""
        return self.at.record.key if self.at.record else self._range.max_key

    @property
    def _range(self) -> RangeInfo:
        if self.at.range is None:
            raise AssertionError("a merge only looks at sides that are not at their end")
        return self.at.range


class _Merge:
    """One merge: decides, place by place, which records and which whole ranges the result has."""

    def __init__(self, trees: Trees, base: str, strategy: str) -> None:
        self.writer = TreeWriter(trees)
        self._trees = trees
        self._base = base
        self._base_ranges = trees.ranges(base)
        self._strategy = strategy

    def step(self, a: _Side, b: _Side) -> None:
        """Handle the first of the two places, or both if they overlap."""
        if a.at.record is not None and b.at.record is not None and a.first_key == b.first_key:
            self._same_key(a, b, a.at.record, b.at.record)
        elif a.at.record is None and b.at.record is None and self._same_bounds(a, b):
            pass
        elif a.last_key < b.first_key:
            self._alone_or_enter(a, b)
        elif b.last_key < a.first_key:
            self._alone_or_enter(b, a)
        else:
            for side in (a, b):
                if side.at.record is None:
                    side.at.advance()

    def lone(self, side: _Side) -> None:
        """Handle a place of one side where the other side has no records."""
        if not self._alone(side):
            side.at.advance()

    def _alone_or_enter(self, first: _Side, other: _Side) -> None:
        """Handle ``first``; like lakeFS, enter both disjoint ranges if both sides changed."""
        heads = first.at.record is None and other.at.record is None
        if not self._alone(first):
            first.at.advance()
            if heads:
                other.at.advance()

    def _alone(self, side: _Side) -> bool:
        """Copy or drop a record or range that only one side has; False if a range must be read."""
        if side.at.record is not None:
            self._lone_record(side, side.at.record)
            return True
        info = side.at.range
        if info is None:
            return True
        base = self._overlapping(info)
        if base is not None and base.id != info.id:
            return False
        if base is None:
            self.writer.add_range(info)
        side.at.skip_range()
        return True

    def _lone_record(self, side: _Side, record: Record) -> None:
        base = self._trees.get(self._base, record.key)
        side.at.advance()
        if base is None or (base.identity != record.identity and self._wins(side)):
            self.writer.add_record(record)

    def _same_key(self, a: _Side, b: _Side, ours: Record, theirs: Record) -> None:
        chosen = ours
        if ours.identity != theirs.identity:
            base = self._trees.get(self._base, ours.key)
            if base is not None and ours.identity == base.identity:
                chosen = theirs
            elif base is None or theirs.identity != base.identity:
                chosen = ours if self._wins(a) else theirs
        self.writer.add_record(chosen)
        a.at.advance()
        b.at.advance()

    def _same_bounds(self, a: _Side, b: _Side) -> bool:
        """Copy one of two ranges with the same keys, if they are equal or only one changed."""
        ours, theirs = a.at.range, b.at.range
        if ours is None or theirs is None:
            return False
        chosen = ours
        if ours.id != theirs.id:
            if (ours.min_key, ours.max_key) != (theirs.min_key, theirs.max_key):
                return False
            base = self._overlapping(ours)
            if base is None or base.id not in {ours.id, theirs.id}:
                return False
            chosen = theirs if ours.id == base.id else ours
        self.writer.add_range(chosen)
        a.at.skip_range()
        b.at.skip_range()
        return True

    def _wins(self, side: _Side) -> bool:
        """Return whether this side's version of a conflict is taken; 409 without a strategy."""
        if not self._strategy:
            raise errors.ApiError(409, "conflict found", reference="")
        return self._strategy == side.strategy

    def _overlapping(self, info: RangeInfo) -> RangeInfo | None:
        at = bisect_left(self._base_ranges, info.min_key, key=lambda r: r.max_key)
        if at == len(self._base_ranges) or self._base_ranges[at].min_key > info.max_key:
            return None
        return self._base_ranges[at]
