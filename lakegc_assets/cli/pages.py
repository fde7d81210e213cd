"""The pages of ``lakegc report --html``: of one run, and of all repositories."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import dagster as dg

from lakegc_assets.attribution.attribution import ASSET
from lakegc_assets.attribution.usage import Use, usage
from lakegc_assets.cli import html
from lakegc_assets.cli.html import Chart, bar_chart, share_chart
from lakegc_assets.cli.jobs import open_instance
from lakegc_assets.cli.site import Site, names_on, outcome, repository_context, run_context
from lakegc_assets.definitions import component
from lakegc_assets.defs.automation_state import schedules_on
from lakegc_assets.defs.estate import COLUMNS, Overview, Row, overview
from lakegc_assets.defs.metadata import pages
from lakegc_assets.defs.names import REPOSITORY
from lakegc_assets.errors import ConfigurationError, LakegcError
from lakegc_assets.estate.run_outcome import (
    commands_of,
    done_by_sweep,
    kept_because,
    places,
    totals,
)
from lakegc_assets.estate.run_state import ON_HOLD, STOPPED
from lakegc_assets.estate.tables import (
    MarkFigures,
    Table,
    class_name,
    costs,
    freed_by_week,
    largest,
    last_weeks,
    marks_over_time,
    report_tables,
    storage_tables,
)
from lakegc_assets.forecast.forecast import Forecast, forecast
from lakegc_assets.forecast.proposed_rules import Change
from lakegc_assets.lakefs.client import utc_now
from lakegc_assets.lakefs.config import LakeFSConfig
from lakegc_assets.run.command_line import command_line
from lakegc_assets.storage.files import write_file
from lakegc_assets.wording import a_month, counted, human_bytes, price_note

#: Most bars of a chart of ages.
_BARS: Final = 50
#: Column that is shown below the state.
_BECAUSE: Final = "because"
#: Most repositories with a chart of their own.
_EACH: Final = 12


def write_run(
    path: Path, repository: str, run: str, *, price: float | None = None, forecasting: bool = True
) -> dict[str, Any]:
    """Write the page of one run, and return its content as JSON values."""
    found = outcome(repository, run)
    site = Site.defined()
    marks = marks_over_time(site.root, repository)
    if price is None:
        price = component().policies().of(repository).price_per_tb_month
    insights = insights_of(repository, run, price, forecasting=forecasting)
    page = page_of_run(found, site.lakefs, marks, insights, price)
    write_file(path, page.encode())
    return found


def write_estate(path: Path, *, price: float | None = None) -> list[dict[str, Any]]:
    """Write the page of all repositories, and return its rows as JSON values."""
    site, policies = Site.defined(), component().policies()
    found = look(site)
    prices = {
        name: policies.of(name).price_per_tb_month if price is None else price
        for name in (row.standing.repository for row in found.rows)
    }
    page = page_of_estate(found, site.lakefs, prices, last_leftovers())
    write_file(path, page.encode())
    return [row.to_json() for row in found.rows]


def last_leftovers() -> Mapping[str, int]:
    """The figures of the last ``estate_leftovers`` in Dagster; empty if there is none."""
    try:
        with open_instance() as instance:
            event = instance.get_latest_materialization_event(
                component().names().key("estate_leftovers")
            )
    except (ConfigurationError, dg.DagsterError):
        return {}
    made = event.asset_materialization if event is not None else None
    values = {} if made is None else {n: one.value for n, one in made.metadata.items()}
    return {name: value for name, value in values.items() if isinstance(value, int)}


def look(site: Site) -> Overview:
    """All repositories that lakeFS, Dagster or the artifacts know."""
    names_of, policies = component().names(), component().policies()
    names, notes = names_on(site.lakefs)
    on: dict[str, Sequence[str]] = {}
    try:
        with open_instance() as instance:
            names |= set(instance.get_dynamic_partitions(names_of.of(REPOSITORY)))
            on = schedules_on(instance)
    except (ConfigurationError, dg.DagsterError) as error:
        notes.append(f"Dagster does not show which schedules are on: {error}")
    found = overview(site.root, names, policies, on, names_of, utc_now())
    return Overview(found.rows, found.at, [*notes, *found.notes])


# One run


def insights_of(
    repository: str, run: str, price: float | None, *, forecasting: bool
) -> list[html.Section]:
    """Storage and a forecast, from the data of a mark; an unavailable part becomes a note."""
    classes: Sequence[Sequence[Any]] = ()
    branches: Sequence[Use] = ()
    paths: Sequence[Use] = ()
    covers, problems, forecasts = [], [], []
    try:
        ctx = run_context(repository, run)
        if ctx.root.attempt(repository, run).has(ASSET):
            by_branch, by_path = usage(ctx, "branch", 1), usage(ctx, "path", 1)
            branches, paths = by_branch.rows, by_path.rows
            classes, covers = by_branch.facts["classes"], by_branch.facts["covers"]
        else:
            how = command_line("usage", repository, "--run", run)
            problems.append(f"the storage of this mark is not attributed yet: run `{how}`")
    except LakegcError as error:
        problems.append(f"the storage cannot be attributed: {error}")
    if forecasting:
        try:
            found = forecast(repository_context(repository, run), Change(), run)
            forecasts.append(forecast_section(found, price))
        except LakegcError as error:
            problems.append(f"there is no forecast: {error}")
    notes = [*covers, *price_note(price), *problems]
    return [*storage_sections(classes, branches, paths, price, notes), *forecasts]


def page_of_run(
    found: dict[str, Any],
    lakefs: LakeFSConfig,
    marks: Sequence[MarkFigures] = (),
    insights: Sequence[html.Section] = (),
    price: float | None = None,
) -> str:
    """The page of one run, as HTML; ``insights`` (from ``insights_of``) come first."""
    tables = report_tables(found, marks)
    state = found["swept_on"] or found["state"]
    if back := found["restored"]:
        state += f", {back['summary']}"
    warnings = list(found["warnings"])
    if found["state"] in {STOPPED, ON_HOLD}:
        warnings.insert(0, f"{found['state']}: {found['because']}")
    mode = "" if found["mode"] == "unified" else f" ({found['mode']})"
    cutoff = datetime.fromisoformat(found["cutoff"])
    sections = [
        *insights,
        html.Section("Garbage by reason", tables["by reason"]),
        html.Section("Garbage by branch rule", tables["by branch rule"]),
        html.Section("Garbage by age of its slice", tables["by slice age"]),
        html.Section("Bytes of garbage by age, in days", charts=[_ages(found["breakdown"])]),
        html.Section("History of runs", tables["last marks"], [_history(marks)]),
        html.Section("Kept by the mark", Table(("why", "objects"), kept_because(found))),
        html.Section("What became of it", Table(("outcome", "objects", "size"), _outcomes(found))),
        html.Section("Largest", tables["largest"]),
        html.Section("Checks", Table(("check", "what was found"), sorted(found["checks"].items()))),
        html.Section("Where", Table(("", ""), _places(found, lakefs))),
    ]
    return html.page(
        f"Garbage collection of {found['repository']}",
        f"Mark {found['run']}{mode}, {state}. Cutoff {cutoff:%Y-%m-%d %H:%M} UTC",
        sections,
        warnings=warnings,
        tiles=_tiles(found, price),
    )


def _tiles(found: dict[str, Any], price: float | None) -> list[html.Tile]:
    rows = totals(found)
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


def storage_sections(
    classes: Sequence[Sequence[Any]],
    branches: Sequence[Use],
    paths: Sequence[Use],
    price: float | None,
    notes: Sequence[str],
) -> list[html.Section]:
    """Attributed storage; for the arguments see ``storage_tables``."""
    classes = sorted(classes, key=lambda row: -row[3])
    tables = storage_tables(classes, branches, paths, price)
    shares = [(class_name(name, why), size) for name, why, _, size in classes]
    chart = share_chart("classes of all that was listed", shares)
    return [
        html.Section("What is stored", tables["classes"], [chart], notes=notes),
        html.Section("Top branches", tables["top branches"]),
        html.Section("Top prefixes", tables["top prefixes"]),
    ]


def forecast_section(found: Forecast, price: float | None) -> html.Section:
    """A forecast under today's rules; with a price, also in money."""
    names = [counted(days, "day") for days in found.curve]
    sizes = [one.bytes for one in found.curve.values()]
    curve = bar_chart("garbage with another default retention", names, {"": sizes})
    days = counted(found.rules.default_retention_days, "day")
    amounts = {f"today, default {days}": found.today} | {
        f"in {counted(n, 'day')}, if nobody writes": one for n, one in found.later.items()
    }
    rows = [
        (what, one.objects, human_bytes(one.bytes), one.bound, *costs(one.bytes, price))
        for what, one in amounts.items()
    ]
    columns = ("garbage", "objects", "size", "bound", *(() if price is None else ("a month",)))
    return html.Section("Forecast", Table(columns, rows, cards=True), [curve], found.notes)


