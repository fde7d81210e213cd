"""The commands about marks of lakeFS's own collector: ``adopt`` and ``compare``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from lakegc_assets.cli.exits import exit_status
from lakegc_assets.cli.main import start
from lakegc_assets.cli.options import json_option, new_run_id, run_options, settings_of
from lakegc_assets.defs.units import human_bytes
from lakegc_assets.errors import ConfigurationError
from lakegc_assets.wording import aligned

if TYPE_CHECKING:
    from lakegc_assets.mark.comparison import Comparison, Difference, Total

_WIDTH = 60


@click.command()
@click.argument("repository")
@click.option(
    "--mark",
    "mark_id",
    required=True,
    help="Mark id of lakeFS's collector, the standalone one included.",
)
@click.option("--run", "run_id", help="Id of the run that is made of it. Default: the time.")
@run_options
@exit_status
def adopt(
    repository: str,
    mark_id: str,
    run_id: str | None,
    as_json: bool,
    **options: Any,  # noqa: ANN401 - passed on to settings_of
) -> None:
    """Make a run out of a mark that lakeFS's own collector wrote. Deletes nothing.

    Our own mark is made now, and every object that the other one names is judged by it: what we
    would not delete is spared, with the reason. The run is then swept like any other.
    """
    from lakegc_assets.cli.queries import adoptable

    settings = settings_of(**options)
    if "adopt" in settings:
        raise ConfigurationError("--set adopt: give the mark as --mark")
    run = run_id or new_run_id()
    adoptable(repository, run, mark_id)
    start("gc_mark", repository, run, settings | {"adopt": mark_id}, as_json)


@click.command()
@click.argument("repository")
@click.argument("run")
@click.argument("other")
@click.option(
    "--list",
    "listed",
    type=click.IntRange(0),
    default=20,
    show_default=True,
    help="How many objects of each difference to name, the largest first.",
)
@json_option
@exit_status
def compare(
    repository: str,
    run: str,
    other: str,
    listed: int,
    as_json: bool,
) -> None:
    """Compare two marks: what both name, what only one, and why.

    RUN and OTHER each are a run of ours, or the mark id of one of lakeFS's own collectors: with
    unified/, uncommitted/, reports/, mark_id= or run_id= before it where several used the same.
    """
    from lakegc_assets.cli.site import repository_context
    from lakegc_assets.mark.comparison import compare as beside

    found = beside(repository_context(repository, run), run, other, listed)
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=1))
    else:
        _show(found)


def _show(found: Comparison) -> None:
    click.echo(f"repository {found.repository}")
    for side in (found.run, found.other):
        begun = f"{datetime.fromisoformat(side['made']):%Y-%m-%d %H:%M} UTC"
        click.echo(f"  {_one_line(side['id'])}: {side['kind']}, begun {begun}")
    _line(2, "both name", found.both)
    for side, other, difference in (
        (found.run, found.other, found.only_run),
        (found.other, found.run, found.only_other),
    ):
        _line(2, f"only {_one_line(side['id'])} names", difference.total)
        _reasons("marked", difference.marked)
        _reasons(f"kept by {_one_line(other['id'])}", difference.kept)
    for note in found.notes:
        click.echo(f"  note: {note}")
    for side, difference in ((found.run, found.only_run), (found.other, found.only_other)):
        _objects(_one_line(side["id"]), difference)


def _reasons(what: str, reasons: Mapping[str, Total]) -> None:
    for why, total in reasons.items():
        _line(6, f"{what}: {why}", total)


def _line(indent: int, name: str, total: Total) -> None:
    size = "" if total.bytes is None else f"{human_bytes(total.bytes):>12}"
    click.echo(f"{' ' * indent + name:<{_WIDTH}} {aligned(total.objects)} {size}".rstrip())


def _objects(name: str, difference: Difference) -> None:
    if difference.objects:
        shown, of = len(difference.objects), difference.total.objects
        click.echo(f"  only {name} names ({shown:,} of {of:,}, the largest first):")
    for one in difference.objects:
        marked = f"marked: {one['marked']}" if one["marked"] else ""
        kept = f"kept: {one['kept']}" if one["kept"] else ""
        because = "; ".join(filter(None, (marked, kept)))
        size = "" if one["size"] is None else f", {one['size']:,} B"
        click.echo(f"    {_one_line(one['address'])}{size}: {because}".removesuffix(": "))


def _one_line(name: str) -> str:
    """A name as it is where it can be printed; else as Python would write it."""
    return name if name.isprintable() else repr(name)
