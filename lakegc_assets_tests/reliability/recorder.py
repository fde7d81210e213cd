"""The table of docs/reliability.md: each row is declared on the test that shows it.

    from lakegc_assets_tests.reliability.recorder import AZURE, S3, shows

    @shows("SlowDown storm", "a listing", (S3, AZURE), "asked again, and exact")
    def test_a_storm_during_a_listing(...) -> None: ...

`make test-stores` (``pytest -m stores``) runs every test that has a row, and writes the file if all
of them ran and passed. The normal suite compares the file with the declared rows (test_table.py).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from lakegc_assets_tests.recorder import Recorder, table

S3 = "S3"
AZURE = "Azure"
LOCAL = "local files"

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[1]
DOCUMENT = _ROOT / "docs" / "reliability.md"
#: What the simulation covered comes behind, and is written by its own runs.
SIMULATION = "\n<!-- simulation: begin -->"
_INTRODUCTION = """\
# What happens when a store fails

`make test-stores` writes this file, and only when every test behind it has run and passed. The
faults are made by a proxy in front of real servers: versitygw for S3, Azurite for Azure. "Always"
means that every request meets the fault, "once" that the first one does. After each fault the tests
compare what the store holds with what it must hold, and each record with the store: nothing but
marked objects is ever gone, and nothing is recorded as deleted that is there.

What no test can show: a listing that ends early and lacks only what is dead looks like a whole one.
What it lacks stays in the store until the next mark.

"""
_HEAD = ("Fault", "Met by", "Store", "What happens", "Checked by")

Test = TypeVar("Test", bound=Callable[..., Any])


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        fault: what fails.
        met_by: what the fault befalls, and how often.
        stores: on which this was seen.
        happens: what becomes of it.
        test: file, from the checkout's root, and function.
        line: of the function.
    """

    fault: str
    met_by: str
    stores: tuple[str, ...]
    happens: str
    test: str
    line: int


_rows: dict[Row, None] = {}


def shows(fault: str, met_by: str, stores: Iterable[str], happens: str) -> Callable[[Test], Test]:
    """Declare what a test shows, on each of its stores."""

    def declare(test: Test) -> Test:
        path = Path(test.__code__.co_filename).relative_to(_ROOT)
        row = Row(
            fault,
            met_by,
            tuple(stores),
            happens,
            f"{path}::{test.__name__}",
            test.__code__.co_firstlineno,
        )
        _rows[row] = None
        marked: Test = pytest.mark.shows(row)(test)
        return marked

    return declare


def declared() -> list[Row]:
    """All that the test modules declare, by fault, in the order in which they are written."""
    for path in sorted(_HERE.glob("test_*.py")):
        importlib.import_module(f"lakegc_assets_tests.reliability.{path.stem}")
    rows = sorted(_rows, key=lambda row: (row.test.split("::")[0], row.line))
    faults = list(dict.fromkeys(row.fault for row in rows))
    return sorted(rows, key=lambda row: faults.index(row.fault))


def render(rows: Sequence[Row]) -> str:
    """The document."""
    lines = [
        (row.fault, row.met_by, ", ".join(row.stores), row.happens, _link(row.test)) for row in rows
    ]
    return _INTRODUCTION + table(_HEAD, lines)


def _link(test: str) -> str:
    path, _, name = test.partition("::")
    return f"[`{name}`](../{path})"


def pytest_configure(config: pytest.Config) -> None:
    """Called by pytest."""
    Recorder(DOCUMENT, "shows", "stores", labels_and_text).configure(config)


def labels_and_text() -> tuple[Mapping[Hashable, str], str]:
    rows = declared()
    _, begin, behind = DOCUMENT.read_text().partition(SIMULATION)
    return {row: row.test for row in rows}, render(rows) + begin + behind
