"""``gc_accept_hold``: shows the hold of a repository, and accepts the one that a person names."""

from typing import Any, Final

import dagster as dg
from pydantic import Field

from lakegc_assets.defs.approval import who
from lakegc_assets.defs.execution import RESOURCES, Execution
from lakegc_assets.defs.failures import shown
from lakegc_assets.defs.names import Names
from lakegc_assets.defs.requests import REPOSITORY_TAG
from lakegc_assets.run.command_line import printing
from lakegc_assets.sweep.hold import ACCEPTING_JOB
from lakegc_assets.sweep.hold_report import accepted, hold_lines, known_hold

#: The step of the job, by its plain name.
OP: Final = "accept_hold"


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
        "so that nobody can tell whether all is lost",
    )


def _accept(context: dg.OpExecutionContext, names: Names, asked: Accepting) -> None:
    """Say what is lost, and accept that where it was asked for."""
    hold_id = asked.accept.strip()
    with shown():
        by = who(asked.by, context.run.tags, "accepts the loss") if hold_id else ""
        ctx = Execution(context, names).repository_context(context.partition_key)
        found = known_hold(ctx)
        # What is accepted stands in the log before that, whatever comes of it.
        _say(context, hold_lines(found))
        # A run that was killed behind its acceptance has done all that it was to do.
        if hold_id and (found["state"], found.get("id")) != ("accepted", hold_id):
            found = accepted(ctx, hold_id, by, unverified=asked.unverified)
            _say(context, hold_lines(found))
    lines = "\n".join(f"    {line}" for line in hold_lines(found))
    context.add_output_metadata(
        {
            "state": found["state"],
            "hold": found.get("id") or "none",
            "what is known": dg.MetadataValue.md(lines),
        }
    )


def _say(context: dg.OpExecutionContext, lines: list[str]) -> None:
    for line in lines:
        context.log.info(line)


def _launchpad(names: Names) -> dg.PartitionedConfig[Any]:
    """The configuration that the launchpad begins with: the two values that are asked for."""
    config = {"ops": {names.of(OP): {"config": {"accept": "", "by": ""}}}}
    return dg.PartitionedConfig(
        partitions_def=names.repositories,
        run_config_for_partition_key_fn=lambda _: config,
        tags_for_partition_key_fn=lambda key: {REPOSITORY_TAG: key},
    )


def accepting(names: Names) -> dg.JobDefinition:
    """The job ``gc_accept_hold``, whose partitions are the repositories.

    Args:
        names: of the component.
    """

    @dg.op(
        name=names.of(OP),
        description="Says what is lost and what can be done; accepts the hold that is named.",
        required_resource_keys=names.resources(*RESOURCES),
    )
    @printing(names.source)
    def accept_hold(context: dg.OpExecutionContext, config: Accepting) -> None:
        _accept(context, names, config)

    @dg.job(
        name=names.of(ACCEPTING_JOB),
        config=_launchpad(names),
        executor_def=dg.in_process_executor,
        description="Say what the hold of a repository is about, and what is lost. With `accept`, "
        "first all comes back that can; the loss of the rest is accepted, and sweeps start again.",
    )
    def gc_accept_hold() -> None:
        accept_hold()

    return gc_accept_hold
