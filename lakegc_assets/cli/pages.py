"""The pages of ``lakegc report --html``: one run of a repository, or all repositories."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import dagster as dg

from lakegc_assets.cli import html
from lakegc_assets.cli.jobs import open_instance
from lakegc_assets.cli.queries import Site, commands_of, kept_because, outcome
from lakegc_assets.definitions import component
from lakegc_assets.defs import pictures
from lakegc_assets.defs.due import schedules_on
from lakegc_assets.defs.estate import COLUMNS, Overview, Row, overview
from lakegc_assets.defs.links import pages
from lakegc_assets.defs.metadata import slice_ages
from lakegc_assets.defs.names import REPOSITORY
from lakegc_assets.defs.units import human_bytes
from lakegc_assets.errors import ConfigurationError, LakegcError
from lakegc_assets.estate.history import MarkFigures, marks_over_time
from lakegc_assets.estate.run_state import DELETED_OR_MISSING, ON_HOLD, STOPPED
from lakegc_assets.estate.standing import PERSON
from lakegc_assets.lakefs.config import LakeFSConfig
from lakegc_assets.lakefs.reads import utc_now
from lakegc_assets.storage.output import write_file
from lakegc_assets.wording import counted

#: Is shown below the state.
_BECAUSE: Final = "because"
_TOTAL: Final = ("", "objects", "size")


def write_run(path: Path, repository: str, run: str) -> dict[str, Any]:
    """Write the page of one run, and give what it says as JSON values.

    Raises:
        RefusedError: there is no such run, or its mark did not finish.
        IntegrityError: its artifacts are damaged.
        ConfigurationError: the file cannot be written.
    """
    found = outcome(repository, run)
    site = Site.defined()
    marks = marks_over_time(site.root, repository)
    write_file(path, page_of_run(found, site.lakefs, marks).encode())
    return found


def write_estate(path: Path) -> list[dict[str, Any]]:
    """Write the page of all repositories, and give its rows as JSON values.

    Raises:
        ConfigurationError: the settings are wrong, or the file cannot be written.
    """
    site = Site.defined()
    found = look(site)
    write_file(path, page_of_estate(found, site.lakefs).encode())
    return [row.to_json() for row in found.rows]


def look(site: Site) -> Overview:
    """All repositories that lakeFS, Dagster or the artifacts know."""
    names_of, policies = component().names(), component().policies()
    names: set[str] = set()
    notes = []
    on: dict[str, Sequence[str]] = {}
    try:
        names |= {repository.id for repository in site.lakefs.connect().repositories()}
    except LakegcError as error:
        notes.append(f"lakeFS does not tell its repositories ({error}): some may not be shown")
    try:
        with open_instance() as instance:
            names |= set(instance.get_dynamic_partitions(names_of.of(REPOSITORY)))
            on = schedules_on(instance)
    except (ConfigurationError, dg.DagsterError) as error:
        notes.append(f"Dagster does not tell which schedules are on: {error}")
    found = overview(site.root, names, policies, on, names_of, utc_now())
    return Overview(found.rows, found.at, [*notes, *found.notes])


# All repositories


def page_of_estate(found: Overview, lakefs: LakeFSConfig) -> str:
    """The page of all repositories, as HTML.

    Args:
        found: all of them.
        lakefs: the server that links lead to.
    """
    figures = found.figures()
    about = (
        f"{counted(figures['repositories'], 'repository', 'repositories')}, "
        f"{human_bytes(figures['bytes stored'])} stored, "
        f"{human_bytes(figures['bytes of garbage'])} of garbage, "
        f"{human_bytes(figures['bytes freed'])} freed. As of {found.at:%Y-%m-%d %H:%M} UTC"
    )
    picture = found.by_week()
    return html.page(
        "Garbage collection of all repositories",
        about,
        *_warnings(found.notes),
        html.element("h2", "Repositories"),
        _repositories(found.rows, lakefs) if found.rows else html.element("p", "There are none."),
        *_picture("Bytes freed by repository and week", picture),
        *_picture("Bytes freed by week, of each repository", found.of_each()),
    )


def _repositories(rows: Sequence[Row], lakefs: LakeFSConfig) -> html.Markup:
    """A row for each repository; without columns that are empty in all of them."""
    cells = [dict(zip(COLUMNS, row.cells(), strict=True)) for row in rows]
    columns = [name for name in COLUMNS if name != _BECAUSE and any(one[name] for one in cells)]
    shown = []
    for one in cells:
        links = [html.link(what, url) for what, url in pages(lakefs, one["repository"]).items()]
        kind = "state person" if one["state"] in PERSON else "state"
        first = {
            "repository": html.lines(one["repository"], *links),
            "state": html.element(
                "div",
                html.lines(html.element("span", one["state"], class_=kind), one[_BECAUSE]),
                class_="long",
            ),
            **{name: _each(*one[name].split(", ")) for name in ("owners", "tags")},
            **{name: _date(one[name]) for name in ("last mark", "last sweep", "next run")},
        }
        shown.append([first.get(name, one[name]) for name in columns])
    return html.table(columns, shown)


def _date(moment: str) -> html.Markup:
    """A date above its time; other words as they are."""
    if not moment[:1].isdecimal():
        return html.escaped(moment)
    date, _, time = moment.partition(" ")
    return _each(date, time)


def _each(*parts: str) -> html.Markup:
    """Each on a line of its own that is not broken."""
    return html.lines(*(html.element("span", part, class_="line") for part in parts))


# One run


def page_of_run(
    found: dict[str, Any], lakefs: LakeFSConfig, marks: Sequence[MarkFigures] = ()
) -> str:
    """The page of one run, as HTML.

    Args:
        found: what ``outcome`` says.
        lakefs: the server that links lead to.
        marks: all of the repository, the oldest first.
    """
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
    return html.page(
        f"Garbage collection of {found['repository']}",
        f"Mark {found['run']}{mode}, {state}. Cutoff {cutoff:%Y-%m-%d %H:%M} UTC",
        *_warnings(warnings),
        *_section("Objects", _TOTAL, _totals(found)),
        *_section("Garbage by reason", _TOTAL, _by(rows, "reason")),
        *_section("Garbage by branch rule", _TOTAL, _by(rows, "branch rule")),
        *_section("Garbage by age of its slice", _TOTAL, slice_ages(rows)),
        *_picture("Bytes freed against age", pictures.of_ages(rows)),
        *_picture("Bytes of the last marks", pictures.of_marks(marks)),
        *_section("Kept by the mark", ("why", "objects"), kept_because(found)),
        *_section("What became of it", _TOTAL, _outcomes(found)),
        *_section("Spared by the sweep", ("why", "objects"), found["spared_by_sweep"].items()),
        *_section("Largest", ("path", "size", "reason", "address"), largest),
        *_section("Checks", ("check", "what was found"), sorted(found["checks"].items())),
        *_section("Where", ("", ""), _places(found, lakefs)),
    )


def _totals(found: dict[str, Any]) -> list[tuple[str, int, str]]:
    listed, garbage = found["listed"], found["objects"]
    listed_bytes, garbage_bytes = found["listed_bytes"], found["bytes"]
    return [
        ("listed", listed, human_bytes(listed_bytes)),
        ("kept", listed - garbage, human_bytes(listed_bytes - garbage_bytes)),
        ("garbage", garbage, human_bytes(garbage_bytes)),
    ]


def _by(rows: Sequence[Sequence[Any]], dimension: str) -> list[tuple[str, int, str]]:
    return [(key, objects, human_bytes(size)) for name, key, objects, size in rows
            if name == dimension]  # fmt: skip


def _outcomes(found: dict[str, Any]) -> list[tuple[str, int, str]]:
    outcomes = [
        (name.replace("_", " "), total["objects"], human_bytes(total["bytes"]))
        for name, total in sorted(found["outcomes"].items())
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
    ]
    places += commands_of(found)
    places += [
        (what, html.link(url, url)) for what, url in pages(lakefs, found["repository"]).items()
    ]
    return [(what, place) for what, place in places if place is not None]


# Parts of pages


def _section(title: str, columns: Sequence[str], rows: Any) -> list[html.Markup]:  # noqa: ANN401 - rows of many kinds
    shown = list(rows)
    return [html.element("h2", title), html.table(columns, shown)] if shown else []


def _picture(title: str, png: bytes | None) -> list[html.Markup]:
    if png is None:
        return []
    return [html.element("h2", title), html.image(title, pictures.data_url(png))]


def _warnings(said: Sequence[str]) -> list[html.Markup]:
    return [html.element("p", one, class_="warning") for one in said]
