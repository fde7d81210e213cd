"""What bytes cost a month, at the price that the component or an option names."""

from __future__ import annotations

from typing import Final

#: Bytes of the TB that is priced.
TB: Final = 10**12


def a_month(size: int, price_per_tb_month: float | None) -> str:
    """What bytes cost a month, in the currency of the price; empty without one."""
    if price_per_tb_month is None:
        return ""
    return f"{size / TB * price_per_tb_month:,.2f} a month"


def price_note(price_per_tb_month: float | None) -> list[str]:
    """How it was computed, as one sentence; none without a price."""
    if price_per_tb_month is None:
        return []
    said = f"a month at {price_per_tb_month:,.2f} for a TB (10^12 bytes), by price_per_tb_month"
    return [f"{said}; requests, minimum durations and versions that stores keep are not in it"]
