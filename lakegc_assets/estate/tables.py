"""Histories, rows of tables and plotted figures of marks, sweeps and storage.

Dagster and pages show the same data. The names of figures never change, since Dagster plots them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from typing import Any, Final

from lakegc_assets.attribution.usage import Use
from lakegc_assets.errors import LakegcError
from lakegc_assets.run.artifacts import ArtifactRoot
from lakegc_assets.run.history import earlier
from lakegc_assets.sweep.ledger import ASSET
from lakegc_assets.wording import a_month, human_bytes

#: Number of weeks that are shown, up to the present one.
_WEEKS: Final = 26
#: Most repositories that are shown; the last place is for all others together.
_NAMED: Final = 8
#: Names of a report's dimensions, by the names of their tables; and the dimensions that are ages.
_DIMENSIONS: Final = {
    **{name: name for name in ("reason", "branch rule", "slice age")},
    "age": "age in days",
}
_BY_DAYS: Final = ("slice age", "age in days")
#: Upper ends of the classes of ages, in days.
_AGES: Final = (7, 30, 90, 180, 365, 730)
#: Number of marks that are shown, up to the last one.
MARKS: Final = 26
#: Most rows of tables that show only the largest.
_MOST: Final = 10


@dataclass(frozen=True)
class MarkFigures:
    """One mark: the time when it finished, the bytes that it names, and the bytes deleted of it."""

    at: datetime
    marked: int
    deleted: int


def marks_over_time(
    root: ArtifactRoot, repository: str, namespace: str | None = None
) -> list[MarkFigures]:
    """The last finished marks of a repository, the oldest first, without damaged ones.

    ``namespace``: of the marks; None for each namespace that the repository had.
    """
    found: list[MarkFigures] = []
    for one in earlier(root, repository, "gc_report", namespace, but=""):
        if len(found) == MARKS:
            break
        try:
            swept = one.attempt.recorded_if_finished(ASSET)
            outcomes = swept.facts["outcomes"] if swept is not None else {}
            deleted = outcomes.get("deleted", {"bytes": 0})["bytes"]
            found.append(MarkFigures(one.manifest.finished, one.manifest.facts["bytes"], deleted))
        except LakegcError:
            continue
    return found[::-1]


def last_weeks(now: datetime) -> list[date]:
    """The Mondays of the weeks that are shown; the last one is that of the present week."""
    return [_monday(now) - timedelta(weeks=back) for back in reversed(range(_WEEKS))]


def freed_by_week(
    freed: Iterable[tuple[str, datetime, int]], weeks: Sequence[date]
) -> dict[str, Counter[date]]:
    """Bytes freed by repository and the Monday of the week, UTC.

    ``freed``: repository, end and bytes of each sweep. ``weeks``: the Mondays that count.
    """
    by: dict[str, Counter[date]] = {}
    for repository, at, size in freed:
        if size and (week := _monday(at)) in weeks:
            by.setdefault(repository, Counter())[week] += size
    return by


def largest(by: Mapping[str, Counter[date]]) -> list[tuple[str, Counter[date]]]:
    """The repositories that freed most, and all others together as the last entry."""
    order = sorted(by, key=lambda name: (-by[name].total(), name))
    few = order if len(order) <= _NAMED else order[: _NAMED - 1]
    shown = [(name, by[name]) for name in few]
    if rest := order[len(few) :]:
        others: Counter[date] = Counter()
        for name in rest:
            others.update(by[name])
        shown.append((f"{len(rest)} others", others))
    return shown


def _monday(moment: datetime) -> date:
    day = moment.astimezone(timezone.utc).date()
    return day - timedelta(days=day.weekday())


# Tables


@dataclass(frozen=True)
class Table:
    """A table of text, whole numbers, and other values that its reader can show.

    ``cards``: a page shows each row as a separate card on a narrow screen. ``note``: about all
    rows.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    cards: bool = False
    note: str = ""


def report_tables(facts: Mapping[str, Any], marks: Sequence[MarkFigures]) -> dict[str, Table]:
    """The tables of a report; ``marks``: the last marks of the repository, the oldest first."""
    rows = facts["breakdown"]
    paths = facts.get("largest_paths", {})
    largest_marked = [
        (paths.get(address, "not known"), human_bytes(size), reason, address)
        for address, size, reason in facts["largest"]
    ]
    return {
        **{
            f"by {name}": Table((name, "objects", "size"), breakdown(rows, dimension))
            for name, dimension in _DIMENSIONS.items()
        },
        "last marks": Table(
            ("finished", "marked", "deleted"),
            [
                (f"{one.at:%Y-%m-%d %H:%M} UTC", human_bytes(one.marked), human_bytes(one.deleted))
                for one in reversed(marks[-_MOST:])
            ],
        ),
        "largest": Table(("path", "size", "reason", "address"), largest_marked, cards=True),
    }


