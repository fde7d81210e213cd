"""Division of a namespace into key ranges of about equal size, for a parallel listing.

Slices are found by listing folders. lakeFS limits the size of a slice, so a slice is one range. If
an earlier listing has seen that a slice is large, the slice is cut at keys of that listing. Shards
(``data/!ab/c/<partition>/<id>``) have about equal sizes, since a hash chooses the shard: a sample
shows how many shards make one range. Other folders are treated the same way if there are many and
the sampled ones are tiny. Any other folder with many keys (repositories of older lakeFS) is cut by
its keys: a page shows the density of the keys, and so the place of the next cut. The page after
that cut shows the density again.
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
#: First character of the folders of a sharded namespace.
SHARD = "!"
#: Suffix that sorts after all keys with the same prefix, for any key that a person would choose.
_LAST = "\U0010ffff"
_LAKEFS_END = LAKEFS_PREFIX + _LAST
_DATA_END = DATA_PREFIX + _LAST
#: First characters of slice names, and of most other names.
FIRST_CHARACTERS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
#: Sizes of usual digit sets among these: decimal, hexadecimal, base32hex, base36, base62.
_USUAL = (10, 16, 32, 36, 62)
#: Number of objects in a folder above which it is cut by its keys, and not by its folders.
FLAT = 2000
#: Approximate number of keys in a range.
KEYS_EACH = 100_000
#: Assumed number of keys in an unsampled slice, and number of slices in the sample.
SLICE_KEYS = 25_000
_SAMPLES = 16
#: Number of shards in the sample, and the number of keys up to which each is counted.
_SHARD_SAMPLES = 4
SHARD_KEYS = 1000
#: Above this number, folders that are no slices are sampled together, if the samples are tiny.
MANY = 64
#: Number of keys below which neighbouring ranges are joined.
FEW = 10_000
#: Maximum number of cuts in a range; a bound in case a store's answers are wrong.
_MOST_CUTS = 10_000
#: Characters of a name from which the place of a cut is computed.
_WIDTH = 24
#: Characters before these, equal in all names of the page: room for a carry if a cut is far away.
_CARRY = 8
_THREADS = 16


class KeyRange(NamedTuple):
    """The keys in (low, high]; None is the beginning or the end of all keys."""

    #: Exclusive.
    low: str | None
    #: Inclusive.
    high: str | None
    #: Approximate number of keys; only used to spread the work.
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

    #: They cover every key of the namespace, except those below ``_lakefs/``, in ``skipped`` and in
    #: slices that were carried forward.
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
        page_size: keys in a page. A small page makes planning cheap.
        new: slices that were made in this time need not be listed; None to list them all.
        cuts: keys of an earlier listing, ``KEYS_EACH`` / 2 apart, as further edges of ranges.
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
    """Ranges with an assumed number of keys."""
    return [r._replace(keys=keys) for r in ranges]


def _mean_keys(
    store: ObjectStore,
    ranges: Sequence[KeyRange],
    most: int,
    *,
    alike: bool = False,
) -> int | None:
    """Estimate the number of keys in a range from a sample, each counted up to ``most`` keys.

    None if a sampled range holds more; of ranges that are ``alike``, if all of them do.
    """
    samples = _SHARD_SAMPLES if alike else _SAMPLES
    sample = ranges[:: max(1, len(ranges) // samples)][:samples]
    counts = thread_map(partial(_count, store, most), sample, _THREADS)
    if not counts or (min if alike else max)(counts) >= most:
        return None
    return sum(counts) // len(counts) + 1


def _cut_at(wanted: KeyRange, cuts: Sequence[str]) -> list[KeyRange]:
    """A range, cut at the sorted ``cuts`` inside it."""
    first = 0 if wanted.low is None else bisect_right(cuts, wanted.low)
    end = len(cuts) if wanted.high is None else bisect_left(cuts, wanted.high)
    inside = cuts[first:end]
    if not inside:
        return [wanted]
    edges = itertools.pairwise([wanted.low, *inside, wanted.high])
    return [KeyRange(low, high, KEYS_EACH // 2) for low, high in edges]


def _folders(store: ObjectStore) -> tuple[list[str], list[str] | None]:
    """The folders of ``data/``, and the keys of objects directly in it.

    If ``data/`` also holds very many objects: most of its folders, and None.
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
    """The ranges outside of folders, and those of folders; without ``_lakefs/`` and skipped ones.

    Between two skipped slices there is no key, unless an object is directly in ``data/``. Thousands
    of such empty ranges are left out, so that none needs a page.
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
    """A range with many keys, cut at the first characters that names may have."""
    folder = DATA_PREFIX if (gap.low or "").startswith(DATA_PREFIX) else ""
    edges = sorted(folder + character for character in FIRST_CHARACTERS)
    inside = [e for e in edges if e > (gap.low or "") and (gap.high is None or e < gap.high)]
    return [KeyRange(*r) for r in itertools.pairwise([gap.low, *inside, gap.high])]


def _cut(store: ObjectStore, page_size: int, wanted: KeyRange) -> list[KeyRange]:
    """Cut a range into ranges of about ``KEYS_EACH`` keys."""
    low, found = wanted.low, list[KeyRange]()
    page = _page(store, wanted)
    while len(page) >= page_size and len(found) < _MOST_CUTS:
        edge = _edge(page)
        if edge is None or edge <= page[-1] or (wanted.high and edge >= wanted.high):
            break
        next_page = _page(store, KeyRange(edge, wanted.high))
        if not next_page:
            break
        found.append(KeyRange(low, edge, KEYS_EACH))
        low, page = edge, next_page
    rest = len(page) if len(page) < page_size else KEYS_EACH // 2
    return [*found, KeyRange(low, wanted.high, rest)]


def _joined(ranges: Iterable[KeyRange]) -> Iterator[KeyRange]:
    """Join neighbouring ranges with few keys."""
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
    """The first page of keys of a range."""
    for batch in _pages(store, wanted):
        return [str(key) for key in batch["key"].to_pylist()]
    return []


def _count(store: ObjectStore, most: int, wanted: KeyRange) -> int:
    """Count the keys of a range; stops at the first page with which the count reaches ``most``."""
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
    """Estimate the place of the ``KEYS_EACH``th key, from the density of keys on a page.

    Names are read as numbers. The digits are the positions where names differ, and some positions
    before these for the carry. If too few keys share the common prefix, the result sorts after all
    keys with this prefix. None if the page does not show the place.
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
    """The smallest usual digit set that contains the characters; else the characters themselves."""
    usual = (set(FIRST_CHARACTERS[:n]) for n in _USUAL)
    return sorted(next((known for known in usual if seen <= known), seen))


def _number(name: str, places: Sequence[int], digits: Sequence[str]) -> int:
    value = 0
    for place in places:
        value *= len(digits)
        if place < len(name):
            value += digits.index(name[place])
    return value
