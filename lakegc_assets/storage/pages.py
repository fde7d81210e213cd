"""Pages of the listings of all stores: their form, their checks, and byte order."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from operator import attrgetter
from os.path import commonprefix
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.storage.errors import StorageError
from lakegc_assets.storage.http import each_page, explaining
from lakegc_assets.storage.values import LISTING_SCHEMA, KeyRange, ObjectInfo, Prefixes

#: First of the 16-bit characters that UTF-16 order puts after all characters beyond 16 bits.
_LAST_16_BITS: Final = "\ue000"
_UNORDERED: Final = r"[\x{E000}-\x{10FFFF}]"
_ZERO: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_UNUSABLE: Final = (
    "such a listing cannot be trusted: run again; a store that lists so again cannot be collected"
)


@dataclass(frozen=True)
class Page:
    """One page of a listing, with full keys, and the token of the next page, None at the end.

    Objects (``LISTING_SCHEMA``) are in strictly ascending order. Common prefixes are present if a
    delimiter was requested.
    """

    objects: pa.RecordBatch
    prefixes: Sequence[str]
    next_token: str | None


def follow(
    ask: Callable[[str | None], Page], prefix: str, where: str, *, one_level: bool = False
) -> Iterator[Page]:
    """The pages of a listing of a full prefix, by ``ask``, which takes a continuation token.

    The first token is None. ``one_level`` requests the delimiter ``/``. Raises StorageError: a page
    has keys that were not requested, or a token is repeated.
    """

    def asked(token: str | None) -> tuple[Page, str | None]:
        page = ask(token)
        _require_asked(page, prefix, where, one_level=one_level)
        return page, page.next_token

    with explaining(where):
        yield from each_page(asked, "objects")


def _require_asked(page: Page, prefix: str, where: str, *, one_level: bool) -> None:
    keys = page.objects["key"]
    good = pc.all(pc.starts_with(keys, prefix)).as_py() is not False
    if one_level:
        below = pc.utf8_slice_codeunits(keys, len(prefix))
        good = good and not pc.any(pc.match_substring(below, "/")).as_py()
        good = good and all(
            name.startswith(prefix) and name.find("/", len(prefix)) == len(name) - 1
            for name in page.prefixes
        )
    elif page.prefixes:
        good = False
    if not good:
        raise StorageError(f"{where}: the store returned keys that were not requested: {_UNUSABLE}")


def damaged_page(where: str, error: Exception) -> StorageError:
    """The error for a page that cannot be read, or contradicts itself."""
    return StorageError(
        f"{where}: the store answered with a damaged page ({error!r}): run again; if that does not "
        "help, check the endpoint and the proxies"
    )


def objects_of(
    keys: Sequence[Any] | pa.Array,
    sizes: Sequence[Any] | pa.Array,
    times: pa.Array,
    etags: Sequence[Any] | pa.Array,
) -> pa.RecordBatch:
    """The objects of a page (``LISTING_SCHEMA``), from sizes and etags as the store wrote them.

    Raises ValueError or TypeError: a field of an object is missing or invalid. Zero
    is no time: servers give it for an unknown time, and as an age it would be the greatest.
    """
    columns = [
        pa.array(keys, pa.string()),
        pc.cast(pa.array(sizes, pa.string()), pa.int64()),
        pc.cast(times, LISTING_SCHEMA.field("last_modified").type, safe=False),
        pc.utf8_trim(pa.array(etags, pa.string()), '"'),
    ]
    objects = pa.RecordBatch.from_arrays(columns, schema=LISTING_SCHEMA)
    for name, column in zip(objects.schema.names, columns, strict=True):
        nothing: str | datetime = _ZERO if pa.types.is_timestamp(column.type) else ""
        numbers = pa.types.is_integer(column.type)
        if column.null_count or (not numbers and pc.any(pc.equal(column, nothing)).as_py()):
            lacking = (
                pc.is_null(column) if numbers else pc.fill_null(pc.equal(column, nothing), True)
            )
            first = columns[0][pc.index(lacking, True).as_py()].as_py()
            raise ValueError(f"the object {first!r} has no {name}")
    return objects


def read_range(
    batches: Iterable[pa.RecordBatch], wanted: KeyRange, where: str, last: str = ""
) -> Iterator[pa.RecordBatch]:
    """Select the objects of a range from a list. Raises StorageError: it is not in byte order."""
    for batch in batches:
        keys = batch["key"]
        if len(keys) and keys[0].as_py() == last == wanted.start_after:
            # Some servers begin at the key after which they should begin.
            keys = keys[1:]
        last = check_order(keys, last, where)
        # If the first and last key are in the range, so are all keys between them.
        whole = len(batch) and batch["key"][0].as_py() in wanted and last in wanted
        found = batch if whole else inside(batch, wanted)
        if found.num_rows:
            yield found
        if wanted.end_before is not None and last >= wanted.end_before:
            return


def read_level(
    pages: Iterable[Page],
    where: str,
    max_objects: int | None,
    in_order: Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]] = iter,
) -> Prefixes:
    """Prefixes and objects in pages of a listing with a delimiter; see ``list_prefixes``.

    ``in_order`` sorts keys into byte order. Raises StorageError: the store has another order.
    """
    found = Prefixes([], [])

    def names() -> Iterator[pa.RecordBatch]:
        for page in pages:
            found.prefixes.extend(page.prefixes)
            found.objects.extend(ObjectInfo(**row) for row in page.objects.to_pylist())
            keys = heapq.merge(page.objects["key"].to_pylist(), page.prefixes)
            yield pa.record_batch([pa.array(keys, pa.string())], names=["key"])
            if max_objects is not None and len(found.objects) > max_objects:
                return

    last = ""
    for batch in in_order(names()):
        last = check_order(batch["key"], last, where)
    found.prefixes.sort()
    found.objects.sort(key=attrgetter("key"))
    return found


def check_order(keys: pa.Array, last: str, where: str) -> str:
    """Return the last key. Raises StorageError: the keys do not strictly ascend after ``last``."""
    if not len(keys):
        return last
    ascending = pc.all(pc.less(keys[:-1], keys[1:])).as_py() is not False
    if not ascending or keys[0].as_py() <= last:
        raise StorageError(
            f"{where}: the store's keys are out of order between {keys[0].as_py()!r} and "
            f"{keys[-1].as_py()!r}, or before {last!r}: {_UNUSABLE}"
        )
    return str(keys[-1].as_py())


def in_byte_order(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Sort keys in the order of their UTF-16 into the order of their UTF-8.

    The two orders differ only between keys that are equal up to a character from U+E000 on. In
    either order these keys form one run, which is held in memory and sorted.
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
    """The part of a key before its first character from U+E000 on; None without one."""
    for position, character in enumerate(key):
        if character >= _LAST_16_BITS:
            return key[:position]
    return None


def all_sorted(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Sort keys into byte order from any order."""
    yield from _sorted([batch for batch in batches if batch.num_rows])


