"""The command ``hold``: shows the findings of an alarm, and accepts the loss."""

from __future__ import annotations

from functools import partial

import click

from lakegc_assets.cli.options import (
    by_option,
    other_options,
    person,
    settings_of,
    unclaimed_option,
    yes_option,
)
from lakegc_assets.cli.output import echo
from lakegc_assets.errors import RefusedError
from lakegc_assets.run.command_line import command_line


@click.command()
@click.argument("repository", metavar="REPOSITORY")
@click.option("--accept", "accepting", is_flag=True, help="Accept the loss: sweeps start again.")
@click.option("--id", "hold_id", metavar="ID", help="Accept this hold only, and no later one.")
@by_option("accepts")
@yes_option
@click.option(
    "--unverified",
    is_flag=True,
    help="Accept it even if artifacts or the backup of the sweep are gone for good, so that it is "
    "unknown whether all objects are lost.",
)
@unclaimed_option
@other_options
def hold(
    repository: str,
    accepting: bool,
    hold_id: str | None,
    by: str | None,
    yes: bool,
    unverified: bool,
    unclaimed: bool,
    others: tuple[str, ...],
    as_json: bool,
) -> None:
    """Explain why no sweep of REPOSITORY starts.

    Shows what is lost, and what can be done. --accept first restores all objects that can be
    restored, and accepts the others as lost: sweeps start again. It applies only to the hold that
    is shown. The name, the time and the loss are recorded.

    In place of REPOSITORY, the URL of the namespace of a deleted repository: nothing is restored
    there, and its hold keeps `leftovers remove namespace` from removing it.
    """
    if "://" in repository:
        from lakegc_assets.cli.site import server_to_search
        from lakegc_assets.leftovers import namespace_removal

        server = server_to_search()
        found, lines = namespace_removal.known_hold(server, repository), namespace_removal.lines
        accept = partial(namespace_removal.accept_hold, server, repository, unclaimed=unclaimed)
        question = "Accept the loss, and end the hold?"
    else:
        from lakegc_assets.cli.jobs import checked
        from lakegc_assets.cli.site import repository_context
        from lakegc_assets.sweep import hold_report

        ctx = repository_context(repository, given=checked(settings_of(others)))
        found, lines = hold_report.known_hold(ctx), hold_report.hold_lines
        accept = partial(hold_report.accepted, ctx)
        question = "Restore what can be restored, accept the loss of the rest, and allow sweeps?"
    show = partial(echo, as_json=as_json, lines=lines)
    if accepting and found["state"] == "on hold":
        if hold_id not in {None, found["id"]}:
            raise RefusedError(
                f"the hold of {repository!r} is {found['id']} by now, not {hold_id}: another alarm "
                f"was raised. Read it first: `{command_line('hold', repository)}`"
            )
        if not as_json:
            show(found)
        if not yes:
            click.confirm(question, abort=True, err=True)
        found = accept(found["id"], person(by), unverified=unverified)
    elif accepting and (hold_id is None or found.get("id") != hold_id):
        raise RefusedError(f"{repository!r} is not on hold: nothing to accept")
    show(found)
