"""The outcome of the prune of one repository, whatever becomes of it, in sentences and values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

from lakegc_assets.errors import LakegcError, RefusedError
from lakegc_assets.lakefs.models import Repository
from lakegc_assets.prune.prune import Judged, Pruned, Records, prune
from lakegc_assets.run.artifacts import ArtifactRoot
from lakegc_assets.run.context import RunContext
from lakegc_assets.wording import counted

_NOTHING = Pruned(())


class ForgettableRecords(Records, Protocol):
    """Records of runs that also outlive the artifacts of their run."""

    def forgettable(self, known: set[str], keep: timedelta, now: datetime) -> list[str]:
        """Runs that are older than ``keep`` and have left no artifacts; ``known`` have some."""
        ...


@dataclass(frozen=True)
class Outcome:
    """The outcome of the prune of one repository.

    Attributes:
        repository: its name.
        pruned: its runs and caches; nothing where that failed.
        forgotten: runs of which nothing but records was left.
        problem: why it was not pruned to the end; empty where it was.
        refused: that is for now only: somebody works on the repository, say.
    """

    repository: str
    pruned: Pruned = _NOTHING
    forgotten: Sequence[str] = ()
    problem: str = ""
    refused: bool = False

    @property
    def gone(self) -> list[Judged]:
        """The runs that go."""
        return self.pruned.gone

    @property
    def anything(self) -> bool:
        """True if anything goes."""
        return bool(self.forgotten or self.pruned.anything)

    def sentences(self, *, dry_run: bool) -> list[str]:
        """In sentences."""
        name, gone = self.repository, "would go" if dry_run else "removed"
        if self.problem:
            return [f"{name}: not pruned to the end: {self.problem}"]
        runs = {one.run: f"kept: {one.kept}" if one.kept else gone for one in self.pruned.runs}
        left = f"{gone}: a prune that was killed had left some of it"
        said = [
            *runs.items(),
            *((run, left) for run in self.pruned.left),
            *((run, f"{gone}: only Dagster knew of it") for run in self.forgotten),
        ]
        lines = [f"{name}, run {run}: {what}" for run, what in said]
        if self.pruned.cached:
            lines.append(f"{name}: {counted(self.pruned.cached, 'file')} of caches: {gone}")
        return lines + [f"{name}: {note}" for note in self.pruned.notes]

    def to_json(self, *, dry_run: bool) -> dict[str, Any]:
        """As JSON values: ``kept`` is null where a run goes."""
        return {
            "repository": self.repository,
            "problem": self.problem or None,
            "runs": [
                asdict(one) | {"kept": one.kept or None, "removed": not one.kept and not dry_run}
                for one in self.pruned.runs
            ],
            "left": list(self.pruned.left),
            "only_in_dagster": list(self.forgotten),
            "cached": self.pruned.cached,
            "cached_size": self.pruned.cached_size,
            "notes": list(self.pruned.notes),
        }


def prune_one(
    ctx: RunContext, records: ForgettableRecords, keep: timedelta, *, dry_run: bool
) -> Outcome:
    """Prune a repository: artifacts, caches, and the records of its runs."""
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
        return Outcome(ctx.repository, problem=str(error), refused=refused)
    return Outcome(ctx.repository, pruned, forgotten)


def left_alone(root: ArtifactRoot, there: Iterable[Repository]) -> list[str]:
    """Sentences about artifacts of repositories that the server does not name."""
    names = {repository.id for repository in there}
    return [
        f"the server names no repository {name!r}: if it is gone for good, remove {root.url}/{name}"
        for name in root.repositories()
        if name not in names
    ]
