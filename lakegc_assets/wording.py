"""Words of messages that depend on numbers."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

_UNITS: Final = ((86_400, "day"), (3600, "hour"), (60, "minute"), (1, "second"))


def counted(number: int, one: str, many: str | None = None) -> str:
    """A number with its words in the singular or plural: 1 object, 2,000 objects.

    Args:
        number: how many.
        one: the words behind 1.
        many: those behind all other numbers; None for ``one`` with an s.
    """
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def aligned(objects: int) -> str:
    """A number of objects as a column has it, so that what follows is aligned, too."""
    return f"{objects:>12,} {'object ' if objects == 1 else 'objects'}"


def duration(time: timedelta) -> str:
    """A time in the largest unit of which it is one at least: 2 days, 1.5 hours, 0.1 seconds."""
    seconds = time.total_seconds()
    size, unit = next((one for one in _UNITS if abs(seconds) >= one[0]), _UNITS[-1])
    number = round(seconds / size, 2)
    return f"{number:g} {unit if number == 1 else f'{unit}s'}"
