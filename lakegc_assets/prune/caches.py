"""Removes cache files and abandoned files that none of the last marks would read.

A removal here costs only time: a mark reads again the tables that the cache lacks. So this looks
once, and only at artifacts and caches: it does not fetch metaranges that the cache lacks, and does
not repeat a listing that the store ends early.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.checks.paths import FOLDERS as WITNESSED_FOLDERS
from lakegc_assets.checks.paths import METARANGES as WITNESSED_METARANGES
from lakegc_assets.checks.witness import KIND as WITNESSED
from lakegc_assets.mark.committed_addresses import PATH_RANGES
from lakegc_assets.mark.etags import KIND as EVIDENCE
from lakegc_assets.mark.metaranges import BOUNDS_KIND as BOUNDS
from lakegc_assets.mark.metaranges import KIND as METARANGES
from lakegc_assets.mark.ranges import KIND as RANGES
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.scratch import COMPARED, FORECAST, NEEDED
from lakegc_assets.run.table_cache import TableCache, by_file
from lakegc_assets.storage.base import ObjectStore

_CACHES: Final = "_cache/"
#: The cache of a namespace; other folders are not known here.
_PLACE: Final = re.compile(rf"{_CACHES}[0-9a-f]{{16}}/")
#: Folders for files of a running command; they remain only after the command was killed.
_SCRATCH: Final = (f"{COMPARED}/", f"{FORECAST}/", f"{NEEDED}/")


def unneeded_caches(
    ctx: RunContext,
    connections: Connections,
    last: Sequence[AttemptArtifacts],
    before: datetime,
) -> Iterator[tuple[ObjectStore, str, int]]:
    """Store, key and size (bytes) of each cache file that may be removed, in that order.

    Ranges and metaranges of the marks ``last`` stay. So do files written after ``before``, by the
    store's clock.

    Raises:
        IntegrityError: the ranges that those marks read are not known.
    """
    metaranges = _ids(last, "active_commits", ("data", "expired"), "metarange_id")
    ranges = _ids(last, "committed_addresses", ("ranges", PATH_RANGES), "range_id")
    ranges |= _ranges_in(connections, metaranges)
    cache = connections.cache()
    of_kinds = (
        (RANGES, ranges),
        (WITNESSED, ranges),
        (METARANGES, metaranges),
        (BOUNDS, metaranges),
        (WITNESSED_METARANGES, metaranges),
        (WITNESSED_FOLDERS, ranges),
    )
    for kind, wanted in of_kinds:
        for key, size in TableCache(cache, kind).unneeded(wanted, before):
            yield cache, key, size
    # The last mark reads evidence that the mark before it wrote, if that was recent.
    for key, size in _older(cache, f"{EVIDENCE}/", before):
        yield cache, key, size
    of_repository = ctx.root.open(ctx.repository)
    present = f"{_CACHES}{connections.cache_url.rpartition('/')[2]}/"
    places = filter(_PLACE.fullmatch, of_repository.list_prefixes(_CACHES).prefixes)
    others = [place for place in places if place != present]
    for folder in (*others, *_SCRATCH):
        for key, size in _older(of_repository, folder, before):
            yield of_repository, key, size


def _ids(
    last: Iterable[AttemptArtifacts], asset: str, parts: Sequence[str], column: str
) -> set[str]:
    return {
        one
        for attempt in last
        for part in parts
        if part in attempt.manifest(asset).parts
        for one in attempt.read(asset, part, [column])[column].to_pylist()
    }


def _ranges_in(connections: Connections, metaranges: set[str]) -> set[str]:
    """The ranges of those metaranges that are cached."""
    cache = TableCache(connections.cache(), METARANGES)
    slots = [slot for i, slot in cache.slots().items() if i in metaranges]
    found: set[str] = set()
    for file, some in by_file(slots):
        for table in cache.read(file, some, ["range_id"]) or ():
            found.update(table["range_id"].to_pylist())
    return found


def _older(store: ObjectStore, folder: str, before: datetime) -> Iterator[tuple[str, int]]:
    for page in store.list(folder):
        old = page.filter(
            pc.less(page["last_modified"], pa.scalar(before, page["last_modified"].type))
        )
        yield from zip(old["key"].to_pylist(), old["size"].to_pylist(), strict=True)
