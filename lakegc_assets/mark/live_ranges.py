"""The live ranges, and the hashes of the addresses that they keep alive.

A range that several commits share is decoded once, and once in the life of the repository. Without
retention rules every range below ``_lakefs/`` counts as active: the log does not reach commits that
only a deleted branch, a tag or a reset held. Every range also counts in the mode ``uncommitted``,
which collects only objects that were never committed. A file there that cannot be a table is passed
over if no metarange and no commit names it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial, reduce
from types import MappingProxyType
from typing import Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.datasets import Part, table_of
from lakegc_assets.engine.ddl import schema
from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.errors import IntegrityError
from lakegc_assets.graveler.errors import FormatError, NoTableError
from lakegc_assets.graveler.sstable import table_kind
from lakegc_assets.mark.full_addresses import cached_full
from lakegc_assets.mark.live_hashes import HashWriter
from lakegc_assets.mark.metaranges import (
    COUNTED,
    RangesRead,
    cached_metaranges,
    each_once,
    ranges_of,
    require_in_full,
    uncounted,
)
from lakegc_assets.mark.ranges import (
    Wanted,
    cached_ranges,
    read_entries,
    run_on_ranges,
    wanted,
)
from lakegc_assets.retention.retain_rules import prefix_of
from lakegc_assets.run.connections import Connections, reads_tables
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import KeyDigest, unsigned
from lakegc_assets.run.manifest import Manifest
from lakegc_assets.storage.base import ObjectStore

T = TypeVar("T")
R = TypeVar("R")
#: Maximum number of files that a sentence names.
_SHOWN = 5


def isolate(
    read: Callable[[Sequence[T]], R], items: Sequence[T]
) -> tuple[list[R], list[tuple[T, IntegrityError]]]:
    """Read items together; if some are damaged, read the others without them.

    ``read``: raises ``IntegrityError`` if one of its items is missing or damaged.

    Returns:
        The results of ``read``, for all items or for parts of them; and damaged items with errors.
    """
    if not items:
        return [], []
    try:
        return [read(items)], []
    except IntegrityError as error:
        if len(items) == 1:
            return [], [(items[0], error)]
    middle = len(items) // 2
    first, damaged = isolate(read, items[:middle])
    second, more = isolate(read, items[middle:])
    return [*first, *second], [*damaged, *more]


def left_alone(namespace_url: str, foreign: Sequence[str]) -> list[str]:
    """A sentence about files below ``_lakefs/`` that lakeFS does not write; empty without any."""
    if not foreign:
        return []
    shown = ", ".join(map(repr, foreign[:_SHOWN]))
    more = f" and {len(foreign) - _SHOWN:,} more" if len(foreign) > _SHOWN else ""
    return [
        f"below {namespace_url} lie files that lakeFS does not write, left alone: {shown}{more}"
    ]


def passed_over(damaged: Mapping[str, IntegrityError]) -> list[str]:
    """A sentence for the report about each file that is passed over, without a full stop."""
    return [
        f"passed over, since no metarange and no commit names it: {error}. Remove it, or restore "
        "it if it was a range"
        for _, error in sorted(damaged.items())
    ]


#: Ranges as they were read: number of entries, and ``KeyDigest`` of their addresses.
RANGES: Final = schema(COUNTED, "digest string, from_cache boolean")
_FOLDER: Final = "folder"
_OF_PATHS: Final = ("range_id", "pattern")
_NOT_CUT: Final[Mapping[str, Sequence[str]]] = MappingProxyType({})
_TABLE_ID: Final = re.compile(r"_lakefs/([0-9a-f]{64})")
#: lakeFS's marks and rules, logs of its actions, files of its exporters for catalogs, its own
#: object, and the manifest of a dump of refs.
_OF_LAKEFS: Final = (
    "_lakefs/retention/",
    "_lakefs/actions/",
    "_lakefs/exported/",
    "_lakefs/dummy",
    "_lakefs/refs_manifest.json",
)
#: Seconds of one core to tell a range from a metarange.
_KIND_S: Final = 0.01
_THREADS: Final = 8


@dataclass(frozen=True)
class Live:
    """Addresses that ranges keep alive."""

    #: Files of the hashes of the addresses.
    runs: Sequence[Part] = ()
    #: The ranges that were read (``RANGES``).
    ranges: pa.Table = field(default_factory=RANGES.empty_table)
    #: Last path components of full addresses that cannot be resolved.
    unresolved: AbstractSet[str] = frozenset()
    #: Digest of the hashes.
    digest: KeyDigest = field(default_factory=KeyDigest)
    #: Unreadable ranges, by id, with the error of each.
    damaged: Mapping[str, IntegrityError] = field(default_factory=dict)

    def __add__(self, other: Live) -> Live:
        """The union of both."""
        return Live(
            [*self.runs, *other.runs],
            pa.concat_tables([self.ranges, other.ranges]),
            self.unresolved | other.unresolved,
            self.digest + other.digest,
            {**self.damaged, **other.damaged},
        )


def every_range(listing: Manifest, rules: object) -> bool:
    """Return whether a mark takes every range for live, also ranges that no commit has.

    ``rules``: of the repository; None if it has none.
    """
    return rules is None or listing.mode == "uncommitted"


@dataclass(frozen=True)
class LiveRanges:
    """The ranges that are live."""

    #: range_id and entries; entries are from a metarange, and null for ``lone`` ranges.
    ranges: pa.Table
    metaranges: int
    #: Number of these metaranges that came from the cache.
    cached: int
    #: Ids of ranges that no metarange names.
    lone: frozenset[str] = frozenset()
    #: Errors of unread files, by id; no commit and no readable metarange names these files.
    passed_over: Mapping[str, IntegrityError] = field(default_factory=dict)
    #: Keys of other files below ``_lakefs/`` that lakeFS does not write.
    foreign: Sequence[str] = ()


@reads_tables
def live_ranges(
    ctx: RunContext, metarange_ids: Collection[str], *, every: bool, strict: bool = True
) -> LiveRanges:
    """The ranges of commits, or all ranges below ``_lakefs/``.

    ``metarange_ids``: of the commits; the id is empty for a commit without objects.
    ``every``: whether to return all ranges below ``_lakefs/``; these must include the commits'.
    ``strict``: whether a damaged table that nothing names is an error. A file that cannot be a
        table and that nothing names is never an error.

    Raises:
        IntegrityError: a metarange is missing or damaged, or the store's listing is incomplete.
    """
    ids = set(metarange_ids) - {""}
    if not every:
        read = ranges_of(ctx, dict.fromkeys(ids, 0))
        return LiveRanges(read.rows.select(COUNTED.names), read.metaranges, read.cached)
    tables = all_tables(ctx, ids)
    more = {i for i, kind in tables.kinds.items() if kind == "metaranges"} - ids
    found, damaged = _named_ranges(ctx, ids, more, strict=strict)
    rows = pa.concat_tables([one.rows.select(COUNTED.names) for one in found])
    known = each_once(rows)
    named = set(known["range_id"].to_pylist())
    lone = sorted({i for i, kind in tables.kinds.items() if kind == "ranges"} - named)
    # A file that a metarange names is a range: it will be read, and its damage raises an error.
    passed = damaged | {i: error for i, error in tables.unreadable.items() if i not in named}
    for error in passed.values():
        if strict and not isinstance(error, NoTableError):
            raise IntegrityError(
                f"{error}. No metarange names it, but it may be a range, and every range counts "
                "where there are no retention rules, or none that count in this mode. Restore it; "
                "or remove it if it was never lakeFS's",
            ) from error
    return LiveRanges(
        pa.concat_tables([known, uncounted(lone)]),
        sum(one.metaranges for one in found),
        sum(one.cached for one in found),
        frozenset(lone),
        passed,
        tables.foreign,
    )


def _named_ranges(
    ctx: RunContext, of_commits: Collection[str], others: Collection[str], *, strict: bool
) -> tuple[list[RangesRead], dict[str, IntegrityError]]:
    """The ranges of metaranges; unless strict, without damaged metaranges that no commit has."""

    def read(ids: Collection[str]) -> RangesRead:
        return ranges_of(ctx, dict.fromkeys(ids, 0))

    if strict:
        return [read([*of_commits, *others])], {}
    found, damaged = isolate(read, sorted(others))
    return [read(of_commits), *found], dict(damaged)


@reads_tables
def read_live(
    ctx: RunContext,
    ranges: pa.Table,
    artifacts: ObjectStore,
    folder: str,
    *,
    strict: bool = True,
    below: Mapping[str, Sequence[str]] = _NOT_CUT,
) -> Live:
    """Read ranges, and write the hashes of the addresses that they keep alive.

    ``ranges``: range_id and entries.
    ``artifacts``: the store for the hashes.
    ``folder``: relative to ``artifacts``, with a slash at its end.
    ``strict``: whether a damaged range is an error; else it is noted, and the others are read.
    ``below``: prefixes of paths, by range id, for ranges of which only a part is alive; from
        ``retain.prefix_of``.

    Raises:
        IntegrityError: a range is missing or damaged, or was not read.
    """
    slots = cached_ranges(ctx.connections) if ranges.num_rows else {}
    task = partial(_read_ranges, ctx.connections, artifacts.url, folder, strict, below)
    live = sum(run_on_ranges(ctx, "read ranges", task, wanted(ranges, slots)), Live())
    found = live.ranges["range_id"].to_pylist()
    if {*found, *live.damaged} != set(ranges["range_id"].to_pylist()):
        raise IntegrityError(
            f"of {ranges.num_rows} live ranges of {ctx.connections.namespace_url} {len(found)} "
            "were read: the objects that the others name would count as dead. This is a fault of "
            f"lakegc: please report it, with the log of this run and {artifacts.url}/{folder}",
        )
    return live


def read_path_ranges(
    ctx: RunContext, ranges: pa.Table, artifacts: ObjectStore, folder: str
) -> Live:
    """Read the addresses that ranges name below paths, as ``read_live`` does.

    Full addresses that cannot be resolved count wherever they are in a range.

    ``ranges``: ``PATH_RANGES``.

    Raises:
        IntegrityError: a range is missing or damaged, or was not read.
    """
    below: dict[str, list[str]] = {}
    for range_id, pattern in zip(*(ranges[n].to_pylist() for n in _OF_PATHS), strict=True):
        below.setdefault(range_id, []).append(prefix_of(pattern))
    return read_live(ctx, each_once(ranges), artifacts, folder, below=below)


def _read_ranges(
    connections: Connections,
    url: str,
    folder: str,
    strict: bool,  # noqa: FBT001 - given to tasks by its place
    below: Mapping[str, Sequence[str]],
    ranges: Sequence[Wanted],
) -> Live:
    rows: list[tuple[str, int, str, bool]] = []
    unresolved: set[str] = set()
    damaged: dict[str, IntegrityError] = {}
    held = HashWriter(connections.open(url), f"{folder}data/")
    columns = ["hash", _FOLDER] if below else ["hash"]
    for one, is_cached in read_entries(connections, ranges, columns, None if strict else damaged):
        entries, facts = one.rows, one.facts
        if one.table_id in below:
            entries = entries.filter(_is_below(entries, below[one.table_id]))
        held.add(unsigned(entries["hash"]))
        unresolved.update(facts["unresolved"])
        rows.append((one.table_id, facts["entries"], facts["digest"], is_cached))
    table = table_of(rows, RANGES)
    return Live(held.finish(), table, frozenset(unresolved), held.digest, damaged)


def _is_below(entries: pa.Table, prefixes: Sequence[str]) -> pa.ChunkedArray:
    """Mark the entries whose path begins with one of the prefixes."""
    folders = entries[_FOLDER].cast(pa.string())
    return reduce(pc.or_, [pc.starts_with(folders, prefix) for prefix in prefixes])


@dataclass(frozen=True)
class Tables:
    """Files below ``_lakefs/``, by the kind that their content shows."""

    #: ``ranges``, ``metaranges`` or ``refs`` for each file, by its id.
    kinds: Mapping[str, str]
    #: Files of unknown kind, by id, with the error of each.
    unreadable: Mapping[str, FormatError]
    #: Keys of other files that lakeFS does not write.
    foreign: Sequence[str]


def all_tables(ctx: RunContext, active: Collection[str]) -> Tables:
    """Every range and metarange below ``_lakefs/``, with its kind.

    ``active``: metaranges of known commits; the listing must contain them.

    Raises:
        IntegrityError: the store's listing lacks a known metarange.
    """
    ids, foreign = listed_files(ctx.connections.store())
    if missing := sorted(set(active) - set(ids)):
        raise IntegrityError(
            f"{ctx.connections.table_url(missing[0])}, the metarange of a commit, is not listed, "
            "and every range counts, since there are no retention rules, or none that count in "
            "this mode: objects of ranges that the listing lacks would count as dead. If the file "
            "is in the store, run again; else restore it",
        )
    cached = {
        # Of ranges of another repository only the full addresses may be cached.
        "ranges": cached_ranges(ctx.connections).keys() | cached_full(ctx.connections).keys(),
        "metaranges": cached_metaranges(ctx.connections).keys(),
    }
    known = {i: kind for kind, found in cached.items() for i in found & set(ids)}
    unknown = [i for i in ids if i not in known]
    task, costs = partial(_kinds, ctx.connections), [_KIND_S] * len(unknown)
    most = ctx.settings.range_num_partitions
    recognized = ctx.tasks.run_grouped("recognize ranges", task, unknown, costs, most)
    unreadable: dict[str, FormatError] = {}
    for table_id, kind in ((i, kind) for task in recognized for i, kind in task.items()):
        if isinstance(kind, FormatError):
            unreadable[table_id] = kind
        else:
            known[table_id] = kind
    return Tables(known, unreadable, foreign)


def listed_files(store: ObjectStore) -> tuple[list[str], list[str]]:
    """Ids of all tables below ``_lakefs/``, and keys of files that lakeFS does not write."""
    ids: list[str] = []
    foreign: list[str] = []
    # A range that this list lacks would be taken for dead.
    for batch in store.list_to_the_end("_lakefs/"):
        for key in batch["key"].to_pylist():
            if match := _TABLE_ID.fullmatch(key):
                ids.append(match[1])
            elif not key.startswith(_OF_LAKEFS):
                foreign.append(key)
    return ids, foreign


def _kinds(connections: Connections, table_ids: Sequence[str]) -> dict[str, str | FormatError]:
    store = connections.store()

    def kind(table_id: str) -> str | FormatError:
        data = store.get(f"_lakefs/{table_id}")
        try:
            return table_kind(data, connections.table_url(table_id))
        except FormatError as error:
            require_in_full(connections, table_id, data)
            return error

    return dict(zip(table_ids, thread_map(kind, table_ids, _THREADS), strict=True))
