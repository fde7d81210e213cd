"""Renders one HTML file that needs nothing else: no network, no scripts, and all text escaped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from lakegc_assets.cli.charts import Chart

#: Whatever got into a page by mistake, a browser fetches nothing and runs nothing.
_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
)


@dataclass(frozen=True)
class Link:
    """A link to a page; text alone where it would lead anywhere but to a web server."""

    what: str
    url: str

    @property
    def leads_out(self) -> bool:
        """Return whether the URL is one of a web server."""
        return self.url.startswith(("http://", "https://"))


@dataclass(frozen=True)
class Lines:
    """Cells below each other."""

    parts: Sequence[object]


@dataclass(frozen=True)
class State:
    """A state with its sentence; marked where a person has to do something."""

    name: str
    because: str
    person: bool


@dataclass(frozen=True)
class Tile:
    """A figure: what it is of, and what else is to be said of it."""

    what: str
    figure: str
    more: str = ""


@dataclass(frozen=True)
class Table:
    """A table of text, whole numbers (to the right), links, lines and states.

    With ``cards``, each row is a card of its own on a narrow screen.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    cards: bool = False


@dataclass(frozen=True)
class Section:
    """A part of a page with a title; it is left out where it shows nothing."""

    title: str
    table: Table | None = None
    charts: Sequence[Chart | None] = ()
    notes: Sequence[str] = ()

    @property
    def drawn(self) -> list[Chart]:
        """The charts that there are."""
        return [one for one in self.charts if one is not None]

    @property
    def shows(self) -> bool:
        """Return whether it has any content."""
        return bool((self.table and self.table.rows) or self.drawn or self.notes)


def page(
    title: str,
    about: str,
    sections: Sequence[Section],
    *,
    warnings: Sequence[str] = (),
    tiles: Sequence[Tile] = (),
) -> str:
    """A whole page: title, a sentence about it, warnings, figures that matter most, sections."""
    return (
        _environment()
        .get_template("base.html")
        .render(
            title=title,
            about=about,
            warnings=warnings,
            tiles=tiles,
            sections=[one for one in sections if one.shows],
            policy=_POLICY,
        )
    )


def printable(value: object) -> object:
    """Text in which what cannot be printed is written as Python would write it."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in value)


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("lakegc_assets.cli"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.tests["link"] = lambda value: isinstance(value, Link)
    made.tests["lines"] = lambda value: isinstance(value, Lines)
    made.tests["state"] = lambda value: isinstance(value, State)
    return made
