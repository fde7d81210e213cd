"""The commands by which a person decides about sweeps: ``approve``, ``pending`` and ``hold``.

``pending`` lists the marks that wait, ``approve`` allows a sweep. ``hold`` shows the findings of an
alarm, and accepts the loss.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from lakegc_assets.cli.options import (
    by_option,
    json_option,
    other_options,
    person,
    run_id_option,
    set_option,
    setting_option,
    settings_of,
    unclaimed_option,
    yes_option,
)
from lakegc_assets.cli.output import echo, echo_rows
from lakegc_assets.errors import LakegcError, RefusedError
from lakegc_assets.run.command_line import command_line
from lakegc_assets.wording import counted

if TYPE_CHECKING:
    from lakegc_assets.estate.repository_state import Standing
    from lakegc_assets.run.artifacts import ArtifactRoot


@click.command()
@click.argument("repository")
@run_id_option
@by_option("approves")
@setting_option(
    "max_candidate_share",
    help="Approve a sweep of this mark only, of at most this share of the listing.",
)
@click.option(
    "--digest",
    help="Approve only the mark with this digest, as the report shows it: not one that was made "
    "again since, with other objects.",
)
@click.option(
    "--withdraw",
    is_flag=True,
    help="Withdraw the approvals of the mark instead. End a running sweep first.",
)
@set_option
def approve(
    repository: str,
    run_id: str,
    by: str | None,
    max_candidate_share: float | None,
    digest: str | None,
    withdraw: bool,
    others: tuple[str, ...],
) -> None:
    """Approve a mark of REPOSITORY; its checks run again first.

    The approval is for exactly this mark. It expires after approval_lifetime_days of the
    repository's policy (default: a week). If the sensor gc_approvals is on, the sweep starts
    automatically.
    """
    from lakegc_assets.cli.jobs import checked, run_job
    from lakegc_assets.cli.site import Site, run_context
    from lakegc_assets.estate.run_state import sweep_command
    from lakegc_assets.lakefs.client import utc_now
    from lakegc_assets.sweep.approval import approval_of
    from lakegc_assets.sweep.approval import withdraw as withdraw_approvals

    if withdraw:
        for option, value in (("max-candidate-share", max_candidate_share), ("digest", digest)):
            if value is not None:
                raise click.UsageError(f"--withdraw is about all approvals: leave --{option} out")
        ctx = run_context(repository, run_id, checked(settings_of(others)))
        withdraw_approvals(ctx, person(by))
        click.echo(f"mark {run_id} of {repository} is not approved any more")
        return
    asked: dict[str, Any] = {"by": person(by), "digest": digest or ""}
    if max_candidate_share is not None:
        asked["max_candidate_share"] = max_candidate_share
    run_job("gc_approve", repository, run_id, settings_of(others), {"approve": asked})
    attempt = Site.defined().attempt(repository, run_id)
    found = approval_of(attempt, utc_now())
    if found is None:
        raise LakegcError(
            f"mark {run_id!r} of {repository!r} has no valid approval, although one was recorded: "
            "it was withdrawn since, or approval_lifetime_days of the policy is too short. Approve "
            "the mark again"
        )
    click.echo(
        f"mark {run_id} of {repository} ({found.digest}) is approved by {found.by} until "
        f"{found.ends:%Y-%m-%d %H:%M} UTC"
    )
    click.echo(f"  to delete  {sweep_command(attempt)}")


@click.command()
@json_option
def pending(as_json: bool) -> None:
    """List marks that wait for a person."""
    echo_rows(_waiting(), as_json, _line, "no mark waits for a person")


def _waiting() -> list[dict[str, Any]]:
    """The repositories that wait for a person, with state, reason and size, as JSON values."""
    from lakegc_assets.cli.site import Site
    from lakegc_assets.definitions import component
    from lakegc_assets.estate.repository_state import APPROVED, PERSON, UNREADABLE, standings
    from lakegc_assets.estate.run_state import ON_HOLD, REFUSED
    from lakegc_assets.lakefs.client import utc_now

    site, policies = Site.defined(), component().policies()
    names = [r.id for r in site.lakefs.connect().repositories() if not r.read_only]
    found = standings(
        site.root, names, lambda name: policies.of(name).sweep, utc_now(), checked=True
    )
    return [
        {
            "repository": one.repository,
            "run": one.run,
            "state": one.state,
            "because": one.because,
            **(
                {}
                if one.state in {UNREADABLE, REFUSED, ON_HOLD}
                else {"objects": one.garbage, "bytes": one.garbage_size}
            ),
            # The command that approves a waiting mark has its digest already.
            **({"digest": _digest(site.root, one)} if one.state == REFUSED else {}),
        }
        for one in found
        if one.state in {*PERSON, APPROVED}
    ]


def _digest(root: ArtifactRoot, refused: Standing) -> str:
    """The digest of a refused mark; empty if it cannot be read."""
    with suppress(LakegcError):
        attempt = root.attempt(refused.repository, refused.run or "")
        return attempt.recorded("deletion_candidates").digest
    return ""


def _line(one: dict[str, Any]) -> str:
    shown = ""
    if "objects" in one:
        shown = f"\t{counted(one['objects'], 'object')}, {counted(one['bytes'], 'byte')}"
    if digest := one.get("digest"):
        shown = f"\tdigest {digest}"
    return f"{one['repository']}\t{one['run'] or '-'}\t{one['state']}{shown}\t{one['because']}"


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
