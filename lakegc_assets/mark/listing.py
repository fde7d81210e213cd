"""Stage 1, ``store_listing``: lists the objects of the store, in parallel by key ranges.

The listing comes first: an object that is written later is not in it, so it cannot be a candidate.
The listing also fixes the one cutoff of the run. It covers all keys outside ``_lakefs/``, or reads
an inventory report that was begun before the run. In the mode ``committed`` it lists nothing: it
only stats the objects that expired ranges name.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Final

import pyarrow as pa

from lakegc_assets.engine.datasets import Part, read_parts, write_part
from lakegc_assets.engine.tasks import bin_pack, thread_map
from lakegc_assets.errors import LakegcError
from lakegc_assets.graveler.namespace import slice_time
from lakegc_assets.mark import inventory
from lakegc_assets.mark.expired_addresses import expired_addresses
from lakegc_assets.mark.incremental_listing import (
    AHEAD,
    Carried,
    carried,
    copy_parts,
    settled_before,
)
from lakegc_assets.mark.installation import require_one_server
from lakegc_assets.mark.key_ranges import KEYS_EACH, KeyRange, Plan, TimeRange, plan
from lakegc_assets.mark.listing_pages import (
    NEVER,
    SEEN_IN,
    Listed,
    Listing,
    Slice,
    added_up,
    listing_rows,
    require_ages,
    slices_table,
)
from lakegc_assets.mark.publication import require_unused
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.history import Earlier, earlier, note_rows, of_whole_store
from lakegc_assets.run.manifest import PROTECTION, PROTECTION_VERSION, Manifest
from lakegc_assets.run.object_lookup import stat_many
from lakegc_assets.storage.inventory import Inventory
from lakegc_assets.storage.opening import open_store
from lakegc_assets.wording import counted

ASSET: Final = "store_listing"
#: Keys in a page that is read to plan the listing.
_PLAN_PAGE: Final = 100
#: Seconds of one core to list a key, and to request a range.
_KEY_S: Final = 8e-6
_RANGE_S: Final = 0.004
#: Ranges that a task lists at a time; a task mostly waits for the store.
_THREADS: Final = 8
#: Pages that become rows in one step; much of the work does not depend on the number of rows.
_PAGES: Final = 16
#: Seconds of one core to stat an object.
_NAME_S: Final = 0.002


@dataclass(frozen=True)
class _Found:
    """The result of a listing."""

    listed: Listed
    #: Slices that were made before this time get no new objects.
    settled_before: datetime
    facts: Mapping[str, object]
    #: Further files, in addition to those of the listed objects.
    parts: Mapping[str, Sequence[Part]] = field(default_factory=dict)


def list_store(ctx: RunContext) -> Manifest:
    """List the store into the ``store_listing`` asset of a new attempt.

    Raises:
        RefusedError: the mark is frozen, a clock is off, or another server collects the namespace.
        IntegrityError: the repository shares its namespace with another repository, an object is
            older than the name of its slice says, or an expired range is damaged.
        StorageError: the store did not answer in full.
    """
    started = ctx.clocks.now()
    ctx = ctx.connect()
    store = ctx.connections.store()
    server = require_one_server(ctx.client, ctx.repository, store)
    start = ctx.check_clocks(ctx.client, store)
    grace_period = ctx.client.grace_period()
    require_unused(store, ctx.run, ctx.settings.publish)
    settled = settled_before(ctx.settings.clock_skew, grace_period, start)
    cutoff = ctx.settings.cutoff(start, grace_period)
    # The artifacts of earlier runs are read once, before this run writes any.
    listings = earlier(ctx.root, ctx.repository, ASSET, ctx.connections.namespace_url, ctx.run)
    if ctx.settings.mode == "committed":
        attempt, found = _stat_expired(ctx, start)
    elif ctx.settings.listing == "inventory":
        report = inventory.find_inventory(ctx, start)
        # The age counts from the begin of the scan, in whole seconds like the times in a report.
        began = min(start, report.report.started).replace(microsecond=0)
        cutoff = ctx.settings.cutoff(began, grace_period)
        attempt, found = _read_inventory(ctx, report, start)
    else:
        attempt, found = _list_all(ctx, start, cutoff, settled, listings)
    listed = found.listed
    slices = slices_table(listed.slices, found.settled_before)
    note_rows(ctx.root, ctx.repository, ctx.run, listed.digest.count)
    return attempt.finish(
        Manifest(
            asset=ASSET,
            repository=ctx.repository,
            run=ctx.run,
            attempt=attempt.attempt,
            namespace=ctx.connections.namespace_url,
            cutoff=cutoff,
            started=started,
            finished=ctx.clocks.now(),
            rows=listed.digest.count,
            digest=str(listed.digest),
            parts={
                **listed.parts,
                **found.parts,
                "slices": [write_part(attempt.store(), f"{ASSET}/slices/", slices)],
            },
            previous="",
            settings=ctx.settings.to_json(),
            facts={
                "start": start.isoformat(),
                "server_known_by": server,
                "grace_period_seconds": grace_period.total_seconds(),
                "bytes": sum(s.size for s in listed.slices),
                "settled_digest": str(listed.settled),
                "skipped_slices": [],
                "first_slice": min(filter(None, (s.name for s in listed.slices)), default=""),
                "listed": listed.digest.count,
                "carried": 0,
                SEEN_IN: seen_in(listings, cutoff),
                **found.facts,
                "requests": ctx.requests_sent,
                "requests_by_kind": ctx.requests_by_kind,
                "engine": str(ctx.engine),
                PROTECTION: PROTECTION_VERSION,
            },
        ),
    )


def seen_in(listings: Sequence[Earlier], cutoff: datetime) -> list[tuple[str, str]]:
    """Run and attempt of the earlier listings that count as earlier sightings of uploads.

    These are the latest listing of the whole store, and the latest of any mode; both finished
    before the cutoff of the run.

    ``listings``: the latest first.
    """
    before = [one for one in listings if one.manifest.finished < cutoff]
    latest = [*of_whole_store(before)[:1], *before[:1]]
    return list({(one.attempt.run, one.attempt.attempt): None for one in latest})


def _list_all(
    ctx: RunContext,
    start: datetime,
    cutoff: datetime,
    settled: datetime,
    listings: Sequence[Earlier],
) -> tuple[AttemptArtifacts, _Found]:
    """List the store, except for the slices that can be carried forward from ``listings``."""
    cuts = earlier_cuts(listings)
    taken, because, ahead = carried(ctx, start, listings)
    ctx.log.info("%s run: %s", "an optimized" if taken else "a clean", because)
    attempt = ctx.root.new_attempt(ctx.repository, ctx.run, ctx.clocks.now())

    new = TimeRange(cutoff, start + ctx.settings.clock_skew)
    known = taken.slices if taken else frozenset()
    found = plan_listing(
        ctx.connections, new if ctx.settings.skip_new_slices else None, cuts, known
    )
    listed = list_all(ctx, attempt, found, settled)
    require_ages(ctx, listed.slices, start)
    named = [s.name for s in listed.slices if s.name and "/" not in s.name]
    unsettled = sum(s.keys for s in listed.slices if slice_time(s.name) is None)
    if taken and unsettled:
        because += (
            f"; {counted(unsettled, 'object was', 'objects were')} listed again, since no slice "
            "holds them, and their names do not show when they were written"
        )
    unlisted = [folder.split("/")[1] for folder in found.skipped]
    facts: dict[str, object] = {
        "skipped_slices": found.skipped,
        "first_slice": min([*named, *unlisted, *known], default=""),
        "mode": "optimized" if taken else "clean",
        "because": because,
        "clean_run": taken.clean_run if taken else ctx.run,
        "clean_at": (taken.clean_at if taken else start).isoformat(),
        "listed": listed.digest.count,
        "carried": taken.digest.count if taken else 0,
        "carried_and_gone": taken.gone if taken else 0,
        "swept_since": list(taken.swept) if taken else [],
        AHEAD: ahead,
    }
    whole = listed if taken is None else _with_carried(ctx, attempt, listed, taken)
    if ctx.settings.listing_check == "inventory":
        since = taken.clean_at if taken else start
        facts["inventory_check"] = inventory.compare_with_inventory(
            ctx, attempt.url, whole, cutoff, since
        )
    return attempt, _Found(whole, settled, facts)


def _stat_expired(ctx: RunContext, start: datetime) -> tuple[AttemptArtifacts, _Found]:
    """Stat only the objects that expired ranges name.

    No slice counts as settled: a later run must not take these objects for the whole slice.
    """
    attempt = ctx.root.new_attempt(ctx.repository, ctx.run, ctx.clocks.now())
    expired, ranges, passed_over = expired_addresses(ctx, attempt, start)
    because = f"{counted(ranges, 'range is', 'ranges are')} of expired commits alone"
    named = sum(part.rows for part in expired)
    ctx.log.info("requesting %s by name: %s", counted(named, "object"), because)
    costs = [part.rows * _NAME_S for part in expired]
    task = partial(_stat, ctx.connections, attempt.url)
    orders = bin_pack(expired, costs, ctx.settings.listing_num_partitions)
    found = ctx.tasks.run("stat objects by name", task, orders or [[]], sum(costs))
    listed = added_up(found)
    require_ages(ctx, listed.slices, start)
    facts = {"mode": "by name", "because": because, "named": named, "passed_over": passed_over}
    return attempt, _Found(listed, NEVER, facts)


def _read_inventory(
    ctx: RunContext, found: Inventory, start: datetime
) -> tuple[AttemptArtifacts, _Found]:
    """Read an inventory report in place of a listing of the store."""
    attempt = ctx.root.new_attempt(ctx.repository, ctx.run, ctx.clocks.now())
    listed = inventory.read_inventory(ctx, attempt.url, found)
    require_ages(ctx, listed.slices, start)
    twice = inventory.named_twice(ctx, attempt.url, f"{ASSET}/twice/", listed)
    facts = {
        "mode": inventory.MODE,
        "because": f"the inventory report {found.report.url}, begun at {found.report.started}",
        "inventory": found.report.url,
        "inventory_begun": found.report.started.isoformat(),
        "named_twice": sum(part.rows for part in twice),
    }
    return attempt, _Found(listed, NEVER, facts, {"twice": twice})


def _stat(connections: Connections, url: str, parts: Sequence[Part]) -> Listed:
    artifacts, store = connections.open(url), connections.store()
    listing = Listing(artifacts, NEVER)
    for names in read_parts(artifacts, parts):
        for page in stat_many(store, names["address"].to_pylist()):
            listing.add(listing_rows(page), at_cut=False)
    return listing.finish()


def _with_carried(
    ctx: RunContext, attempt: AttemptArtifacts, listed: Listed, taken: Carried
) -> Listed:
    """The union of the listing and the slices that were carried forward."""
    settled, multipart = (copy_parts(ctx, taken, attempt, n) for n in ("settled", "multipart"))
    return Listed(
        parts={
            **listed.parts,
            "data": [*listed.parts["data"], *settled],
            "settled": [*listed.parts["settled"], *settled],
            "carried": settled,
            "multipart": [*listed.parts["multipart"], *multipart],
        },
        digest=listed.digest + taken.digest,
        settled=listed.settled + taken.digest,
        slices=[*listed.slices, *(Slice(*row) for row in taken.rows)],
    )


def plan_listing(
    connections: Connections,
    new: TimeRange | None = None,
    cuts: Sequence[str] = (),
    known: AbstractSet[str] = frozenset(),
) -> Plan:
    """Cut the namespace into key ranges, without ``new`` and ``known`` slices."""
    stores = dataclasses.replace(connections.stores, page_size=_PLAN_PAGE)
    return plan(open_store(connections.namespace_url, stores), _PLAN_PAGE, new, cuts, known)


def earlier_cuts(listings: Sequence[Earlier]) -> list[str]:
    """Keys that cut the latest earlier listing into small ranges; empty without a listing."""
    try:
        for one in of_whole_store(listings)[:1]:
            found: list[str] = one.attempt.read(ASSET, "cuts")["key"].to_pylist()
            return found
    except LakegcError:
        # The cuts only spread the work over tasks.
        return []
    return []


def list_all(ctx: RunContext, attempt: AttemptArtifacts, found: Plan, before: datetime) -> Listed:
    """List the ranges of a plan in tasks."""
    costs = [_RANGE_S + r.keys * _KEY_S for r in found.ranges]
    tasks = bin_pack(found.ranges, costs, ctx.settings.listing_num_partitions)
    ctx.log.info(
        "listing %s in %s by %s",
        ctx.connections.namespace_url,
        counted(len(found.ranges), "key range"),
        counted(len(tasks), "task"),
    )
    task = partial(_list_ranges, ctx.connections, attempt.url, before)
    return added_up(ctx.tasks.run("list the store", task, tasks, sum(costs)))


def _list_ranges(
    connections: Connections, url: str, before: datetime, ranges: Sequence[KeyRange]
) -> Listed:
    listing = Listing(connections.open(url), before)

    def one(wanted: KeyRange) -> None:
        seen = 0
        end = None if wanted.high is None else wanted.high + "\0"
        pages = connections.store().list(start_after=wanted.low, end_before=end)
        while batches := list(itertools.islice(pages, _PAGES)):
            rows = listing_rows(pa.Table.from_batches(batches))
            seen += rows.num_rows
            at_cut = seen >= KEYS_EACH // 2
            listing.add(rows, at_cut=at_cut)
            seen = 0 if at_cut else seen

    thread_map(one, ranges, _THREADS)
    return listing.finish()