#: Columns of storage by branch; with a price, the cost of the freed bytes follows.
BRANCH_COLUMNS: Final = ("branch", "only this one", "shared", "deleting it frees")


def storage_tables(
    classes: Iterable[Sequence[Any]],
    branches: Sequence[Use],
    paths: Sequence[Use],
    price: float | None,
) -> dict[str, Table]:
    """The tables of attributed storage; with a price for a TB and month, also in money.

    ``classes``: class, reason, objects and bytes of all listed objects. ``branches`` and ``paths``:
    live and committed storage by branch and by outermost folder, the largest first.
    """
    money = () if price is None else ("a month",)
    return {
        "classes": class_table(classes, price),
        "top branches": Table(
            (*BRANCH_COLUMNS, *money),
            [
                (one.key, *branch_sizes(one), *costs(one.freed[1] if one.freed else 0, price))
                for one in branches[:_MOST]
            ],
            cards=True,
        ),
        "top prefixes": Table(
            ("prefix", "objects", "size", *money),
            [
                (one.key, one.objects, human_bytes(one.bytes), *costs(one.bytes, price))
                for one in paths[:_MOST]
            ],
        ),
    }


def class_table(classes: Iterable[Sequence[Any]], price: float | None) -> Table:
    """A table of classes of objects: class, reason, objects, bytes; with a price, also in money."""
    return Table(
        ("class", "objects", "size", *(() if price is None else ("a month",))),
        [
            (class_name(name, why), objects, human_bytes(size), *costs(size, price))
            for name, why, objects, size in classes
        ],
        cards=True,
    )


def class_name(name: str, why: str | None) -> str:
    """A class of objects with the reason, if there is one."""
    return f"{name}: {why}" if why else name


def breakdown(rows: Iterable[Sequence[Any]], dimension: str) -> list[tuple[str, int, str]]:
    """Key, objects and size of one dimension of a report; ages in days are grouped in classes."""
    totals: dict[str, list[int]] = {}
    for name, key, objects, size in rows:
        if name == dimension:
            total = totals.setdefault(_age_class(key) if dimension in _BY_DAYS else key, [0, 0])
            total[0] += objects
            total[1] += size
    return [(key, objects, human_bytes(size)) for key, (objects, size) in totals.items()]


def _age_class(key: str) -> str:
    """The class of an age, which a report gives as a number of days or in other words."""
    days, _, unit = key.partition(" ")
    if not days.isdecimal() or unit not in {"", "days"}:
        return key
    return next((f"up to {limit} days" for limit in _AGES if int(days) <= limit), "older")


def costs(size: int, price: float | None) -> tuple[str, ...]:
    """The cost of bytes, as the last cell of a row; no cell without a price."""
    return () if price is None else (a_month(size, price),)


def branch_sizes(one: Use) -> tuple[str, str, str]:
    """Sizes: held by only this branch, held by others too, and freed if the branch is deleted."""
    only = one.only[1] if one.only else 0
    return (
        human_bytes(only) if one.only else "",
        human_bytes(one.bytes - only),
        human_bytes(one.freed[1]) if one.freed else "",
    )


# Figures


def mark_figures(facts: Mapping[str, Any]) -> dict[str, int | float]:
    """Figures of a mark, which Dagster plots."""
    figures = facts["figures"]
    objects, size = facts["objects"], facts["bytes"]
    return {
        "objects marked": objects,
        "bytes marked": size,
        "objects kept": figures["listed"] - objects,
        "bytes kept": figures["listed_bytes"] - size,
        "objects spared": figures["spared"],
        "share marked": _share(objects, figures["listed"]),
        "seconds of the mark": figures["seconds"],
        "ranges decoded": figures["ranges_decoded"],
        "requests sent": figures["requests"],
    }


def sweep_figures(facts: Mapping[str, Any]) -> dict[str, int | float]:
    """Figures of a sweep, which Dagster plots."""
    totals = {
        outcome: facts["outcomes"].get(outcome, {"objects": 0, "bytes": 0})
        for outcome in ("deleted", "spared", "locked", "put_back", "already_missing")
    }
    figures: dict[str, int | float] = {}
    for outcome, total in totals.items():
        for what in ("objects", "bytes"):
            figures[f"{what} {outcome.replace('_', ' ')}"] = total[what]
    listed = facts.get("listed", {})
    for what, count in listed.items():
        figures[f"{what} kept"] = count - totals["deleted"][what]
    if "objects" in listed:
        figures["share deleted"] = _share(totals["deleted"]["objects"], listed["objects"])
    if "requests" in facts:
        figures["requests sent"] = facts["requests"]
    return figures


def class_figures(classes: Iterable[Sequence[Any]]) -> dict[str, int]:
    """The bytes of each class, as figures that Dagster plots."""
    figures: dict[str, int] = {}
    for name, _, _, size in classes:
        figures[f"bytes {name}"] = figures.get(f"bytes {name}", 0) + size
    return figures


def _share(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 0.0
