"""Decisions of people: ``gc_approve`` lets one mark be swept, ``gc_accept_hold`` accepts a loss."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

import dagster as dg
from pydantic import Field

from lakegc_assets.defs.asset_metadata import of_report
from lakegc_assets.defs.execution import RESOURCES, Execution
from lakegc_assets.defs.failures import shown
from lakegc_assets.defs.metadata import links, materialization
from lakegc_assets.defs.names import WAITING, Names
from lakegc_assets.defs.partitions import multi_key
from lakegc_assets.defs.requests import REPOSITORY_TAG
from lakegc_assets.defs.stages import DATA_VERSION_TAG, one_step_job
from lakegc_assets.errors import RefusedError
from lakegc_assets.run.command_line import command_line
from lakegc_assets.sweep.approval import approve as approve_mark
from lakegc_assets.sweep.approval import with_share
from lakegc_assets.sweep.hold import ACCEPTING_JOB
from lakegc_assets.sweep.hold_report import accepted, hold_lines, known_hold

#: The steps of the jobs, by their plain names.
APPROVE: Final = "approve"
ACCEPT: Final = "accept_hold"
#: The user who launched a run, in Dagster+.
_USER_TAG: Final = "user"


def who(by: str, tags: Mapping[str, str], does: str) -> str:
    """The name of a person who decides something, as given or as Dagster+ knows it.

    Args:
        by: what they said; empty where they said nothing.
        tags: of the run of Dagster.
        does: what they do, as a word.

    Raises:
        RefusedError: nobody knows.
    """
    known = by.strip() or tags.get(_USER_TAG, "")
    if not known:
        raise RefusedError(
            f"nobody knows who {does}: write your name into `by` in the launchpad. It is recorded"
        )
    return known


class Approving(dg.Config):
    """Configuration of an approval."""

    by: str = Field(
        default="", description="who approves; else the user of Dagster+, which alone knows users"
    )
    max_candidate_share: float | None = Field(
        default=None, ge=0, le=1, description="approve that this share of the listing goes"
    )


def approving(names: Names) -> dg.JobDefinition:
    """The job ``gc_approve``, whose partitions are the marks that wait."""
    return one_step_job(
        names,
        "gc_approve",
        "Approve one mark: its checks are evaluated again, and who, when and which mark is "
        f"recorded. The sensor {names.of('gc_approvals')} then starts its sweep.",
        (APPROVE, "Evaluates every check of a mark again, and records the approval beside it."),
        _approve,
        Approving,
        *RESOURCES,
        config=dg.PartitionedConfig(
            partitions_def=names.waiting,
            run_config_for_partition_key_fn=lambda _: _launchpad(names, APPROVE, "by"),
            tags_for_partition_key_fn=lambda key: {REPOSITORY_TAG: key.partition("|")[0]},
        ),
    )


def _launchpad(names: Names, step: str, *asked: str) -> dict[str, Any]:
    """The configuration that the launchpad begins with: the values that are asked for."""
    return {"ops": {names.of(step): {"config": dict.fromkeys(asked, "")}}}


def _approve(execution: Execution, asked: Approving) -> Mapping[str, Any]:
    """Approve the mark of this partition, and publish it if only an approval was missing."""
    context, names, share = execution.step, execution.names, asked.max_candidate_share
    report, key = names.key("gc_report"), multi_key(context.partition_key)
    with execution.run_context() as ctx:
        by = who(asked.by, context.run.tags, "approves")
        shared = ctx if share is None else with_share(ctx, share)
        policy = execution.resources.collector.policy(ctx.repository)
        lifetime = timedelta(days=policy.approval_lifetime_days)
        approval, published = approve_mark(shared, by, lifetime)
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
    context.log.info(
        "%s may be swept until %s: the sensor %s starts %s, or `%s` does",
        key,
        f"{approval.ends:%Y-%m-%d %H:%M} UTC",
        names.of("gc_approvals"),
        names.of("gc_sweep"),
        command_line("sweep", ctx.repository, "--run", ctx.run, settings=ctx.given_settings),
    )
    return {}


class Accepting(dg.Config):
    """Configuration of the acceptance of a hold."""

    accept: str = Field(
        default="",
        description="the id of the hold to accept, and of no later one, as this job says it; "
        "empty: say what is lost, and change nothing",
    )
    by: str = Field(
        default="", description="who accepts; else the user of Dagster+, which alone knows users"
    )
    unverified: bool = Field(
        default=False,
        description="accept it also where artifacts or the backup of the sweep are gone for good, "
        "so that nobody can know whether all is lost",
    )


def accepting(names: Names) -> dg.JobDefinition:
    """The job ``gc_accept_hold``, whose partitions are the repositories."""
    return one_step_job(
        names,
        ACCEPTING_JOB,
        "Say what the hold of a repository is about, and what is lost. With `accept`, first all "
        "comes back that can; the loss of the rest is accepted, and sweeps start again.",
        (ACCEPT, "Says what is lost and what can be done; accepts the hold that is named."),
        _accept,
        Accepting,
        *RESOURCES,
        config=dg.PartitionedConfig(
            partitions_def=names.repositories,
            run_config_for_partition_key_fn=lambda _: _launchpad(names, ACCEPT, "accept", "by"),
            tags_for_partition_key_fn=lambda key: {REPOSITORY_TAG: key},
        ),
    )


def _accept(execution: Execution, asked: Accepting) -> Mapping[str, Any]:
    """Say what is lost, and accept that where it was asked for."""
    context, hold_id = execution.context, asked.accept.strip()
    with shown():
        by = who(asked.by, context.run.tags, "accepts the loss") if hold_id else ""
        ctx = execution.repository_context(context.partition_key)
        found = known_hold(ctx)
        # What is accepted stands in the log before that, whatever comes of it.
        _say(execution, hold_lines(found))
        # A run that was killed behind its acceptance has done all that it was to do.
        if hold_id and (found["state"], found.get("id")) != ("accepted", hold_id):
            found = accepted(ctx, hold_id, by, unverified=asked.unverified)
            _say(execution, hold_lines(found))
    lines = "\n".join(f"    {line}" for line in hold_lines(found))
    return {
        "state": found["state"],
        "hold": found.get("id") or "none",
        "what is known": dg.MetadataValue.md(lines),
    }


def _say(execution: Execution, lines: list[str]) -> None:
    for line in lines:
        execution.context.log.info(line)
