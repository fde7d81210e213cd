"""Stage 1, ``store_listing``: what the object store holds, listed in parallel by key ranges.

The listing comes first: what is written afterwards is not in it, so it cannot be a candidate. It
also fixes the one cutoff of the run. Everything outside ``_lakefs/`` is listed, wherever it lies.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.errors import IntegrityError, LakegcError
from lakegc_assets.graveler.namespace import slice_time
from lakegc_assets.mark.carrying import Carried, carried, copy_parts, settled, settled_before
from lakegc_assets.mark.key_ranges import KEYS_EACH, KeyRange, Plan, TimeRange, plan
from lakegc_assets.mark.publication import require_unused
from lakegc_assets.run.artifacts import LISTING, AttemptArtifacts, Manifest
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import KeyDigest, key_digest
from lakegc_assets.run.history import earlier
from lakegc_assets.run.parts import Part, PartWriter, write_part
from lakegc_assets.run.tasks import each, spread
from lakegc_assets.storage.base import ObjectStore
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
_PARTS: Final = {
    "data": LISTING,
    "settled": LISTING,
    "multipart": pa.schema([("address", pa.string()), ("etag", pa.string())]),
    "cuts": pa.schema([("key", pa.string())]),
}
#: What each slice holds, and whether it is settled: whether nobody writes to it any more.
SLICES: Final = pa.schema(
    [
        ("slice", pa.string()),
        ("keys", pa.int64()),
        ("size", pa.int64()),
        ("oldest", pa.timestamp("us", "UTC")),
        ("settled", pa.bool_()),
    ]
)
_SLICE: Final = len("data/") + 20


class Slice(NamedTuple):
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
    """What was listed: files by the name of their part, digests, and what each slice holds.

    Attributes:
        parts: ``data``, ``settled`` (those of ``data`` with nothing but settled slices),
            ``multipart`` and ``cuts``.
        digest: of all addresses.
        settled: of those in settled slices.
        slices: what each holds.
    """

    parts: Mapping[str, Sequence[Part]]
    digest: KeyDigest
    settled: KeyDigest
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
    # What earlier runs left is read before this one begins.
    cuts = earlier_cuts(ctx, connections.namespace_url)
    taken, because = carried(ctx, client, connections, start)
    ctx.log.info("%s run: %s", "an optimized" if taken else "a clean", because)
    attempt = ctx.root.new_attempt(ctx.repository, ctx.run)

    new = TimeRange(cutoff, start + ctx.settings.clock_skew)
    known = taken.slices if taken else frozenset()
    found = plan_listing(connections, new if ctx.settings.skip_new_slices else None, cuts, known)
    before = settled_before(ctx.settings.clock_skew, grace_period, start)
    listed = _list(ctx, connections, attempt, found, before)
    require_ages(ctx, listed.slices, start)
    named = sorted(filter(None, (s.name for s in listed.slices)))
    unlisted = [folder.split("/")[1] for folder in found.skipped]
    facts: dict[str, object] = {
        "start": start.isoformat(),
        "grace_period_seconds": grace_period.total_seconds(),
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
    }
    whole = listed if taken is None else _with_carried(ctx, attempt, listed, taken)
    facts["bytes"] = sum(s.size for s in whole.slices)
    facts["settled_digest"] = str(whole.settled)
    slices = _slices_table(whole.slices, before)
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
            rows=whole.digest.count,
            digest=str(whole.digest),
            parts={
                **whole.parts,
                "slices": [write_part(attempt.store(), f"{ASSET}/slices/", slices)],
            },
            previous="",
            settings=ctx.settings.to_json(),
            facts=facts,
        ),
    )


def _with_carried(
    ctx: RunContext, attempt: AttemptArtifacts, listed: _Listed, taken: Carried
) -> _Listed:
    """What was listed, with what was carried forward."""
    settled, multipart = (copy_parts(ctx, taken, attempt, n) for n in ("settled", "multipart"))
    return _Listed(
        parts={
            **listed.parts,
            "data": [*listed.parts["data"], *settled],
            "settled": [*listed.parts["settled"], *settled],
            "multipart": [*listed.parts["multipart"], *multipart],
        },
        digest=listed.digest + taken.digest,
        settled=listed.settled + taken.digest,
        slices=[*listed.slices, *(Slice(*row) for row in taken.rows)],
    )


def _slices_table(slices: Sequence[Slice], before: datetime) -> pa.Table:
    named = [one for one in slices if one.name]
    gets_no_more = set(settled([one.name for one in named], before))
    rows = [(*one, one.name in gets_no_more) for one in named]
    columns = list(zip(*rows, strict=True)) or [()] * len(SLICES)
    arrays = [pa.array(c, f.type) for c, f in zip(columns, SLICES, strict=True)]
    return pa.Table.from_arrays(arrays, schema=SLICES)


def plan_listing(
    connections: Connections,
    new: TimeRange | None = None,
    cuts: Sequence[str] = (),
    known: AbstractSet[str] = frozenset(),
) -> Plan:
    """Cut the namespace into key ranges, without slices that are ``new`` or ``known``."""
    stores = dataclasses.replace(connections.stores, page_size=_LOOK)
    return plan(open_store(connections.namespace_url, stores), _LOOK, new, cuts, known)


def earlier_cuts(ctx: RunContext, namespace: str) -> list[str]:
    """Keys of the latest earlier listing between which few lie; none without one."""
    try:
        for one in earlier(ctx.root, ctx.repository, ASSET, namespace, ctx.run)[:1]:
            found: list[str] = one.attempt.read(ASSET, "cuts")["key"].to_pylist()
            return found
    except LakegcError:
        # They only spread the work.
        return []
    return []


def _list(
    ctx: RunContext,
    connections: Connections,
    attempt: AttemptArtifacts,
    found: Plan,
    before: datetime,
) -> _Listed:
    costs = [_RANGE_S + r.keys * _KEY_S for r in found.ranges]
    tasks = spread(found.ranges, costs, ctx.settings.listing_num_partitions)
    ctx.log.info(
        "listing %s in %d key ranges by %d tasks",
        connections.namespace_url,
        len(found.ranges),
        len(tasks),
    )
    task = partial(_list_ranges, connections, attempt.url, before)
    return _added_up(ctx.tasks.run("list the store", task, tasks, sum(costs)))


def _added_up(listed: Sequence[_Listed]) -> _Listed:
    return _Listed(
        {name: [part for one in listed for part in one.parts[name]] for name in _PARTS},
        sum((one.digest for one in listed), KeyDigest()),
        sum((one.settled for one in listed), KeyDigest()),
        _joined(s for one in listed for s in one.slices),
    )


def _list_ranges(
    connections: Connections, url: str, before: datetime, ranges: Sequence[KeyRange]
) -> _Listed:
    listing = _Listing(connections.open(url), before)

    def one(wanted: KeyRange) -> None:
        seen = 0
        end = None if wanted.high is None else wanted.high + "\0"
        for page in connections.store().list(start_after=wanted.low, end_before=end):
            seen += page.num_rows
            at_cut = seen >= KEYS_EACH // 2
            listing.add(pa.RecordBatch.from_arrays(page.columns, schema=LISTING), at_cut=at_cut)
            seen = 0 if at_cut else seen

    each(one, ranges, _THREADS)
    return listing.finish()


class _Listing:
    """Takes the pages of one task, from several threads, and writes what is in them."""

    def __init__(self, artifacts: ObjectStore, before: datetime) -> None:
        self._writers = {
            name: PartWriter(artifacts, f"{ASSET}/{name}/", schema)
            for name, schema in _PARTS.items()
        }
        self._before = before
        self._taking = threading.Lock()
        self._digests = {"data": KeyDigest(), "settled": KeyDigest()}
        self._slices: list[Slice] = []

    def add(self, rows: pa.RecordBatch, *, at_cut: bool) -> None:
        """Take a page, with at least one row; ``at_cut`` if its last key is to be remembered."""
        slices = slices_of(rows)
        gets_no_more = settled([one.name for one in slices], self._before)
        if len(gets_no_more) == len(slices):
            sorted_out = {"settled": rows}
        elif gets_no_more:
            mask = pc.is_in(_slice_names(rows), pa.array(gets_no_more))
            sorted_out = {"settled": rows.filter(mask), "data": rows.filter(pc.invert(mask))}
        else:
            sorted_out = {"data": rows}
        digests = {name: key_digest(some["address"]) for name, some in sorted_out.items()}
        in_parts = rows.filter(pc.match_substring_regex(rows["etag"], MULTIPART))
        with self._taking:
            for name, some in sorted_out.items():
                self._writers[name].add(some)
                self._digests[name] += digests[name]
            self._writers["multipart"].add(in_parts.select(_PARTS["multipart"].names))
            if at_cut:
                last = rows["address"].slice(rows.num_rows - 1)
                self._writers["cuts"].add(pa.RecordBatch.from_arrays([last], schema=_PARTS["cuts"]))
            self._slices += slices

    def finish(self) -> _Listed:
        """All of it."""
        parts = {name: writer.finish() for name, writer in self._writers.items()}
        parts["data"] = [*parts["data"], *parts["settled"]]
        digest, settled_digest = self._digests["data"], self._digests["settled"]
        return _Listed(parts, digest + settled_digest, settled_digest, _joined(self._slices))


def _slice_names(rows: pa.RecordBatch) -> pa.Array:
    """The slice of each object; empty where it is in none."""
    address = rows["address"]
    inside = pc.and_(
        pc.starts_with(address, "data/"),
        pc.equal(pc.utf8_slice_codeunits(address, _SLICE, _SLICE + 1), "/"),
    )
    return pc.if_else(inside, pc.utf8_slice_codeunits(address, len("data/"), _SLICE), "")


def slices_of(rows: pa.RecordBatch) -> list[Slice]:
    """What one page, with at least one row, holds of each slice."""
    name = _slice_names(rows)
    if name[0].as_py() and name[0] == name[-1]:
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
