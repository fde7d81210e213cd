"""The command ``leftovers``: objects that no collection of a repository finds; their removal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from lakegc_assets.cli.options import (
    by_option,
    dry_run_option,
    json_option,
    person,
    unclaimed_option,
    yes_option,
)
from lakegc_assets.cli.output import FAILURE, echo, echo_json, printable, say
from lakegc_assets.errors import RefusedError
from lakegc_assets.wording import counted, human_bytes

if TYPE_CHECKING:
    from lakegc_assets.leftovers.removal import Choices, Plan
    from lakegc_assets.leftovers.report import Leftovers
    from lakegc_assets.leftovers.server import Server

#: Most keys that a plan shows.
_SHOWN: Final = 10
_ROOTS = click.option(
    "--root",
    "roots",
    multiple=True,
    metavar="URL",
    help="URL below which to search for namespaces without a repository. Default: namespace_roots "
    "of the collector resource, or LAKEGC_NAMESPACE_ROOTS. May be repeated.",
)


@click.group(invoke_without_command=True)
@_ROOTS
@click.option(
    "--repository",
    "names",
    multiple=True,
    metavar="NAME",
    help="Read only this repository, and search for no namespaces. May be repeated.",
)
@click.option(
    "--server",
    "every",
    is_flag=True,
    help="Read all repositories and namespaces of the server, as without --repository.",
)
@json_option
@click.pass_context
def leftovers(
    ctx: click.Context, roots: tuple[str, ...], names: tuple[str, ...], every: bool, as_json: bool
) -> None:
    """Show leftovers of the server and its stores.

    These are: namespaces of deleted repositories, unfinished uploads (on Azure: blocks that nobody
    committed), ranges and metaranges that no commit names, and deleted data that the stores still
    hold. Changes nothing except that lakeFS writes a dump of refs below _lakefs/ of a repository
    with old tables that neither logs nor earlier dumps name. To remove namespaces or uploads:
    `leftovers remove`.
    """
    if ctx.invoked_subcommand is not None:
        ctx.obj = roots
        return
    if every and names:
        raise click.UsageError("--server reads all repositories: give it without --repository")
    from lakegc_assets.cli.site import server_to_search
    from lakegc_assets.leftovers.report import find_leftovers

    server = server_to_search(roots)
    found = find_leftovers(server, names)
    if not (as_json or server.namespace_roots or names):
        click.echo(
            "no root of namespaces is set: give --root URL to find those without a repository",
            err=True,
        )
    nothing = "" if found.problems else "nothing is left over"
    echo(found.to_json(), as_json, lambda _: _lines(found), nothing)
    for problem in () if as_json else found.problems:
        say(f"could not be read: {problem.where}: {problem.what}", err=True)
    if found.problems:
        sys.exit(FAILURE)


@leftovers.command()
@click.argument("kind", type=click.Choice(["namespace", "uploads"]))
@click.argument("where")
@unclaimed_option
@click.option("--backup", "backup_url", metavar="URL", help="Copy each object there first.")
@click.option(
    "--without-backup",
    is_flag=True,
    help="Remove a namespace even if its store keeps no deleted objects; refused if backup_url is "
    "set.",
)
@by_option("removes")
@dry_run_option
@yes_option
@click.option(
    "--id", "plan_id", metavar="ID", help="Remove only what --dry-run has shown under this id."
)
@json_option
def remove(
    kind: str,
    where: str,
    unclaimed: bool,
    backup_url: str | None,
    without_backup: bool,
    by: str | None,
    dry_run: bool,
    yes: bool,
    plan_id: str | None,
    as_json: bool,
) -> None:
    """Remove leftovers of one KIND: WHERE is a repository, or the URL of a namespace.

    Objects are first copied to --backup, unless their store keeps deleted objects; uploads are
    aborted. Removes exactly what is shown. The name, the time and the objects are recorded below
    the artifacts before the removal.
    """
    if backup_url and without_backup:
        raise click.UsageError("--backup and --without-backup exclude each other")
    if as_json and not dry_run and not (yes and plan_id):
        raise RefusedError("--json asks for no confirmation: give --dry-run, or --yes --id ID")
    from lakegc_assets.cli.site import server_to_search
    from lakegc_assets.leftovers.namespace_removal import plan_namespace, remove_namespace
    from lakegc_assets.leftovers.removal import Choices
    from lakegc_assets.leftovers.uploads import abort_uploads, plan_uploads

    plan: Callable[[Server, str], Plan] = plan_uploads
    end: Callable[[Server, str, Choices], Mapping[str, int]] = abort_uploads
    if kind == "namespace":
        plan = partial(plan_namespace, unclaimed=unclaimed)
        end = partial(remove_namespace, unclaimed=unclaimed)
    found = plan(server_to_search(), where)
    if plan_id is not None:
        found.require(plan_id)
    if dry_run or not as_json:
        first = found.rows["key"].slice(0, _SHOWN).to_pylist()
        echo({**found.to_json(), "first": first}, as_json, _plan)
    if dry_run:
        return
    # If nothing is left, this finishes an earlier removal that did not end.
    if found.rows.num_rows and not yes:
        click.confirm("Remove it?", abort=True, err=True)
    choices = Choices(person(by), found.id, backup_url, without_backup)
    outcomes = end(server_to_search(), found.where, choices)
    if as_json:
        echo_json({**found.to_json(), "outcomes": dict(outcomes)})
    else:
        for outcome, objects in outcomes.items():
            click.echo(f"  {outcome:<16} {objects:>12,}")


def _plan(found: dict[str, Any]) -> Iterator[str]:
    what = counted(found["objects"], "upload" if found["kind"] == "uploads" else "object")
    yield f"{found['url']}: {what}, {human_bytes(found['bytes'])}; id {found['id']}"
    for key in found["first"]:
        yield f"  {printable(key)}"
    if rest := found["objects"] - len(found["first"]):
        yield f"  and {rest:,} more"


def _lines(found: Leftovers) -> Iterator[str]:
    for name, one in found.tables().items():
        if one.rows:
            yield f"{name}: {', '.join(one.columns)}"
        for row in one.rows:
            yield "  " + "\t".join(printable(str(cell)) for cell in row)
        if one.rows and one.note:
            yield f"  note: {one.note}"
