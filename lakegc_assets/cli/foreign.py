"""The commands about marks of lakeFS's own collector: ``adopt`` and ``compare``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from lakegc_assets.cli.main import start
from lakegc_assets.cli.options import json_option, new_run_id, run_options, settings_of
from lakegc_assets.cli.output import echo, figures, printable
from lakegc_assets.errors import ConfigurationError

if TYPE_CHECKING:
    from lakegc_assets.mark.comparison import Comparison, Difference, Total

_figures = partial(figures, width=60)


@click.command()
@click.argument("repository")
@click.option(
    "--mark",
    "mark_id",
    required=True,
    help="Mark id of lakeFS's collector, the standalone one included.",
)
@click.option("--run", "run_id", help="Id of the new run. Default: the UTC time.")
@run_options
def adopt(
    repository: str,
    mark_id: str,
    run_id: str | None,
    as_json: bool,
    **options: Any,  # noqa: ANN401 - settings
) -> None:
    """Make a run from a mark of lakeFS's own collector. Deletes nothing.

    Our own mark is made now, and compared with each object that the other mark names. An object
    that we would not delete is spared, with the reason. The run is then swept like any other.
    """
    from lakegc_assets.cli.site import Site
    from lakegc_assets.defs.names import partition_key
    from lakegc_assets.mark.adoption import require_adoptable

    settings = settings_of(**options)
    if "adopt" in settings:
        raise ConfigurationError("--set adopt: give the mark id as --mark")
    run = run_id or new_run_id()
    # Checked before anything is started.
    partition_key(repository, run)
    site = Site.defined()
    require_adoptable(site.store(repository), site.root, repository, run, mark_id)
    start("gc_mark", repository, run, {"mode": "unified"} | settings | {"adopt": mark_id}, as_json)


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
def compare(repository: str, run: str, other: str, listed: int, as_json: bool) -> None:
    """Compare two marks: objects that both or only one names.

    Also shows why. RUN and OTHER are each a run of ours, or a mark id of one of lakeFS's own
    collectors. If several of these used the same id, write unified/, uncommitted/, reports/,
    mark_id= or run_id= before it.
    """
    from lakegc_assets.cli.site import repository_context
    from lakegc_assets.mark.comparison import compare as beside

    found = beside(repository_context(repository, run), run, other, listed)
    echo(found.to_json(), as_json, lambda _: _lines(found))


def _lines(found: Comparison) -> Iterator[str]:
    run, other = (printable(side["id"]) for side in (found.run, found.other))
    yield f"repository {found.repository}"
    for name, side in ((run, found.run), (other, found.other)):
        begun = datetime.fromisoformat(side["made"])
        yield f"  {name}: {side['kind']}, begun {begun:%Y-%m-%d %H:%M} UTC"
    yield _figures("both name", found.both.objects, found.both.bytes)
    for name, beside, one in ((run, other, found.only_run), (other, run, found.only_other)):
        yield _figures(f"only {name} names", one.total.objects, one.total.bytes)
        yield from _reasons("marked", one.marked)
        yield from _reasons(f"kept by {beside}", one.kept)
    for note in found.notes:
        yield f"  note: {note}"
    for name, one in ((run, found.only_run), (other, found.only_other)):
        yield from _objects(name, one)


def _reasons(what: str, reasons: Mapping[str, Total]) -> Iterator[str]:
    for why, total in reasons.items():
        yield _figures(f"{what}: {why}", total.objects, total.bytes, indent=6)


def _objects(name: str, difference: Difference) -> Iterator[str]:
    if difference.objects:
        shown, of = len(difference.objects), difference.total.objects
        yield f"  only {name} names ({shown:,} of {of:,}, the largest first):"
    for one in difference.objects:
        because = "; ".join(f"{what}: {one[what]}" for what in ("marked", "kept") if one[what])
        size = "" if one["size"] is None else f", {one['size']:,} B"
        yield f"    {printable(one['address'])}{size}: {because}".removesuffix(": ")
