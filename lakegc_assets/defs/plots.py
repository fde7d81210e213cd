"""Pictures of reports, as PNG: bytes freed against age, and by repository and week."""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Final

from lakegc_assets.defs.units import human_bytes
from lakegc_assets.estate.history import MarkFigures

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BARS: Final = 50
#: Weeks that are shown, the last ones.
_WEEKS: Final = 26
#: Repositories that have a colour of their own; the rest are one.
_NAMED: Final = 8
_BLUE: Final = "#4a6fa5"
_COLOURS: Final = (
    _BLUE, "#d98e4a", "#5b9a68", "#b5545c", "#8672ab", "#8c6d5a", "#cf86b5", "#a9a344",
)  # fmt: skip
_REST: Final = "#999999"
_LONGEST: Final = 40
#: Repositories that have a picture of their own.
_EACH: Final = 12


def data_url(picture: bytes) -> str:
    """A PNG as a URL that holds all of it."""
    return f"data:image/png;base64,{base64.b64encode(picture).decode()}"


def of_ages(rows: Iterable[Sequence[Any]]) -> bytes | None:
    """The bytes that a mark frees against the age of the objects, in days.

    Args:
        rows: of the breakdown of a report: dimension, key, objects, bytes.

    Returns:
        A PNG; None where there is nothing to be shown.
    """
    width, freed = by_age(rows)
    if not freed:
        return None
    figure, axes = _bars(f"age of the objects, days ({width} to a bar)")
    starts = [bar * width for bar in range(len(freed))]
    axes.bar(starts, freed, width=0.9 * width, align="edge", color=_BLUE)
    axes.set_xlim(left=0)
    return _png(figure)


def of_classes(rows: Sequence[tuple[str, int]]) -> bytes | None:
    """What is stored, as one bar of shares.

    Args:
        rows: names of classes and their bytes, the largest first.

    Returns:
        A PNG; None where there is nothing to be shown.
    """
    if not any(size for _, size in rows):
        return None
    figure, axes = _bars("bytes")
    figure.set_size_inches(7, 1.8)
    axes.set_ylabel("")
    axes.yaxis.set_visible(False)
    axes.xaxis.set_major_formatter(lambda size, _: human_bytes(size))
    axes.tick_params(axis="x", labelsize=7)
    left = 0
    for number, (name, size) in enumerate(rows):
        colour = _COLOURS[number] if number < len(_COLOURS) else _REST
        axes.barh(0, size, left=left, color=colour, label=_drawn(name))
        left += size
    legend = axes.legend(
        fontsize=7, frameon=False, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0)
    )
    for text in legend.get_texts():
        text.set_parse_math(False)
    return _png(figure)


def of_curve(points: Sequence[tuple[int, int]]) -> bytes | None:
    """The bytes of garbage over the days of the default retention.

    Args:
        points: days and bytes, in the order of the days.

    Returns:
        A PNG; None where there is nothing to be shown.
    """
    if not any(size for _, size in points):
        return None
    figure, axes = _bars("default retention, days")
    axes.set_ylabel("bytes of garbage")
    axes.plot([days for days, _ in points], [size for _, size in points], color=_BLUE)
    axes.set_ylim(bottom=0)
    return _png(figure)


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


def of_weeks(freed: Iterable[tuple[str, datetime, int]], now: datetime) -> bytes | None:
    """The bytes that sweeps have freed, by repository and week, of the last weeks.

    Args:
        freed: repository, when its sweep was finished, and bytes.
        now: the time, UTC; the last week is its own.

    Returns:
        A PNG; None where nothing was freed in these weeks.
    """
    weeks = last_weeks(now)
    by = weekly(freed, weeks)
    if not by:
        return None
    figure, axes = _bars("week, from its Monday on")
    places, floor = range(len(weeks)), [0] * len(weeks)
    bars = []
    shown = largest(by)
    for (_, counted), colour in zip(shown, (*_COLOURS[: _NAMED - 1], _REST), strict=False):
        heights = [counted[week] for week in weeks]
        bars.append(axes.bar(places, heights, bottom=floor, width=0.8, color=colour))
        floor = [below + height for below, height in zip(floor, heights, strict=True)]
    step = 1 + len(weeks) // _NAMED
    axes.set_xticks(list(places)[::-step], [f"{week:%d %b %Y}" for week in weeks[::-step]])
    axes.tick_params(axis="x", labelsize=7)
    legend = axes.legend(
        bars,
        [name for name, _ in shown],
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
        fontsize=8,
        frameon=False,
    )
    for text in legend.get_texts():
        # A name is no formula, whatever it holds.
        text.set_parse_math(False)
    return _png(figure)


