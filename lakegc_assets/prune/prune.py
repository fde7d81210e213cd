"""Prunes one repository: judges its runs, says why each stays, and removes the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import groupby, islice
from operator import itemgetter
from typing import Final, Protocol

import pyarrow as pa

from lakegc_assets.errors import ConfigurationError, IntegrityError, LakegcError
from lakegc_assets.prune import removal
from lakegc_assets.prune.caches import unneeded_caches
from lakegc_assets.prune.decisions import SUCCESS, SUCCESSES, judge
from lakegc_assets.prune.keep_reasons import Surroundings, needed
from lakegc_assets.prune.run_inventory import Seen, look, with_files
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.lock import repository_lock
from lakegc_assets.storage.removal import remove_objects
from lakegc_assets.sweep.hold import hold_command, read_hold
from lakegc_assets.sweep.lease import Lease, leased
from lakegc_assets.sweep.totals import count_pruned
from lakegc_assets.wording import duration

#: Less than this is refused: what was begun lately may still go on.
LEAST: Final = timedelta(days=2)
_BATCH: Final = 1000


class Records(Protocol):
    """Records of runs outside of the artifacts: in Dagster."""

    def names(self) -> set[str]:
        """The runs of which something is recorded."""
        ...

    def last(self, run: str) -> tuple[datetime | None, str]:
        """The time of the last record of a run, and why it is not over; empty if it is."""
        ...

    def forget(self, run: str) -> None:
        """Remove the records of a run whose artifacts are gone; may be called again."""
        ...


@dataclass(frozen=True)
class Judged:
    """The decision about a run: why it stays, empty where it goes.

    Files and bytes of its present attempt are 0 where they were not listed.
    """

    run: str
    kept: str
    files: int = 0
    size: int = 0


@dataclass(frozen=True)
class Pruned:
    """The result of pruning a repository."""

    #: Oldest first.
    runs: Sequence[Judged]
    #: Runs of which a killed prune had left something.
    left: Sequence[str] = ()
    #: Files below the caches that went, or would go.
    cached: int = 0
    cached_size: int = 0
    #: What could not be done, in sentences.
    notes: Sequence[str] = ()

    @property
    def gone(self) -> list[Judged]:
        """The runs that go."""
        return [one for one in self.runs if not one.kept]

    @property
    def anything(self) -> bool:
        """Return whether any run goes."""
        return bool(self.gone or self.left or self.cached)


def prune(ctx: RunContext, keep: timedelta, records: Records, *, dry_run: bool) -> Pruned:
    """Remove the runs of a repository that nothing needs, with what is cached for them alone.

    Where something is to go, holds the lease of the repository and judges once more, so that no
    sweep, backup or restore reads what goes. One that was killed is run again.

    Younger runs than ``keep`` stay. ``dry_run``: remove nothing, and keep nobody out.

    Raises:
        ConfigurationError: ``keep`` is too short, or there is no such repository.
        RefusedError: somebody else works on the repository, or clocks are off.
        LakegcError: nobody can tell what is needed, or something could not be removed.
    """
    require_long(keep)
    # While this judges, it is in nobody's way.
    found = _prune(ctx, keep, records, None)
    if dry_run or not found.anything:
        return found
    _, connections = ctx.connect()
    with _alone(ctx, connections) as lease:
        return _prune(ctx, keep, records, lease)


def _prune(ctx: RunContext, keep: timedelta, records: Records, lease: Lease | None) -> Pruned:
    """Look at a repository and, under its lease, remove what goes."""
    client, connections = ctx.connect()
    ctx.check_clocks(client, connections.store())
    now = ctx.clocks.now()
    found = look(ctx.root, ctx.repository, records.names())
    judged = _judged(ctx, connections, found, keep, now, records)
    known = {one.run.id for one in found}
    left = [
        name
        for name in ctx.root.runs(ctx.repository)
        if name not in known and removal.is_left(ctx.root, ctx.repository, name)
    ]
    if lease is not None:
        _remove(ctx, judged, left, found, records, lease)
    before = now - keep
    return _with_caches(ctx, connections, Pruned(judged, left), found, before, lease)


def require_long(keep: timedelta) -> None:
    """Refuse to keep runs for too short a time.

    Raises:
        ConfigurationError: it is.
    """
    if keep < LEAST:
        raise ConfigurationError(
            f"keep_runs is {duration(keep)}, and {duration(LEAST)} are the least: what "
            "was begun lately may still go on"
        )


@contextmanager
def _alone(ctx: RunContext, connections: Connections) -> Iterator[Lease]:
    with (
        repository_lock(connections.namespace_url),
        leased(ctx, connections.store(), doing="prune") as lease,
    ):
        yield lease


def _judged(
    ctx: RunContext,
    connections: Connections,
    found: Sequence[Seen],
    keep: timedelta,
    now: datetime,
    records: Records,
) -> list[Judged]:
    """The decision about each run."""
    store = connections.store()
    hold = read_hold(store)
    if hold is not None:
        because = f"the repository is on hold: `{hold_command(ctx)}` says why"
        return [Judged(one.run.id, because) for one in found]
    around = Surroundings.of(store, now)
    sizes: dict[str, tuple[int, int]] = {}
    ours, elsewhere = [], dict[str, str]()
    for one in found:
        if one.namespace and one.namespace != connections.namespace_url:
            elsewhere[one.run.id] = (
                f"it is of {one.namespace}, and {ctx.repository!r} is at "
                f"{connections.namespace_url} now. If nothing of it is needed, remove it by hand"
            )
            continue
        run = one.run
        if now - run.last >= keep:
            seen, files = with_files(one)
            run, sizes[run.id] = seen.run, (len(files.sizes), sum(files.sizes.values()))
            recorded, busy = records.last(run.id)
            last = max(run.last, recorded or run.last)
            run = replace(run, last=last, needed=run.needed or busy)
            if now - last >= keep:
                seen = replace(seen, run=run)
                run = replace(run, needed=needed(ctx, around, seen, files, now))
        ours.append(run)
    kept = judge(ours, keep, now) | elsewhere
    return [
        Judged(one.run.id, kept[one.run.id], *sizes.get(one.run.id, (0, 0)))
        for one in sorted(found, key=lambda one: (one.run.last, one.run.id))
    ]


def _remove(
    ctx: RunContext,
    judged: Sequence[Judged],
    left: Sequence[str],
    found: Sequence[Seen],
    records: Records,
    lease: Lease,
) -> None:
    """Remove what goes, and what earlier prunes have left of runs."""
    attempts: Mapping[str, str] = {one.run.id: one.run.attempt for one in found}
    gone = [
        AttemptArtifacts(ctx.root, ctx.repository, one.run, attempts[one.run])
        for one in judged
        if not one.kept
    ]
    if gone:
        lease.require()
        count_pruned(ctx.root, ctx.repository, gone, ctx.clocks.now())
    for one in judged:
        if not one.kept:
            lease.require()
            forget = partial(records.forget, one.run)
            ctx.log.info("removing run %s of %s", one.run, ctx.repository)
            removal.remove_run(ctx.root, ctx.repository, one.run, attempts[one.run], forget)
    for name in left:
        lease.require()
        forget = partial(records.forget, name)
        removal.end_removal(ctx.root, ctx.repository, name, forget)


def _with_caches(
    ctx: RunContext,
    connections: Connections,
    pruned: Pruned,
    found: Sequence[Seen],
    before: datetime,
    lease: Lease | None,
) -> Pruned:
    """Remove what is cached for none of the last marks; what fails there is only noted."""
    if not found:
        return pruned
    count = size = 0
    try:
        last = _last_marks(found, connections.namespace_url)
        unneeded = unneeded_caches(ctx, connections, last, before)
        for store, files in groupby(unneeded, itemgetter(0)):
            while batch := list(islice(files, _BATCH)):
                count, size = count + len(batch), size + sum(length for *_, length in batch)
                if lease is not None:
                    lease.require()
                    remove_objects(store, [key for _, key, _ in batch])
    except (LakegcError, pa.ArrowException) as error:
        notes = [f"some of what is cached stays: {error}"]
        return replace(pruned, cached=count, cached_size=size, notes=notes)
    return replace(pruned, cached=count, cached_size=size)


def _last_marks(found: Sequence[Seen], namespace: str) -> list[AttemptArtifacts]:
    """The last successes, whose ranges the next mark will read again.

    Raises:
        IntegrityError: there is none, so nobody knows what it will read.
    """
    marks = [
        (one.run.finished[SUCCESS], one.artifacts)
        for one in found
        if one.artifacts is not None and one.namespace == namespace and SUCCESS in one.run.finished
    ]
    if not marks:
        raise IntegrityError("no mark tells what the next one will read")
    marks.sort(key=lambda mark: (mark[0], mark[1].run))
    return [attempt for _, attempt in marks[-SUCCESSES:]]
