"""Renders one HTML file that needs nothing else: no network, no scripts, and all text escaped.

Charts are drawn as SVG by the templates; here is their geometry, in units of its box.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from lakegc_assets.estate.tables import Table
from lakegc_assets.wording import human_bytes

#: Whatever got into a page by mistake, a browser fetches nothing and runs nothing.
_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
)
#: The box is as wide as a telephone, so that its text is as large there as other text.
WIDTH: Final = 340
HEIGHT: Final = 170
_LEFT: Final = 58
_RIGHT: Final = 8
_TOP: Final = 8
_BOTTOM: Final = 24
#: Colours that the style sheet names; what comes behind them has the last one.
COLOURS: Final = 8
_GRID: Final = 4
_LABELS: Final = 3


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
class Box:
    """A rectangle, with its colour and what it says to a pointer that rests on it."""

    x: float
    y: float
    width: float
    height: float
    colour: int
    title: str


@dataclass(frozen=True)
class Label:
    """Text at a place."""

    x: float
    y: float
    text: str


@dataclass(frozen=True)
class Chart:
    """A chart: boxes of bars or the points of a line, on a grid with labels.

    The legend is empty where there is one colour.
    """

    title: str
    height: float
    boxes: Sequence[Box] = ()
    line: str = ""
    grid: Sequence[Label] = ()
    labels: Sequence[Label] = ()
    legend: Sequence[tuple[str, int]] = ()
    width: float = WIDTH


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


# Charts


def share_chart(title: str, rows: Sequence[tuple[str, int]]) -> Chart | None:
    """One bar of shares, of names and bytes, the largest first; None where there are no bytes."""
    whole = sum(size for _, size in rows)
    if not whole:
        return None
    boxes, x = [], 0.0
    for number, (name, size) in enumerate(rows):
        width = WIDTH * size / whole
        said = f"{name}: {human_bytes(size)}, {100 * size / whole:.1f} %"
        boxes.append(Box(x, 0, width, 28, _colour(number), said))
        x += width
    legend = [(name, _colour(number)) for number, (name, _) in enumerate(rows)]
    return Chart(title, 28, boxes, legend=legend)


def bar_chart(
    title: str, names: Sequence[str], series: Mapping[str, Sequence[int]], *, stacked: bool = True
) -> Chart | None:
    """Bars of bytes at named places on the axis, by what they are of; None without any bytes.

    They are stacked on each other; else the later ones stand before the earlier ones.
    """
    columns = list(zip(*series.values(), strict=True))
    most = max((sum(one) if stacked else max(one) for one in columns), default=0)
    if not most:
        return None
    step = (WIDTH - _LEFT - _RIGHT) / len(names)
    boxes = []
    for place, (name, column) in enumerate(zip(names, columns, strict=True)):
        floor = 0
        for number, (of, size) in enumerate(zip(series, column, strict=True)):
            if not size:
                continue
            wide = step * (0.8 if stacked or not number else 0.5)
            x = _LEFT + step * place + (step - wide) / 2
            top, height = _y(floor + size, most), _y(0, most) - _y(size, most)
            said = f"{name}, {of}: {human_bytes(size)}" if of else f"{name}: {human_bytes(size)}"
            boxes.append(Box(x, top, wide, height, _colour(number), said))
            floor += size if stacked else 0
    places = [(_LEFT + step * (place + 0.5), name) for place, name in enumerate(names)]
    legend = [(name, _colour(number)) for number, name in enumerate(series)]
    return Chart(
        title, HEIGHT, boxes, grid=_grid(most), labels=_some(places),
        legend=legend if len(series) > 1 else (),
    )  # fmt: skip


def curve_chart(title: str, points: Sequence[tuple[int, int]], unit: str) -> Chart | None:
    """A curve of bytes over whole numbers, in their order; None where there are no bytes."""
    most = max((size for _, size in points), default=0)
    if not most:
        return None
    first, last = points[0][0], points[-1][0]
    wide = (WIDTH - _LEFT - _RIGHT) / max(last - first, 1)
    at = [(_LEFT + wide * (number - first), _y(size, most)) for number, size in points]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
    names = [(x, f"{number} {unit}") for (x, _), (number, _) in zip(at, points, strict=True)]
    return Chart(title, HEIGHT, line=line, grid=_grid(most), labels=_some(names))


def _y(size: int, most: int) -> float:
    return _TOP + (HEIGHT - _TOP - _BOTTOM) * (1 - size / most)


def _grid(most: int) -> list[Label]:
    sizes = [most * part // _GRID for part in range(_GRID + 1)]
    return [Label(_LEFT, _y(size, most), human_bytes(size)) for size in sizes]


def _some(places: Sequence[tuple[float, str]]) -> list[Label]:
    """As many labels as have room, the last one among them."""
    step = 1 + (len(places) - 1) // _LABELS
    chosen = list(places)[::-1][::step][::-1]
    # Text is centred, and must not be cut at the edge.
    return [Label(min(x, WIDTH - _RIGHT - 3 * len(name)), HEIGHT - 6, name) for x, name in chosen]


def _colour(number: int) -> int:
    return min(number, COLOURS - 1)
