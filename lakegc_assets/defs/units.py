"""Figures in words for people."""

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
