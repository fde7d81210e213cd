"""The jobs, each in one process: a collection and its parts, and decisions of people.

Each job names its executor. An executor for the whole code location would also apply to the jobs
of other authors there, and clash with theirs.

``gc_approve`` lets one mark be swept, ``gc_accept_hold`` accepts a loss.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

import dagster as dg
from pydantic import Field

from lakegc_assets.attribution.attribution import ASSET as ATTRIBUTION
from lakegc_assets.defs.checks import ASSET
from lakegc_assets.defs.execution import RESOURCES, Execution
from lakegc_assets.defs.failures import shown
from lakegc_assets.defs.metadata import links, materialization, of_report, plain_lines
from lakegc_assets.defs.names import (
    NO_RETRIES,
    OWN_REPOSITORY_TAG,
    RETRIES,
    URGENT,
    WAITING,
    Names,
    partition_key,
)
from lakegc_assets.defs.policy import Policies
from lakegc_assets.defs.prune import prune_job
from lakegc_assets.defs.stages import DATA_VERSION_TAG, one_step_job
from lakegc_assets.errors import RefusedError
from lakegc_assets.mark.publication import read_summary
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.run.command_line import command_line
from lakegc_assets.run.manifest import MARK_ASSETS
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.sweep.approval import approve as approve_mark
from lakegc_assets.sweep.approval import with_share
from lakegc_assets.sweep.hold import ACCEPTING_JOB
from lakegc_assets.sweep.hold_report import accepted, hold_lines, known_hold

#: Setting that the launchpad shows for excluded repositories, in jobs that refuse these.
_EXCLUDED: Final = "collect_excluded"
#: Settings that people change first; the launchpad begins with these only.
_OF_A_SWEEP: Final = ("max_candidate_share", "protect_tags", _EXCLUDED)
_OF_A_MARK: Final = ("mode", "min_age_hours", "clean", *_OF_A_SWEEP)
#: The steps of the jobs, by their plain names.
APPROVE: Final = "approve"
ACCEPT: Final = "accept_hold"
#: The logger of a run in this process.
_LOGGER: Final = "handled"
#: The user who launched a run, in Dagster+.
_USER_TAG: Final = "user"


def jobs(policies: Policies, names: Names) -> dg.Definitions:
    """``gc``, its parts, and the other jobs, from ``gc_restore`` to ``gc_accept_hold``."""
    swept = names.selection("backup", "swept_set")
    checks = dg.AssetSelection.checks_for_assets(names.key(ASSET), names.key(ATTRIBUTION))
    mark = names.selection(*MARK_ASSETS, ATTRIBUTION) | checks

    def job(
        name: str,
        selection: dg.AssetSelection,
        description: str,
        settings: Sequence[str] | None = None,
    ) -> Any:  # noqa: ANN401 - Dagster has no public name for it
        """A job on assets; ``settings`` if it is on a repository and a run."""
        tags = NO_RETRIES if name in {"gc", "gc_mark"} else RETRIES
        return dg.define_asset_job(
            names.of(name),
            selection,
            config=None if settings is None else launchpad(policies, names, settings),
            tags={**tags, **URGENT} if name in {"gc_sweep", "gc_restore"} else tags,
            description=description,
            executor_def=dg.in_process_executor,
        )

    collecting = "Mark a repository, check the mark, publish it, back up and sweep."
    marking = "Mark a repository, check the mark and publish it. Deletes nothing."
    copying = "Copy the objects of a published mark. Launch it again after a kill."
    sweeping = "Back up a published mark and sweep it. Launch it again after a kill."
    restoring = "Bring back swept objects. Launch it again after a kill."
    forecasting = "Show what other retention rules would free. Deletes nothing."
    standing = "Make the table of all repositories again. Deletes nothing."
    left = "Show the objects on the server that no collection finds. Removes nothing."
    return dg.Definitions(
        jobs=[
            job("gc", mark | swept, collecting, _OF_A_MARK),
            job("gc_mark", mark, marking, _OF_A_MARK),
            job("gc_backup", names.selection("backup"), copying, [_EXCLUDED]),
            job("gc_sweep", swept, sweeping, _OF_A_SWEEP),
            job("gc_restore", names.selection("restored_set"), restoring, ()),
            job("gc_forecast", names.selection("policy_forecast"), forecasting, ()),
            job("gc_estate", names.selection("estate"), standing),
            job("gc_leftovers", names.selection("estate_leftovers"), left),
            approving(names),
            prune_job(names),
            accepting(names),
        ],
    )


def run_in_process(
    definitions: dg.Definitions,
    names: Names,
    job: str,
    handler: logging.Handler,
    config: Mapping[str, Any],
    **options: Any,  # noqa: ANN401 - as Dagster takes them
) -> None:
    """Run a job in this process; only one handler gets its log, with Dagster's events.

    ``job``: plain name. ``config``: of the run. ``options``: of ``execute_in_process``.
    """

    @dg.logger
    def handled(_context: object) -> logging.Logger:
        made = logging.getLogger("lakegc.run")
        made.setLevel(logging.DEBUG)
        made.propagate = False
        made.handlers = [handler]
        return made

    logged = dg.Definitions.merge(definitions, dg.Definitions(loggers={_LOGGER: handled}))
    logged.resolve_job_def(names.of(job)).execute_in_process(
        run_config={**config, "loggers": {_LOGGER: {}}}, **options
    )


def left_to_do(
    job: str, attempt: AttemptArtifacts, store: Callable[[], ObjectStore]
) -> tuple[str, ...]:
    """The assets that an interrupted publication still needs; empty if the whole job must run.

    ``job``: plain name. ``store``: opens the store of the repository.
    """
    if job not in {"gc", "gc_mark"} or attempt.has("gc_report"):
        return ()
    if not attempt.has("deletion_candidates") or read_summary(store(), attempt.run) is None:
        return ()
    return ("gc_report", "backup", "swept_set") if job == "gc" else ("gc_report",)


def launchpad(
    policies: Policies, names: Names, settings: Sequence[str]
) -> dg.PartitionedConfig[Any]:
    """The configuration with which the launchpad begins: some settings of the repository.

    The settings for all repositories would override the policies of single ones. ``settings``
    includes ``collect_excluded`` if the job refuses excluded repositories.
    """

    def of(key: str) -> dict[str, Any]:
        repository = key.split("|", maxsplit=1)[0]
        policy = policies.of(repository)
        shown = {
            # A setting that no policy has is one of single runs.
            name: getattr(policy, name, False)
            for name in settings
            if name != _EXCLUDED or not policies.collects(repository)
        }
        return {"resources": {names.of("collector"): {"config": shown}}} if shown else {}

    return _by_key(names.repository_run, of)


def _by_key(
    partitions: dg.PartitionsDefinition[Any], config_of: Callable[[str], Mapping[str, Any]]
) -> dg.PartitionedConfig[Any]:
    """The configuration of a run by its partition key, and the tag that names its repository."""
    return dg.PartitionedConfig(
        partitions_def=partitions,
        run_config_for_partition_key_fn=config_of,
        tags_for_partition_key_fn=lambda key: {OWN_REPOSITORY_TAG: key.partition("|")[0]},
    )


def person(by: str, tags: Mapping[str, str], does: str) -> str:
    """The name of the person who ``does`` something: as given, or the user in the run's tags.

    Raises:
        RefusedError: neither is set.
    """
    known = by.strip() or tags.get(_USER_TAG, "")
    if not known:
        raise RefusedError(
            f"the name of the person who {does} is missing: write it into `by` in the launchpad. "
            "It is recorded"
        )
    return known


class Approving(dg.Config):
    """Configuration of an approval."""

    by: str = Field(
        default="", description="your name, which is recorded; in Dagster+ else your user"
    )
    max_candidate_share: float | None = Field(
        default=None, ge=0, le=1, description="approve a sweep of at most this share of the listing"
    )
    digest: str = Field(
        default="",
        description="the digest of the mark that you have read, as its report shows it: if the "
        "mark was made again since, with other objects, it is not approved. Empty: any",
    )


def approving(names: Names) -> dg.JobDefinition:
    """The job ``gc_approve``, whose partitions are the marks that wait."""
    return one_step_job(
        names,
        "gc_approve",
        "Approve one mark: evaluates its checks again, and records the mark, the time and your "
        f"name. The sensor {names.of('gc_approvals')} then starts its sweep.",
        (APPROVE, "Evaluates every check of a mark again, and records the approval beside it."),
        _approve,
        Approving,
        *RESOURCES,
        tags={**NO_RETRIES, **URGENT},
        config=_by_key(names.waiting, lambda _: _asking(names, APPROVE, "by", "digest")),
    )


def _asking(names: Names, step: str, *asked: str) -> dict[str, Any]:
    """The configuration with which the launchpad begins: empty values to fill in."""
    return {"ops": {names.of(step): {"config": dict.fromkeys(asked, "")}}}


def _approve(execution: Execution, asked: Approving) -> Mapping[str, Any]:
    """Approve the mark of this partition, and publish it if only an approval was missing."""
    context, names, share = execution.step, execution.names, asked.max_candidate_share
    report, key = names.key("gc_report"), partition_key(*execution.partition)
    with execution.run_context() as ctx:
        by = person(asked.by, context.run.tags, "approves")
        shared = ctx if share is None else with_share(ctx, share)
        policy = execution.resources.collector.policy(ctx.repository)
        lifetime = timedelta(days=policy.approval_lifetime_days)
        approval, published = approve_mark(shared, by, lifetime, asked.digest.strip())
    context.instance.delete_dynamic_partition(names.of(WAITING), str(key))
    if published is not None:
        made = materialization(ctx.root, published, of_report(published))
        metadata = {**(made.metadata or {}), **links(ctx.lakefs, ctx.repository)}
        tags = {DATA_VERSION_TAG: published.sha256}
        context.log_event(
            dg.AssetMaterialization(report, partition=key, metadata=metadata, tags=tags)
        )
    context.log_event(
        dg.AssetObservation(
            report,
            partition=key,
            metadata={
                "approved by": approval.by,
                "approved at": dg.MetadataValue.timestamp(approval.at),
                "approval ends": dg.MetadataValue.timestamp(approval.ends),
                "approved share": approval.max_candidate_share,
                "approved digest": approval.digest,
            },
        )
    )
    starts = f"the sensor {names.of('gc_approvals')} starts {names.of('gc_sweep')}, or"
    if policy.sweep == "never":
        starts = f"`sweep` is `never`, so no sensor starts {names.of('gc_sweep')}:"
    sweeping = command_line("sweep", ctx.repository, "--run", ctx.run, settings=ctx.given_settings)
    until = f"{approval.ends:%Y-%m-%d %H:%M} UTC"
    context.log.info("%s may be swept until %s: %s `%s` does", key, until, starts, sweeping)
    return {}


class Accepting(dg.Config):
    """Configuration of the acceptance of a hold."""

    accept: str = Field(
        default="",
        description="the id of the hold to accept, as this job shows it; a later hold is not "
        "accepted. Empty: show the losses, and change nothing",
    )
    by: str = Field(
        default="", description="your name, which is recorded; in Dagster+ else your user"
    )
    unverified: bool = Field(
        default=False,
        description="accept the hold even if artifacts or the backup of the sweep are gone for "
        "good, so that it is unknown whether all objects are lost",
    )


def accepting(names: Names) -> dg.JobDefinition:
    """The job ``gc_accept_hold``, whose partitions are the repositories."""
    return one_step_job(
        names,
        ACCEPTING_JOB,
        "Show why a repository is on hold, and what is lost. With `accept`: restore all objects "
        "that can be restored, and accept the loss of the others, so that sweeps start again.",
        (ACCEPT, "Shows what is lost and what can be done; accepts the hold that is named."),
        _accept,
        Accepting,
        *RESOURCES,
        tags={**NO_RETRIES, **URGENT},
        config=_by_key(names.repositories, lambda _: _asking(names, ACCEPT, "accept", "by")),
    )


def _accept(execution: Execution, asked: Accepting) -> Mapping[str, Any]:
    """Report the loss, and accept it if the configuration requests that."""
    context, hold_id = execution.context, asked.accept.strip()
    with shown():
        by = person(asked.by, context.run.tags, "accepts the loss") if hold_id else ""
        ctx = execution.repository_context(context.partition_key)
        found = known_hold(ctx)
        # The log shows the loss before it is accepted, whatever the result of that is.
        _say(execution, hold_lines(found))
        # A run that was killed after its acceptance has nothing left to do.
        if hold_id and (found["state"], found.get("id")) != ("accepted", hold_id):
            found = accepted(ctx, hold_id, by, unverified=asked.unverified)
            _say(execution, hold_lines(found))
    return {
        "state": found["state"],
        "hold": found.get("id") or "none",
        "what is known": plain_lines(hold_lines(found)),
    }


def _say(execution: Execution, lines: list[str]) -> None:
    for line in lines:
        execution.context.log.info(line)
