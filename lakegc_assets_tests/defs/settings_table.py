"""Writes the table of settings in docs/operations.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from lakegc_assets.defs.resources import CollectorResource
from lakegc_assets.run.bounds import Bounds

FILE: Final = Path(__file__).parents[2] / "docs" / "operations.md"
COMMAND: Final = "python -m lakegc_assets_tests.defs.settings_table"
_HEAD: Final = "| `collector` | default | limits | |\n|---|---|---|---|\n"
#: Where more is said.
_SEE: Final = {
    "adopt": "[below](#moving-from-lakefss-own-job)",
    "attribution": "[cost.md](cost.md)",
    "backup_url": "[below](#backups)",
    "compare_with": "[below](#moving-from-lakefss-own-job)",
    "listing": "[below](#inventories-in-place-of-listings)",
    "name": "[automation.md](automation.md#several-in-one-dagster)",
    "policies": "[automation.md](automation.md)",
    "retain": "[below](#rules-that-lakefs-does-not-have)",
}


def table() -> str:
    """The table, as it is made of the fields."""
    return _HEAD + "".join(map(_row, CollectorResource.model_fields.items()))


def written() -> tuple[str, str, str]:
    """What the file has before the table, the table, and what it has behind it."""
    before, head, rest = FILE.read_text(encoding="utf-8").partition("| `collector` |")
    rows, gap, behind = rest.partition("\n\n")
    return before, f"{head}{rows}\n", f"{gap[1:]}{behind}"


def _row(named: tuple[str, FieldInfo]) -> str:
    name, field = named
    see = f" ({_SEE[name]})" if name in _SEE else ""
    cells = f"`{name}`", _default(field), limits(field), f"{field.description}{see}"
    return f"| {' | '.join(cells)} |\n"


def _default(field: FieldInfo) -> str:
    value: Any = field.get_default(call_default_factory=True)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return f"{value:,g}" if value < 1 else f"{value:,.0f}"
    return value or "none"


def limits(field: FieldInfo) -> str:
    """What values a field takes, as errors say it."""
    if get_origin(field.annotation) is Literal:
        return ", ".join(f"`{one}`" for one in get_args(field.annotation))
    return ", ".join(str(one) for one in field.metadata if isinstance(one, Bounds))


if __name__ == "__main__":
    _before, _, _behind = written()
    FILE.write_text(f"{_before}{table()}{_behind}", encoding="utf-8")
