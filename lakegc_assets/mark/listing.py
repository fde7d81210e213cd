"""Stage 1, ``store_listing``: what the object store holds, listed in parallel by key ranges.

The listing comes first: what is written afterwards is not in it, so it cannot be a candidate. It
also fixes the one cutoff of the run. Everything outside ``_lakefs/`` is listed, wherever it lies.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.errors import IntegrityError, LakegcError
from lakegc_assets.graveler.namespace import slice_time
from lakegc_assets.mark.key_ranges import KEYS_EACH, KeyRange, Plan, TimeRange, plan
from lakegc_assets.mark.publication import require_unused
from lakegc_assets.run.artifacts import LISTING, AttemptArtifacts, Manifest
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import KeyDigest, key_digest
from lakegc_assets.run.parts import Part, PartWriter
from lakegc_assets.run.tasks import each, spread
from lakegc_assets.storage.opening import open_store

ASSET: Final = "store_listing"
#: Keys in a page that is only looked at, to plan the listing.
_LOOK: Final = 100
#: Work of listing a key on one core, and of asking for a range, in seconds.
_KEY_S: Final = 8e-6
_RANGE_S: Final = 0.004
#: Ranges that a task lists at a time: it mostly waits for the store.
_THREADS: Final = 8
#: An etag of an upload in parts.
MULTIPART: Final = r"^[0-9a-fA-F]{32}-[0-9]+$"
MULTIPART_ROWS: Final = pa.schema([("address", pa.string()), ("etag", pa.string())])
CUTS: Final = pa.schema([("key", pa.string())])
_SLICE: Final = len("data/") + 20


@dataclass(frozen=True)
class Slice:
    """What is listed in one slice.

    Attributes:
        name: of the slice; empty for what is in none.
        keys: number of objects.
        size: of all of them, in bytes.
        oldest: when the oldest was written.
    """

    name: str
    keys: int
    size: int
    oldest: datetime


@dataclass(frozen=True)
class _Listed:
    """What one task has listed."""

    parts: Mapping[str, Sequence[Part]]
    digest: KeyDigest
    slices: Sequence[Slice]


def list_store(ctx: RunContext) -> Manifest:
    """List the store into the ``store_listing`` asset of a new attempt.

    Raises:
        RefusedError: the mark is frozen, or a clock is off.
        IntegrityError: the repository shares its namespace with another one, or an object is older
            than the name of its slice says.
        StorageError: the store did not answer in full.
    """
    started = ctx.clocks.now()
    client, connections = ctx.connect()
    store = connections.store()
    start = ctx.check_clocks(client, store)
    grace_period = client.grace_period()
    cutoff = ctx.settings.cutoff(start, grace_period)
    require_unused(store, ctx.run)
    attempt = ctx.root.new_attempt(ctx.repository, ctx.run)

    new = TimeRange(cutoff, start + ctx.settings.clock_skew)
    cuts = earlier_cuts(ctx, connections.namespace_url)
    found = plan_listing(connections, new if ctx.settings.skip_new_slices else None, cuts)
    listed = _list(ctx, connections, attempt, found)

    slices = _added_up(listed)
    require_ages(ctx, slices, start)
    digest = sum((one.digest for one in listed), KeyDigest())
    named = sorted(filter(None, (s.name for s in slices)))
    unlisted = [folder.split("/")[1] for folder in found.skipped]
    return attempt.finish(
        Manifest(
            asset=ASSET,
            repository=ctx.repository,
            run=ctx.run,
            attempt=attempt.attempt,
            namespace=connections.namespace_url,
            cutoff=cutoff,
            started=started,
            finished=ctx.clocks.now(),
            rows=digest.count,
            digest=str(digest),
            parts={
                name: [part for one in listed for part in one.parts[name]]
                for name in ("data", "multipart", "cuts")
            },
            previous="",
            settings=ctx.settings.to_json(),
            facts={
                "start": start.isoformat(),
                "grace_period_seconds": grace_period.total_seconds(),
                "bytes": sum(s.size for s in slices),
                "skipped_slices": found.skipped,
                "first_slice": min([*named, *unlisted], default=""),
            },
        ),
    )


def plan_listing(
    connections: Connections, new: TimeRange | None = None, cuts: Sequence[str] = ()
) -> Plan:
    """Cut the repository's namespace into key ranges, without slices that are ``new``."""
    stores = dataclasses.replace(connections.stores, page_size=_LOOK)
    return plan(open_store(connections.namespace_url, stores), _LOOK, new, cuts)


def earlier_cuts(ctx: RunContext, namespace: str) -> list[str]:
    """Keys of the latest earlier listing between which few lie; none without one."""
    found: list[tuple[datetime, AttemptArtifacts]] = []
    for run in ctx.root.runs(ctx.repository):
        try:
            attempt = ctx.root.attempt(ctx.repository, run)
            manifest = attempt.manifest(ASSET)
        except LakegcError:
            continue
        if manifest.namespace == namespace:
            found.append((manifest.finished, attempt))
    try:
        return max(found)[1].read(ASSET, "cuts")["key"].to_pylist() if found else []
    except LakegcError:
        # They only spread the work.
        return []


