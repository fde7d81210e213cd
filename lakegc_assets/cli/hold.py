"""The command ``hold``: what an alarm has found, and the acceptance of the loss."""

from __future__ import annotations

import json
from typing import Any

import click

from lakegc_assets.cli.exits import exit_status
from lakegc_assets.cli.options import other_options, settings_of
from lakegc_assets.errors import RefusedError


@click.command()
@click.argument("repository")
@click.option("--accept", "accepting", is_flag=True, help="Accept the loss: sweeps start again.")
@click.option("--id", "hold_id", metavar="ID", help="Accept this hold only, and no later one.")
@click.option("--by", help="Who accepts it. Default: the name of this user.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--unverified",
    is_flag=True,
    help="Accept it also where artifacts or the backup of the sweep are gone for good, so that "
    "nobody can tell whether all is lost.",
)
@other_options
@exit_status
def hold(
    repository: str,
    accepting: bool,
    hold_id: str | None,
    by: str | None,
    yes: bool,
    unverified: bool,
    others: tuple[str, ...],
    as_json: bool,
) -> None:
    """Say why no sweep of REPOSITORY starts.

    What is lost, and what can be done. With --accept, first all comes back that can, and what
    nobody keeps is accepted as lost: sweeps start again. It is about exactly the hold that is
    shown. Who, when and what is recorded.
    """
    from lakegc_assets.cli.maintenance import accepted, known_hold

    settings = settings_of(others)
    found = known_hold(repository, settings)
    if not accepting:
        _show(found, as_json=as_json)
        return
    if found["state"] == "on hold":
        _require(found, hold_id)
        if not as_json:
            _show(found, as_json=False)
        if not yes:
            what = "Accept that what does not come back is lost, and let sweeps start again?"
            click.confirm(what, abort=True, err=True)
        found = accepted(repository, settings, found["id"], by, unverified=unverified)
    elif hold_id is None or found.get("id") != hold_id:
        raise RefusedError(f"{repository!r} is not on hold: nothing is to be accepted")
    _show(found, as_json=as_json)


def _require(found: dict[str, Any], hold_id: str | None) -> None:
    if hold_id not in {None, found["id"]}:
        raise RefusedError(
            f"the hold of {found['repository']!r} is {found['id']} by now, not {hold_id}: another "
            "alarm was raised. Look at it first"
        )


def _show(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    from lakegc_assets.sweep.hold_report import hold_lines

    for line in hold_lines(found):
        click.echo(line)
