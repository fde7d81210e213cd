"""Prunes one repository: judges its runs, gives the reason for each that stays, removes the others.

The outcome, including every problem, is returned in sentences and values.
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
from lakegc_assets.mark.installation import require_marked
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

#: Shortest time to keep runs: a younger run may still be active.
LEAST: Final = timedelta(days=2)
_BATCH: Final = 1000


class Records(Protocol):
    """Records of runs outside of the artifacts: in Dagster."""

    def names(self) -> set[str]:
        """The runs that have records."""
        ...

    def last(self, run: str) -> tuple[datetime | None, str]:
        """The time of the last record of a run, and why the run is not over; empty if it is."""
        ...

    def forget(self, run: str) -> None:
        """Remove the records of a run without artifacts; may be called again."""
        ...

    def forgettable(self, known: set[str], keep: timedelta, now: datetime) -> list[str]:
        """Runs that are older than ``keep`` and have no artifacts; ``known`` have artifacts."""
        ...


@dataclass(frozen=True)
class RunVerdict:
    """The decision about a run: the reason why it stays, empty if it is removed.

    Files and bytes of its present attempt are 0 if they were not listed.
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
        runs: the decision about each run, oldest first; empty if that failed.
        left: runs with files that a killed prune left.
        cached: number of cache files that were removed, or would be.
        cached_size: their bytes.
        notes: failures that do not stop the prune, in sentences.
        forgotten: runs that had only records.
        problem: the reason why the prune is incomplete; empty if it is complete.
        refused: true if the problem is temporary: another process works on the repository, say.
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
        """The runs that are removed."""
        return [one for one in self.runs if not one.kept]

    @property
    def anything(self) -> bool:
        """Return whether the prune removes anything."""
        return bool(self.gone or self.left or self.cached or self.forgotten)

    def sentences(self, *, dry_run: bool) -> list[str]:
        """The result in sentences."""
        name, gone = self.repository, "would be removed" if dry_run else "removed"
        if self.problem:
            return [f"{name}: not pruned to the end: {self.problem}"]
        runs = {one.run: f"kept: {one.kept}" if one.kept else gone for one in self.runs}
        outcomes = [
            *runs.items(),
            *((run, f"{gone}: the rest of an interrupted prune") for run in self.left),
            *((run, f"{gone}: it had only records in Dagster") for run in self.forgotten),
        ]
        lines = [f"{name}, run {run}: {what}" for run, what in outcomes]
        if self.cached:
            lines.append(f"{name}: {counted(self.cached, 'file')} of caches: {gone}")
        return lines + [f"{name}: {note}" for note in self.notes]

    def to_json(self, *, dry_run: bool) -> dict[str, Any]:
        """As JSON values: ``kept`` is null for a run that is removed."""
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
    """Remove the runs of a repository that nothing needs, with the cache files for them alone.

    Before it removes runs, it takes the lease of the repository and judges once more. So no sweep,
    backup or restore reads the runs that it removes. After a killed prune, run it again.

    Runs younger than ``keep`` stay. ``dry_run``: remove nothing and take no lease.

    Raises:
        ConfigurationError: ``keep`` is too short, or there is no such repository.
        RefusedError: another process works on the repository, or clocks differ.
        LakegcError: the needed runs are not known, or something could not be removed.
    """
    require_long(keep)
    ctx = ctx.connect()
    pruning = _Pruning(ctx, ctx.connections, keep, records)
    # This first look takes no lease, so it blocks nobody.
    found = pruning.run(ctx.client, None)
    if dry_run or not found.anything:
        return found
    # The repository may have been created again meanwhile, in another namespace.
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
        # Without any artifacts, they may be at another place, so no record is removed.
        if known:
            forgotten = records.forgettable(known, keep, ctx.clocks.now())
        for run in () if dry_run else forgotten:
            records.forget(run)
    except LakegcError as error:
        refused = isinstance(error, RefusedError)
        return Pruned(ctx.repository, problem=str(error), refused=refused)
    return replace(pruned, forgotten=forgotten)


