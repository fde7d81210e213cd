"""Formats numbers, times and bytes for messages."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

_UNITS: Final = ((86_400, "day"), (3600, "hour"), (60, "minute"), (1, "second"))


def counted(number: int, one: str, many: str | None = None) -> str:
    """A number with its words in the singular or plural: 1 object, 2,000 objects.

    Args:
        number: the count.
        one: the words after the number 1.
        many: the words after all other numbers; None for ``one`` with an s.
    """
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def aligned(objects: int) -> str:
    """A number of objects with the width of a column, so that the next column is aligned too."""
    return f"{objects:>12,} {'object ' if objects == 1 else 'objects'}"


def duration(time: timedelta) -> str:
    """A time in the largest unit that gives at least 1: 2 days, 1.5 hours, 0.1 seconds."""
    seconds = time.total_seconds()
    rounded = ((round(seconds / size, 2), unit) for size, unit in _UNITS)
    number, unit = next((one for one in rounded if abs(one[0]) >= 1), (round(seconds, 2), "second"))
    return f"{number:g} {unit if number == 1 else f'{unit}s'}"


def minute(time: object) -> str:
    """A UTC time, as ``isoformat`` writes it, to the minute: 2026-01-31 02:00 UTC."""
    return f"{str(time)[:16].replace('T', ' ')} UTC"


#: Units of bytes.
_SIZES: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_STEP: Final = 1024


def human_bytes(count: float) -> str:
    """A number of bytes for people, in powers of 1024."""
    for unit in _SIZES:
        if abs(round(count, 1)) < _STEP or unit == _SIZES[-1]:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= _STEP
    raise AssertionError(count)


#: Bytes of one TB, the unit of prices.
TB: Final = 10**12
#: The smallest cost that is shown: a lower cost would be rounded to zero.
_CENT: Final = 0.01


def a_month(size: int, price_per_tb_month: float | None) -> str:
    """The cost of bytes for a month, in the currency of the price; empty without one."""
    if price_per_tb_month is None:
        return ""
    cost = size / TB * price_per_tb_month
    return f"less than {_CENT} a month" if 0 < cost < _CENT else f"{cost:,.2f} a month"


def price_note(price_per_tb_month: float | None) -> list[str]:
    """One sentence that says how a cost is computed; empty without a price."""
    if price_per_tb_month is None:
        return []
    price = f"a month at {price_per_tb_month:,.2f} for a TB (10^12 bytes), by price_per_tb_month"
    return [f"{price}; requests, minimum durations and versions that stores keep are not in it"]


def escaped(text: str) -> str:
    """Text with each unprintable character as a Python escape; line breaks stay.

    Users choose paths, commit messages and addresses. These may hold escape sequences, with which a
    terminal would overwrite other lines.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)
