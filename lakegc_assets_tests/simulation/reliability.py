"""Writes what a search covered into docs/reliability.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from lakegc_assets_tests.simulation.search import Report

_PAGE: Final = Path(__file__).parents[2] / "docs" / "reliability.md"
_BEGIN: Final = "<!-- simulation: begin -->"
_END: Final = "<!-- simulation: end -->"


def write_table(report: Report, page: Path = _PAGE) -> None:
    """Put the table in its place on the page, or at its end."""
    table = f"{_BEGIN}\n{_table(report)}\n{_END}"
    text = page.read_text()
    if _BEGIN in text:
        text = re.sub(f"{_BEGIN}.*{_END}", lambda _: table, text, flags=re.DOTALL)
    else:
        text = f"{text.rstrip()}\n\n{table}\n"
    page.write_text(text)


def _table(report: Report) -> str:
    faults: dict[str, dict[str, int]] = {}
    for (what, where), count in report.covered.items():
        faults.setdefault(what, {})[where] = count
    rows = [
        f"| {what} | " + ", ".join(f"{n} {c}" for n, c in sorted(met.items())) + " |"
        for what, met in sorted(faults.items())
    ]
    told = (
        f"The last run that wrote this table: {report.interleavings} interleavings with "
        f"{report.steps} steps. "
        f"{report.finished} sweeps ended well. {report.window} objects that had come to life "
        f"inside the window of a batch were deleted. In {report.close} interleavings a check "
        "stopped a batch that held something live. Nothing else was lost. What this shows, and "
        "what it does not, is in [safety.md](safety.md)."
    )
    head = ["## Simulated interleavings", "", told, ""]
    columns = ["| what happened | and to which call, how often |", "|---|---|"]
    return "\n".join([*head, *columns, *rows])
