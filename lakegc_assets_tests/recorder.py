"""A pytest plugin that writes a table of docs/ when every test behind its rows has passed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest


@dataclass(eq=False)
class Recorder:
    """What of the declared rows a session has shown.

    Attributes:
        document: the file that is written.
        mark: with a row as its argument, on the tests that show it.
        session: the mark by which a session chooses all of them; no other one writes the file.
        tell: the declared rows with their names, for people, and the text of the document.
    """

    document: Path
    mark: str
    session: str
    tell: Callable[[], tuple[Mapping[Hashable, str], str]]
    _of_test: dict[str, list[Hashable]] = field(default_factory=dict)
    _pending: dict[Hashable, set[str]] = field(default_factory=dict)
    _said: str = ""

    def configure(self, config: pytest.Config) -> None:
        """Register the mark, and the plugin in sessions that may write the document."""
        name = f"docs/{self.document.name}"
        config.addinivalue_line("markers", f"{self.mark}(row): shows a row of {name}")
        if config.option.markexpr == self.session:
            config.pluginmanager.register(self, f"recorder of {name}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Let the session choose every test with a row, before anything is deselected."""
        for item in items:
            rows = [mark.args[0] for mark in item.iter_markers(self.mark)]
            if rows:
                item.add_marker(self.session)
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
        names, text = self.tell()
        missing = [name for row, name in names.items() if self._pending.get(row, {"not collected"})]
        told = f"docs/{self.document.name}"
        if exitstatus or missing:
            why = ", ".join(missing[:5]) or "something failed"
            self._said = f"{told} is left as it was; not shown: {why}"
            return
        self.document.write_text(text)
        self._said = f"{told}: {len(names)} rows, all shown"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what became of the document."""
        terminalreporter.write_line(self._said)


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    rule = ["---"] * len(head)
    return "".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"
        for cells in (head, rule, *lines)
    )
