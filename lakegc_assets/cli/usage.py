"""The command ``usage``: the storage of a repository by branch, path, committer, age and so on."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from lakegc_assets.cli.options import json_option
from lakegc_assets.cli.output import echo, figures, printable
from lakegc_assets.errors import RefusedError
from lakegc_assets.run.command_line import command_line
from lakegc_assets.wording import counted, escaped

if TYPE_CHECKING:
    from lakegc_assets.attribution.usage import Usage, Use

_BY: Final = ("branch", "path", "committer", "commit", "age", "size")
_WIDTH: Final = 56
#: Most characters of a name that are shown, so that the columns stay aligned.
_NAME: Final = 50
#: Characters of the id of a commit.
_COMMIT: Final = 12
_MOST_FOLDERS: Final = 4
#: First characters of a text that a spreadsheet computes.
_FORMULA: Final = frozenset("=+-@")


@click.command()
@click.argument("repository")
@click.option("--run", "run_id", help="Id of the run. Default: the last one with a mark.")
@click.option(
    "--by",
    type=click.Choice(_BY),
    default="branch",
    show_default=True,
    help="Dimension by which live, committed storage is grouped.",
)
@click.option(
    "--depth",
    type=click.IntRange(1, _MOST_FOLDERS),
    default=1,
    show_default=True,
    help="With --by path: number of folders of a path by which it is grouped.",
)
@click.option(
    "--top",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    help="How many rows to show, the largest first; --json and --csv have all without it.",
)
@json_option
@click.option("--csv", "as_csv", is_flag=True, help="Print the rows as CSV.")
@click.pass_context
def usage(
    ctx: click.Context,
    repository: str,
    run_id: str | None,
    by: str,
    depth: int,
    top: int,
    as_json: bool,
    as_csv: bool,
) -> None:
    """Show the use of the storage of REPOSITORY.

    The figures are those of a mark: the class of each listed byte, and how many live bytes belong
    to a branch (and would become free without it), a path, a committer, the commit that first held
    them, an age or a size.
    """
    if as_json and as_csv:
        raise click.UsageError("--json and --csv exclude each other")
    from lakegc_assets.attribution.usage import usage as read
    from lakegc_assets.cli.site import last_marked, run_context
    from lakegc_assets.estate.run_state import state_of

    run = run_id or last_marked(repository)
    if run is None:
        raise RefusedError(
            f"repository {repository!r} has no mark: `{command_line('mark', repository)}` makes one"
        )
    context = run_context(repository, run)
    found = read(context, by, depth)
    state = state_of(context.root.attempt(repository, run))
    gone = state.gone
    given = ctx.get_parameter_source("top") is not click.core.ParameterSource.DEFAULT
    most = top if given or not (as_json or as_csv) else None
    if as_csv:
        write_csv([row.to_json() for row in found.rows[:most]], by)
        return
    values = found.to_json() | {"gone": {"objects": gone.objects, "bytes": gone.size}}
    values["rows"] = values["rows"][:most]
    since = (
        f"the figures are those of the mark; since then: {state.because}" if gone.objects else ""
    )
    echo(values, as_json, lambda _: _lines(found, most or top, since))


def write_csv(rows: Sequence[dict[str, Any]], by: str) -> None:
    """Print rows as CSV for a spreadsheet; ``by`` names the column of their keys."""
    columns = list(dict.fromkeys(name for row in rows for name in row)) or ["key"]
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([by if name == "key" else name for name in columns])
    writer.writerows([_cell(row.get(name, "")) for name in columns] for row in rows)


def _cell(value: object) -> object:
    """A value for a spreadsheet; text that begins like a formula is escaped."""
    if not isinstance(value, str):
        return value
    shown = escaped(value)
    return f"'{shown}" if shown[:1] in _FORMULA else shown


def _lines(found: Usage, top: int, since: str) -> Iterator[str]:
    facts, rows = found.facts, found.facts["classes"]
    yield f"repository {found.repository}, mark {found.manifest.run}"
    listed = sum(row[2] for row in rows), sum(row[3] for row in rows)
    yield _figures("listed", *listed)
    for name, why, objects, size in sorted(rows, key=lambda row: -row[3]):
        share = f" {100 * size / listed[1]:>6.1f} %" if listed[1] else ""
        yield _figures(f"{name}: {why}" if why else name, objects, size, indent=4, end=share)
    for name, objects, size in _below_lakefs(facts["own_files"]):
        yield _figures(f"below _lakefs/, as it is now: {name}", objects, size)
    if (total := facts["not_listed"])["objects"]:
        yield _figures("live, and not in the listing", total["objects"], total["bytes"])
    yield from _logical(found)
    shown = found.rows[:top]
    if shown:
        yield f"  live and committed, by {found.by}"
    if shown and found.by == "branch":
        yield from _branches(shown)
    else:
        yield from (_figures(_named(row), row.objects, row.bytes, indent=4) for row in shown)
    if rest := len(found.rows) - len(shown):
        yield f"    and {counted(rest, 'other')}: --top shows more"
    frees = facts["rules"] is not None and found.manifest.mode == "unified"
    if found.by == "branch" and frees:
        days = counted(facts["rules"]["default_retention_days"], "day")
        yield (
            "  note: deleting a branch frees these bytes with the first sweep after its commits "
            f"are {days} old, the default retention. Staged objects of the branch are not counted"
        )
    yield from (f"  note: {note}" for note in facts["covers"])
    yield from (f"  the classes do not add up: {problem}" for problem in found.problems)
    if since:
        yield f"  note: {since}"


def _below_lakefs(rows: Sequence[Sequence[Any]]) -> list[tuple[str, int, int]]:
    """Objects and bytes by class; the JSON form also has the kinds in each class."""
    found: dict[str, tuple[int, int]] = {}
    for name, _, objects, size in rows:
        known = found.get(name, (0, 0))
        found[name] = known[0] + objects, known[1] + size
    return [(name, *total) for name, total in found.items()]


def _named(row: Use) -> str:
    """The label of a row, before its figures."""
    if "made" not in row.more:
        return _short(row.key)
    made, committer = str(row.more["made"])[:10], _short(str(row.more["committer"]))
    return _short(f"{row.key[:_COMMIT]} of {made} by {committer}")


def _branches(rows: Sequence[Use]) -> Iterator[str]:
    from lakegc_assets.estate.tables import BRANCH_COLUMNS, branch_sizes

    yield f"    {'':<{_NAME}} " + " ".join(f"{name:>17}" for name in BRANCH_COLUMNS[1:])
    for row in rows:
        cells = " ".join(f"{cell:>17}" for cell in branch_sizes(row))
        line = f"    {_short(row.key):<{_NAME}} {cells}"
        yield line.rstrip()


def _logical(found: Usage) -> Iterator[str]:
    from lakegc_assets.attribution.usage import logical

    totals = logical(found.manifest)
    stored = totals["stored"]["bytes"]
    for name, what in (("of_heads", "HEADs of branches"), ("of_commits", "active commits")):
        total, shown = totals[name], f"all {what} if they shared nothing"
        times = f", {total['bytes'] / stored:.1f} times what is stored" if stored else ""
        yield _figures(shown, total["objects"], total["bytes"], end=times)


def _figures(name: str, objects: int, size: int, *, indent: int = 2, end: str = "") -> str:
    """Figures after a name, which is cut if it is longer than its column."""
    shown = _cut(name, _WIDTH - indent)
    return figures(shown, objects, size, indent=indent, width=_WIDTH, end=end)


def _short(name: str) -> str:
    return _cut(printable(name), _NAME)


def _cut(name: str, most: int) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"
