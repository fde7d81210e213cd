"""Division of a namespace into key ranges of about equal size, to be listed in parallel.

Slices are found by listing folders. lakeFS bounds their size, so they are listed as they are, but
for what an earlier listing has seen to be large: that is cut at keys which it met on its way.
Shards (``data/!ab/c/<partition>/<id>``) hold about as much as each other, since a hash chooses
among them: a sample of them shows how many are listed together. So it is with many other
folders, if the sampled ones are tiny. What holds many keys in one folder otherwise
(repositories of older lakeFS) is cut where its keys are: a page shows how dense they lie, and so
where the next cut should be; the page behind that cut shows it again.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import NamedTuple

import pyarrow as pa

from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.graveler.namespace import slice_time
from lakegc_assets.storage.base import ObjectStore

LAKEFS_PREFIX = "_lakefs/"
DATA_PREFIX = "data/"
#: What the folders of a sharded namespace begin with.
SHARD = "!"
#: Above every key that starts with a given prefix, for all keys that a person would make.
_LAST = "\U0010ffff"
_LAKEFS_END = LAKEFS_PREFIX + _LAST
_DATA_END = DATA_PREFIX + _LAST
#: What names of slices begin with, and what most other names begin with.
FIRST_CHARACTERS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
#: How many of these are the digits of numbers: decimal, hexadecimal, base32hex, base36, base62.
_USUAL = (10, 16, 32, 36, 62)
#: A folder with more objects than this in it is cut by its keys, and not by the folders in it.
FLAT = 2000
#: About how many keys a range shall have.
KEYS_EACH = 100_000
#: Keys that an unsampled slice is taken to have, and how many slices are sampled.
SLICE_KEYS = 25_000
_SAMPLES = 16
#: How many shards are sampled, and up to how many keys.
_SHARD_SAMPLES = 4
SHARD_KEYS = 1000
#: More folders than this that are no slices are not sampled one by one, if some are tiny.
MANY = 64
#: Neighbours with fewer keys than this are one range.
FEW = 10_000
#: Cuts in one range: a bound for stores whose answers make no sense.
_MOST_CUTS = 10_000
#: Characters of a name by which the place of a cut is computed.
_WIDTH = 24
#: Of these, what all names of the page begin with: room for a cut that is far away.
_CARRY = 8
_THREADS = 16


class KeyRange(NamedTuple):
    """The keys in (low, high]; None stands for the beginning and the end of all keys."""

    #: Exclusive.
    low: str | None
    #: Inclusive.
    high: str | None
    #: About how many there are; only for spreading the work.
    keys: int = 0


class TimeRange(NamedTuple):
    """The times in [since, until]."""

    since: datetime
    until: datetime

    def holds(self, folder: str) -> bool:
        """True if a folder of ``data/`` is a slice that was made in this time, by its name."""
        made = slice_time(folder.removeprefix(DATA_PREFIX).removesuffix("/"))
        return made is not None and self.since <= made <= self.until


@dataclass(frozen=True)
class Plan:
    """The key ranges of a listing."""

    #: Cover every key of the namespace but those below ``_lakefs/``, in ``skipped`` and in slices
    #: that were carried forward.
    ranges: Sequence[KeyRange]
    #: Folders of slices that are too new to hold a candidate, by their names.
    skipped: Sequence[str]


def plan(
    store: ObjectStore,
    page_size: int,
    new: TimeRange | None = None,
    cuts: Sequence[str] = (),
    known: AbstractSet[str] = frozenset(),
) -> Plan:
    """Cut a namespace into ranges.

    Args:
        store: rooted at the namespace; its listings have pages of ``page_size``.
        page_size: keys in a page. A small one makes planning cheap.
        new: slices that were made in this time need not be listed; None to list them all.
        cuts: keys of an earlier listing, half ``KEYS_EACH`` apart: further edges of ranges.
        known: names of slices that need not be listed.
    """
    folders, loose = _folders(store)
    skipped = {folder for folder in folders if new and new.holds(folder)}
    carried = {f"{DATA_PREFIX}{name}/" for name in known} & set(folders)
    gaps, slices = _between(folders, skipped | carried, loose)
    pages = thread_map(partial(_page, store), gaps, _THREADS)
    named = [r for r in slices if slice_time(_name(r.low)) is not None]
    shards = [r for r in slices if _name(r.low).startswith(SHARD)]
    known_size = {*named, *shards}
    unnamed = [r for r in slices if r not in known_size]
    of_slices = _mean_keys(store, named, page_size)
    of_shards = _mean_keys(store, shards, SHARD_KEYS, alike=True)
    sized = [
        *_with_keys(named, of_slices or SLICE_KEYS),
        *_with_keys(shards, of_shards or SLICE_KEYS),
    ]
    if len(unnamed) > MANY and (tiny := _mean_keys(store, unnamed, page_size)):
        sized += _with_keys(unnamed, tiny)
        unnamed = []
    for gap, page in zip(gaps, pages, strict=True):
        unnamed += _by_character(gap) if len(page) >= page_size else [gap]
    cut = thread_map(partial(_cut, store, page_size), unnamed, _THREADS)
    ranges = [*itertools.chain.from_iterable(cut), *sized]
    ranges = [part for r in ranges for part in _cut_at(r, sorted(cuts))]
    ranges.sort(key=lambda r: r.low or "")
    return Plan(list(_joined(ranges)), sorted(skipped))


def _name(folder: str | None) -> str:
    return (folder or "").removeprefix(DATA_PREFIX).removesuffix("/")


def _with_keys(ranges: Sequence[KeyRange], keys: int) -> list[KeyRange]:
    """Ranges with about so many keys each."""
    return [r._replace(keys=keys) for r in ranges]


def _mean_keys(
    store: ObjectStore,
    ranges: Sequence[KeyRange],
    most: int,
    *,
    alike: bool = False,
) -> int | None:
    """About how many keys a range has: a few are counted, each up to ``most`` keys.

    None if one of them holds more; of ranges that are ``alike``, if each of them does.
    """
    samples = _SHARD_SAMPLES if alike else _SAMPLES
    some = ranges[:: max(1, len(ranges) // samples)][:samples]
    counts = thread_map(partial(_count, store, most), some, _THREADS)
    if not counts or (min if alike else max)(counts) >= most:
        return None
    return sum(counts) // len(counts) + 1


def _cut_at(wanted: KeyRange, cuts: Sequence[str]) -> list[KeyRange]:
    """A range cut at those of some keys, which are in order, that lie inside of it."""
    first = 0 if wanted.low is None else bisect_right(cuts, wanted.low)
    end = len(cuts) if wanted.high is None else bisect_left(cuts, wanted.high)
    inside = cuts[first:end]
    if not inside:
        return [wanted]
    edges = itertools.pairwise([wanted.low, *inside, wanted.high])
    return [KeyRange(low, high, KEYS_EACH // 2) for low, high in edges]


def _folders(store: ObjectStore) -> tuple[list[str], list[str] | None]:
    """The folders of ``data/``, and the objects beside them.

    Most of the folders, and None, where it is full of objects, too.
    """
    found = store.list_prefixes(DATA_PREFIX, max_objects=FLAT)
    if len(found.objects) <= FLAT:
        return sorted(found.prefixes), sorted(one.key for one in found.objects)
    parts = thread_map(
        lambda character: store.list_prefixes(DATA_PREFIX + character, max_objects=FLAT).prefixes,
        (SHARD, *FIRST_CHARACTERS),
        _THREADS,
    )
    return sorted({*found.prefixes, *itertools.chain.from_iterable(parts)}), None


def _between(
    folders: Sequence[str], skipped: AbstractSet[str], loose: Sequence[str] | None
) -> tuple[list[KeyRange], list[KeyRange]]:
    """The ranges that begin at no slice, and those that do; ``_lakefs/`` and skipped ones apart.

    Between two skipped slices there is nothing where no object is beside them: thousands of such
    ranges need no page.
    """
    edges = [LAKEFS_PREFIX, _LAKEFS_END, DATA_PREFIX, *folders, _DATA_END]
    edges += [folder + _LAST for folder in skipped]
    begun = set(folders)
    ends = {folder + _LAST for folder in skipped}

    def empty(low: str | None, high: str | None) -> bool:
        if loose is None or low not in ends or high not in skipped:
            return False
        after = bisect_right(loose, low or "")
        return after == len(loose) or loose[after] > (high or "")

    ranges = itertools.pairwise([None, *sorted(edges), None])
    wanted = [
        KeyRange(*r) for r in ranges if r[0] not in {LAKEFS_PREFIX, *skipped} and not empty(*r)
    ]
    return [r for r in wanted if r.low not in begun], [r for r in wanted if r.low in begun]


def _by_character(gap: KeyRange) -> list[KeyRange]:
    """A range in which many keys are, cut at what names may begin with."""
    folder = DATA_PREFIX if (gap.low or "").startswith(DATA_PREFIX) else ""
    edges = sorted(folder + character for character in FIRST_CHARACTERS)
    inside = [e for e in edges if e > (gap.low or "") and (gap.high is None or e < gap.high)]
    return [KeyRange(*r) for r in itertools.pairwise([gap.low, *inside, gap.high])]


def _cut(store: ObjectStore, page_size: int, wanted: KeyRange) -> list[KeyRange]:
    """Cut a range into ones of about ``KEYS_EACH`` keys."""
    low, found = wanted.low, list[KeyRange]()
    page = _page(store, wanted)
    while len(page) >= page_size and len(found) < _MOST_CUTS:
        edge = _edge(page)
        if edge is None or edge <= page[-1] or (wanted.high and edge >= wanted.high):
            break
        behind = _page(store, KeyRange(edge, wanted.high))
        if not behind:
            break
        found.append(KeyRange(low, edge, KEYS_EACH))
        low, page = edge, behind
    rest = len(page) if len(page) < page_size else KEYS_EACH // 2
    return [*found, KeyRange(low, wanted.high, rest)]


def _joined(ranges: Iterable[KeyRange]) -> Iterator[KeyRange]:
    """Neighbours with few keys as one range."""
    last: KeyRange | None = None
    for found in ranges:
        if last and last.high == found.low and last.keys + found.keys <= min(FEW, KEYS_EACH):
            last = KeyRange(last.low, found.high, last.keys + found.keys)
            continue
        if last:
            yield last
        last = found
    if last:
        yield last


def _page(store: ObjectStore, wanted: KeyRange) -> list[str]:
    """The first keys of a range: one page."""
    for batch in _pages(store, wanted):
        return [str(key) for key in batch["key"].to_pylist()]
    return []


def _count(store: ObjectStore, most: int, wanted: KeyRange) -> int:
    """Count the keys of a range, up to ``most`` or a page more."""
    count = 0
    for batch in _pages(store, wanted):
        count += batch.num_rows
        if count >= most:
            break
    return count


def _pages(store: ObjectStore, wanted: KeyRange) -> Iterator[pa.RecordBatch]:
    end = None if wanted.high is None else wanted.high + "\0"
    return store.list(start_after=wanted.low, end_before=end)


def _edge(page: Sequence[str]) -> str | None:
    """About where the ``KEYS_EACH``th key lies, if all lie as dense as those of a page.

    Names are read as numbers: their places are those where the names differ, and some before them
    for what is carried. The answer is behind all names that begin alike if so many do not; None if
    the page does not show it.
    """
    first, last = page[0], page[-1]
    differ = (i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b)
    alike = next(differ, min(len(first), len(last)))
    seen = [{key[i : i + 1] for key in page} - {""} for i in range(alike, alike + _WIDTH)]
    varying = [alike + i for i, characters in enumerate(seen) if len(characters) > 1]
    digits = _digits(set().union(*(characters for characters in seen if len(characters) > 1)))
    start = alike
    while start > max(0, alike - _CARRY) and first[start - 1] in digits:
        start -= 1
    places = [*range(start, alike), *varying]
    low, high = (_number(key, places, digits) for key in (first, last))
    if low >= high:
        return None
    edge = high + (high - low) * KEYS_EACH // len(page)
    if edge >= len(digits) ** len(places):
        return first[:start] + _LAST
    characters = list(last[: places[-1] + 1].ljust(places[-1] + 1, digits[0]))
    for place in reversed(places):
        edge, digit = divmod(edge, len(digits))
        characters[place] = digits[digit]
    return "".join(characters)


def _digits(seen: set[str]) -> Sequence[str]:
    """The digits that some characters are of: the smallest usual set that has them all."""
    usual = (set(FIRST_CHARACTERS[:n]) for n in _USUAL)
    return sorted(next((known for known in usual if seen <= known), seen))


def _number(name: str, places: Sequence[int], digits: Sequence[str]) -> int:
    value = 0
    for place in places:
        value *= len(digits)
        if place < len(name):
            value += digits.index(name[place])
    return value
