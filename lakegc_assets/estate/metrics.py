"""The metrics of a repository, read from its artifacts, so that they outlive every process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from lakegc_assets.errors import IntegrityError, LakegcError, RefusedError
from lakegc_assets.estate.repository_state import (
    UNREADABLE,
    OldRuns,
    Runs,
    Standing,
    Unread,
    read_changed_runs,
    standing,
    standing_of,
)
from lakegc_assets.estate.run_state import NOTHING, RunManifests, Total
from lakegc_assets.run.artifacts import MARK_ASSETS, ArtifactRoot, Manifest, is_name
from lakegc_assets.sweep.ledger import ASSET as SWEPT
from lakegc_assets.sweep.totals import DELETED, read_totals

#: The stages that have durations; ``storage_attribution`` is not a part of the mark.
STAGES: Final = (*MARK_ASSETS, "storage_attribution", SWEPT)


@dataclass(frozen=True)
class RepositoryMetrics:
    """Metrics of one repository. Unknown values are None, or absent."""

    #: The state of the repository.
    standing: Standing
    #: Total of all its sweeps, also pruned and killed ones, and also of objects that were put back:
    #: it never decreases. None if a run cannot be read.
    deleted: Total | None = None
    #: Totals of the sweep that recorded something last, by outcome.
    swept: Mapping[str, Total] = field(default_factory=dict)
    #: Objects that nothing holds and that the last mark spares.
    spared: int | None = None
    #: Manifests of the stages of the last mark, and of the last finished sweep, by name.
    stages: Mapping[str, Manifest] = field(default_factory=dict)
    #: Objects of the last mark and of the mark of lakeFS's collector with which it was compared, by
    #: who names them: ``both``, ``ours``, ``theirs``. Empty without a comparison.
    compared: Mapping[str, int] = field(default_factory=dict)
    #: Engine of the last mark: embedded or spark.
    engine: str | None = None
    #: Number of unreadable runs.
    unreadable: int = 0
    #: Reasons why some values are not known, in sentences.
    problems: Sequence[str] = ()
    #: Seconds without a mark after which it is stale; None if it is not collected.
    max_age_s: float | None = None


def repository_metrics(
    root: ArtifactRoot, repository: str, mode: str, now: datetime, known: OldRuns | None = None
) -> RepositoryMetrics:
    """The metrics of one repository; for an unreadable one, only that it is unreadable.

    ``known``: old runs that earlier calls have read.
    """
    if not is_name(repository):
        return RepositoryMetrics(standing(root, repository, mode, now))
    try:
        runs = read_changed_runs(root, repository, known or OldRuns(), now)
        stands = standing_of(repository, runs, mode, now)
    except Exception as error:  # noqa: BLE001 - no error may hide the metrics of other repositories
        because = f"its artifacts cannot be read: {error}"
        return RepositoryMetrics(Standing(repository, UNREADABLE, because), problems=[because])
    # If a run was pruned while the runs were read, it is in the totals by now, with its attempt.
    deleted, problems = _deleted(root, repository, runs)
    if stands.state == UNREADABLE:
        problems.append(stands.because)
    last = runs.marks[-1] if runs.marks else None
    report = last.report.facts if last is not None and last.report is not None else {}
    swept = {one.recorded: one.outcomes for one in runs.states.values() if one.recorded is not None}
    return RepositoryMetrics(
        stands,
        deleted,
        swept[max(swept)] if swept else {},
        sum(last.candidates.facts["spared"].values()) if last and last.candidates else None,
        _stages(runs, last),
        _compared(report.get("compared", {})),
        # Older reports lack the engine.
        str(report.get("engine", "")).partition(" ")[0] or None,
        len(_unreadable(runs)),
        problems,
    )


def _deleted(root: ArtifactRoot, repository: str, runs: Runs) -> tuple[Total | None, list[str]]:
    """Totals of all sweeps; None, with the reasons, if a part cannot be read.

    A smaller total would look like a restart of the counter, and then be counted twice.
    """
    # Read after the runs, so that it includes runs that a prune has removed since.
    try:
        pruned = read_totals(root, repository)
    except LakegcError as error:
        return None, [str(error)]
    objects, size = pruned.objects, pruned.bytes
    for run, attempt in runs.attempts.items():
        state = runs.states.get(run)
        if state is None or pruned.counts(run, attempt):
            continue
        if state.unread:
            return None, [f"run {run}: {state.unread}"]
        for name in DELETED:
            total = state.outcomes.get(name, NOTHING)
            objects, size = objects + total.objects, size + total.size
    unread = [one for one in _unreadable(runs) if not pruned.counts(one.run, one.attempt)]
    if unread:
        return None, [f"run {unread[0].run} cannot be read: {unread[0].error}"]
    return Total(objects, size), []


def _unreadable(runs: Runs) -> list[Unread]:
    """The unreadable runs, without the remains of a prune in progress."""
    return [one for one in runs.unread if not isinstance(one.error, RefusedError)]


def _compared(found: Mapping[str, Any]) -> dict[str, int]:
    if not found or "problem" in found:
        return {}
    return {
        "both": found["both"]["objects"],
        "ours": found["only_run"]["total"]["objects"],
        "theirs": found["only_other"]["total"]["objects"],
    }


def _stages(runs: Runs, last: RunManifests | None) -> dict[str, Manifest]:
    """The manifest of each stage, if it is readable."""
    manifests: list[Manifest] = []
    if last is not None:
        for asset in STAGES[:-1]:
            with suppress(IntegrityError):
                if (found := last.attempt.recorded_if_finished(asset)) is not None:
                    manifests.append(found)
    sweeps = [one.swept for one in runs.read if one.swept is not None]
    if sweeps:
        manifests.append(max(sweeps, key=lambda one: one.finished))
    return {one.asset: one for one in manifests}
