"""A table is written when workers have shown all its rows between them, and else left alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lakegc_assets_tests.recorder import Recorder


@dataclass
class Item:
    """A test with the row that it shows."""

    nodeid: str
    row: str

    def iter_markers(self, _name: str) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(args=(self.row,))

    def add_marker(self, _name: str) -> None:
        """All of them are chosen."""


ITEMS: list[Any] = [Item("a", "one"), Item("b", "one"), Item("c", "two")]


def of(document: Path) -> Recorder:
    return Recorder(document, "shows", "slow", lambda: ({"one": "1", "two": "2"}, "the table"))


def stub(**fields: object) -> Any:
    return SimpleNamespace(**fields)


def worker(document: Path, passed: str | None) -> Any:
    """What xdist knows of a worker that has ended; without tests of one that died."""
    if passed is None:
        return stub()
    recorder, output = of(document), dict[str, object]()
    recorder.pytest_collection_modifyitems(ITEMS)
    for test in passed:
        recorder.pytest_runtest_logreport(stub(when="call", passed=True, nodeid=test))
    recorder.pytest_sessionfinish(stub(config=stub(workeroutput=output)), 0)
    assert not document.exists()
    return stub(workeroutput=output)


@pytest.mark.parametrize(
    ("passed", "status", "written"),
    [
        (("ab", "c"), 0, True),
        (("a", "bc"), 0, True),
        (("abc", ""), 0, True),
        (("ab", "c"), 1, False),
        (("a", "c"), 0, False),
        (("ab", ""), 0, False),
        (("ab", None), 0, False),
        ((None, None), 0, False),
        ((), 0, False),
    ],
)
def test_all_rows_must_be_shown(
    passed: tuple[str | None, ...], status: int, *, written: bool, tmp_path: Path
) -> None:
    document = tmp_path / "table.md"
    recorder = of(document)
    for tests in passed:
        recorder.pytest_testnodedown(worker(document, tests))
    # Those of workers come here too, and say nothing of rows.
    recorder.pytest_runtest_logreport(stub(when="call", passed=True, nodeid="c"))
    recorder.pytest_sessionfinish(stub(config=stub()), status)
    assert document.exists() == written
