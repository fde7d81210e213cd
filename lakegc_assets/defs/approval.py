"""``gc_approve``: a person lets one mark be swept, after its checks were evaluated once more."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

import dagster as dg
from pydantic import Field

from lakegc_assets.defs.asset_metadata import of_report
from lakegc_assets.defs.execution import RESOURCES, Execution
from lakegc_assets.defs.metadata import links, materialization
from lakegc_assets.defs.names import WAITING, Names
from lakegc_assets.defs.partitions import multi_key
from lakegc_assets.defs.requests import REPOSITORY_TAG
from lakegc_assets.defs.stages import DATA_VERSION_TAG
from lakegc_assets.errors import RefusedError
from lakegc_assets.run.command_line import command_line, printing
from lakegc_assets.sweep.approval import approve as approve_mark
from lakegc_assets.sweep.approval import with_share

#: The step of the job, by its plain name.
OP: Final = "approve"
#: The user who launched a run, in Dagster+.
_USER_TAG: Final = "user"


class Approving(dg.Config):
    """Configuration of an approval."""

    by: str = Field(
        default="", description="who approves; else the user of Dagster+, which alone knows users"
    )
    max_candidate_share: float | None = Field(
        default=None, ge=0, le=1, description="approve that this share of the listing goes"
    )


def _approve(context: dg.OpExecutionContext, names: Names, asked: Approving) -> None:
    """Approve the mark of this partition, and publish it if only an approval was missing."""
    execution, share = Execution(context, names), asked.max_candidate_share
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
        shown = {**(made.metadata or {}), **links(ctx.lakefs, ctx.repository)}
        context.log_event(
            dg.AssetMaterialization(
                report,
                partition=key,
                metadata=shown,
                tags={DATA_VERSION_TAG: published.sha256},
            )
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


def _launchpad(names: Names) -> dg.PartitionedConfig[Any]:
    """The configuration that the launchpad begins with: the name that is asked for."""

    def tags(key: str) -> dict[str, str]:
        repository, _, _ = key.partition("|")
        return {REPOSITORY_TAG: repository}

    return dg.PartitionedConfig(
        partitions_def=names.waiting,
        run_config_for_partition_key_fn=lambda _: {"ops": {names.of(OP): {"config": {"by": ""}}}},
        tags_for_partition_key_fn=tags,
    )


def approving(names: Names) -> dg.JobDefinition:
    """The job ``gc_approve``, whose partitions are the marks that wait.

    Args:
        names: of the component.
    """

    @dg.op(
        name=names.of(OP),
        description="Evaluates every check of a mark again, and records the approval beside it.",
        required_resource_keys=names.resources(*RESOURCES),
    )
    @printing(names.source)
    def approve(context: dg.OpExecutionContext, config: Approving) -> None:
        _approve(context, names, config)

    @dg.job(
        name=names.of("gc_approve"),
        config=_launchpad(names),
        executor_def=dg.in_process_executor,
        description="Approve one mark: its checks are evaluated again, and who, when and which "
        f"mark is recorded. The sensor {names.of('gc_approvals')} then starts its sweep.",
    )
    def gc_approve() -> None:
        approve()

    return gc_approve
