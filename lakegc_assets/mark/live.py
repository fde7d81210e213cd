"""The ranges that are live, and the addresses that they keep alive, as hashes.

Read by ranges: a range that several commits share is decoded once, and once in the life of the
repository. Without retention rules every range below ``_lakefs/`` counts as active, since the log
does not reach the commits that only a deleted branch, a tag or a reset held; and so it does in the
mode ``uncommitted``, which collects only what was never committed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.errors import IntegrityError
from lakegc_assets.graveler.sstable import table_kind
from lakegc_assets.mark.metaranges import cached_metaranges, ranges_of
from lakegc_assets.mark.ranges import (
    HASHES,
    Wanted,
    cached_ranges,
    read_entries,
    seconds,
    spread_ranges,
    wanted,
)
from lakegc_assets.run.artifacts import Manifest
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import Hashes, KeyDigest, digest_of_hashes
from lakegc_assets.run.parts import Part
from lakegc_assets.run.sets import RUN_LENGTH, union, write_set
from lakegc_assets.run.tasks import each, spread
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.lists import list_to_the_end

#: What was read: how many entries each range holds, and ``KeyDigest`` of their addresses.
RANGES: Final = pa.schema(
    [
        ("range_id", pa.string()),
        ("entries", pa.int64()),
        ("digest", pa.string()),
        ("from_cache", pa.bool_()),
    ]
)
_TABLE_ID: Final = re.compile(r"_lakefs/([0-9a-f]{64})")
#: Work of telling a range from a metarange, on one core, in seconds.
_KIND_S: Final = 0.01
_THREADS: Final = 8


@dataclass(frozen=True)
class Live:
    """What some ranges keep alive.

    Attributes:
        runs: of the hashes of addresses.
        ranges: what was read (``RANGES``).
        unresolved: last path components of full addresses that nobody can place.
        digest: of the runs' hashes.
    """

    runs: Sequence[Part]
    ranges: pa.Table
    unresolved: Sequence[str]
    digest: KeyDigest


def every_range(listing: Manifest, rules: object) -> bool:
    """Whether a mark takes every range for live, whatever commit has it, if any.

    Args:
        listing: of the mark.
        rules: of the repository; None where it has none.
    """
    return rules is None or listing.mode == "uncommitted"


@dataclass(frozen=True)
class LiveRanges:
    """The ranges that are live.

    Attributes:
        ranges: range_id, and entries by the metaranges' word, null where none tells.
        metaranges: how many metaranges were read.
        cached: how many of these came from the cache.
    """

    ranges: pa.Table
    metaranges: int
    cached: int


def live_ranges(
    ctx: RunContext, connections: Connections, metarange_ids: Collection[str], *, every: bool
) -> LiveRanges:
    """The ranges of some commits, or all that are there.

    Args:
        ctx: the run.
        connections: how tasks reach the store.
        metarange_ids: of the commits; empty ones are those of commits without objects.
        every: whether all ranges below ``_lakefs/`` are wanted, which must hold those of the
            commits.

    Raises:
        IntegrityError: a metarange is missing or damaged; or the store's listing lacks what is
            there.
    """
    ids = set(metarange_ids) - {""}
    lone: list[str] = []
    if every:
        kinds = all_tables(ctx, connections, ids)
        ids |= {table_id for table_id, kind in kinds.items() if kind == "metaranges"}
        lone = [table_id for table_id, kind in kinds.items() if kind == "ranges"]
    read = ranges_of(ctx, connections, dict.fromkeys(ids, 0))
    known = read.rows.select(["range_id", "entries"])
    found = pa.table(
        {
            "range_id": pa.array(lone, pa.string()),
            "entries": pa.nulls(len(lone), pa.int64()),
        }
    )
    more = found.filter(pc.invert(pc.is_in(found["range_id"], known["range_id"])))
    return LiveRanges(pa.concat_tables([known, more]), read.metaranges, read.cached)


def read_live(
    ctx: RunContext, connections: Connections, ranges: pa.Table, artifacts: ObjectStore, folder: str
) -> Live:
    """Read ranges down to the hashes of the addresses that they keep alive.

    Args:
        ctx: the run.
        connections: how tasks reach the store and the cache.
        ranges: range_id and entries.
        artifacts: where the runs are written.
        folder: relative to ``artifacts``, with a slash at its end.

    Raises:
        IntegrityError: a range is missing or damaged, or was not read.
    """
    slots = cached_ranges(connections) if ranges.num_rows else {}
    orders = spread_ranges(wanted(ranges, slots), ctx.settings.address_num_partitions)
    cost = sum(seconds(one) for order in orders for one in order)
    task = partial(_read_ranges, connections, artifacts.url, folder)
    read = ctx.tasks.run("read ranges", task, orders, cost)
    found = pa.concat_tables([RANGES.empty_table(), *(one.ranges for one in read)])
    if set(found["range_id"].to_pylist()) != set(ranges["range_id"].to_pylist()):
        raise IntegrityError(
            f"of {ranges.num_rows} live ranges of {connections.namespace_url} {found.num_rows} "
            "were read: what the others hold would be taken for dead. This is a fault of the "
            "mark, please report it",
        )
    return Live(
        runs=[run for one in read for run in one.runs],
        ranges=found,
        unresolved=sorted({last for one in read for last in one.unresolved}),
        digest=sum((one.digest for one in read), KeyDigest()),
    )


def _read_ranges(connections: Connections, url: str, folder: str, ranges: Sequence[Wanted]) -> Live:
    artifacts = connections.open(url)
    rows: list[tuple[str, int, str, bool]] = []
    unresolved: set[str] = set()
    runs: list[Part] = []
    digest = KeyDigest()
    held: list[Hashes] = []

    def write() -> None:
        nonlocal digest, held
        whole = union(held)
        runs.extend(write_set(artifacts, f"{folder}data/", [whole]))
        digest += digest_of_hashes(whole)
        held = []

    for one in read_entries(connections, ranges, HASHES):
        held.append(one.group["hash"].to_numpy())
        unresolved.update(one.unresolved)
        rows.append((one.range_id, one.entries, one.digest, one.from_cache))
        # Ranges share most of their addresses, so many of them fit into one run.
        if sum(map(len, held)) > 2 * RUN_LENGTH:
            held = [union(held)]
            if len(held[0]) > RUN_LENGTH:
                write()
    if held:
        write()
    columns = list(zip(*rows, strict=True)) or [()] * len(RANGES)
    arrays = [pa.array(c, f.type) for c, f in zip(columns, RANGES, strict=True)]
    return Live(runs, pa.Table.from_arrays(arrays, schema=RANGES), sorted(unresolved), digest)


def all_tables(
    ctx: RunContext, connections: Connections, active: Collection[str]
) -> dict[str, str]:
    """Every range and metarange below ``_lakefs/``, and which of the two it is.

    Args:
        ctx: the run.
        connections: how tasks reach the store.
        active: metaranges that must be listed, of commits that are known.

    Raises:
        IntegrityError: the store does not list all metaranges that are known.
    """
    ids = listed_tables(connections.store())
    if missing := sorted(set(active) - set(ids)):
        raise IntegrityError(
            f"{connections.namespace_url}/_lakefs/{missing[0]}, the metarange of a commit, is not "
            "listed: what a listing of all ranges lacks would be taken for dead, since there are "
            "no retention rules, or none that count in this mode. If it is in the store, run again",
        )
    cached = {"ranges": cached_ranges(connections), "metaranges": cached_metaranges(connections)}
    known = {i: kind for kind, slots in cached.items() for i in slots.keys() & set(ids)}
    unknown = [i for i in ids if i not in known]
    costs = [_KIND_S] * len(unknown)
    tasks = spread(unknown, costs, ctx.settings.range_num_partitions)
    told = ctx.tasks.run("tell ranges", partial(_kinds, connections), tasks, sum(costs))
    return known | {i: kind for task in told for i, kind in task.items()}


def listed_tables(store: ObjectStore) -> list[str]:
    """The ids of all ranges and metaranges below ``_lakefs/``."""
    return [
        match.group(1)
        # What this list lacks would be taken for dead.
        for batch in list_to_the_end(store, "_lakefs/")
        for key in batch["key"].to_pylist()
        if (match := _TABLE_ID.fullmatch(key))
    ]


def _kinds(connections: Connections, table_ids: Sequence[str]) -> dict[str, str]:
    store = connections.store()

    def kind(table_id: str) -> str:
        return table_kind(store.get(f"_lakefs/{table_id}"), table_id)

    return dict(zip(table_ids, each(kind, table_ids, _THREADS), strict=True))
