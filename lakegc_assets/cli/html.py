"""Renders HTML pages of one file: no network, no scripts, and all text is escaped.

The templates draw charts as SVG. All charts are bars in percent of their box, so that the browser
sets their size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from lakegc_assets.estate.tables import Table
from lakegc_assets.wording import escaped, human_bytes

#: Even if other content got into a page by mistake, a browser fetches nothing and runs nothing.
_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
)
#: Number of colours in the style sheet; all further parts have the last one.
COLOURS: Final = 8
#: Lines of the grid above its floor, and most names along the axis.
_GRID: Final = 4
_NAMES: Final = 4
#: Number of bars from which on they touch: gaps would be thinner than a pixel.
_MANY: Final = 60


@dataclass(frozen=True)
class Link:
    """A link to a page; plain text if the URL is not one of a web server."""

    what: str
    url: str

    @property
    def leads_out(self) -> bool:
        """True if the URL is one of a web server."""
        return self.url.startswith(("http://", "https://"))


@dataclass(frozen=True)
class Lines:
    """Cells below each other."""

    parts: Sequence[object]


@dataclass(frozen=True)
class State:
    """A state with its sentence, marked if a person has to act."""

    name: str
    because: str
    person: bool


@dataclass(frozen=True)
class Tile:
    """A figure with its label and a note."""

    what: str
    figure: str
    more: str = ""


@dataclass(frozen=True)
class Bar:
    """A rectangle, in percent of its chart, and the text that a pointer on it shows."""

    x: float
    y: float
    width: float
    height: float
    colour: int
    title: str


@dataclass(frozen=True)
class Chart:
    """Bars, with the labels of the grid lines and of the axis.

    Attributes:
        title: of the chart.
        bars: in the order in which they are drawn.
        grid: sizes at the grid lines, from the top to the floor; empty without a grid.
        names: positions on the axis, in percent, with their names.
        legend: names with their colours; empty with only one colour.
    """

    title: str
    bars: Sequence[Bar]
    grid: Sequence[str] = ()
    names: Sequence[tuple[float, str]] = ()
    legend: Sequence[tuple[str, int]] = ()


@dataclass(frozen=True)
class Section:
    """A part of a page with a title; it is omitted if it has no content."""

    title: str
    table: Table | None = None
    charts: Sequence[Chart | None] = ()
    notes: Sequence[str] = ()

    @property
    def drawn(self) -> list[Chart]:
        """The charts that are not None."""
        return [one for one in self.charts if one is not None]

    @property
    def shows(self) -> bool:
        """True if the section has any content."""
        return bool((self.table and self.table.rows) or self.drawn or self.notes)


def page(
    title: str,
    about: str,
    sections: Sequence[Section],
    *,
    warnings: Sequence[str] = (),
    tiles: Sequence[Tile] = (),
) -> str:
    """A whole page: title, a sentence about it, warnings, the main figures, and sections."""
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


def _escaped(value: object) -> object:
    return escaped(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("lakegc_assets.cli"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_escaped,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.tests["link"] = lambda value: isinstance(value, Link)
    made.tests["lines"] = lambda value: isinstance(value, Lines)
    made.tests["state"] = lambda value: isinstance(value, State)
    return made


# Charts


def share_chart(title: str, rows: Sequence[tuple[str, int]]) -> Chart | None:
    """One bar with the shares of names in bytes, the largest first; None if there are no bytes."""
    whole = sum(size for _, size in rows)
    if not whole:
        return None
    bars, x = [], 0.0
    for number, (name, size) in enumerate(rows):
        width = 100 * size / whole
        said = f"{name}: {human_bytes(size)}, {width:.1f} %"
        bars.append(Bar(x, 0, width, 100, _colour(number), said))
        x += width
    return Chart(title, bars, legend=_legend(name for name, _ in rows))


def bar_chart(
    title: str, names: Sequence[str], series: Mapping[str, Sequence[int]], *, stacked: bool = True
) -> Chart | None:
    """Bars of bytes at named places on the axis, by series; None if there are no bytes.

    The bars at a place are stacked; otherwise later series are drawn in front of earlier ones.
    """
    columns = list(zip(*series.values(), strict=True))
    most = max((sum(one) if stacked else max(one) for one in columns), default=0)
    if not most:
        return None
    step, gap = 100 / len(names), 0.0 if len(names) > _MANY else 0.2
    bars = []
    for place, (name, column) in enumerate(zip(names, columns, strict=True)):
        floor = 0.0
        for number, (of, size) in enumerate(zip(series, column, strict=True)):
            if not size:
                continue
            wide, height = step * (1 - gap if stacked or not number else 0.5), 100 * size / most
            x = step * place + (step - wide) / 2
            said = f"{name}, {of}: {human_bytes(size)}" if of else f"{name}: {human_bytes(size)}"
            bars.append(Bar(x, 100 - floor - height, wide, height, _colour(number), said))
            floor += height if stacked else 0
    places = [(step * (place + 0.5), name) for place, name in enumerate(names)]
    # The last name is always shown, and the others at equal distances before it.
    some = places[:: -(1 + (len(places) - 1) // (_NAMES - 1))]
    grid = [human_bytes(most * part // _GRID) for part in range(_GRID, -1, -1)]
    return Chart(title, bars, grid, some, _legend(series) if len(series) > 1 else ())


def _legend(names: Iterable[str]) -> list[tuple[str, int]]:
    return [(name, _colour(number)) for number, name in enumerate(names)]


def _colour(number: int) -> int:
    return min(number, COLOURS - 1)
