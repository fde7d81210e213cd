"""The command ``hold``: shows the findings of an alarm, and accepts the loss."""

from __future__ import annotations

from functools import partial

import click

from lakegc_assets.cli.options import other_options, person, settings_of, yes_option
from lakegc_assets.cli.output import echo
from lakegc_assets.errors import RefusedError
from lakegc_assets.run.command_line import command_line


@click.command()
@click.argument("repository", metavar="REPOSITORY")
@click.option("--accept", "accepting", is_flag=True, help="Accept the loss: sweeps start again.")
@click.option("--id", "hold_id", metavar="ID", help="Accept this hold only, and no later one.")
@click.option("--by", help="Name of the person who accepts. Default: the name of this user.")
@yes_option
@click.option(
    "--unverified",
    is_flag=True,
    help="Accept it even if artifacts or the backup of the sweep are gone for good, so that it is "
    "unknown whether all objects are lost.",
)
@click.option(
    "--unclaimed",
    is_flag=True,
    help="For a namespace that has no record of this server: you confirm that no other lakeFS "
    "server uses it, and that these credentials see all repositories.",
)
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
        _of_namespace(
            repository,
            hold_id,
            by,
            accepting=accepting,
            yes=yes,
            unverified=unverified,
            unclaimed=unclaimed,
            as_json=as_json,
        )
        return
    from lakegc_assets.cli.jobs import checked
    from lakegc_assets.cli.site import repository_context
    from lakegc_assets.sweep.hold_report import accepted, hold_lines, known_hold

    show = partial(echo, as_json=as_json, lines=hold_lines)
    ctx = repository_context(repository, given=checked(settings_of(others)))
    found = known_hold(ctx)
    if accepting and found["state"] == "on hold":
        if hold_id not in {None, found["id"]}:
            raise RefusedError(
                f"the hold of {repository!r} is {found['id']} by now, not {hold_id}: another alarm "
                f"was raised. Read it first: `{command_line('hold', repository)}`"
            )
        if not as_json:
            show(found)
        if not yes:
            what = "Restore what can be restored, accept the loss of the rest, and allow sweeps?"
            click.confirm(what, abort=True, err=True)
        found = accepted(ctx, found["id"], person(by), unverified=unverified)
    elif accepting and (hold_id is None or found.get("id") != hold_id):
        raise RefusedError(f"{repository!r} is not on hold: nothing to accept")
    show(found)


def _of_namespace(
    url: str,
    hold_id: str | None,
    by: str | None,
    *,
    accepting: bool,
    yes: bool,
    unverified: bool,
    unclaimed: bool,
    as_json: bool,
) -> None:
    """Show or accept the hold of a namespace that no repository has."""
    from lakegc_assets.cli.site import server_to_search
    from lakegc_assets.leftovers.namespace_hold import accept_hold, known_hold, lines

    show = partial(echo, as_json=as_json, lines=lines)
    server = server_to_search()
    found = known_hold(server, url)
    on_hold = found["state"] == "on hold"
    if accepting and not on_hold and (hold_id is None or found.get("id") != hold_id):
        raise RefusedError(f"{url} is not on hold: nothing to accept")
    if accepting and on_hold:
        if not as_json:
            show(found)
        if not yes:
            click.confirm("Accept the loss, and end the hold?", abort=True, err=True)
        found = accept_hold(
            server,
            url,
            hold_id or found["id"],
            person(by),
            unclaimed=unclaimed,
            unverified=unverified,
        )
    show(found)
