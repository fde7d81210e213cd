"""Addresses that only expired ranges name: the sets A, B and O of lakeFS #1932.

A is the set of ranges of active commits. B is the set of all other ranges below ``_lakefs/``: the
ranges of expired commits and of dangling ones. O is the set of addresses that entries of B name and
entries of A do not. O is found by cached hashes. Only ranges with an address of O are read again
for the addresses.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.datasets import Part, PartWriter
from lakegc_assets.engine.ddl import schema
from lakegc_assets.engine.session import Dataset
from lakegc_assets.errors import IntegrityError
from lakegc_assets.graveler.decode import decode_range
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.mark import relations
from lakegc_assets.mark.addresses import UNNAMEABLE, are_plain, entry_spellings, in_data
from lakegc_assets.mark.commits import find_liveness
from lakegc_assets.mark.live_ranges import live_ranges, passed_over
from lakegc_assets.mark.ranges import Wanted, cache_ranges, range_frame, run_on_ranges, wanted
from lakegc_assets.mark.session_folder import SessionFolder
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.run.connections import Connections, reads_tables
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import HASHES, address_hashes, signed

_FOLDER: Final = "store_listing/expired/"
NAMED: Final = schema("address string")
#: Columns of the inputs and results of relations.
_HELD: Final = schema(HASHES, "range_id string")
_IDS: Final = schema("range_id string")
_ENTRIES: Final = pa.schema([*NAMED, *HASHES])
_WHAT: Final = "compare expired ranges"

#: Unreadable ranges, by id, with the error of each.
Damaged = dict[str, IntegrityError]


def expired_addresses(
    ctx: RunContext, attempt: AttemptArtifacts, start: datetime
) -> tuple[Sequence[Part], int, list[str]]:
    """Find the addresses that expired ranges name and active ranges do not.

    This is the first time that commits are read, to know which objects to stat. The stages after
    the listing read the live sets again, as in any mode. No live set depends on B, so an unreadable
    file of B is passed over.

    Returns:
        Files of sorted addresses (``NAMED``): each folder is in one file, or in two consecutive
        files. The number of ranges of B. Sentences about files that were not read: addresses that
        only these files name stay.

    Raises:
        IntegrityError: a metarange or range of an active commit is missing or damaged, or lakeFS's
            list of active commits cannot be trusted.
    """
    liveness = find_liveness(ctx, start)
    ids = liveness.active_metaranges()
    found = live_ranges(ctx, ids, every=True, strict=liveness.rules is None)
    every, passed = found.ranges, passed_over(found.passed_over)
    active = every
    if liveness.rules is not None:
        active = live_ranges(ctx, ids, every=False).ranges
    is_active = pc.is_in(every["range_id"], active["range_id"].combine_chunks())
    others = every.filter(pc.invert(is_active))
    if not others.num_rows:
        return (), 0, passed
    parts, damaged = _named_by_none(ctx, attempt, others, active)
    passed += [
        f"passed over, since no active commit has it: {error}. Objects that only it names stay"
        for _, error in sorted(damaged.items())
    ]
    return parts, others.num_rows, passed


@reads_tables
def _named_by_none(
    ctx: RunContext, attempt: AttemptArtifacts, others: pa.Table, active: pa.Table
) -> tuple[Sequence[Part], Damaged]:
    """Addresses in ranges of B (``others``), not of A (``NAMED``); and unreadable ranges of B."""
    _, damaged = cache_ranges(ctx, others, strict=False)
    whole = others.filter(pc.invert(pc.is_in(others["range_id"], pa.array(damaged, pa.string()))))
    with ctx.frames() as frames:
        every = pa.concat_tables([whole.select(active.column_names), active])
        entries = range_frame(ctx, frames, every, _HELD.names)
        ids = frames.create(active.select(_IDS.names).cast(_IDS))
        only_b = relations.held_by_expired(entries, ids)
        work = SessionFolder(ctx, frames, attempt.url, _FOLDER)
        held = work.written(only_b, "hashes", _HELD, _WHAT)
        if not held.parts:
            return [], damaged
        named, unreadable = _names(work, whole, held)
    return named, damaged | unreadable


def _names(work: SessionFolder, ranges: pa.Table, held: Dataset) -> tuple[Sequence[Part], Damaged]:
    """The addresses for hashes (``_HELD``), and ranges that could not be read."""
    ctx, frames = work.ctx, work.frames
    of_held = frames.read(held).select("range_id").distinct()
    ids = frames.collect(of_held, _IDS, _WHAT)["range_id"].combine_chunks()
    chosen = wanted(ranges.filter(pc.is_in(ranges["range_id"], ids)), {})
    task = partial(_read_names, work.connections, work.url)
    read = run_on_ranges(ctx, "name what expired ranges hold", task, chosen)
    entries = Dataset(work.url, [part for parts, _ in read for part in parts], _ENTRIES)
    damaged = {i: error for _, errors in read for i, error in errors.items()}
    if not entries.rows:
        return [], damaged
    named = relations.named_by_expired(frames.read(entries), frames.read(held))
    return work.write(named, "named", NAMED, _WHAT), damaged


def _read_names(
    connections: Connections, url: str, ranges: Sequence[Wanted]
) -> tuple[list[Part], Damaged]:
    """All addresses that ranges name (``_ENTRIES``), and ranges that could not be read."""
    namespace = connections.namespace()
    writer = PartWriter(connections.open(url), f"{_FOLDER}entries/", _ENTRIES)
    damaged: Damaged = {}
    for range_id, _, _ in ranges:
        try:
            data = connections.fetch_table(range_id)
            entries = decode_range(data, connections.table_url(range_id))
        except IntegrityError as error:
            damaged[range_id] = error
            continue
        addresses = _relative(namespace, entries)
        writer.add(pa.table([addresses, signed(address_hashes(addresses))], schema=_ENTRIES))
    return [part for part in writer.finish() if part.rows], damaged


def _relative(namespace: StorageNamespace, entries: pa.RecordBatch) -> pa.Array:
    """Relative spellings of entries' addresses in places of candidates; duplicates may occur."""
    addresses = entries["address"]
    usual = are_plain(addresses, entries["address_type"])
    odd = entries.filter(pc.invert(usual))
    meant: list[str] = []
    pairs = zip(odd["address"].to_pylist(), odd["address_type"].to_pylist(), strict=True)
    for address, address_type in pairs:
        spellings, known = entry_spellings(namespace, address, address_type)
        meant += spellings if known else []
    found = pa.concat_arrays([addresses.filter(usual), pa.array(meant, pa.string())])
    named = pc.and_not(in_data(found), pc.match_substring_regex(found, UNNAMEABLE))
    return found.filter(named)