def left_alone(root: ArtifactRoot, there: Iterable[Repository]) -> list[str]:
    """Sentences about artifacts of repositories that the server does not list."""
    names = {repository.id for repository in there}
    return [
        f"the server lists no repository {name!r}: if it was deleted, and nobody needs its runs "
        f"and backups any more, remove {root.url}/{name} by hand"
        for name in root.repositories()
        if name not in names
    ]


def require_long(keep: timedelta) -> None:
    """Refuse to keep runs for less than ``LEAST``.

    Raises:
        ConfigurationError: ``keep`` is too short.
    """
    if keep < LEAST:
        raise ConfigurationError(
            f"keep_runs is {duration(keep)}, and must be at least {duration(LEAST)}: younger runs "
            "may still be active"
        )


@dataclass(frozen=True)
class _Pruning:
    """A prune of one repository."""

    ctx: RunContext
    connections: Connections
    #: Shortest time for which runs stay.
    keep: timedelta
    records: Records

    def run(self, client: LakeFSClient, lease: Lease | None) -> Pruned:
        """Judge the runs and, under the lease of the repository, remove some; none without."""
        ctx = self.ctx
        ctx.check_clocks(client, self.connections.store())
        now = ctx.clocks.now()
        names = self.records.names()
        found = look(ctx.root, ctx.repository, names, now, self.connections)
        if any(one.namespace == self.connections.namespace_url for one in found):
            # Another store lacks the hold, pins and trash that need these runs.
            require_marked(client, ctx.repository, self.connections.store())
        judged = self._judged(found, now)
        known = {one.id for one in found}
        leftovers = [
            name
            for name in ctx.root.runs(ctx.repository)
            if name not in known and removal.is_left(ctx.root, ctx.repository, name)
        ]
        if lease is not None:
            gone = {one.run for one in judged if not one.kept}
            self._remove([one for one in found if one.id in gone], leftovers, lease)
        pruned = Pruned(ctx.repository, judged, leftovers)
        return self._with_caches(pruned, found, now - self.keep, lease)

    def _judged(self, found: Sequence[Run], now: datetime) -> list[RunVerdict]:
        """The decision about each run."""
        store, here = self.connections.store(), self.connections.namespace_url
        root, repository = self.ctx.root, self.ctx.repository
        if read_hold(store) is not None:
            because = f"the repository is on hold: `{hold_command(self.ctx)}` shows why"
            return [RunVerdict(one.id, because) for one in found]
        around = NamespaceState.of(store, now)
        elsewhere = {
            one.id: f"it is of {one.namespace}, and {repository!r} is at {here} now. If nothing of "
            f"it is needed, remove {root.open(repository, one.id).url} by hand"
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
        """A run with all facts about it, if it may be old enough to be removed."""
        if now - run.last < self.keep:
            return run
        run = with_files(run)
        recorded, busy = self.records.last(run.id)
        run = replace(run, last=max(run.last, recorded or run.last), needed=run.needed or busy)
        if now - run.last < self.keep:
            return run
        return replace(run, needed=needed(self.ctx, around, run, now))

    def _remove(self, runs: Sequence[Run], left: Sequence[str], lease: Lease) -> None:
        """Remove runs, and files that earlier prunes left of others."""
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
        """Remove cache files that none of the last marks needs; a failure is only noted."""
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
            notes = [f"some cache files that nothing needs stay: {error}"]
        return replace(pruned, cached=count, cached_size=size, notes=notes)


def _last_marks(found: Sequence[Run], namespace: str) -> list[AttemptArtifacts]:
    """The last successes, which have the ranges that the next mark reads again.

    Raises:
        IntegrityError: there is no success, so the ranges are not known.
    """
    marks = [
        (one.finished[SUCCESS], one.artifacts)
        for one in found
        if one.artifacts is not None and one.namespace == namespace and SUCCESS in one.finished
    ]
    if not marks:
        raise IntegrityError(
            "there is no finished mark, so it is not known which files the next mark reads"
        )
    marks.sort(key=lambda mark: (mark[0], mark[1].run))
    return [attempt for _, attempt in marks[-SUCCESSES:]]
