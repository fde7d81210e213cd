"""A repository of any size that exists in listings, ranges, commits and lists of staged objects.

Large files are made once, by numpy, and kept in a folder: 1,000 ranges of 50,000 entries take
minutes. Ranges are overlapping windows of the committed objects, like versions of a range: each
object is in three or four. The tree of a commit has one window of each group of four. From group to
group, the place of that window in its group never falls, and it rises three times at most. So no
two windows of a tree overlap.
"""

from __future__ import annotations

import json
import multiprocessing
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from bench._pages import KEYS_EACH, MADE, Kind, Pages, etag, ids, slice_names
from bench._ranges import Rows, entry_values, rows_of, write_rows
from bench._run import CORES
from lakegc_assets.graveler.ranges import RangeInfo, write_metarange

#: Objects of ten slices: two and a half slices are staged, half of one is garbage.
_GROUP = 10 * KEYS_EACH
_RANGE = 50_000
_STAGED_FILE = 100_000
#: Sizes with three bytes as a varint, and seven digits. Nearly all garbage has other sizes than
#: live objects. All are larger than the objects that a mark reads to test etags, because the etags
#: here do not match contents.
_SIZE, _GARBAGE_SIZE, _NEW_GARBAGE_SIZE, _SHARED = 1_200_000, 1_400_000, 1_600_000, 200
#: Number of objects of a new slice that commits hold; the others are garbage.
_NEW_ROWS = 9_500
_FORM = 2

Numbers = npt.NDArray[np.int64]


