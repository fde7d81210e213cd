"""The page of one run: what its mark found, whose the storage is, and what became of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from lakegc_assets.attribution.attribution import ASSET
from lakegc_assets.attribution.usage import Use, usage
from lakegc_assets.cli import html
from lakegc_assets.cli.charts import Chart, bar_chart, curve_chart, share_chart
from lakegc_assets.cli.queries import commands_of, kept_because
from lakegc_assets.cli.site import repository_context, run_context
from lakegc_assets.defs.asset_metadata import (
    BRANCH_COLUMNS,
    age_classes,
    branch_rows,
    breakdown,
    costs,
    largest_rows,
    mark_rows,
    prefix_rows,
)
from lakegc_assets.defs.metadata import pages
from lakegc_assets.errors import LakegcError
from lakegc_assets.estate.history import MarkFigures
from lakegc_assets.estate.run_state import DELETED_OR_MISSING, ON_HOLD, STOPPED
from lakegc_assets.forecast.change import Change
from lakegc_assets.forecast.forecast import Forecast, forecast
from lakegc_assets.lakefs.config import LakeFSConfig
from lakegc_assets.run.command_line import command_line
from lakegc_assets.sweep.totals import NO_SPACE, space_lines
from lakegc_assets.wording import a_month, counted, human_bytes, price_note

_TOTAL: Final = ("", "objects", "size")
#: Marks that are drawn, the last ones.
_MARKS: Final = 26
#: Bars of a chart of ages.
_BARS: Final = 50


@dataclass(frozen=True)
class Insights:
    """Results beside the report of a mark.

    Attributes:
        classes: of all that was listed: class, why, objects, bytes; the largest first.
        branches: what is live and committed, by branch.
        paths: the same by the outermost folder.
        covers: what these figures are about, where that is not all.
        forecast: under today's rules; None without one.
        problems: why something of it is missing, in sentences.
    """

    classes: Sequence[tuple[str, str | None, int, int]] = ()
    branches: Sequence[Use] = ()
    paths: Sequence[Use] = ()
    covers: Sequence[str] = ()
    forecast: Forecast | None = None
    problems: Sequence[str] = ()


def insights_of(repository: str, run: str, *, forecasting: bool) -> Insights:
    """Read what a mark has left, and forecast by it; what cannot be had is one of the problems."""
    found, problems = Insights(), []
    try:
        found = _attributed(repository, run)
    except LakegcError as error:
        problems.append(f"whose the storage is cannot be said: {error}")
    if not found.classes and not problems:
        how = command_line("usage", repository, "--run", run)
        problems.append(f"nobody has attributed the storage of this mark yet: `{how}` does")
    if forecasting:
        try:
            ctx = repository_context(repository, run)
            found = replace(found, forecast=forecast(ctx, Change(), run))
        except LakegcError as error:
            problems.append(f"there is no forecast: {error}")
    return replace(found, problems=problems)


def _attributed(repository: str, run: str) -> Insights:
    """The attribution of a mark; empty without one."""
    ctx = run_context(repository, run)
    if not ctx.root.attempt(repository, run).has(ASSET):
        return Insights()
    by_branch, by_path = usage(ctx, "branch", 1), usage(ctx, "path", 1)
    facts = by_branch.facts
    rows = [(row[0], row[1], row[2], row[3]) for row in facts["classes"]]
    return Insights(
        sorted(rows, key=lambda row: -row[3]), by_branch.rows, by_path.rows, facts["covers"]
    )


_NOTHING: Final = Insights()


def page_of_run(
    found: dict[str, Any],
    lakefs: LakeFSConfig,
    marks: Sequence[MarkFigures] = (),
    more: Insights = _NOTHING,
    price: float | None = None,
) -> str:
    """The page of one run, as HTML."""
    rows = found["breakdown"]
    state = found["swept_on"] or found["state"]
    if back := found["restored"]:
        state += f", {back['summary']}"
    warnings = list(found["warnings"])
    if found["state"] in {STOPPED, ON_HOLD}:
        warnings.insert(0, f"{found['state']}: {found['because']}")
    mode = "" if found["mode"] == "unified" else f" ({found['mode']})"
    cutoff = datetime.fromisoformat(found["cutoff"])
    sections = [
        *_insights(more, price),
        _section("Garbage by reason", _TOTAL, breakdown(rows, "reason")),
        _section("Garbage by branch rule", _TOTAL, breakdown(rows, "branch rule")),
        _section("Garbage by age of its slice", _TOTAL, age_classes(rows, "slice age")),
        html.Section("Bytes freed against age, in days", charts=[_ages(rows)]),
        _history(marks),
        _section("Kept by the mark", ("why", "objects"), kept_because(found)),
        _section("What became of it", _TOTAL, _outcomes(found)),
        _section("Spared by the sweep", ("why", "objects"), found["spared_by_sweep"].items()),
        html.Section(
            "Largest", html.Table(("path", "size", "reason", "address"), largest_rows(found), True)
        ),
        _section("Checks", ("check", "what was found"), sorted(found["checks"].items())),
        _section("Where", ("", ""), _places(found, lakefs)),
    ]
    return html.page(
        f"Garbage collection of {found['repository']}",
        f"Mark {found['run']}{mode}, {state}. Cutoff {cutoff:%Y-%m-%d %H:%M} UTC",
        sections,
        warnings=warnings,
        tiles=_tiles(found, price),
    )


def _tiles(found: dict[str, Any], price: float | None) -> list[html.Tile]:
    listed, garbage = found["listed"], found["objects"]
    listed_bytes, garbage_bytes = found["listed_bytes"], found["bytes"]
    rows = [
        ("listed", listed, listed_bytes),
        ("kept", listed - garbage, listed_bytes - garbage_bytes),
        ("garbage", garbage, garbage_bytes),
    ]
    if deleted := found["outcomes"].get("deleted"):
        rows.append(("deleted", deleted["objects"], deleted["bytes"]))
    if found["space"]:
        freed = found["space"]["freed"]
        rows.append(("space freed so far", freed["objects"], freed["bytes"]))
    return [
        html.Tile(
            what,
            human_bytes(size),
            ", ".join(filter(None, (counted(objects, "object"), a_month(size, price)))),
        )
        for what, objects, size in rows
    ]


def _insights(more: Insights, price: float | None) -> list[html.Section]:
    """Attribution and forecast; with a price in money, too."""
    money = () if price is None else ("a month",)
    classes = [
        (f"{name}: {why}" if why else name, objects, size)
        for name, why, objects, size in more.classes
    ]
    return [
        html.Section(
            "What is stored",
            html.Table(
                ("class", "objects", "size", *money),
                [(name, n, human_bytes(size), *costs(size, price)) for name, n, size in classes],
                cards=True,
            ),
            [share_chart("classes of all that was listed", [(c[0], c[2]) for c in classes])],
            notes=[*more.covers, *price_note(price), *more.problems],
        ),
        html.Section(
            "Top branches",
            html.Table((*BRANCH_COLUMNS, *money), branch_rows(more.branches, price), cards=True),
        ),
        _section(
            "Top prefixes", ("prefix", "objects", "size", *money), prefix_rows(more.paths, price)
        ),
        *_forecast(more.forecast, money, price),
    ]


def _forecast(
    found: Forecast | None, money: Sequence[str], price: float | None
) -> list[html.Section]:
    if found is None:
        return []
    curve = curve_chart(
        "garbage with another default retention",
        [(days, one.bytes) for days, one in found.curve.items()],
        "days",
    )
    days = found.rules.default_retention_days
    amounts = {f"today, default {counted(days, 'day')}": found.today} | {
        f"in {counted(n, 'day')}, if nobody writes": one for n, one in found.later.items()
    }
    rows = [
        (what, one.objects, human_bytes(one.bytes), one.bound, *costs(one.bytes, price))
        for what, one in amounts.items()
    ]
    table = html.Table(("garbage", "objects", "size", "bound", *money), rows, cards=True)
    return [html.Section("Forecast", table, [curve], found.notes)]


def _ages(rows: Sequence[Sequence[Any]]) -> Chart | None:
    width, freed = by_age(rows)
    names = [f"{bar * width}" for bar in range(len(freed))]
    title = f"days, {width} to a bar" if width > 1 else "days"
    return bar_chart(title, names, {"": freed}) if freed else None


def by_age(rows: Iterable[Sequence[Any]]) -> tuple[int, list[int]]:
    """Days that a bar stands for, and the bytes of each bar; no bars where there is nothing."""
    ages = [(int(key), size) for name, key, _, size in rows if name == "age in days"]
    if not ages:
        return 1, []
    oldest = max(age for age, _ in ages)
    width = 1 + oldest // _BARS
    freed = [0] * (oldest // width + 1)
    for age, size in ages:
        freed[age // width] += size
    return width, freed


def _history(marks: Sequence[MarkFigures]) -> html.Section:
    """The history of the last marks and their sweeps."""
    shown = marks[-_MARKS:]
    series = {"marked": [one.marked for one in shown], "deleted": [one.deleted for one in shown]}
    chart = bar_chart(
        "bytes of the last marks", [f"{one.at:%d %b}" for one in shown], series, stacked=False
    )
    return html.Section(
        "History of runs", html.Table(("marked on", "marked", "deleted"), mark_rows(marks)), [chart]
    )


def _outcomes(found: dict[str, Any]) -> list[tuple[str, int, str]]:
    outcomes = [
        (name.replace("_", " "), total["objects"], human_bytes(total["bytes"]))
        for name, total in sorted(found["outcomes"].items())
    ]
    outcomes += [
        (f"of the deleted: {words}", objects, human_bytes(size))
        for words, objects, size in space_lines(found["space"] or NO_SPACE)
    ]
    if found["deleted_or_missing"]:
        outcomes.append((f"of these {DELETED_OR_MISSING}", found["deleted_or_missing"], ""))
    if back := found["restored"]:
        outcomes.append(("restored since", back["objects"], human_bytes(back["bytes"])))
    return outcomes


def _places(found: dict[str, Any], lakefs: LakeFSConfig) -> list[tuple[object, object]]:
    places: list[tuple[object, object]] = [
        ("mark", found["mark_url"]),
        ("artifacts", found["artifacts"]),
        ("engine", found["engine"]),
        ("backup", found["backup"]),
        ("undo", found["undo"]),
        ("space", found["space"]["notice"] if found["space"] else None),
    ]
    places += commands_of(found)
    places += [
        (what, html.Link(url, url)) for what, url in pages(lakefs, found["repository"]).items()
    ]
    return [(what, place) for what, place in places if place is not None]


def _section(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> html.Section:
    return html.Section(title, html.Table(columns, list(rows)))
