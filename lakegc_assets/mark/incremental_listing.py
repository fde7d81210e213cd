"""Slices of an earlier listing that get no new objects, carried forward to an optimized run.

lakeFS names a slice by the time when it was made, replaces it within the hour, and accepts an
address for a day. So after some time the content of a slice is settled: only deletes change it, and
sweeps record those. An optimized run reuses the last listing of such slices, and lists the rest.

An optimized run does not see an object that a tool other than lakeFS put into such a slice. The
next clean run finds the object; it cannot be collected before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import compress
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.datasets import Part
from lakegc_assets.engine.ddl import schema
from lakegc_assets.engine.session import Dataset
from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.errors import IntegrityError, LakegcError
from lakegc_assets.graveler.namespace import slice_time
from lakegc_assets.retention.rules import Rules
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import KeyDigest
from lakegc_assets.run.history import READERS, Earlier, dataset_of, of_whole_store
from lakegc_assets.run.manifest import PROTECTION_VERSION, Manifest
from lakegc_assets.run.pins import PINS
from lakegc_assets.run.settings import CUTOFF_MARGIN, MIN_SAFE_AGE
from lakegc_assets.storage.copies import copy_object
from lakegc_assets.storage.errors import AccessDeniedError

ASSET: Final = "store_listing"
#: Fact of a listing: the attempts whose listings were made while the store's clock was ahead.
AHEAD: Final = "clock_ahead"
#: Columns of the record of a sweep.
SWEPT: Final = schema("address string, outcome string")
#: Maximum time in which a slice gets new addresses (an hour by lakeFS's default), with a margin.
_SLICE_LIFE: Final = timedelta(hours=2)
#: Deleted objects that are looked up, to see if the store was restored.
_ASKED: Final = 20
#: Outcomes of a sweep after which the store no longer has the object.
GONE: Final = ("deleted", "already_missing")
#: Folder of the records of restores, below an attempt.
_RESTORES: Final = "restored_set/"
_OF_SLICE: Final = ("slice", "keys", "size", "oldest")
_THREADS: Final = 8


@dataclass(frozen=True)
class Carried:
    """The part of the previous listing that an optimized run carries forward."""

    #: The listing of that run.
    since: Earlier
    #: The last run that listed everything, and its start by the store's clock.
    clean_run: str
    clean_at: datetime
    #: Digest of the addresses in settled slices.
    digest: KeyDigest
    #: Rows of the part ``slices``: name, keys, size in bytes, time of the oldest object.
    rows: Sequence[tuple[str, int, int, datetime]]
    #: Run and attempt of each sweep since then; the listing still has what they deleted.
    swept: Sequence[tuple[str, str]]
    #: Number of objects that these sweeps deleted.
    gone: int

    @property
    def slices(self) -> frozenset[str]:
        """Names of the slices that need not be listed."""
        return frozenset(row[0] for row in self.rows)


class _CleanRunError(LakegcError):
    """The reason why nothing can be carried forward."""


def settled_before(clock_skew: timedelta, grace_period: timedelta, start: datetime) -> datetime:
    """The time before which a slice must have been made to get no new objects.

    ``grace_period``: time for which the server lets an address be linked.
    ``start``: of the listing.
    """
    age = max(grace_period, MIN_SAFE_AGE) + 2 * clock_skew + CUTOFF_MARGIN + _SLICE_LIFE
    return start - age


def carried(
    ctx: RunContext, start: datetime, runs: Sequence[Earlier]
) -> tuple[Carried | None, str, list[str]]:
    """The slices to carry forward from the last run; or None with the reason for a clean run.

    Also returns the attempts from which nothing may be carried, for the fact ``AHEAD``.

    ``runs``: the listings of earlier runs.
    """
    ahead: list[str] = []
    try:
        ahead += clock_ahead(of_whole_store(runs), start + ctx.settings.clock_skew)
        if ctx.settings.clean:
            return None, "a clean run was asked for", ahead
        found = _carried(ctx, start, runs, ahead)
    except _CleanRunError as reason:
        return None, str(reason), ahead
    except LakegcError as error:
        return None, f"the artifacts of earlier runs cannot be read: {error}", ahead
    return found, f"the listing of run {found.since.attempt.run!r} is carried forward", ahead


def clock_ahead(listings: Sequence[Earlier], now: datetime) -> list[str]:
    """The earlier listings that were made while the store's clock was ahead.

    They took slices for settled that still got objects. Once that time has passed, a run can no
    longer see this. So each run records these listings for later runs.
    """
    noted = {name for one in listings for name in one.manifest.facts.get(AHEAD, ())}
    return sorted(_name(one) for one in listings if one.manifest.start > now or _name(one) in noted)


def _name(one: Earlier) -> str:
    return f"{one.attempt.run}/{one.attempt.attempt}"


def _carried(
    ctx: RunContext, start: datetime, runs: Sequence[Earlier], ahead: Sequence[str]
) -> Carried:
    listings = of_whole_store(runs)
    if not listings:
        raise _CleanRunError("there is no earlier run")
    listings = [one for one in listings if _name(one) not in ahead]
    if not listings:
        raise _CleanRunError("the store's clock was ahead when earlier runs listed it")
    last = max(listings, key=lambda one: one.manifest.started)
    if last.manifest.protection != PROTECTION_VERSION:
        raise _CleanRunError(
            f"run {last.attempt.run!r} was made by a version that spares other objects"
        )
    require_success(last)
    facts = last.attempt.manifest(ASSET).facts
    if facts.get("mode") == "inventory":
        raise _CleanRunError(
            f"run {last.attempt.run!r} read an inventory report, which may lack objects"
        )
    clean_at = datetime.fromisoformat(facts["clean_at"])
    if start - clean_at > ctx.settings.clean_every:
        raise _CleanRunError(f"the last clean run, {facts['clean_run']!r}, was at {clean_at}")
    require_same_rules(ctx, last)
    require_no_restore(ctx.connections, runs, clean_at)
    swept = _sweeps_since(runs, clean_at)
    slices = last.attempt.read(ASSET, "slices")
    settled_slices = slices.filter(slices["settled"])
    if not settled_slices.num_rows:
        raise _CleanRunError(
            f"run {last.attempt.run!r} listed no object in a slice that gets no new objects, and "
            "other names do not show when an object was written"
        )
    gone = sum(count for _, count in swept)
    require_folders(ctx.connections, settled_slices, gone)
    require_not_restored(ctx.connections, [one for one, _ in swept])
    return Carried(
        since=last,
        clean_run=facts["clean_run"],
        clean_at=clean_at,
        digest=KeyDigest.parse(facts["settled_digest"]),
        rows=list(zip(*(settled_slices[n].to_pylist() for n in _OF_SLICE), strict=True)),
        swept=[(one.attempt.run, one.attempt.attempt) for one, _ in swept],
        gone=gone,
    )


def require_success(last: Earlier) -> None:
    """Refuse to carry forward from a run whose mark or sweep did not finish."""
    attempt = last.attempt
    if not attempt.has("gc_report"):
        raise _CleanRunError(f"the last run, {attempt.run!r}, did not finish its mark")
    if not attempt.has("swept_set") and attempt.files("swept_set"):
        raise _CleanRunError(f"the sweep of the last run, {attempt.run!r}, did not finish")
    attempt.chain("gc_report", last.manifest.namespace)


def require_same_rules(ctx: RunContext, last: Earlier) -> None:
    """Refuse to carry forward if the rules have changed: the last run looked for other garbage."""
    raw = ctx.client.gc_rules(ctx.repository)
    now = None if raw is None else Rules.parse(raw).to_json()
    facts = last.attempt.recorded("active_commits").facts
    if now != facts["rules"] or ctx.settings.retained.to_json() != facts.get("retain", {}):
        raise _CleanRunError(f"the retention rules have changed since run {last.attempt.run!r}")


def require_no_restore(
    connections: Connections, runs: Sequence[Earlier], clean_at: datetime
) -> None:
    """Refuse to carry forward if swept objects were restored: they must be listed again."""
    pins = (pc.max(page["last_modified"]).as_py() for page in connections.store().list(PINS))
    # A pin may have been removed or not asked for. Names of restores begin with the store's time.
    first = f"{_RESTORES}{clean_at.astimezone(timezone.utc):%Y%m%dT%H%M%SZ}"
    restored = thread_map(
        lambda one: max(one.attempt.store().list_prefixes(_RESTORES).prefixes, default=""),
        runs,
        READERS,
    )
    if any(pin >= clean_at for pin in pins) or max(restored, default="") >= first:
        raise _CleanRunError("objects were restored since the last clean run")


def _sweeps_since(runs: Sequence[Earlier], clean_at: datetime) -> list[tuple[Earlier, int]]:
    """The sweeps since the last clean run, with the number of objects that each deleted."""

    def swept_since(one: Earlier) -> list[tuple[Earlier, int]]:
        swept = one.attempt.recorded_if_finished("swept_set")
        if swept is None:
            written = one.attempt.store().infos("swept_set/")
            if any(max(one.manifest.start, file.last_modified) >= clean_at for file in written):
                raise _CleanRunError(f"the sweep of {one.attempt.run!r} did not finish")
            return []
        # The mark may be older than the clean run: the time of the sweep decides.
        if swept.finished < clean_at:
            return []
        outcomes = one.attempt.manifest("swept_set").facts["outcomes"]
        return [(one, sum(outcomes[name]["objects"] for name in GONE if name in outcomes))]

    found = thread_map(swept_since, runs, READERS)
    return [swept for of_run in found for swept in of_run]


def require_folders(connections: Connections, settled_slices: pa.Table, gone: int) -> None:
    """Refuse to carry forward if more objects are missing than sweeps have deleted."""
    folders = connections.store().list_prefixes("data/").prefixes
    there = {folder.removeprefix("data/").removesuffix("/") for folder in folders}
    names, keys = settled_slices["slice"].to_pylist(), settled_slices["keys"].to_pylist()
    missing = {n: k for n, k in zip(names, keys, strict=True) if n not in there}
    if sum(missing.values()) > gone:
        raise _CleanRunError(
            f"slices that no sweep has emptied are gone, data/{next(iter(missing))}/ for one"
        )


def require_not_restored(connections: Connections, swept: Sequence[Earlier]) -> None:
    """Refuse to carry forward if swept objects exist again: their content is unknown."""
    store = connections.store()
    for one in swept[:1]:
        rows = one.attempt.read("swept_set", columns=["address", "outcome"])
        deleted = rows.filter(pc.is_in(rows["outcome"], pa.array(GONE)))["address"]
        sample = deleted.to_pylist()[:: max(1, len(deleted) // _ASKED)][:_ASKED]
        found = thread_map(store.exists, sample, _THREADS)
        there = list(compress(sample, found))
        if there:
            raise _CleanRunError(
                f"{there[0]} is in the store, although run {one.attempt.run!r} deleted it: the "
                "store was restored, or the object was written again"
            )


def copy_parts(ctx: RunContext, found: Carried, attempt: AttemptArtifacts, part: str) -> list[Part]:
    """Copy files of an earlier listing to this attempt, so that it does not depend on the earlier.

    ``found``: the slices to carry forward.
    ``part``: ``settled`` or ``multipart``.
    """
    store = ctx.root.open(ctx.repository)
    before, now = (f"{a.run}/{a.attempt}/" for a in (found.since.attempt, attempt))

    def copy(one: Part) -> Part:
        key = f"{ASSET}/{part}/{one.key.rpartition('/')[2]}"
        source, target = before + one.key, now + key
        try:
            copy_object(store, source, store, target, size=one.size, etag=None, if_absent=False)
        except AccessDeniedError:
            # Behind a firewall, a service may refuse to read for a copy what this process may read.
            with store.stream(source) as pieces:
                store.put_stream(target, pieces, one.size)
        return Part(key, one.rows, one.size, one.sha256)

    return thread_map(copy, found.since.manifest.parts[part], _THREADS)


def sweeps_since(ctx: RunContext, listing: Manifest) -> list[Dataset]:
    """Outcomes of all sweeps since the carried slices were listed: one dataset, or none.

    Raises:
        IntegrityError: a run was made again, or the record of its sweep is damaged.
    """
    found: list[Earlier] = []
    for run, attempt_id in listing.facts.get("swept_since", ()):
        attempt = ctx.root.attempt(ctx.repository, run)
        if attempt.attempt != attempt_id:
            raise IntegrityError(
                f"run {run!r} of {ctx.repository!r} was made again while another run relied on "
                "it: mark again"
            )
        found.append(Earlier(attempt, attempt.manifest("swept_set")))
    return dataset_of(found, SWEPT)


def settled(names: Sequence[str], before: datetime) -> list[str]:
    """The slices, among ``names``, that were made before ``before``, and get no new objects."""
    made = ((name, slice_time(name)) for name in names)
    return [name for name, moment in made if moment is not None and moment < before]
