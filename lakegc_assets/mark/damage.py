"""Unreadable files below ``_lakefs/`` of a repository, and what depends on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from lakegc_assets.errors import IntegrityError

T = TypeVar("T")
R = TypeVar("R")
#: How many files are named.
_SHOWN = 5


def isolate(
    read: Callable[[Sequence[T]], R], items: Sequence[T]
) -> tuple[list[R], list[tuple[T, IntegrityError]]]:
    """Read items together; where some are damaged, the others without them.

    Args:
        read: reads some items; it raises ``IntegrityError`` if one of them is missing or damaged.
        items: to read.

    Returns:
        What was read, of all items or of parts of them; and each damaged item with what is wrong.

    Raises:
        LakegcError: what is no damage of an item.
    """
    if not items:
        return [], []
    try:
        return [read(items)], []
    except IntegrityError as error:
        if len(items) == 1:
            return [], [(items[0], error)]
    middle = len(items) // 2
    first, damaged = isolate(read, items[:middle])
    second, more = isolate(read, items[middle:])
    return [*first, *second], [*damaged, *more]


def left_alone(namespace_url: str, foreign: Sequence[str]) -> list[str]:
    """A sentence about files below ``_lakefs/`` that are none of lakeFS's, if there are any."""
    if not foreign:
        return []
    shown = ", ".join(map(repr, foreign[:_SHOWN]))
    more = f" and {len(foreign) - _SHOWN:,} more" if len(foreign) > _SHOWN else ""
    return [
        f"below {namespace_url} lie files that lakeFS does not write, left alone: {shown}{more}"
    ]


def passed_over(damaged: Mapping[str, IntegrityError]) -> list[str]:
    """For each file that is passed over a sentence for the report, without its full stop."""
    return [
        f"passed over, since no metarange and no commit names it: {error}. Remove it, or restore "
        "it if it was a range"
        for _, error in sorted(damaged.items())
    ]