def _local(kind: str) -> Numbers:
    """The places of one kind of objects in ten slices: committed, staged or garbage."""
    n = np.arange(_GROUP)
    number, row = n // KEYS_EACH, n % KEYS_EACH
    staged = (number == 7) | (number == 8) | ((number == 6) & (row >= KEYS_EACH // 2))
    garbage = (number == 9) & (row % 2 == 1)
    found = {"staged": staged, "garbage": garbage, "committed": ~staged & ~garbage}
    return np.flatnonzero(found[kind])


_LOCAL = {kind: _local(kind) for kind in ("committed", "staged", "garbage")}


def _is_garbage(number: int, row: int) -> bool:
    """Return whether an object is garbage, by its place in ten slices."""
    return number == 9 and row % 2 == 1


def _size(number: int, row: int, *, alike: bool) -> int:
    """Listed size of an object, by its place in ten slices."""
    other = _is_garbage(number, row) and not (alike and row % _SHARED == _SHARED - 1)
    return (_GARBAGE_SIZE if other else _SIZE) + row


@dataclass(frozen=True)
class Seed:
    """The size of the repository.

    Attributes:
        objects: number of first listed objects, in steps of 100,000.
        ranges: number of ranges of live entries.
        commits: of all branches.
        branches: main included.
        alike: a few dead objects are as large as live ones.
    """

    objects: int
    ranges: int
    commits: int
    branches: int
    alike: bool = True

    @property
    def slices(self) -> int:
        """The number of first slices."""
        return self.objects // KEYS_EACH

    @property
    def new_commits(self) -> int:
        """The number of later commits: one in a hundred."""
        return max(1, self.commits // 100)

    @property
    def new_slices(self) -> int:
        """The number of later slices: one in a hundred."""
        return max(1, self.slices // 100)

    def count(self, kind: str) -> int:
        """The number of committed, staged or garbage objects."""
        return len(_LOCAL[kind]) * (self.objects // _GROUP)

    @property
    def stride(self) -> int:
        """Number of committed objects from the beginning of one window to that of the next."""
        return self.count("committed") // (self.ranges + 3)

    @property
    def width(self) -> int:
        """Number of committed objects in a window; the last window also has the remainder."""
        return min(_RANGE, 4 * self.stride)

    @cached_property
    def names(self) -> list[str]:
        """All slices: the new ones first."""
        return slice_names(self.slices + self.new_slices)

    def place(self, kind: str, n: Numbers) -> tuple[Numbers, Numbers]:
        """Slice and row of objects of a kind; new objects are those that commits hold later."""
        if kind == "new":
            return n // _NEW_ROWS, n % _NEW_ROWS
        local = _LOCAL[kind]
        at = n // len(local) * _GROUP + local[n % len(local)]
        return self.new_slices + at // KEYS_EACH, at % KEYS_EACH

    def addresses(self, kind: str, n: Numbers) -> list[str]:
        """Addresses of objects of a kind."""
        names, of_row = self.names, ids()
        number, row = (part.tolist() for part in self.place(kind, n))
        return [f"data/{names[s]}/{of_row[r]}" for s, r in zip(number, row, strict=True)]

    def etags(self, kind: str, n: Numbers) -> list[str]:
        """Etags of objects of a kind."""
        number, row = (part.tolist() for part in self.place(kind, n))
        return [etag(s, r) for s, r in zip(number, row, strict=True)]

    def sizes(self, kind: str, n: Numbers) -> Numbers:
        """Sizes of objects of a kind, in bytes."""
        _, row = self.place(kind, n)
        garbage = (kind == "garbage") & (row % _SHARED != _SHARED - 1)
        return np.where(garbage, _GARBAGE_SIZE, _SIZE) + row

    def pages(self, *, later: bool) -> Pages:
        """The first listing; or the later one, without the garbage and with new objects."""
        usual, old = (
            Kind({r: _size(n, r, alike=self.alike) for r in range(KEYS_EACH)}) for n in (0, 9)
        )
        if not later:
            of_slices = [old if n % 10 == 9 else usual for n in range(self.slices)]
            return Pages(self.names[self.new_slices :], of_slices, self.new_slices)
        swept = Kind({r: _SIZE + r for r in range(KEYS_EACH) if not _is_garbage(9, r)})
        new = Kind(
            {r: (_SIZE if r < _NEW_ROWS else _NEW_GARBAGE_SIZE) + r for r in range(KEYS_EACH)}
        )
        of_slices = [swept if n % 10 == 9 else usual for n in range(self.slices)]
        return Pages(self.names, [new] * self.new_slices + of_slices)

    def garbage(self, *, later: bool) -> int:
        """The number of objects that nothing needs, first or later."""
        if later:
            return (KEYS_EACH - _NEW_ROWS) * self.new_slices
        return self.count("garbage")

    def path(self, kind: str, n: int) -> str:
        """Paths of committed objects: new ones sort after the first ones, and garbage last."""
        first = {"committed": 0, "new": 1, "garbage": 2}[kind]
        return f"table/{first}/part={n // 1000:06d}/{n:010d}.parquet"

    def rows(self, kind: str, n: Numbers) -> tuple[Rows, Rows]:
        """Keys and values of entries."""
        addresses, etags = rows_of(self.addresses(kind, n)), rows_of(self.etags(kind, n))
        values = entry_values(addresses, etags, self.sizes(kind, n), int(MADE.timestamp()))
        return rows_of([self.path(kind, one) for one in n.tolist()]), values

    def window(self, number: int) -> tuple[int, int]:
        """The committed objects of a window: the first, and the end."""
        first = number * self.stride
        return first, self.count("committed") if number == self.ranges - 1 else first + self.width

    def tree(self, rng: random.Random | int) -> list[int]:
        """The windows of a commit: random, or the same one of each group."""
        groups = self.ranges // 4
        if isinstance(rng, int):
            return [4 * group + rng for group in range(groups)]
        switches = sorted(rng.randrange(groups + 1) for _ in range(3))
        return [4 * g + sum(g >= switch for switch in switches) for g in range(groups)]


@dataclass(frozen=True)
class Kept:
    """Files of a seed.

    Attributes:
        seed: its sizes.
        folder: with ranges, metaranges, and ``staged`` for lists of staged objects.
        windows: ranges of committed objects.
        new: ranges of new objects.
        garbage: ranges of the half of the garbage that commits held once.
    """

    seed: Seed
    folder: Path
    windows: Sequence[RangeInfo]
    new: Sequence[RangeInfo]
    garbage: Sequence[RangeInfo]

    def staged_files(self) -> list[Path]:
        """Lists of staged objects, in lakeFS's form."""
        return sorted((self.folder / "staged").iterdir())

    def write_tree(self, windows: Sequence[int], more: Sequence[RangeInfo] = ()) -> str:
        """Make a metarange, unless it exists; its id."""
        name, data = write_metarange([*(self.windows[n] for n in windows), *more])
        if not (self.folder / name).exists():
            (self.folder / name).write_bytes(data)
        return name


def make(seed: Seed, cache: Path) -> Kept:
    """Make ranges and lists of staged objects, unless they exist."""
    if seed.ranges % 4 or not 0 < seed.stride <= _RANGE:
        raise SystemExit("ranges come in fours, and must hold all objects that are committed")
    folder = cache / f"{seed.objects}-{seed.ranges}-{_FORM}"
    (folder / "staged").mkdir(parents=True, exist_ok=True)
    known = folder / "ranges.json"
    if not known.exists():
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(CORES, context) as pool:
            found = list(pool.map(partial(_write_range, seed, folder), _spans(seed)))
            list(
                pool.map(
                    partial(_write_staged, seed, folder),
                    range(0, seed.count("staged"), _STAGED_FILE),
                )
            )
        rows = [
            [kind, i.id, i.min_key.decode(), i.max_key.decode(), i.count, i.estimated_size]
            for kind, i in found
        ]
        known.write_text(json.dumps(rows))
    by_kind: dict[str, list[RangeInfo]] = {"committed": [], "new": [], "garbage": []}
    for kind, name, low, high, count, size in json.loads(known.read_text()):
        by_kind[kind].append(RangeInfo(name, low.encode(), high.encode(), count, size))
    return Kept(seed, folder, by_kind["committed"], by_kind["new"], by_kind["garbage"])


def _spans(seed: Seed) -> Iterator[tuple[str, int, int]]:
    for number in range(seed.ranges):
        yield ("committed", *seed.window(number))
    for kind, count in (
        ("new", seed.new_slices * _NEW_ROWS),
        ("garbage", seed.count("garbage") // 2),
    ):
        for first in range(0, count, _RANGE):
            yield kind, first, min(first + _RANGE, count)


def _write_range(seed: Seed, folder: Path, span: tuple[str, int, int]) -> tuple[str, RangeInfo]:
    kind, first, last = span
    info, data = write_rows(*_seed(seed).rows(kind, np.arange(first, last)))
    (folder / info.id).write_bytes(data)
    return kind, info


def _write_staged(seed: Seed, folder: Path, first: int) -> None:
    n = np.arange(first, min(first + _STAGED_FILE, seed.count("staged")))
    created = np.full(len(n), int(MADE.timestamp()))
    table = {"physical_address": _seed(seed).addresses("staged", n), "creation_date": created}
    pq.write_table(pa.table(table), folder / "staged" / f"{first:09d}.parquet")


@lru_cache(1)
def _seed(seed: Seed) -> Seed:
    """The same seed for the whole process, because names of slices are made once."""
    return seed
