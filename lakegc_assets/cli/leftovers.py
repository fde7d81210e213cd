"""The command ``leftovers``: what no collection of a repository finds, and its removal."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

from lakegc_assets.cli.exits import FAILURE, exit_status
from lakegc_assets.wording import counted

if TYPE_CHECKING:
    from lakegc_assets.leftovers.report import Leftovers

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
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
@click.pass_context
@exit_status
def leftovers(
    ctx: click.Context,
    roots: tuple[str, ...],
    names: tuple[str, ...],
    as_json: bool,  # noqa: FBT001 - an option
) -> None:
    """Say what is left over on the server and in its stores.

    Namespaces of deleted repositories, uploads that never ended, ranges and metaranges that no
    commit names, and what the stores still hold of what was deleted. Changes nothing but a dump of
    refs, which lakeFS writes below _lakefs/ of each repository that has old tables.
    """
    if ctx.invoked_subcommand is not None:
        ctx.obj = roots
        return
    from lakegc_assets.cli.servers import server_of  # noqa: PLC0415 - Dagster loads slowly
    from lakegc_assets.leftovers.report import find_leftovers  # noqa: PLC0415 - likewise

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


def _show(found: Leftovers) -> None:
    from lakegc_assets.defs.units import human_bytes  # noqa: PLC0415 - Dagster loads slowly

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
    for table in found.metadata:
        ranges = table.tables.num_rows - table.metaranges
        click.echo(
            f"metadata\t{table.repository}\t{counted(table.metaranges, 'metarange')} and "
            f"{counted(ranges, 'range')} of {table.listed:,}, {human_bytes(table.size)}"
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
    rest = (found.namespaces, found.uploads, found.metadata, found.retained, found.removals)
    if not any(rest) and not found.problems:
        click.echo("nothing is left over", err=True)