def _ages(rows: Sequence[Sequence[Any]]) -> Chart | None:
    """The bytes of garbage by age; if there are many days, a bar covers several of them."""
    ages = [(int(key), size) for name, key, _, size in rows if name == "age in days"]
    if not ages:
        return None
    oldest = max(age for age, _ in ages)
    width = 1 + oldest // _BARS
    freed = [0] * (oldest // width + 1)
    for age, size in ages:
        freed[age // width] += size
    names = [f"{bar * width}" for bar in range(len(freed))]
    return bar_chart(f"days, {width} to a bar" if width > 1 else "days", names, {"": freed})


def _history(marks: Sequence[MarkFigures]) -> Chart | None:
    """The bytes of the last marks and their sweeps."""
    series = {"marked": [one.marked for one in marks], "deleted": [one.deleted for one in marks]}
    names = [f"{one.at:%d %b}" for one in marks]
    return bar_chart("bytes of the last marks", names, series, stacked=False)


def _outcomes(found: dict[str, Any]) -> list[tuple[str, int, str]]:
    return [
        (
            f"of the {outcome}: {part}" if part else outcome,
            objects,
            "" if size is None else human_bytes(size),
        )
        for outcome, part, objects, size in done_by_sweep(found)
    ]


def _places(found: dict[str, Any], lakefs: LakeFSConfig) -> list[tuple[str, object]]:
    links = pages(lakefs, found["repository"])
    linked = ((what, html.Link(url, url)) for what, url in links.items())
    return [*places(found), *commands_of(found), *linked]


# All repositories


def page_of_estate(
    found: Overview,
    lakefs: LakeFSConfig,
    prices: Mapping[str, float | None] | None = None,
    leftovers: Mapping[str, int] | None = None,
) -> str:
    """The page of all repositories, as HTML."""
    figures, prices = found.figures(), prices or {}
    count = counted(figures["repositories"], "repository", "repositories")
    tiles = [
        html.Tile(what, human_bytes(figures[name]), _summed(found.rows, prices, of))
        for what, name, of in (
            ("stored", "bytes stored", lambda row: row.standing.size),
            ("garbage", "bytes of garbage", lambda row: row.standing.garbage_size),
            ("deleted by all sweeps", "bytes freed", lambda row: row.freed),
        )
    ]
    person = sum(row.needs_person for row in found.rows)
    tiles.append(html.Tile("need a person", f"{person:,}", f"of {count}"))
    named = {price for price in prices.values() if price is not None}
    notes = price_note(named.pop()) if len(named) == 1 else []
    left = [
        (name, human_bytes(value) if name.startswith("bytes") else f"{value:,}")
        for name, value in (leftovers or {}).items()
    ]
    return html.page(
        "Garbage collection of all repositories",
        f"{count}. As of {found.at:%Y-%m-%d %H:%M} UTC",
        [
            html.Section(
                "Repositories",
                _repositories(found.rows, lakefs, prices),
                notes=notes if found.rows else ["There are none."],
            ),
            html.Section("Bytes deleted by week", charts=_weeks(found)),
            html.Section("Left over", Table(("what", "figure"), left)),
        ],
        warnings=found.notes,
        tiles=tiles,
    )


def _summed(
    rows: Sequence[Row],
    prices: Mapping[str, float | None],
    size_of: Callable[[Row], int | None],
) -> str:
    """The monthly cost of all repositories with a price; empty without any."""
    priced = [(row, prices.get(row.standing.repository)) for row in rows]
    costs = [(size_of(row) or 0) * price for row, price in priced if price is not None]
    return a_month(round(sum(costs)), 1.0) if costs else ""


def _weeks(found: Overview) -> list[Chart | None]:
    """Charts: all repositories together, and each of those that freed most."""
    weeks = last_weeks(found.at)
    by = freed_by_week(found.freed(), weeks)
    names = [f"{week:%d %b}" for week in weeks]
    shown = {name: [of[week] for week in weeks] for name, of in largest(by)}
    if not shown:
        return []
    each = sorted(by, key=lambda name: (-by[name].total(), name))[:_EACH]
    return [
        bar_chart("all repositories", names, shown),
        *(
            bar_chart(name, names, {"": [by[name][week] for week in weeks]})
            for name in (each if len(by) > 1 else ())
        ),
    ]


def _repositories(
    rows: Sequence[Row], lakefs: LakeFSConfig, prices: Mapping[str, float | None]
) -> Table:
    """One row for each repository, without columns that are empty in all rows."""
    texts = [dict(zip(COLUMNS, row.cells(), strict=True)) for row in rows]
    cells: list[dict[str, Any]] = []
    for row, one in zip(rows, texts, strict=True):
        links = [html.Link(what, url) for what, url in pages(lakefs, one["repository"]).items()]
        garbage, price = row.standing.garbage_size, prices.get(row.standing.repository)
        cost = a_month(garbage or 0, price)
        cells.append(
            {
                **one,
                "repository": html.Lines((one["repository"], *links)),
                "state": html.State(one["state"], one[_BECAUSE], row.needs_person),
                "garbage": html.Lines((one["garbage"], cost)) if cost else one["garbage"],
                **{name: html.Lines(one[name].split(", ")) for name in ("owners", "tags")},
                **{name: _date(one[name]) for name in ("last mark", "last sweep", "next run")},
            }
        )
    columns = [name for name in COLUMNS if name != _BECAUSE and any(one[name] for one in texts)]
    return Table(columns, [[one[name] for name in columns] for one in cells], cards=True)


def _date(moment: str) -> object:
    """A date above its time; other text unchanged."""
    if not moment[:1].isdecimal():
        return moment
    date, _, time = moment.partition(" ")
    return html.Lines((date, time))
