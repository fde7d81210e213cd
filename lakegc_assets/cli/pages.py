"""The files of ``lakegc report --html``; and the page of all repositories."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import dagster as dg

from lakegc_assets.cli import html
from lakegc_assets.cli.charts import Chart, bar_chart
from lakegc_assets.cli.jobs import open_instance
from lakegc_assets.cli.queries import outcome
from lakegc_assets.cli.run_page import insights_of, page_of_run
from lakegc_assets.cli.site import Site
from lakegc_assets.definitions import component
from lakegc_assets.defs.automation_state import schedules_on
from lakegc_assets.defs.estate import overview
from lakegc_assets.defs.metadata import pages
from lakegc_assets.defs.names import REPOSITORY
from lakegc_assets.errors import ConfigurationError, LakegcError
from lakegc_assets.estate.history import freed_by_week, largest, last_weeks, marks_over_time
from lakegc_assets.estate.overview import COLUMNS, Overview, Row
from lakegc_assets.lakefs.client import utc_now
from lakegc_assets.lakefs.config import LakeFSConfig
from lakegc_assets.storage.files import write_file
from lakegc_assets.wording import a_month, counted, human_bytes, price_note

#: Is shown below the state.
_BECAUSE: Final = "because"
#: Repositories that have a chart of their own.
_EACH: Final = 12


def write_run(
    path: Path, repository: str, run: str, *, price: float | None = None, forecasting: bool = True
) -> dict[str, Any]:
    """Write the page of one run, and give what it says as JSON values."""
    found = outcome(repository, run)
    site = Site.defined()
    marks = marks_over_time(site.root, repository)
    more = insights_of(repository, run, forecasting=forecasting)
    if price is None:
        price = component().policies().of(repository).price_per_tb_month
    page = page_of_run(found, site.lakefs, marks, more, price)
    write_file(path, page.encode())
    return found


def write_estate(path: Path, *, price: float | None = None) -> list[dict[str, Any]]:
    """Write the page of all repositories, and give its rows as JSON values."""
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
    """The figures of the last ``estate_leftovers`` that Dagster has; none where there is none."""
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
    names: set[str] = set()
    notes = []
    on: dict[str, Sequence[str]] = {}
    try:
        names |= {repository.id for repository in site.lakefs.connect().repositories()}
    except LakegcError as error:
        notes.append(f"lakeFS does not list its repositories ({error}): some may not be shown")
    try:
        with open_instance() as instance:
            names |= set(instance.get_dynamic_partitions(names_of.of(REPOSITORY)))
            on = schedules_on(instance)
    except (ConfigurationError, dg.DagsterError) as error:
        notes.append(f"Dagster does not tell which schedules are on: {error}")
    found = overview(site.root, names, policies, on, names_of, utc_now())
    return Overview(found.rows, found.at, [*notes, *found.notes])


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
            ("freed by all sweeps", "bytes freed", lambda row: row.freed),
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
            html.Section("Bytes freed by week", charts=_weeks(found)),
            html.Section("Left over", html.Table(("what", "figure"), left)),
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
    """All repositories together, and those that freed most, each by itself."""
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
) -> html.Table:
    """A row for each repository; without columns that are empty in all of them."""
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
    return html.Table(columns, [[one[name] for name in columns] for one in cells], cards=True)


def _date(moment: str) -> object:
    """A date above its time; other words as they are."""
    if not moment[:1].isdecimal():
        return moment
    date, _, time = moment.partition(" ")
    return html.Lines((date, time))
