"""The page of one run: what its mark found, whose the storage is, and what became of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from lakegc_assets.attribution.attribution import ASSET
from lakegc_assets.attribution.usage import Use, usage
from lakegc_assets.cli import html
from lakegc_assets.cli.charts import Chart, bar_chart, curve_chart, share_chart
from lakegc_assets.cli.queries import commands_of, kept_because
from lakegc_assets.cli.site import repository_context, run_context
from lakegc_assets.defs.asset_metadata import slice_ages
from lakegc_assets.defs.metadata import pages
from lakegc_assets.defs.units import a_month, human_bytes, price_note
from lakegc_assets.errors import LakegcError
from lakegc_assets.estate.history import MarkFigures
from lakegc_assets.estate.run_state import DELETED_OR_MISSING, ON_HOLD, STOPPED
from lakegc_assets.forecast.change import Change
from lakegc_assets.forecast.forecast import Forecast, forecast
from lakegc_assets.lakefs.config import LakeFSConfig
from lakegc_assets.run.command_line import command_line
from lakegc_assets.sweep.space import NO_SPACE, space_lines
from lakegc_assets.wording import counted

_TOTAL: Final = ("", "objects", "size")
#: Rows of tables that show the largest or the last only.
_TOP: Final = 10
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
        forecast: what today's rules free with another default, and in time; None where nobody can
            tell.
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
    paths = found.get("largest_paths", {})
    largest = [
        (paths.get(address, "not known"), human_bytes(size), why, address)
        for address, size, why in found["largest"]
    ]
    sections = [
        *_insights(more, price),
        _section("Garbage by reason", _TOTAL, _by(rows, "reason")),
        _section("Garbage by branch rule", _TOTAL, _by(rows, "branch rule")),
        _section("Garbage by age of its slice", _TOTAL, slice_ages(rows)),
        html.Section("Bytes freed against age, in days", charts=[_ages(rows)]),
        _history(marks),
        _section("Kept by the mark", ("why", "objects"), kept_because(found)),
        _section("What became of it", _TOTAL, _outcomes(found)),
        _section("Spared by the sweep", ("why", "objects"), found["spared_by_sweep"].items()),
        html.Section("Largest", html.Table(("path", "size", "reason", "address"), largest, True)),
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
    money = ("a month",) if price is not None else ()

    def cost(size: int) -> tuple[str, ...]:
        return (a_month(size, price),) if money else ()

    classes = [
        (f"{name}: {why}" if why else name, objects, size)
        for name, why, objects, size in more.classes
    ]
    return [
        html.Section(
            "What is stored",
            html.Table(
                ("class", "objects", "size", *money),
                [(name, n, human_bytes(size), *cost(size)) for name, n, size in classes],
                cards=True,
            ),
            [share_chart("classes of all that was listed", [(c[0], c[2]) for c in classes])],
            notes=[*more.covers, *price_note(price), *more.problems],
        ),
        html.Section(
            "Top branches",
            html.Table(
                ("branch", "only this one", "shared", "deleting it frees", *money),
                [_branch(one, cost) for one in more.branches[:_TOP]],
                cards=True,
            ),
        ),
        _section(
            "Top prefixes",
            ("prefix", "objects", "size", *money),
            [
                (one.key, one.objects, human_bytes(one.bytes), *cost(one.bytes))
                for one in more.paths[:_TOP]
            ],
        ),
        *_forecast(more.forecast, cost),
    ]


def _branch(one: Use, cost: Callable[[int], tuple[str, ...]]) -> tuple[object, ...]:
    only = 0 if one.only is None else one.only[1]
    freed = None if one.freed is None else one.freed[1]
    return (
        one.key,
        human_bytes(only),
        human_bytes(one.bytes - only),
        "" if freed is None else human_bytes(freed),
        *cost(freed or 0),
    )


def _forecast(found: Forecast | None, cost: Callable[[int], tuple[str, ...]]) -> list[html.Section]:
    if found is None:
        return []
    curve = curve_chart(
        "garbage with another default retention",
        [(days, one.bytes) for days, one in found.curve.items()],
        "days",
    )
    days = found.rules.default_retention_days
    rows = [(f"today, default {counted(days, 'day')}", found.today)]
    rows += [(f"in {counted(n, 'day')}, if nobody writes", one) for n, one in found.later.items()]
    columns = ("garbage", "objects", "size", "bound", *(("a month",) if cost(0) else ()))
    table = html.Table(
        columns,
        [
            (what, one.objects, human_bytes(one.bytes), one.bound, *cost(one.bytes))
            for what, one in rows
        ],
        cards=True,
    )
    return [html.Section("Forecast", table, [curve], found.notes)]


def _ages(rows: Sequence[Sequence[Any]]) -> Chart | None:
    width, freed = by_age(rows)
    names = [f"{bar * width}" for bar in range(len(freed))]
    title = f"days, {width} to a bar" if width > 1 else "days"
    return bar_chart(title, names, {"": freed}) if freed else None


def by_age(rows: Iterable[Sequence[Any]]) -> tuple[int, list[int]]:
    """Days that a bar stands for, and the bytes of each bar; no bars where there is nothing.

    Args:
        rows: of the breakdown of a report: dimension, key, objects, bytes.
    """
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
    rows = [
        (f"{one.at:%Y-%m-%d %H:%M}", human_bytes(one.marked), human_bytes(one.deleted))
        for one in reversed(shown[-_TOP:])
    ]
    return html.Section(
        "History of runs", html.Table(("marked on", "marked", "deleted"), rows), [chart]
    )


def _by(rows: Sequence[Sequence[Any]], dimension: str) -> list[tuple[str, int, str]]:
    return [(key, objects, human_bytes(size)) for name, key, objects, size in rows
            if name == dimension]  # fmt: skip


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
