"""What ranges name that no active commit holds: the sets A, B and O of lakeFS #1932.

A are the ranges of active commits, and B all others below ``_lakefs/``: those of expired commits,
and of commits that nothing leads to any more. O is what the entries of B name and those of A do
not. B is found by its hashes, which are cached; only ranges with something in O are read again for
the names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.datasets import Part, read_part, write_part
from lakegc_assets.engine.tasks import bin_pack
from lakegc_assets.errors import IntegrityError
from lakegc_assets.graveler.decode import decode_range
from lakegc_assets.graveler.entry import AddressType
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.mark.addresses import UNNAMEABLE, UNUSUAL, entry_spellings, in_data
from lakegc_assets.mark.commits import find_liveness
from lakegc_assets.mark.damage import passed_over
from lakegc_assets.mark.live import live_ranges, read_live
from lakegc_assets.mark.metaranges import fetch, table_url
from lakegc_assets.mark.ranges import (
    HASHES,
    Wanted,
    cached_ranges,
    read_entries,
    seconds,
    spread_ranges,
    wanted,
)
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import Hashes, address_hashes
from lakegc_assets.run.sets import members

_FOLDER: Final = "store_listing/expired/"
#: Hashes that a task collects before it merges what several ranges hold.
_WAITING: Final = 1_000_000
#: Addresses in a stretch, about: what one task looks at together.
_STRETCH: Final = 200_000
NAMED: Final = pa.schema([("address", pa.string())])

Positions = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Expired:
    """What only ranges of B name.

    Attributes:
        stretches: files of addresses (``NAMED``); what lies in one folder is in one of these.
        addresses: how many there are.
        ranges: how many B has.
        active: how many A has.
        passed_over: sentences about files that were not read: what only they name stays.
    """

    stretches: Sequence[Sequence[Part]]
    addresses: int
    ranges: int
    active: int
    passed_over: Sequence[str] = ()


@dataclass(frozen=True)
class _Held:
    """Hashes, each once and in order, and the position of a range that holds each.

    Attributes:
        hashes: of addresses.
        positions: of ranges.
        damaged: ranges that could not be read, by their ids, and what is wrong with them.
    """

    hashes: Hashes
    positions: Positions
    damaged: Mapping[str, IntegrityError] = field(default_factory=dict)


def expired_addresses(
    ctx: RunContext,
    client: LakeFSClient,
    connections: Connections,
    attempt: AttemptArtifacts,
    start: datetime,
) -> Expired:
    """Find what expired ranges name and active ones do not.

    This is the first look at commits in a mark, to know what to look at. What is live is read again
    by the stages behind the listing, as in any mode.

    Args:
        ctx: the run.
        client: the server.
        connections: how tasks reach the store and the cache.
        attempt: where to write.
        start: of the run.

    Nothing that is live depends on B: what cannot be read of it is passed over.

    Raises:
        IntegrityError: a metarange or range of an active commit is missing or damaged, or lakeFS's
            list of active commits cannot be trusted.
    """
    liveness = find_liveness(ctx, client, connections, start)
    ids = {liveness.commits[commit].metarange_id for commit in liveness.active.active}
    found = live_ranges(ctx, connections, ids, every=True, strict=liveness.rules is None)
    every, passed = found.ranges, passed_over(found.passed_over)
    active = every
    if liveness.rules is not None:
        active = live_ranges(ctx, connections, ids, every=False).ranges
    is_active = pc.is_in(every["range_id"], active["range_id"].combine_chunks())
    others = every.filter(pc.invert(is_active))
    if not others.num_rows:
        return Expired((), 0, 0, active.num_rows, passed)
    live = read_live(ctx, connections, active, attempt.store(), f"{_FOLDER}active/")
    held = _held_by_none(ctx, connections, attempt, others, live.runs)
    named, damaged = _names(ctx, connections, attempt, others, held)
    passed += [
        f"passed over, since no active commit has it: {error}. What it alone names stays"
        for _, error in sorted({**held.damaged, **damaged}.items())
    ]
    return Expired(named, len(held.hashes), others.num_rows, active.num_rows, passed)


@dataclass(frozen=True)
class _Compare:
    """An order to find what some ranges hold that is not live."""

    connections: Connections
    url: str
    live: Sequence[Part]
    ranges: Sequence[tuple[int, Wanted]]


def _held_by_none(
    ctx: RunContext,
    connections: Connections,
    attempt: AttemptArtifacts,
    ranges: pa.Table,
    live: Sequence[Part],
) -> _Held:
    """What ranges (range_id, entries) hold that no active one does."""
    some = wanted(ranges, cached_ranges(connections))
    positions = {one.range_id: position for position, one in enumerate(some)}
    orders = [
        _Compare(connections, attempt.url, live, [(positions[o.range_id], o) for o in group])
        for group in spread_ranges(some, ctx.settings.address_num_partitions)
    ]
    cost = sum(map(seconds, some))
    return _first(ctx.tasks.run("compare expired ranges", _compare, orders, cost))


def _compare(order: _Compare) -> _Held:
    store = order.connections.open(order.url)
    positions = {one.range_id: position for position, one in order.ranges}
    found: list[_Held] = []
    waiting: list[_Held] = []
    damaged: dict[str, IntegrityError] = {}

    def compare() -> None:
        # Ranges share most of what they hold, and what is live is read once for many of them.
        held = _first(waiting)
        dead = ~members(store, order.live, held.hashes)
        found.append(_Held(held.hashes[dead], held.positions[dead]))
        waiting.clear()

    ranges = [one for _, one in order.ranges]
    for entries in read_entries(order.connections, ranges, HASHES, damaged):
        hashes = entries.group["hash"].to_numpy()
        waiting.append(_Held(hashes, np.full(len(hashes), positions[entries.range_id], np.int64)))
        if sum(len(one.hashes) for one in waiting) >= _WAITING:
            compare()
    compare()
    return replace(_first(found), damaged=damaged)


def _first(found: Sequence[_Held]) -> _Held:
    """All of it, each hash with one of its ranges."""
    hashes = np.concatenate([np.empty(0, np.uint64), *(one.hashes for one in found)])
    positions = np.concatenate([np.empty(0, np.int64), *(one.positions for one in found)])
    unique, first = np.unique(hashes, return_index=True)
    damaged = {i: error for one in found for i, error in one.damaged.items()}
    return _Held(unique, positions[first], damaged)


@dataclass(frozen=True)
class _Name:
    """An order to name what some ranges hold, of which a file has the hashes."""

    connections: Connections
    url: str
    stretches: int
    ranges: Sequence[str]
    hashes: Part


def _names(
    ctx: RunContext,
    connections: Connections,
    attempt: AttemptArtifacts,
    ranges: pa.Table,
    held: _Held,
) -> tuple[list[list[Part]], dict[str, IntegrityError]]:
    """The addresses behind hashes, in stretches; and ranges that could not be read."""
    order = np.argsort(held.positions, kind="stable")
    unique, starts = np.unique(held.positions[order], return_index=True)
    by_range = np.split(held.hashes[order], starts[1:])
    chosen = ranges.take(pa.array(unique))
    ids, costs = chosen["range_id"].to_pylist(), [seconds(one) for one in wanted(chosen, {})]
    count = min(ctx.settings.listing_num_partitions, len(held.hashes) // _STRETCH + 1)
    groups = bin_pack(range(len(ids)), costs, ctx.settings.address_num_partitions)
    store = attempt.store()
    orders = []
    for group in groups:
        hashes = pa.table({"hash": np.concatenate([by_range[at] for at in group])})
        part = write_part(store, f"{_FOLDER}hashes/", hashes, plain=True)
        orders.append(_Name(connections, attempt.url, count, [ids[at] for at in group], part))
    named = ctx.tasks.run("name what expired ranges hold", _name, orders, sum(costs))
    stretches = [[p for task, _ in named for p in task[number]] for number in range(count)]
    return stretches, {i: error for _, damaged in named for i, error in damaged.items()}


def _name(order: _Name) -> tuple[list[list[Part]], dict[str, IntegrityError]]:
    """For each stretch a file of the addresses in it, or none; and ranges that cannot be read."""
    connections = order.connections
    artifacts, store = connections.open(order.url), connections.store()
    hashes: Hashes = read_part(artifacts, order.hashes)["hash"].to_numpy()
    found = [pa.array([], pa.string())]
    damaged: dict[str, IntegrityError] = {}
    for range_id in order.ranges:
        try:
            data = fetch(store, connections.namespace_url, range_id)
            entries = decode_range(data, table_url(connections.namespace_url, range_id))
        except IntegrityError as error:
            damaged[range_id] = error
            continue
        addresses = _relative(connections.namespace(), entries)
        found.append(addresses.filter(pa.array(np.isin(address_hashes(addresses), hashes))))
    addresses = pc.unique(pa.concat_arrays(found))
    folders = pc.replace_substring_regex(addresses, r"(?s)[^/]*$", "")
    stretch = address_hashes(folders) % np.uint64(order.stretches)
    chosen = [addresses.filter(pa.array(stretch == number)) for number in range(order.stretches)]
    parts = [
        [write_part(artifacts, f"{_FOLDER}named/", pa.table([some], schema=NAMED))]
        if len(some)
        else []
        for some in chosen
    ]
    return parts, damaged


def _relative(namespace: StorageNamespace, entries: pa.RecordBatch) -> pa.Array:
    """What entries may mean where a candidate may lie; it may be there several times."""
    addresses, types = entries["address"], entries["address_type"]
    usual = pc.and_not(
        pc.equal(types, AddressType.RELATIVE), pc.match_substring_regex(addresses, UNUSUAL)
    )
    odd = entries.filter(pc.invert(usual))
    meant: list[str] = []
    pairs = zip(odd["address"].to_pylist(), odd["address_type"].to_pylist(), strict=True)
    for address, address_type in pairs:
        spellings, known = entry_spellings(namespace, address, address_type)
        meant += spellings if known else []
    found = pa.concat_arrays([addresses.filter(usual), pa.array(meant, pa.string())])
    named = pc.and_not(in_data(found), pc.match_substring_regex(found, UNNAMEABLE))
    return found.filter(named)
