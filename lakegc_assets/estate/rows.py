"""Rows of tables about marks and storage, as Dagster and pages show them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from lakegc_assets.attribution.usage import Use
from lakegc_assets.estate.history import MarkFigures
from lakegc_assets.wording import a_month, human_bytes

#: Upper ends of the classes of ages, in days.
_AGES: Final = (7, 30, 90, 180, 365, 730)
#: Rows of tables that show the largest only.
_MOST: Final = 10


def breakdown(rows: Iterable[Sequence[Any]], dimension: str) -> list[tuple[str, int, str]]:
    """Key, objects and size of one dimension of a report."""
    return [(key, objects, human_bytes(size)) for name, key, objects, size in rows
            if name == dimension]  # fmt: skip


def age_classes(rows: Iterable[Sequence[Any]], dimension: str) -> list[tuple[str, int, str]]:
    """Class, objects and size of a dimension of ages, which a report has by days."""
    classes: dict[str, list[int]] = {}
    for name, key, objects, size in rows:
        if name == dimension:
            total = classes.setdefault(_age_class(key), [0, 0])
            total[0] += objects
            total[1] += size
    return [(name, count, human_bytes(size)) for name, (count, size) in classes.items()]


def _age_class(key: str) -> str:
    """The class of an age as a report names it: a number of days, or other words."""
    days, _, unit = key.partition(" ")
    if not days.isdecimal() or unit not in {"", "days"}:
        return key
    return next((f"up to {limit} days" for limit in _AGES if int(days) <= limit), "older")


def mark_rows(marks: Sequence[MarkFigures]) -> list[tuple[str, str, str]]:
    """Time, marked and deleted size of the last marks, the newest first."""
    return [
        (f"{one.at:%Y-%m-%d %H:%M} UTC", human_bytes(one.marked), human_bytes(one.deleted))
        for one in reversed(marks[-_MOST:])
    ]


def largest_rows(facts: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Path, size, reason and address of the largest marked objects."""
    paths = facts.get("largest_paths", {})
    return [
        (paths.get(address, "not known"), human_bytes(size), reason, address)
        for address, size, reason in facts["largest"]
    ]


def costs(size: int, price: float | None) -> tuple[str, ...]:
    """The cost of bytes, as the last cell of a row; nothing without a price."""
    return () if price is None else (a_month(size, price),)


#: Of ``branch_rows``; with a price, the cost of what is freed follows.
BRANCH_COLUMNS: Final = ("branch", "only this one", "shared", "deleting it frees")


def branch_rows(branches: Sequence[Use], price: float | None) -> list[tuple[str, ...]]:
    """The storage of the first branches."""
    return [
        (one.key, *branch_sizes(one), *costs(one.freed[1] if one.freed else 0, price))
        for one in branches[:_MOST]
    ]


def branch_sizes(one: Use) -> tuple[str, str, str]:
    """Sizes of what no other branch holds, what others hold too, and what a deletion frees."""
    only = one.only[1] if one.only else 0
    return (
        human_bytes(only) if one.only else "",
        human_bytes(one.bytes - only),
        human_bytes(one.freed[1]) if one.freed else "",
    )


def prefix_rows(paths: Sequence[Use], price: float | None) -> list[tuple[Any, ...]]:
    """Prefix, objects, size and cost of the first ones."""
    return [
        (one.key, one.objects, human_bytes(one.bytes), *costs(one.bytes, price))
        for one in paths[:_MOST]
    ]
