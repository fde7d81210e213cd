"""What Dagster's instance keeps of runs, and its end: runs with their events, and partition keys.

A key goes before the last run that has used it, and both before the last file of the artifacts: so
whoever is killed in between leaves something that the next prune begins with.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import dagster as dg

from lakegc_assets.defs.names import (
    PLAIN,
    REPOSITORY,
    REPOSITORY_TAG,
    RUN,
    RUN_TAG,
    Names,
    partition_of,
)
from lakegc_assets.defs.requests import REPOSITORY_TAG as OWN_TAG
from lakegc_assets.prune.decisions import SUCCESSES
from lakegc_assets.prune.removal import ATTEMPT, PRUNING
from lakegc_assets.run.artifacts import ArtifactRoot

_ENDED: Final = (
    dg.DagsterRunStatus.SUCCESS,
    dg.DagsterRunStatus.FAILURE,
    dg.DagsterRunStatus.CANCELED,
)


@dataclass(frozen=True)
class DagsterRecords:
    """What Dagster keeps of the runs of one repository.

    Attributes:
        instance: that has it.
        root: of the artifacts: a key stays that some repository has a run of.
        repository: lakeFS repository.
        component: the component that collects it.
        location: name of its code location; None where nobody knows.
    """

    instance: dg.DagsterInstance
    root: ArtifactRoot
    repository: str
    component: Names = PLAIN
    location: str | None = None

    def names(self) -> set[str]:
        """The runs of which something is recorded."""
        ours = filter(self._is_ours, self._of_repository())
        return {_run_of(one) for one in ours}

    def last(self, run: str) -> tuple[datetime | None, str]:
        """When something was recorded of a run last, and why it is not over; empty if it is."""
        records = self._records(run)
        last = max((record.update_timestamp for record in records), default=None)
        for one in records:
            if not _is_over(one):
                return last, (
                    f"its Dagster run {one.dagster_run.run_id} has not ended: if its process is "
                    'gone, end it in the interface ("Force termination")'
                )
        return last, ""

    def forget(self, run: str) -> None:
        """Remove the runs of a partition whose artifacts are gone, and the key of its run.

        Nothing is removed where the run has artifacts, or is not over. The key stays where it may
        be of use: to another repository, or to runs of other jobs.
        """
        if self._has_artifacts(self.repository, run):
            return
        records = self._records(run)
        if not all(map(_is_over, records)):
            return
        ours = [one for one in records if self._is_ours(one)]
        if len(ours) == len(records) and not self._used_elsewhere(run):
            self.instance.delete_dynamic_partition(self.component.of(RUN), run)
        for one in ours:
            delete_run(self.instance, one)

    def forgettable(self, known: Collection[str], keep: timedelta, now: datetime) -> list[str]:
        """Runs that are old and over, and have left nothing but Dagster's records.

        Args:
            known: runs that have artifacts.
            keep: younger ones stay, and so do the last successes.
            now: the time, UTC.
        """
        runs: dict[str, list[dg.RunRecord]] = {}
        for one in self._of_repository():
            runs.setdefault(_run_of(one), []).append(one)
        successes = sorted(
            (one.update_timestamp, name)
            for name, some in runs.items()
            for one in some
            if one.dagster_run.status is dg.DagsterRunStatus.SUCCESS
        )
        last = {name for _, name in successes[-SUCCESSES:]}
        return sorted(
            name
            for name, some in runs.items()
            if name not in known and name not in last and any(map(self._is_ours, some))
            if all(_is_over(one) and now - one.update_timestamp >= keep for one in some)
            if not self._has_artifacts(self.repository, name)
        )

    def _of_repository(self) -> list[dg.RunRecord]:
        tags = {REPOSITORY_TAG: self.repository}
        records = self.instance.get_run_records(dg.RunsFilter(tags=tags))
        return [*(one for one in records if RUN_TAG in one.dagster_run.tags), *self._approvals()]

    def _records(self, run: str) -> Sequence[dg.RunRecord]:
        tags = {REPOSITORY_TAG: self.repository, RUN_TAG: run}
        records = self.instance.get_run_records(dg.RunsFilter(tags=tags))
        return [*records, *(one for one in self._approvals() if _run_of(one) == run)]

    def _approvals(self) -> list[dg.RunRecord]:
        """Runs of ``gc_approve``, which has partitions of its own."""
        tags = {OWN_TAG: self.repository}
        found = self.instance.get_run_records(
            dg.RunsFilter(job_name=self.component.of("gc_approve"), tags=tags)
        )
        return [one for one in found if REPOSITORY_TAG not in one.dagster_run.tags]

    def _used_elsewhere(self, run: str) -> bool:
        """Whether another repository has this run: it may be a wave that several joined."""
        runs = self.instance.get_run_records(dg.RunsFilter(tags={RUN_TAG: run}))
        if any(one.dagster_run.tags.get(REPOSITORY_TAG) != self.repository for one in runs):
            return True
        # A listing alone is not believed: each repository that anything names is asked for.
        others = {*self._known_repositories(), *repositories_in(self.root)}
        return any(
            self._has_artifacts(other, run) or self.root.open(other, run).exists(PRUNING)
            for other in others - {self.repository}
        )

    def _known_repositories(self) -> Sequence[str]:
        return self.instance.get_dynamic_partitions(self.component.of(REPOSITORY))

    def _is_ours(self, record: dg.RunRecord) -> bool:
        return self.component.owns_at(record.dagster_run, self.location)

    def _has_artifacts(self, repository: str, run: str) -> bool:
        return self.root.open(repository, run).exists(ATTEMPT)


def _run_of(record: dg.RunRecord) -> str:
    return partition_of(record.dagster_run)[1] or ""


def repositories_in(root: ArtifactRoot) -> list[str]:
    """The repositories that have left artifacts."""
    names = root.open().list_prefixes().prefixes
    return [name.rstrip("/") for name in names if not name.startswith("_")]


def _is_over(record: dg.RunRecord) -> bool:
    return record.dagster_run.status in _ENDED


def forget_job(
    instance: dg.DagsterInstance, job: str, keep: timedelta, now: datetime
) -> list[dg.RunRecord]:
    """The runs of a job without partitions that are old and over, but for the last ones."""
    records = instance.get_run_records(dg.RunsFilter(job_name=job))
    over = sorted(filter(_is_over, records), key=lambda one: one.update_timestamp)
    return [one for one in over[:-SUCCESSES] if now - one.update_timestamp >= keep]


def delete_run(instance: dg.DagsterInstance, record: dg.RunRecord) -> None:
    """Remove a run with its events, these first: nobody finds events without their run."""
    run_id = record.dagster_run.run_id
    instance.event_log_storage.delete_events(run_id)
    instance.delete_run(run_id)
