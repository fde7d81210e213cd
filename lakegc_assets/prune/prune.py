"""Prunes one repository: judges its runs, says why each stays, and removes the others.

Whatever becomes of that is an outcome, in sentences and values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, Final, Protocol

import pyarrow as pa

from lakegc_assets.errors import ConfigurationError, IntegrityError, LakegcError, RefusedError
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.lakefs.models import Repository
from lakegc_assets.prune import removal
from lakegc_assets.prune.caches import unneeded_caches
from lakegc_assets.prune.decisions import SUCCESS, SUCCESSES, Run, judge
from lakegc_assets.prune.keep_reasons import NamespaceState, needed
from lakegc_assets.prune.run_inventory import look, with_files
from lakegc_assets.run.artifacts import ArtifactRoot, AttemptArtifacts
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.lock import repository_lock
from lakegc_assets.storage.removal import remove_objects
from lakegc_assets.sweep.hold import hold_command, read_hold
from lakegc_assets.sweep.lease import Lease, leased
from lakegc_assets.sweep.totals import count_pruned
from lakegc_assets.wording import counted, duration

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

    def forgettable(self, known: set[str], keep: timedelta, now: datetime) -> list[str]:
        """Runs that are older than ``keep`` and have left no artifacts; ``known`` have some."""
        ...


@dataclass(frozen=True)
class RunVerdict:
    """The decision about a run: why it stays, empty where it goes.

    Files and bytes of its present attempt are 0 where they were not listed.
    """

    run: str
    kept: str
    files: int = 0
    size: int = 0


@dataclass(frozen=True)
class Pruned:
    """The result of pruning a repository.

    Attributes:
        repository: its name.
        runs: the decision about each, oldest first; none where that failed.
        left: runs of which a killed prune had left something.
        cached: files below the caches that went, or would go.
        cached_size: their bytes.
        notes: what could not be done, in sentences.
        forgotten: runs of which nothing but records was left.
        problem: why it was not pruned to the end; empty where it was.
        refused: that is for now only: somebody works on the repository, say.
    """

    repository: str
    runs: Sequence[RunVerdict] = ()
    left: Sequence[str] = ()
    cached: int = 0
    cached_size: int = 0
    notes: Sequence[str] = ()
    forgotten: Sequence[str] = ()
    problem: str = ""
    refused: bool = False

    @property
    def gone(self) -> list[RunVerdict]:
        """The runs that go."""
        return [one for one in self.runs if not one.kept]

    @property
    def anything(self) -> bool:
        """Return whether anything goes."""
        return bool(self.gone or self.left or self.cached or self.forgotten)

    def sentences(self, *, dry_run: bool) -> list[str]:
        """In sentences."""
        name, gone = self.repository, "would go" if dry_run else "removed"
        if self.problem:
            return [f"{name}: not pruned to the end: {self.problem}"]
        runs = {one.run: f"kept: {one.kept}" if one.kept else gone for one in self.runs}
        left = f"{gone}: a prune that was killed had left some of it"
        said = [
            *runs.items(),
            *((run, left) for run in self.left),
            *((run, f"{gone}: only Dagster knew of it") for run in self.forgotten),
        ]
        lines = [f"{name}, run {run}: {what}" for run, what in said]
        if self.cached:
            lines.append(f"{name}: {counted(self.cached, 'file')} of caches: {gone}")
        return lines + [f"{name}: {note}" for note in self.notes]

    def to_json(self, *, dry_run: bool) -> dict[str, Any]:
        """As JSON values: ``kept`` is null where a run goes."""
        return {
            "repository": self.repository,
            "problem": self.problem or None,
            "runs": [
                asdict(one) | {"kept": one.kept or None, "removed": not one.kept and not dry_run}
                for one in self.runs
            ],
            "left": list(self.left),
            "only_in_dagster": list(self.forgotten),
            "cached": self.cached,
            "cached_size": self.cached_size,
            "notes": list(self.notes),
        }


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
    ctx = ctx.connect()
    pruning = _Pruning(ctx, ctx.connections, keep, records)
    # While this judges, it is in nobody's way.
    found = pruning.run(ctx.client, None)
    if dry_run or not found.anything:
        return found
    # The repository may have been made anew meanwhile, in another namespace.
    ctx = ctx.connect()
    with (
        repository_lock(ctx.connections.namespace_url),
        leased(ctx, ctx.connections.store(), doing="prune") as lease,
    ):
        return replace(pruning, connections=ctx.connect().connections).run(ctx.client, lease)


def prune_one(ctx: RunContext, records: Records, keep: timedelta, *, dry_run: bool) -> Pruned:
    """Prune a repository: artifacts, caches, and the records of its runs; no error is raised."""
    try:
        pruned = prune(ctx, keep, records, dry_run=dry_run)
        known = {one.run for one in pruned.runs}
        forgotten: list[str] = []
        # Where there are no artifacts at all, they may be at another place.
        if known:
            forgotten = records.forgettable(known, keep, ctx.clocks.now())
        for run in () if dry_run else forgotten:
            records.forget(run)
    except LakegcError as error:
        refused = isinstance(error, RefusedError)
        return Pruned(ctx.repository, problem=str(error), refused=refused)
    return replace(pruned, forgotten=forgotten)


def left_alone(root: ArtifactRoot, there: Iterable[Repository]) -> list[str]:
    """Sentences about artifacts of repositories that the server does not name."""
    names = {repository.id for repository in there}
    return [
        f"the server names no repository {name!r}: if it is gone for good, remove {root.url}/{name}"
        for name in root.repositories()
        if name not in names
    ]


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


@dataclass(frozen=True)
class _Pruning:
    """A prune of one repository."""

    ctx: RunContext
    connections: Connections
    #: For how long runs stay at least.
    keep: timedelta
    records: Records

    def run(self, client: LakeFSClient, lease: Lease | None) -> Pruned:
        """Look at the repository and, under its lease, remove what goes; without one, nothing."""
        ctx = self.ctx
        ctx.check_clocks(client, self.connections.store())
        now = ctx.clocks.now()
        found = look(ctx.root, ctx.repository, self.records.names())
        judged = self._judged(found, now)
        known = {one.id for one in found}
        left = [
            name
            for name in ctx.root.runs(ctx.repository)
            if name not in known and removal.is_left(ctx.root, ctx.repository, name)
        ]
        if lease is not None:
            gone = {one.run for one in judged if not one.kept}
            self._remove([one for one in found if one.id in gone], left, lease)
        pruned = Pruned(ctx.repository, judged, left)
        return self._with_caches(pruned, found, now - self.keep, lease)

    def _judged(self, found: Sequence[Run], now: datetime) -> list[RunVerdict]:
        """The decision about each run."""
        store, here = self.connections.store(), self.connections.namespace_url
        if read_hold(store) is not None:
            because = f"the repository is on hold: `{hold_command(self.ctx)}` says why"
            return [RunVerdict(one.id, because) for one in found]
        around = NamespaceState.of(store, now)
        elsewhere = {
            one.id: f"it is of {one.namespace}, and {self.ctx.repository!r} is at {here} now. "
            "If nothing of it is needed, remove it by hand"
            for one in found
            if one.namespace and one.namespace != here
        }
        ours = [self._looked_at(one, around, now) for one in found if one.id not in elsewhere]
        kept = judge(ours, self.keep, now) | elsewhere
        sizes = {one.id: (len(one.sizes), sum(one.sizes.values())) for one in ours}
        return [
            RunVerdict(one.id, kept[one.id], *sizes.get(one.id, (0, 0)))
            for one in sorted(found, key=lambda one: (one.last, one.id))
        ]

    def _looked_at(self, run: Run, around: NamespaceState, now: datetime) -> Run:
        """A run with all that is needed of it, where it may be old enough to go."""
        if now - run.last < self.keep:
            return run
        run = with_files(run)
        recorded, busy = self.records.last(run.id)
        run = replace(run, last=max(run.last, recorded or run.last), needed=run.needed or busy)
        if now - run.last < self.keep:
            return run
        return replace(run, needed=needed(self.ctx, around, run, now))

    def _remove(self, runs: Sequence[Run], left: Sequence[str], lease: Lease) -> None:
        """Remove runs, and what earlier prunes have left of others."""
        root, repository = self.ctx.root, self.ctx.repository
        require = partial(lease.require_held, self.connections.store())
        if runs:
            require()
            gone = [AttemptArtifacts(root, repository, one.id, one.attempt) for one in runs]
            count_pruned(root, repository, gone, self.ctx.clocks.now())
        for one in sorted(runs, key=lambda one: (one.last, one.id)):
            require()
            forget = partial(self.records.forget, one.id)
            self.ctx.log.info("removing run %s of %s", one.id, repository)
            removal.remove_run(root, repository, one.id, one.attempt, forget, require)
        for name in left:
            require()
            removal.end_removal(root, repository, name, partial(self.records.forget, name))

    def _with_caches(
        self, pruned: Pruned, found: Sequence[Run], before: datetime, lease: Lease | None
    ) -> Pruned:
        """Remove what is cached for none of the last marks; what fails there is only noted."""
        if not found:
            return pruned
        count = size = 0
        notes: list[str] = []
        try:
            last = _last_marks(found, self.connections.namespace_url)
            unneeded = unneeded_caches(self.ctx, self.connections, last, before)
            for store, files in groupby(unneeded, itemgetter(0)):
                while batch := list(islice(files, _BATCH)):
                    count, size = count + len(batch), size + sum(length for *_, length in batch)
                    if lease is not None:
                        require = partial(lease.require_held, self.connections.store())
                        remove_objects(store, [key for _, key, _ in batch], require)
        except (LakegcError, pa.ArrowException) as error:
            notes = [f"some of what is cached stays: {error}"]
        return replace(pruned, cached=count, cached_size=size, notes=notes)


def _last_marks(found: Sequence[Run], namespace: str) -> list[AttemptArtifacts]:
    """The last successes, whose ranges the next mark will read again.

    Raises:
        IntegrityError: there is none, so nobody knows what it will read.
    """
    marks = [
        (one.finished[SUCCESS], one.artifacts)
        for one in found
        if one.artifacts is not None and one.namespace == namespace and SUCCESS in one.finished
    ]
    if not marks:
        raise IntegrityError("no mark tells what the next one will read")
    marks.sort(key=lambda mark: (mark[0], mark[1].run))
    return [attempt for _, attempt in marks[-SUCCESSES:]]
