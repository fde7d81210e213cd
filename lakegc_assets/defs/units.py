"""Bytes and their cost in words for people."""

from __future__ import annotations

from typing import Final

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_STEP: Final = 1024


def human_bytes(count: float) -> str:
    """A number of bytes for people, in powers of 1024."""
    for unit in _UNITS:
        if abs(count) < _STEP or unit == _UNITS[-1]:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= _STEP
    raise AssertionError(count)


#: Bytes of the TB that is priced.
TB: Final = 10**12


def a_month(size: int, price_per_tb_month: float | None) -> str:
    """The cost of bytes for a month, in the currency of the price; empty without one."""
    if price_per_tb_month is None:
        return ""
    return f"{size / TB * price_per_tb_month:,.2f} a month"


def price_note(price_per_tb_month: float | None) -> list[str]:
    """The way in which a cost is computed, as one sentence; none without a price."""
    if price_per_tb_month is None:
        return []
    said = f"a month at {price_per_tb_month:,.2f} for a TB (10^12 bytes), by price_per_tb_month"
    return [f"{said}; requests, minimum durations and versions that stores keep are not in it"]