def _list(
    ctx: RunContext, connections: Connections, attempt: AttemptArtifacts, found: Plan
) -> list[_Listed]:
    costs = [_RANGE_S + r.keys * _KEY_S for r in found.ranges]
    tasks = spread(found.ranges, costs, ctx.settings.listing_num_partitions)
    ctx.log.info(
        "listing %s in %d key ranges by %d tasks",
        connections.namespace_url,
        len(found.ranges),
        len(tasks),
    )
    task = partial(_list_ranges, connections, attempt.url)
    return ctx.tasks.run("list the store", task, tasks, sum(costs))


def _list_ranges(connections: Connections, url: str, ranges: Sequence[KeyRange]) -> _Listed:
    artifacts = connections.open(url)
    writers = {
        name: PartWriter(artifacts, f"{ASSET}/{name}/", schema)
        for name, schema in (("data", LISTING), ("multipart", MULTIPART_ROWS), ("cuts", CUTS))
    }
    taking = threading.Lock()
    digest, slices = KeyDigest(), list[Slice]()

    def one(wanted: KeyRange) -> None:
        nonlocal digest
        seen = 0
        end = None if wanted.high is None else wanted.high + "\0"
        for page in connections.store().list(start_after=wanted.low, end_before=end):
            rows = pa.RecordBatch.from_arrays(page.columns, schema=LISTING)
            parts = rows.filter(pc.match_substring_regex(rows["etag"], MULTIPART))
            add, counted = key_digest(rows["address"]), slices_of(rows)
            seen += rows.num_rows
            with taking:
                writers["data"].add(rows)
                writers["multipart"].add(parts.select(MULTIPART_ROWS.names))
                if seen >= KEYS_EACH // 2:
                    cut = rows["address"].slice(rows.num_rows - 1)
                    writers["cuts"].add(pa.RecordBatch.from_arrays([cut], schema=CUTS))
                    seen = 0
                digest += add
                slices.extend(counted)

    each(one, ranges, _THREADS)
    parts = {name: writer.finish() for name, writer in writers.items()}
    return _Listed(parts, digest, _joined(slices))


def slices_of(rows: pa.RecordBatch) -> list[Slice]:
    """What one page, with at least one row, holds of each slice."""
    address = rows["address"]
    inside = pc.and_(
        pc.starts_with(address, "data/"),
        pc.equal(pc.utf8_slice_codeunits(address, _SLICE, _SLICE + 1), "/"),
    )
    name = pc.if_else(inside, pc.utf8_slice_codeunits(address, len("data/"), _SLICE), "")
    if pc.all(inside).as_py() and name[0] == name[-1]:
        # In order, so that all between two of one slice are of it, too.
        oldest = pc.min(rows["last_modified"]).as_py()
        return [Slice(name[0].as_py(), len(name), pc.sum(rows["size"]).as_py(), oldest)]
    grouped = (
        pa.table({"name": name, "size": rows["size"], "last_modified": rows["last_modified"]})
        .group_by("name")
        .aggregate([("size", "count"), ("size", "sum"), ("last_modified", "min")])
    )
    columns = ("name", "size_count", "size_sum", "last_modified_min")
    return [Slice(*row) for row in zip(*(grouped[c].to_pylist() for c in columns), strict=True)]


def _joined(found: Iterable[Slice]) -> list[Slice]:
    joined: dict[str, Slice] = {}
    for one in found:
        known = joined.get(one.name)
        joined[one.name] = (
            one
            if known is None
            else Slice(
                one.name,
                one.keys + known.keys,
                one.size + known.size,
                min(one.oldest, known.oldest),
            )
        )
    return list(joined.values())


def _added_up(listed: Sequence[_Listed]) -> list[Slice]:
    return _joined(one for task in listed for one in task.slices)


def require_ages(ctx: RunContext, slices: Iterable[Slice], start: datetime) -> None:
    """Look whether slices are as old as their names say.

    What may stay unlisted is told from names of slices. So no object may be older than its slice.

    Raises:
        IntegrityError: one is, by more than clocks may differ.
    """
    for one in slices:
        made = slice_time(one.name)
        oldest = one.oldest.astimezone(timezone.utc)
        # A name that tells of the future is no slice's.
        if made and oldest + 2 * ctx.settings.clock_skew < made <= start:
            if ctx.settings.skip_new_slices:
                raise IntegrityError(
                    f"data/{one.name}/ holds an object of {oldest}, but the slice was made at "
                    f"{made}, by its name: a clock was wrong, or the folder is not lakeFS's. Look "
                    "at it; skip_new_slices=false lists every slice, whatever its name says",
                )
            ctx.log.warning("data/%s/ is younger than an object in it", one.name)