def of_each(freed: Iterable[tuple[str, datetime, int]], now: datetime) -> bytes | None:
    """The same, each repository by itself: those that freed most.

    Args:
        freed: repository, when its sweep was finished, and bytes.
        now: the time, UTC; the last week is its own.

    Returns:
        A PNG; None where nothing was freed in these weeks.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415 - it loads slowly

    weeks = last_weeks(now)
    by = weekly(freed, weeks)
    if not by:
        return None
    order = sorted(by, key=lambda name: (-by[name].total(), name))[:_EACH]
    figure = Figure(figsize=(7, 1.1 * len(order) + 0.4), layout="constrained")
    every = figure.subplots(len(order), sharex=True, squeeze=False)[:, 0]
    places = range(len(weeks))
    for name, axes in zip(order, every, strict=True):
        axes.bar(places, [by[name][week] for week in weeks], width=0.8, color=_BLUE)
        axes.set_title(_drawn(name), fontsize=8, loc="left", parse_math=False)
        axes.yaxis.set_major_formatter(lambda size, _: human_bytes(size))
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    step = 1 + len(weeks) // _NAMED
    every[-1].set_xticks(list(places)[::-step], [f"{week:%d %b %Y}" for week in weeks[::-step]])
    return _png(figure)


def of_marks(marks: Sequence[MarkFigures]) -> bytes | None:
    """What the last marks of one repository named, and what their sweeps deleted, in bytes.

    Args:
        marks: the oldest first.

    Returns:
        A PNG; None where there is nothing to be shown.
    """
    shown = marks[-_WEEKS:]
    if not any(one.marked for one in shown):
        return None
    figure, axes = _bars("mark")
    places = range(len(shown))
    axes.set_ylabel("bytes")
    axes.bar(places, [one.marked for one in shown], width=0.8, color=_REST, label="marked")
    axes.bar(places, [one.deleted for one in shown], width=0.5, color=_BLUE, label="deleted")
    step = 1 + len(shown) // _NAMED
    axes.set_xticks(list(places)[::-step], [f"{one.at:%d %b %Y}" for one in shown[::-step]])
    axes.tick_params(axis="x", labelsize=7)
    axes.legend(fontsize=8, frameon=False)
    return _png(figure)


def last_weeks(now: datetime) -> list[date]:
    """The Mondays of the weeks that are shown, the last one its own."""
    return [_monday(now) - timedelta(weeks=back) for back in reversed(range(_WEEKS))]


def weekly(
    freed: Iterable[tuple[str, datetime, int]], weeks: Sequence[date]
) -> dict[str, Counter[date]]:
    """Bytes freed in some weeks, by repository and the Monday of the week; UTC."""
    by: dict[str, Counter[date]] = {}
    for repository, at, size in freed:
        if size and (week := _monday(at)) in weeks:
            by.setdefault(repository, Counter())[week] += size
    return by


def _monday(moment: datetime) -> date:
    day = moment.astimezone(timezone.utc).date()
    return day - timedelta(days=day.weekday())


def largest(by: Mapping[str, Counter[date]]) -> list[tuple[str, Counter[date]]]:
    """Those that freed most, under names that can be drawn, and all others as the last one."""
    order = sorted(by, key=lambda name: (-by[name].total(), name))
    few = order if len(order) <= _NAMED else order[: _NAMED - 1]
    shown = [(_drawn(name), by[name]) for name in few]
    if rest := order[len(few) :]:
        others: Counter[date] = Counter()
        for name in rest:
            others.update(by[name])
        shown.append((f"{len(rest)} others", others))
    return shown


def _drawn(name: str) -> str:
    """A name as the font can draw it."""
    text = "".join(c if c.isascii() and c.isprintable() else "?" for c in name)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _bars(label: str) -> tuple[Figure, Axes]:
    """An empty picture of bytes freed."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - it loads slowly

    figure = Figure(figsize=(7, 2.6), layout="constrained")
    axes = figure.subplots()
    axes.set_xlabel(label)
    axes.set_ylabel("bytes freed")
    axes.yaxis.set_major_formatter(lambda size, _: human_bytes(size))
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _png(figure: Figure) -> bytes:
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=110)
    return picture.getvalue()
