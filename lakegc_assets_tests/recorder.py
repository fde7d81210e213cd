"""A pytest plugin that writes a table of docs/ when every test behind its rows has passed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
    _of_test: dict[str, list[str]] = field(default_factory=dict)
    # By ``repr`` of a row, which one process can tell another.
    _pending: dict[str, set[str]] = field(default_factory=dict)
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
            rows = [repr(mark.args[0]) for mark in item.iter_markers(self.mark)]
            if rows:
                item.add_marker(self.session)
            self._of_test[item.nodeid] = rows
            for row in rows:
                self._pending.setdefault(row, set()).add(item.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Tick off the rows of a test that passed."""
        if report.when == "call" and report.passed:
            for row in self._of_test.get(report.nodeid, ()):
                self._pending[row].discard(report.nodeid)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take over what a worker has shown; what it took with it when it died is not shown."""
        told: dict[str, list[str]] = getattr(node, "workeroutput", {}).get(self.mark, {})
        for row, left in told.items():
            self._pending[row] = self._pending.get(row, set(left)) & set(left)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write the document, if all that is declared was shown; a worker only tells what was."""
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output[self.mark] = {row: sorted(left) for row, left in self._pending.items()}
            return
        names, text = self.tell()
        missing = [name for row, name in names.items() if self._left(row)]
        told = f"docs/{self.document.name}"
        if exitstatus or missing:
            why = ", ".join(missing[:5]) or "something failed"
            self._said = f"{told} is left as it was; not shown: {why}"
            return
        # A session beside this one may be reading it.
        if not self.document.exists() or self.document.read_text() != text:
            self.document.write_text(text)
        self._said = f"{told}: {len(names)} rows, all shown"

    def _left(self, row: Hashable) -> set[str]:
        return self._pending.get(repr(row), {"not collected"})

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
