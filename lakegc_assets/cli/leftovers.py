"""The command ``leftovers``: what no collection of a repository finds, and its removal."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, Final

import click

from lakegc_assets.cli.exits import FAILURE, exit_status
from lakegc_assets.cli.options import json_option
from lakegc_assets.errors import RefusedError
from lakegc_assets.wording import counted

if TYPE_CHECKING:
    from lakegc_assets.leftovers.report import Leftovers

#: Keys that a plan shows.
_SHOWN: Final = 10
_ROOTS = click.option(
    "--root",
    "roots",
    multiple=True,
    metavar="URL",
    help="Look below it for namespaces that no repository has. Default: namespace_roots of the "
    "collector resource, or LAKEGC_NAMESPACE_ROOTS. May be repeated.",
)


@click.group(invoke_without_command=True)
@_ROOTS
@click.option(
    "--repository",
    "names",
    multiple=True,
    metavar="NAME",
    help="Look at this one only, and for no namespaces. May be repeated.",
)
@click.option(
    "--server",
    "every",
    is_flag=True,
    help="Look at all repositories and namespaces of the server, as without --repository.",
)
@json_option
@click.pass_context
@exit_status
def leftovers(
    ctx: click.Context,
    roots: tuple[str, ...],
    names: tuple[str, ...],
    every: bool,
    as_json: bool,
) -> None:
    """Say what is left over on the server and in its stores.

    Namespaces of deleted repositories, uploads that never ended (of Azure, blocks that nobody
    committed), ranges and metaranges that no commit names, and what the stores still hold of what
    was deleted. Changes nothing but a dump of refs, which lakeFS writes below _lakefs/ of a
    repository that has old tables which neither logs nor earlier dumps name. To remove namespaces
    or uploads: `leftovers remove`.
    """
    if ctx.invoked_subcommand is not None:
        ctx.obj = roots
        return
    if every and names:
        raise click.UsageError("--server looks at all repositories: give it without --repository")
    from lakegc_assets.cli.maintenance import server_of
    from lakegc_assets.leftovers.report import find_leftovers

    server = server_of(roots)
    found = find_leftovers(server, names)
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=1))
    else:
        if not server.namespace_roots and not names:
            click.echo("no root of namespaces is set: give --root URL to look for them", err=True)
        _show(found)
    if found.problems:
        sys.exit(FAILURE)


@leftovers.command()
@click.argument("kind", type=click.Choice(["namespace", "uploads"]))
@click.argument("where")
@click.option(
    "--unclaimed",
    is_flag=True,
    help="Of a namespace: you know that no other lakeFS server uses it, and that these credentials "
    "see all repositories, though nothing in it says that this server had it.",
)
@click.option("--backup", "backup_url", metavar="URL", help="Copy each object there first.")
@click.option(
    "--without-backup",
    is_flag=True,
    help="Remove a namespace also where its store keeps nothing of what is deleted; refused where "
    "backup_url is set.",
)
@click.option("--by", help="Who removes it. Default: the name of this user.")
@click.option("--dry-run", is_flag=True, help="Say what would go, and remove nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--id", "plan_id", metavar="ID", help="Remove only what --dry-run said under it.")
@json_option
@exit_status
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

    What goes is copied to --backup, unless its store keeps what is deleted; uploads are aborted. It
    is about exactly what is shown. Who, when and what is recorded below the artifacts, before
    anything goes.
    """
    if backup_url and without_backup:
        raise click.UsageError("--backup and --without-backup exclude each other")
    if as_json and not dry_run and not (yes and plan_id):
        raise RefusedError("nobody can be asked where JSON is printed: --dry-run, or --yes --id ID")
    from lakegc_assets.cli.maintenance import plan_removal, removed

    found = plan_removal(kind, where, unclaimed=unclaimed)
    if plan_id is not None:
        found.require(plan_id)
    if dry_run or not as_json:
        _show_plan(found.to_json(), found.rows["key"].slice(0, _SHOWN).to_pylist(), as_json=as_json)
    if dry_run:
        return
    # Where nothing is left, what an earlier removal did not end is ended.
    if found.rows.num_rows and not yes:
        click.confirm("Remove it?", abort=True, err=True)
    outcomes = removed(
        found, by, unclaimed=unclaimed, backup_url=backup_url, without_backup=without_backup
    )
    if as_json:
        click.echo(json.dumps({**found.to_json(), "outcomes": dict(outcomes)}, indent=1))
    else:
        for outcome, objects in outcomes.items():
            click.echo(f"  {outcome:<16} {objects:>12,}")


def _show_plan(found: dict[str, Any], first: list[str], *, as_json: bool) -> None:
    from lakegc_assets.defs.units import human_bytes

    if as_json:
        click.echo(json.dumps({**found, "first": first}, indent=1))
        return
    what = "upload" if found["kind"] == "uploads" else "object"
    size = human_bytes(found["bytes"])
    click.echo(f"{found['url']}: {counted(found['objects'], what)}, {size}; id {found['id']}")
    for key in first:
        click.echo(f"  {key if key.isprintable() else repr(key)}")
    if rest := found["objects"] - len(first):
        click.echo(f"  and {rest:,} more")


def _show(found: Leftovers) -> None:
    from lakegc_assets.defs.units import human_bytes

    for place in found.namespaces:
        newest = f"{place.newest:%Y-%m-%d}" if place.newest else "never"
        whose = (
            f"repository {place.repository} of {place.server}"
            if place.repository
            else ("nobody knows whose")
        )
        click.echo(
            f"namespace\t{place.url}\t{whose}\t{counted(place.objects, 'object')}, "
            f"{human_bytes(place.size)}\tnewest {newest}"
            + (f"\tstays: {place.stays}" if place.stays else "")
        )
    for one in found.uploads:
        click.echo(
            f"uploads\t{one.where}\t{counted(len(one.uploads), 'upload')}, "
            f"{human_bytes(one.size)}\toldest {one.oldest:%Y-%m-%d}"
        )
    for held_back in found.blocks:
        click.echo(
            f"blocks\t{held_back.where}\t{counted(len(held_back.blobs), 'blob')} that nobody has "
            f"committed, {human_bytes(held_back.size)}\tthe store drops each a week after its last "
            "block"
        )
    for table in found.metadata:
        ranges = table.tables.num_rows - table.metaranges
        click.echo(
            f"metadata\t{table.repository}\t{counted(table.metaranges, 'metarange')} and "
            f"{counted(ranges, 'range')} of {table.listed:,}, {human_bytes(table.size)}"
            "\tnever removed here, since lakeFS may commit them again as they are; what you can "
            "do: docs/safety.md#tables-that-nothing-names"
        )
    for held in found.retained:
        click.echo(
            f"retained\t{held.repository}\t{counted(held.objects, 'object')}, "
            f"{human_bytes(held.size)}, {counted(held.markers, 'delete marker')}\t{held.notice}"
            + (f"\n  a rule that would end it: {held.rule}" if held.rule else "")
        )
    for removal in found.removals:
        click.echo(
            f"unfinished\t{removal.kind} of {removal.where}: the removal {removal.id} did not end; "
            "remove it again"
        )
    for problem in found.problems:
        click.echo(f"could not be looked at: {problem.where}: {problem.what}", err=True)
    rest = (
        found.namespaces, found.uploads, found.blocks, found.metadata, found.retained,
        found.removals,
    )  # fmt: skip
    if not any(rest) and not found.problems:
        click.echo("nothing is left over", err=True)