def without_cut_prefixes(pages: Iterable[Page]) -> Iterator[Page]:
    """Remove the prefixes that a store repeats after a page that ended within a prefix."""
    last: str | None = None
    for page in pages:
        prefixes = page.prefixes
        if prefixes and prefixes[0] == last:
            prefixes = prefixes[1:]
        yield replace(page, prefixes=prefixes)
        last = page.prefixes[-1] if page.prefixes else last


def _sorted(batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if batches:
        yield from pa.Table.from_batches(batches).sort_by("key").combine_chunks().to_batches()


def inside(objects: pa.RecordBatch, wanted: KeyRange) -> pa.RecordBatch:
    """Return the objects of a batch that are in a range."""
    keys = objects["key"]
    mask = pc.starts_with(keys, wanted.prefix)
    if wanted.start_after is not None:
        mask = pc.and_(mask, pc.greater(keys, wanted.start_after))
    if wanted.end_before is not None:
        mask = pc.and_(mask, pc.less(keys, wanted.end_before))
    return objects.filter(mask)


def relative(page: Page, prefix: str) -> Page:
    """Make the keys of a page relative to a store; omit the marker of the store's own directory."""
    keys = pc.utf8_slice_codeunits(page.objects["key"], len(prefix))
    objects = page.objects.set_column(0, LISTING_SCHEMA.field("key"), keys)
    prefixes = [name[len(prefix) :] for name in page.prefixes]
    return replace(page, objects=objects.filter(pc.not_equal(keys, "")), prefixes=prefixes)


def shared_prefix(wanted: KeyRange) -> str:
    """The longest prefix that all keys of a range must have."""
    if wanted.start_after is None or wanted.end_before is None:
        return wanted.prefix
    # Keys are compared by characters, not by path components.
    shared = commonprefix((wanted.start_after, wanted.end_before))  # noqa: RUF071
    return shared if shared.startswith(wanted.prefix) else wanted.prefix
