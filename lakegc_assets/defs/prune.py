"""``gc_prune``: removes old runs that nothing needs, with what Dagster and the caches keep of them.

It says what would go unless it is told to remove it; its schedule is told by the policies.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import dagster as dg
from pydantic import Field

from lakegc_assets.defs.execution import Execution, Resources
from lakegc_assets.defs.instance_records import (
    DagsterRecords,
    delete_run,
    forget_job,
    repositories_in,
)
from lakegc_assets.defs.names import Names
from lakegc_assets.defs.policy import Policies
from lakegc_assets.defs.requests import collected
from lakegc_assets.errors import LakegcError, RefusedError
from lakegc_assets.lakefs.models import Repository
from lakegc_assets.prune.prune import Judged, Pruned, prune
from lakegc_assets.run.artifacts import ArtifactRoot
from lakegc_assets.run.command_line import printing
from lakegc_assets.run.context import RunContext
from lakegc_assets.sweep.hold import ACCEPTING_JOB
from lakegc_assets.wording import counted

JOB: Final = "gc_prune"
#: Its step.
OP: Final = "prune"


@dataclass(frozen=True)
class Outcome:
    """What became of one repository.

    Attributes:
        repository: its name.
        pruned: its runs and caches; None where that failed.
        forgotten: runs of which nothing but Dagster's records was left.
        problem: why it was not pruned to the end; empty where it was.
        refused: whether that is for now only: somebody works on the repository, say.
    """

    repository: str
    pruned: Pruned | None = None
    forgotten: Sequence[str] = ()
    problem: str = ""
    refused: bool = False

    @property
    def gone(self) -> list[Judged]:
        """The runs that go."""
        return [] if self.pruned is None else self.pruned.gone


def prune_one(
    ctx: RunContext, records: DagsterRecords, keep: timedelta, *, dry_run: bool
) -> Outcome:
    """Prune a repository: artifacts, caches, Dagster's runs and partition keys.

    Args:
        ctx: of the repository.
        records: what Dagster keeps of its runs.
        keep: younger runs stay.
        dry_run: say what would go.
    """
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
        for name in repositories_in(root)
        if name not in names
    ]


def sentences(outcome: Outcome, *, dry_run: bool) -> list[str]:
    """What became of a repository, for people."""
    name = outcome.repository
    if outcome.pruned is None:
        return [f"{name}: not pruned to the end: {outcome.problem}"]
    gone = "would go" if dry_run else "removed"
    told = [
        f"{name}, run {one.run}: {f'kept: {one.kept}' if one.kept else gone}"
        for one in outcome.pruned.runs
    ]
    told += [
        f"{name}, run {one}: {gone}: a prune that was killed had left some of it"
        for one in outcome.pruned.left
    ]
    told += [f"{name}, run {one}: {gone}: only Dagster knew of it" for one in outcome.forgotten]
    if outcome.pruned.cached:
        told.append(f"{name}: {counted(outcome.pruned.cached, 'file')} of caches: {gone}")
    return told + [f"{name}: {note}" for note in outcome.pruned.notes]


class Pruning(dg.Config):
    """What is to be pruned."""

    repositories: list[str] = Field(
        default_factory=list, description="their names; none: all that are collected"
    )
    keep_runs_days: float | None = Field(
        default=None, ge=2, description="younger runs stay; else as the policy says"
    )
    dry_run: bool = Field(default=True, description="say what would go, and remove nothing")


def _prune(context: dg.OpExecutionContext, component: Names, config: Pruning) -> None:
    """Prune repositories, all of them whatever becomes of one."""
    execution = Execution(context, component)
    resources, collector = execution.resources, execution.resources.collector
    policies = collector.all_policies()
    there = collected(resources.lakefs.config(), policies)
    names = config.repositories or [repository.id for repository in there]
    origin = context.run.remote_job_origin
    outcomes: list[Outcome] = []
    for name in names:
        days = config.keep_runs_days or policies.of(name).keep_runs_days
        ctx = execution.repository_context(name)
        records = DagsterRecords(
            context.instance,
            ctx.root,
            name,
            component,
            origin.location_name if origin else None,
        )
        found = prune_one(ctx, records, timedelta(days=days), dry_run=config.dry_run)
        for sentence in sentences(found, dry_run=config.dry_run):
            context.log.info(sentence)
        outcomes.append(found)
    if not config.dry_run:
        keep = timedelta(days=config.keep_runs_days or policies.for_all.keep_runs_days)
        for job in (JOB, ACCEPTING_JOB):
            for record in forget_job(
                context.instance, component.of(job), keep, collector.clocks.now()
            ):
                delete_run(context.instance, record)
    context.add_output_metadata(_metadata(outcomes))
    failed = [one for one in outcomes if one.problem and not one.refused]
    if failed:
        raise dg.Failure(
            description="; ".join(f"{one.repository}: {one.problem}" for one in failed),
            metadata=_metadata(outcomes),
            allow_retries=False,
        )


def _metadata(outcomes: Sequence[Outcome]) -> Mapping[str, Any]:
    return {
        "runs": sum(len(one.gone) for one in outcomes),
        "files": sum(run.files for one in outcomes for run in one.gone),
        "bytes": sum(run.size for one in outcomes for run in one.gone),
        "kept": sum(len(one.pruned.runs) - len(one.gone) for one in outcomes if one.pruned),
        "not pruned": [one.repository for one in outcomes if one.problem],
    }


def prune_job(names: Names) -> dg.JobDefinition:
    """``gc_prune``."""

    @dg.op(
        name=names.of(OP),
        description="Removes old runs that nothing needs, one repository at a time.",
        required_resource_keys=names.resources("collector", "lakefs", "stores"),
    )
    @printing(names.source)
    def prune_op(context: dg.OpExecutionContext, config: Pruning) -> None:
        _prune(context, names, config)

    @dg.job(
        name=names.of(JOB),
        executor_def=dg.in_process_executor,
        description="Remove runs older than keep_runs_days that nothing needs: artifacts, caches, "
        "partition keys and Dagster's records. Says what would go unless dry_run is false.",
    )
    def gc_prune() -> None:
        prune_op()

    return gc_prune


def prune_schedule(policies: Policies, names: Names) -> dg.ScheduleDefinition:
    """``gc_prune_schedule``: on Sundays."""

    @dg.schedule(
        name=names.of("gc_prune_schedule"),
        job_name=names.of(JOB),
        required_resource_keys=names.resources("lakefs"),
        cron_schedule="0 12 * * 0",
        execution_timezone=policies.for_all.time_zone,
        default_status=policies.schedule_status,
        description="Removes old runs where `prune` is true, and says of the others what would go.",
    )
    def housekeeping(context: dg.ScheduleEvaluationContext) -> list[dg.RunRequest] | dg.SkipReason:
        lakefs = Resources(context.resources, names).lakefs
        there = collected(lakefs.config(), policies)
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
