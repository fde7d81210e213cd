"""``gc_approve``: a person lets one mark be swept, after its checks were evaluated once more."""

import getpass
from datetime import timedelta
from typing import Any

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from pydantic import Field

from lakegc_assets.defs.connecting import LakeFSResource, ObjectStoreResource
from lakegc_assets.defs.links import links
from lakegc_assets.defs.metadata import of_report
from lakegc_assets.defs.resources import CollectorResource
from lakegc_assets.run.command_line import command_line
from lakegc_assets.sweep.approval import approve as approve_mark
from lakegc_assets.sweep.approval import with_share


class Approving(dg.Config):
    """What a person says who approves."""

    by: str = Field(default="", description="who approves; else the name of this user")
    max_candidate_share: float | None = Field(
        default=None, ge=0, le=1, description="approve that this share of the listing goes"
    )


@dg.op(description="Evaluates every check of a mark again, and records the approval beside it.")
def approve(
    context: dg.OpExecutionContext,
    config: Approving,
    collector: CollectorResource,
    lakefs: LakeFSResource,
    stores: ObjectStoreResource,
    pyspark: LazyPySparkResource,
) -> None:
    """Approve the mark of this partition, and publish it if only an approval was missing."""
    share = config.max_candidate_share
    with collector.run_context(context, lakefs, stores, pyspark) as ctx:
        asked = ctx if share is None else with_share(ctx, share)
        lifetime = timedelta(days=collector.policy(ctx.repository).approval_lifetime_days)
        approval, published = approve_mark(asked, config.by or getpass.getuser(), lifetime)
    key = context.partition_key
    if published is not None:
        told = {**of_report(published), **links(ctx.lakefs, ctx.repository)}
        context.log_event(dg.AssetMaterialization("gc_report", partition=key, metadata=told))
    context.log_event(
        dg.AssetObservation(
            "gc_report",
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
        "%s may be swept until %s: the sensor gc_approvals starts gc_sweep, or `%s` does",
        key,
        f"{approval.ends:%Y-%m-%d %H:%M} UTC",
        command_line("sweep", ctx.repository, "--run", ctx.run, settings=ctx.given_settings),
    )


def approving(config: "dg.PartitionedConfig[Any]") -> dg.JobDefinition:
    """The job ``gc_approve``.

    Args:
        config: what its launchpad begins with.
    """

    @dg.job(
        name="gc_approve",
        config=config,
        executor_def=dg.in_process_executor,
        description="Approve one mark: its checks are evaluated again, and who, when and which "
        "mark is recorded. The sensor gc_approvals then starts its sweep.",
    )
    def gc_approve() -> None:
        approve()

    return gc_approve
