"""``gc_prune``: removes old runs that nothing needs, their cached data and Dagster's records.

It removes nothing unless ``dry_run`` is false; its schedule follows ``prune`` of the policies.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import dagster as dg
from pydantic import Field

from lakegc_assets.defs.collection import Collection, collected
from lakegc_assets.defs.execution import Execution
from lakegc_assets.defs.names import (
    ENDED,
    OWN_REPOSITORY_TAG,
    PLAIN,
    REPOSITORY,
    REPOSITORY_TAG,
    RETRIES,
    RUN,
    RUN_TAG,
    Names,
    first_tags,
    is_dagster_plus,
    is_unattended,
    location_of,
    partition_of,
)
from lakegc_assets.defs.stages import one_step_job
from lakegc_assets.lakefs.client import utc_now
from lakegc_assets.prune.decisions import SUCCESSES
from lakegc_assets.prune.prune import Pruned, prune_one
from lakegc_assets.prune.removal import ATTEMPT, PRUNING
from lakegc_assets.run.artifacts import ArtifactRoot
from lakegc_assets.sweep.hold import ACCEPTING_JOB


@dataclass(frozen=True)
class DagsterRecords:
    """Dagster's records of the runs of one repository.

    ``root``: of the artifacts; a run key stays as long as a repository has such a run.
    ``location``: the component's code location; None if it is unknown.
    """

    instance: dg.DagsterInstance
    root: ArtifactRoot
    repository: str
    component: Names = PLAIN
    location: str | None = None

    def names(self) -> set[str]:
        """The runs that have records."""
        ours = filter(self._is_ours, self._of_repository())
        return {_run_of(one) for one in ours}

    def last(self, run: str) -> tuple[datetime | None, str]:
        """The time of a run's last record, and the reason why it has not ended; empty if it has."""
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
        """Remove Dagster's runs of a partition without artifacts, and the key of the run.

        Nothing is removed if the run has artifacts, or has not ended. The key stays if another
        repository or runs of other jobs may need it.
        """
        if self._has_artifacts(self.repository, run):
            return
        records = self._records(run)
        if not all(map(_is_over, records)):
            return
        ours = [one for one in records if self._is_ours(one)]
        if len(ours) == len(records) and not self._used_elsewhere(run):
            self.instance.delete_dynamic_partition(self.component.of(RUN), run)
        if not is_dagster_plus(self.instance):
            for one in ours:
                delete_run(self.instance, one)

    def forgettable(self, known: set[str], keep: timedelta, now: datetime) -> list[str]:
        """Old and ended runs of which only Dagster's records remain.

        ``known``: runs with artifacts. Runs younger than ``keep``, and the last successes, stay.
        """
        if is_dagster_plus(self.instance):
            return []
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
        records = self._found(tags={REPOSITORY_TAG: self.repository})
        return [*(one for one in records if RUN_TAG in one.dagster_run.tags), *self._approvals()]

    def _records(self, run: str) -> Sequence[dg.RunRecord]:
        records = self._found(tags={REPOSITORY_TAG: self.repository, RUN_TAG: run})
        return [*records, *(one for one in self._approvals() if _run_of(one) == run)]

    def _approvals(self) -> list[dg.RunRecord]:
        """Runs of ``gc_approve``, whose partitions are other ones."""
        found = self._found(
            job_name=self.component.of("gc_approve"), tags={OWN_REPOSITORY_TAG: self.repository}
        )
        return [one for one in found if REPOSITORY_TAG not in one.dagster_run.tags]

    def _used_elsewhere(self, run: str) -> bool:
        """True if another repository has this run: several may have joined a wave."""
        of_all, own = {RUN_TAG: run}, {RUN_TAG: run, REPOSITORY_TAG: self.repository}
        # Counted, not read: a wave may have runs of hundreds of repositories.
        if self._count(of_all) != self._count(own):
            return True
        # A listing alone may be incomplete, so each repository with a name anywhere is looked up.
        known = self.instance.get_dynamic_partitions(self.component.of(REPOSITORY))
        others = {*known, *self.root.repositories()}
        return any(
            self._has_artifacts(other, run) or self.root.open(other, run).exists(PRUNING)
            for other in others - {self.repository}
        )

    def _found(self, **chosen: Any) -> Sequence[dg.RunRecord]:  # noqa: ANN401 - of RunsFilter
        return self.instance.get_run_records(dg.RunsFilter(**chosen))

    def _count(self, tags: Mapping[str, str]) -> int:
        return self.instance.get_runs_count(dg.RunsFilter(tags=tags))

    def _is_ours(self, record: dg.RunRecord) -> bool:
        return self.component.owns_at(record.dagster_run, self.location)

    def _has_artifacts(self, repository: str, run: str) -> bool:
        return self.root.open(repository, run).exists(ATTEMPT)


def _run_of(record: dg.RunRecord) -> str:
    return partition_of(record.dagster_run)[1] or ""


def _is_over(record: dg.RunRecord) -> bool:
    return record.dagster_run.status in ENDED


