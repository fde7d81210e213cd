"""The table of docs/conformance.md: each row is declared on the test that shows it.

A test says which row it stands for; a table-driven one gives each of its parameters a row::

    from lakegc_assets_tests.conformance.recorder import GATEWAY, conforms, left_out

    @conforms(GATEWAY, "GetObject", client="boto3", checked="bytes, ETag and a range of it")
    def test_get_object(...) -> None: ...

    @pytest.mark.parametrize("case", [
        pytest.param(merge, marks=conforms(REST, "mergeIntoBranch", client="lakefs-sdk",
                     checked="three-way, conflicts, both strategies",
                     differs="the strategy is kept in the metadata of a squash too, as in 1.84")),
    ])

    left_out(GATEWAY, ["PutObjectAcl"], "lakeFS answers 501 too")

Several tests may declare the same row; it is shown once, when all of them passed. Slow tests get
``@pytest.mark.conformance`` besides, and then run in ``make conformance`` only: it is
``pytest -m conformance``, runs every test that has a row, fast or slow, and writes the file at the
end if all rows of the suite were shown by tests that ran and passed. The normal suite compares the
file with the declared rows (test_table.py).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from lakegc_assets_tests.recorder import Recorder, table

REST = "REST API"
CLIENTS = "Other clients"
GATEWAY = "S3 gateway"
RECORDED = "Recorded from a real lakeFS"
FAULTS = "Faults of a real lakeFS"
RACES = "Races"
DURABILITY = "Durability and isolation"
SECTIONS = (REST, CLIENTS, GATEWAY, RECORDED, FAULTS, RACES, DURABILITY)

TESTS = Path(__file__).parents[1]
DOCUMENT = TESTS.parent / "docs" / "conformance.md"
_INTRODUCTION = """\
# What the embedded lakeFS does as lakeFS does, and how that is known

`make conformance` writes this file, and only when every test behind it has run and passed: each row
is declared on the tests that show it. lakeFS means 1.84, whose answers and files were recorded.
The versions of lakeFS Enterprise after it (1.85 to 1.101, with compaction of staged changes and
Iceberg tables) were not compared.
"""


@dataclass(frozen=True, order=True)
class Row:
    """One line of a table.

    Attributes:
        section: one of ``SECTIONS``.
        operation: as the section's protocol names it.
        client: the program that calls.
        checked: how, in a few words.
        differs: where the server knowingly differs from lakeFS, and why; empty for nowhere.
    """

    section: str
    operation: str
    client: str
    checked: str
    differs: str = ""


@dataclass(frozen=True, order=True)
class LeftOut:
    """Operations of one section that the server has not, and why."""

    section: str
    operations: tuple[str, ...]
    why: str


ROWS: set[Row] = set()
LEFT_OUT: list[Callable[[], LeftOut]] = []


def conforms(
    section: str, operation: str, *, client: str, checked: str, differs: str = ""
) -> pytest.MarkDecorator:
    """Declare what a test shows; a decorator, and a mark for ``pytest.param``."""
    if section not in SECTIONS:
        raise ValueError(f"{section!r} is none of {SECTIONS}")
    row = Row(section, operation, client, checked, differs)
    ROWS.add(row)
    return pytest.mark.conforms(row)


def left_out(
    section: str, operations: Iterable[str] | Callable[[], Iterable[str]], why: str
) -> None:
    """Declare what the server has not; a function finds it when it is asked for."""
    if section not in SECTIONS:
        raise ValueError(f"{section!r} is none of {SECTIONS}")
    found = operations if callable(operations) else lambda: operations
    LEFT_OUT.append(lambda: LeftOut(section, tuple(sorted(found())), why))


def declared() -> tuple[list[Row], list[LeftOut]]:
    """All that the test modules declare, in the order of the document."""
    for path in sorted(TESTS.rglob("test_*.py")):
        if "lakegc_assets_tests.conformance" in path.read_text():
            importlib.import_module(".".join(path.relative_to(TESTS.parent).with_suffix("").parts))
    return (
        sorted(ROWS, key=lambda row: (SECTIONS.index(row.section), row)),
        sorted(
            {find() for find in LEFT_OUT}, key=lambda line: (SECTIONS.index(line.section), line)
        ),
    )


def render(rows: Sequence[Row], omitted: Sequence[LeftOut]) -> str:
    """The document."""
    parts = [_INTRODUCTION]
    for section in SECTIONS:
        lines = [
            (row.operation, row.client, row.checked, row.differs)
            for row in rows
            if row.section == section
        ]
        if lines:
            head = ("Operation", "Client", "How it is checked", "Differences and why")
            parts.append(f"## {section}\n\n{table(head, lines)}")
        gone = [
            (", ".join(line.operations), line.why) for line in omitted if line.section == section
        ]
        if gone:
            parts.append(f"### Left out of: {section}\n\n{table(('What', 'Why'), gone)}")
    return "\n".join(parts)


def pytest_configure(config: pytest.Config) -> None:
    """Called by pytest."""
    Recorder(DOCUMENT, "conforms", "conformance", labels_and_text).configure(config)


def labels_and_text() -> tuple[Mapping[Hashable, str], str]:
    rows, omitted = declared()
    return {row: f"{row.operation} ({row.client})" for row in rows}, render(rows, omitted)
