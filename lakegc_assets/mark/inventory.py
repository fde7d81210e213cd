"""Reads an inventory report as a listing; the service of a bucket writes it by itself.

An object that a report lacks stays. A report may name an object that is gone or was replaced: the
sweep finds that when it compares each batch with the store before it deletes. So a report must have
the columns for that comparison, and ages count from the beginning of its scan.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final

import pyarrow.compute as pc
from pyspark.sql import DataFrame

from lakegc_assets.engine.datasets import Part
from lakegc_assets.engine.ddl import schema
from lakegc_assets.engine.session import Dataset, Session
from lakegc_assets.errors import IntegrityError, RefusedError
from lakegc_assets.mark import relations
from lakegc_assets.mark.incremental_listing import SWEPT
from lakegc_assets.mark.key_ranges import LAKEFS_PREFIX
from lakegc_assets.mark.listing_pages import NEVER, Listed, Listing, added_up, listing_rows
from lakegc_assets.mark.relations import without_swept
from lakegc_assets.run.artifacts import LISTING
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import HASHES
from lakegc_assets.run.history import dataset_of, earlier
from lakegc_assets.run.scratch import COMPARED, scratch
from lakegc_assets.storage.inventory import Inventory, newest_inventory
from lakegc_assets.storage.inventory.report import ReportFile, damaged
from lakegc_assets.wording import counted

#: Value of ``mode`` in the facts of a listing that was read from a report.
MODE: Final = "inventory"
#: Seconds of one core to read a file, and a byte of it (about ten bytes for each row).
_FILE_S: Final = 0.05
_BYTE_S: Final = 1e-7
#: Bytes assumed for a file if the manifest does not tell its size.
_USUAL: Final = 32 << 20
#: Columns of the result of ``lacked``.
LACKED: Final = schema("objects bigint, bytes bigint, example string")


def find_inventory(ctx: RunContext, start: datetime) -> Inventory:
    """The inventory report for a run.

    Raises:
        RefusedError: there is no report, or it is too old, of another bucket, or lacks a column.
        IntegrityError: the manifest of the report is damaged.
    """
    place = ctx.settings.inventory_place
    if place is None:
        raise RefusedError("set inventory_place to the URL of the folder of inventory reports")
    found = newest_inventory(ctx.connections.namespace(), place, ctx.connections.open)
    began, url = found.report.started, found.report.url
    if began > start + ctx.settings.clock_skew:
        raise IntegrityError(
            f"the inventory report {url} was begun at {began}, which is later than {start}, the "
            "time of the object store: one of the two clocks is wrong, or the report was edited. "
            "Correct the clock and wait for the next report, name an older one (inventory_place), "
            "or list the store (listing: store)"
        )
    if start - began > ctx.settings.inventory_max_age:
        days = ctx.settings.inventory_max_age.total_seconds() / 86_400
        raise RefusedError(
            f"the newest complete inventory report {url} was begun at {began}, more than {days:g} "
            f"days before {start}. Find out why the service wrote no newer one, list the store "
            "(listing: store), or raise inventory_max_age_days"
        )
    return found


def read_inventory(ctx: RunContext, url: str, inventory: Inventory) -> Listed:
    """Write the objects of the namespace that a report names, in the form of a listing.

    Raises:
        RefusedError: the report lacks a column.
        IntegrityError: a file of it is missing or damaged, or it names nothing of the namespace.
    """
    report = inventory.report
    costs = [_FILE_S + (_USUAL if f.size is None else f.size) * _BYTE_S for f in report.files]
    ctx.log.info("reading the inventory report %s, begun at %s", report.url, report.started)
    task = partial(_read_files, ctx.connections, url, inventory)
    what, most = "read an inventory report", ctx.settings.listing_num_partitions
    found = ctx.tasks.run_grouped(what, task, report.files, costs, most)
    listed = added_up([one for one, _ in found]) if found else None
    rows = sum(count for _, count in found)
    if report.rows is not None and rows != report.rows:
        raise damaged(report.url, f"its files have {rows} rows, and it says {report.rows}")
    if listed is None or not listed.digest.count:
        raise IntegrityError(
            f"the inventory report {report.url} names no object below "
            f"{ctx.connections.namespace_url}: it is of another prefix or bucket. Set "
            "inventory_place to one that covers the repository"
        )
    return listed


def _read_files(
    connections: Connections, url: str, inventory: Inventory, files: Sequence[ReportFile]
) -> tuple[Listed, int]:
    """Read files of a report, and count their rows; a task."""
    # A report may lack objects, so a later run must not take its rows for a whole slice.
    listing = Listing(connections.open(url), NEVER)
    place, rows = connections.open(inventory.place), 0
    for file in files:
        for read, batch in inventory.rows(place, file):
            rows += read
            mine = batch and batch.filter(pc.invert(pc.starts_with(batch["key"], LAKEFS_PREFIX)))
            if mine:
                listing.add(listing_rows(mine), at_cut=False)
    return listing.finish(), rows


def named_twice(ctx: RunContext, url: str, folder: str, listed: Listed) -> list[Part]:
    """Write the hashes of objects that a report names more than once (``HASHES``).

    It is unknown which of the rows is true.

    ``url``: of the store with the artifacts.
    ``listed``: the objects in the report.
    """
    with ctx.frames() as frames:
        rows = frames.read(Dataset(url, listed.parts["data"], HASHES))
        what = "look for objects that are named twice"
        return frames.write(relations.named_twice(rows), url, folder, HASHES, what)


def compare_with_inventory(
    ctx: RunContext, url: str, listed: Listed, cutoff: datetime, since: datetime
) -> dict[str, object]:
    """Compare a listing with the newest inventory report, and warn of missing objects.

    No decision depends on the result. The comparison covers objects older than the cutoff and the
    report, without those that sweeps have deleted since. An object that other tools deleted counts
    as missing from the listing.

    ``url``: of the store of the listing.
    ``listed``: the listing.
    ``since``: the begin of the oldest part of the listing.

    Returns:
        Facts, as JSON values.

    Raises:
        RefusedError: there is no report, or it is too old, of another bucket, or lacks a column.
        IntegrityError: the report is damaged.
    """
    inventory = find_inventory(ctx, ctx.clocks.of_store(ctx.connections.store()))
    report = inventory.report
    before = min(cutoff, report.started - 2 * ctx.settings.clock_skew)
    with scratch(ctx.root, ctx.repository, COMPARED) as place:
        named = read_inventory(ctx, place, inventory)
        with ctx.frames() as frames:
            theirs = frames.read(Dataset(place, named.parts["data"], LISTING))
            ours = frames.read(Dataset(url, listed.parts["data"], LISTING))
            if swept := _swept_since(ctx, frames, min(since, report.started)):
                theirs, ours = without_swept(theirs, swept), without_swept(ours, swept)
            lacked = {
                "listing_lacks": relations.lacked(theirs, ours, before),
                "inventory_lacks": relations.lacked(ours, theirs, before),
            }
            what = "compare the listing with an inventory report"
            facts = {
                name: frames.collect_rows(frame, LACKED, what)[0] for name, frame in lacked.items()
            }
    _warn(ctx, inventory, facts)
    return {"report": report.url, "begun": report.started.isoformat(), **facts}


def _swept_since(ctx: RunContext, frames: Session, since: datetime) -> list[DataFrame]:
    runs = earlier(ctx.root, ctx.repository, "swept_set", ctx.connections.namespace_url, ctx.run)
    late = [one for one in runs if one.manifest.finished >= since]
    return [frames.read(one) for one in dataset_of(late, SWEPT)]


def _warn(ctx: RunContext, inventory: Inventory, facts: dict[str, Any]) -> None:
    messages = {
        "listing_lacks": "the listing lacks objects that the report names: the listing was cut, or "
        "the objects were deleted since the report was begun. They stay",
        "inventory_lacks": "the report lacks objects that are listed: it does not cover the whole "
        "repository, or is not complete. Check the inventory's configuration before you use "
        "listing: inventory",
    }
    for name, message in messages.items():
        if count := facts[name]["objects"]:
            ctx.log.warning(
                "%s (%s, for example %s; the report is %s)",
                message,
                counted(count, "object"),
                facts[name]["example"],
                inventory.report.url,
            )