def forget_job(
    instance: dg.DagsterInstance, job: str, keep: timedelta, now: datetime
) -> list[dg.RunRecord]:
    """The old and ended runs of a job without partitions, except for the last ones."""
    if is_dagster_plus(instance):
        return []
    records = instance.get_run_records(dg.RunsFilter(job_name=job))
    over = sorted(filter(_is_over, records), key=lambda one: one.update_timestamp)
    return [one for one in over[:-SUCCESSES] if now - one.update_timestamp >= keep]


def delete_run(instance: dg.DagsterInstance, record: dg.RunRecord) -> None:
    """Remove a run and its events; events first, since without their run nobody finds them."""
    run_id = record.dagster_run.run_id
    instance.event_log_storage.delete_events(run_id)
    instance.delete_run(run_id)


JOB: Final = "gc_prune"
#: Name of its step.
OP: Final = "prune"


class Pruning(dg.Config):
    """Configuration of a prune."""

    repositories: list[str] = Field(
        default_factory=list, description="names of repositories; none: all that are collected"
    )
    keep_runs_days: float | None = Field(
        default=None, ge=2, description="younger runs stay; else the value of the policy"
    )
    dry_run: bool = Field(
        default=True, description="show what would be removed, and remove nothing"
    )


def _prune(execution: Execution, config: Pruning) -> Mapping[str, Any]:
    """Prune all repositories; an error of one does not stop the others."""
    context, component = execution.context, execution.names
    resources, collector = execution.resources, execution.resources.collector
    policies = collector.all_policies()
    names = config.repositories or [
        repository.id for repository in collected(resources.lakefs.config(), policies)
    ]
    unattended = is_unattended(first_tags(context.instance, context.run))
    outcomes: list[Pruned] = []
    for name in names:
        days = config.keep_runs_days or policies.of(name).keep_runs_days
        ctx = execution.repository_context(name)
        records = DagsterRecords(
            context.instance,
            ctx.root,
            name,
            component,
            location_of(context.run.remote_job_origin),
        )
        # ``prune`` of the policy may have changed while the run of the schedule was queued.
        dry_run = config.dry_run or (unattended and not policies.of(name).prune)
        found = prune_one(ctx, records, timedelta(days=days), dry_run=dry_run)
        for sentence in found.sentences(dry_run=dry_run):
            context.log.info(sentence)
        outcomes.append(found)
    if not config.dry_run:
        keep = timedelta(days=config.keep_runs_days or policies.for_all.keep_runs_days)
        for job in (JOB, ACCEPTING_JOB):
            for record in forget_job(context.instance, component.of(job), keep, utc_now()):
                delete_run(context.instance, record)
    failed = [one for one in outcomes if one.problem and not one.refused]
    if failed:
        raise dg.Failure(
            description="; ".join(f"{one.repository}: {one.problem}" for one in failed),
            metadata=_metadata(outcomes),
            allow_retries=False,
        )
    return _metadata(outcomes)


def _metadata(outcomes: Sequence[Pruned]) -> Mapping[str, Any]:
    return {
        "runs": sum(len(one.gone) for one in outcomes),
        "files": sum(run.files for one in outcomes for run in one.gone),
        "bytes": sum(run.size for one in outcomes for run in one.gone),
        "kept": sum(len(one.runs) - len(one.gone) for one in outcomes),
        "not pruned": [one.repository for one in outcomes if one.problem],
    }


def prune_job(names: Names) -> dg.JobDefinition:
    """``gc_prune``, a job of one step."""
    return one_step_job(
        names,
        JOB,
        "Remove runs older than keep_runs_days that nothing needs: artifacts, caches, partition "
        "keys and Dagster's records. Only shows them unless dry_run is false.",
        (OP, "Removes old runs that nothing needs, one repository at a time."),
        _prune,
        Pruning,
        *("collector", "lakefs", "stores"),
        tags=RETRIES,
    )


def prune_schedule(collection: Collection) -> dg.ScheduleDefinition:
    """``gc_prune_schedule``, on Sundays at noon."""
    policies, names = collection.policies, collection.names

    @dg.schedule(
        name=names.of("gc_prune_schedule"),
        job_name=names.of(JOB),
        required_resource_keys=names.all_of("lakefs"),
        cron_schedule="0 12 * * 0",
        execution_timezone=policies.for_all.time_zone,
        default_status=policies.schedule_status,
        description="Removes old runs of repositories whose `prune` is true, and shows the old "
        "runs of all others.",
    )
    def housekeeping(context: dg.ScheduleEvaluationContext) -> list[dg.RunRequest] | dg.SkipReason:
        there = collected(collection.of(context).lakefs.config(), collection.policies)
        requests = []
        for removes in (True, False):
            chosen = [one.id for one in there if policies.of(one.id).prune is removes]
            if chosen:
                config = {"repositories": chosen, "dry_run": not removes}
                requests.append(
                    dg.RunRequest(
                        run_key=f"{context.scheduled_execution_time.isoformat()}/{removes}",
                        run_config={"ops": {names.of(OP): {"config": config}}},
                    )
                )
        return requests or dg.SkipReason("there is no repository to collect")

    return housekeeping
