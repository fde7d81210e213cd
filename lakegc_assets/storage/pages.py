"""Pages of listings: what every store's page is read into, and how pages are put in order."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.storage.base import LISTING_SCHEMA, KeyRange
from lakegc_assets.storage.errors import StorageError

#: Stores that compare names as UTF-16 have what lies beyond 16 bits before these.
_LAST_16_BITS: Final = "\ue000"
_UNORDERED: Final = r"[\x{E000}-\x{10FFFF}]"


@dataclass(frozen=True)
class Page:
    """One page of a listing, with full keys.

    Attributes:
        objects: of ``LISTING_SCHEMA``, in strictly ascending order.
        prefixes: common prefixes, where a delimiter was asked for.
        next_token: what to ask for next, None at the end.
    """

    objects: pa.RecordBatch
    prefixes: Sequence[str]
    next_token: str | None


def check_order(keys: pa.Array, prefix: str, last: str, where: str) -> str:
    """The last of the keys, after a check that all are where they were asked for.

    Raises:
        StorageError: they are not strictly ascending after ``last``, or one has another prefix.
    """
    if not len(keys):
        return last
    ascending = pc.all(pc.less(keys[:-1], keys[1:])).as_py() is not False
    if not ascending or keys[0].as_py() <= last or not pc.all(pc.starts_with(keys, prefix)).as_py():
        raise StorageError(
            f"{where}: the store's keys are out of order, or were not asked for, between "
            f"{keys[0].as_py()!r} and {keys[-1].as_py()!r}: such a listing cannot be trusted"
        )
    return str(keys[-1].as_py())


def in_byte_order(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Put keys that come in the order of their UTF-16 into that of their UTF-8.

    The two differ only between keys that are equal up to a character from U+E000 on. Such keys come
    in one run, in either order: it is held in memory and sorted. Keys that come in the order of
    their UTF-8 stay as they are.
    """
    parent: str | None = None
    held: list[pa.RecordBatch] = []
    for batch in batches:
        if not batch.num_rows:
            continue
        odd = pc.any(pc.match_substring_regex(batch["key"], _UNORDERED)).as_py()
        if not odd:
            yield from _sorted(held)
            parent, held = None, []
            yield batch
            continue
        start = 0
        for run, keys in itertools.groupby(batch["key"].to_pylist(), _parent):
            rows = batch.slice(start, sum(1 for _ in keys))
            start += rows.num_rows
            if run != parent:
                yield from _sorted(held)
                parent, held = run, []
            if run is None:
                yield rows
            else:
                held.append(rows)
    yield from _sorted(held)


def _parent(key: str) -> str | None:
    """What of a key is before its first character from U+E000 on; None without one."""
    for position, character in enumerate(key):
        if character >= _LAST_16_BITS:
            return key[:position]
    return None


def _sorted(batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if batches:
        yield from pa.Table.from_batches(batches).sort_by("key").combine_chunks().to_batches()


def inside(objects: pa.RecordBatch, wanted: KeyRange) -> pa.RecordBatch:
    """The objects of a batch that are in a range."""
    keys = objects["key"]
    mask = pc.starts_with(keys, wanted.prefix)
    if wanted.start_after is not None:
        mask = pc.and_(mask, pc.greater(keys, wanted.start_after))
    if wanted.end_before is not None:
        mask = pc.and_(mask, pc.less(keys, wanted.end_before))
    return objects.filter(mask)


def relative(page: Page, prefix: str) -> Page:
    """The page with keys relative to a store, without the marker of its own directory."""
    keys = pc.utf8_slice_codeunits(page.objects["key"], len(prefix))
    objects = page.objects.set_column(0, LISTING_SCHEMA.field("key"), keys)
    prefixes = [name[len(prefix) :] for name in page.prefixes]
    return replace(page, objects=objects.filter(pc.not_equal(keys, "")), prefixes=prefixes)


def require_prefix(page: Page, prefix: str, where: str) -> None:
    """Raise StorageError where a page holds what was not asked for."""
    good = pc.all(pc.starts_with(page.objects["key"], prefix)).as_py() is not False
    if not good or not all(name.startswith(prefix) for name in page.prefixes):
        raise StorageError(
            f"{where}: the store gave keys that were not asked for: such a listing cannot be "
            "trusted"
        )


def shared_prefix(wanted: KeyRange) -> str:
    """The longest prefix that all keys of a range must have."""
    if wanted.start_after is None or wanted.end_before is None:
        return wanted.prefix
    pairs = itertools.takewhile(
        lambda pair: pair[0] == pair[1],
        zip(wanted.start_after, wanted.end_before, strict=False),
    )
    shared = "".join(character for character, _ in pairs)
    return shared if shared.startswith(wanted.prefix) else wanted.prefix
