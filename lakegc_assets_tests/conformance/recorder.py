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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

REST = "REST API"
CLIENTS = "Other clients"
GATEWAY = "S3 gateway"
RECORDED = "Recorded from a real lakeFS"
FAULTS = "Faults of a real lakeFS"
RACES = "Races"
DURABILITY = "Durability and isolation"
SECTIONS = (REST, CLIENTS, GATEWAY, RECORDED, FAULTS, RACES, DURABILITY)

_TESTS = Path(__file__).parents[1]
DOCUMENT = _TESTS.parent / "docs" / "conformance.md"
_INTRODUCTION = """\
# What the embedded lakeFS does as lakeFS does, and how that is known

`make conformance` writes this file, and only when every test behind it has run and passed: each row
is declared on the tests that show it. lakeFS means 1.84, whose answers and files were recorded.
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


_rows: set[Row] = set()
_left_out: set[LeftOut] = set()


def conforms(
    section: str, operation: str, *, client: str, checked: str, differs: str = ""
) -> pytest.MarkDecorator:
    """Declare what a test shows; a decorator, and a mark for ``pytest.param``."""
    if section not in SECTIONS:
        raise ValueError(f"{section!r} is none of {SECTIONS}")
    row = Row(section, operation, client, checked, differs)
    _rows.add(row)
    return pytest.mark.conforms(row)


def left_out(section: str, operations: Iterable[str], why: str) -> None:
    """Declare what the server has not."""
    if section not in SECTIONS:
        raise ValueError(f"{section!r} is none of {SECTIONS}")
    _left_out.add(LeftOut(section, tuple(sorted(operations)), why))


def declared() -> tuple[list[Row], list[LeftOut]]:
    """All that the test modules declare, in the order of the document."""
    for path in sorted(_TESTS.rglob("test_*.py")):
        if "lakegc_assets_tests.conformance" in path.read_text():
            importlib.import_module(".".join(path.relative_to(_TESTS.parent).with_suffix("").parts))
    return (
        sorted(_rows, key=lambda row: (SECTIONS.index(row.section), row)),
        sorted(_left_out, key=lambda line: (SECTIONS.index(line.section), line)),
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
            parts.append(f"## {section}\n\n{_table(head, lines)}")
        gone = [
            (", ".join(line.operations), line.why) for line in omitted if line.section == section
        ]
        if gone:
            parts.append(f"### Left out of: {section}\n\n{_table(('What', 'Why'), gone)}")
    return "\n".join(parts)


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rule = ["---"] * len(head)
    return "".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"
        for cells in (head, rule, *lines)
    )


class Recorder:
    """The pytest plugin: what of the declared rows a session has shown."""

    def __init__(self) -> None:
        self._of_test: dict[str, list[Row]] = {}
        self._pending: dict[Row, set[str]] = {}
        self._said = ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Let ``-m conformance`` choose every test with a row, before anything is deselected."""
        for item in items:
            rows = [mark.args[0] for mark in item.iter_markers("conforms")]
            if rows:
                item.add_marker(pytest.mark.conformance)
            self._of_test[item.nodeid] = rows
            for row in rows:
                self._pending.setdefault(row, set()).add(item.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Tick off the rows of a test that passed."""
        if report.when == "call" and report.passed:
            for row in self._of_test[report.nodeid]:
                self._pending[row].discard(report.nodeid)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Write the document, if all that is declared was shown."""
        rows, omitted = declared()
        missing = [row for row in rows if self._pending.get(row, {"not collected"})]
        if exitstatus or missing:
            names = ", ".join(f"{row.operation} ({row.client})" for row in missing[:5])
            self._said = f"docs/conformance.md is left as it was; not shown: {names or 'failures'}"
            return
        DOCUMENT.write_text(render(rows, omitted))
        self._said = f"docs/conformance.md: {len(rows)} rows, all shown"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what became of the document."""
        terminalreporter.write_line(self._said)


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark, and the plugin in sessions that may write the document."""
    config.addinivalue_line("markers", "conforms(row): shows a row of docs/conformance.md")
    if config.option.markexpr == "conformance":
        config.pluginmanager.register(Recorder(), "conformance recorder")
