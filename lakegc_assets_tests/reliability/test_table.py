"""docs/reliability.md says what the tests declare."""

from __future__ import annotations

import importlib
from pathlib import Path

from lakegc_assets_tests.reliability import recorder


def test_the_document_shows_what_is_declared() -> None:
    expected = recorder.render(recorder.declared())
    declared, _, _ = recorder.DOCUMENT.read_text().partition(recorder.SIMULATION)
    assert declared == expected, "run `make test-stores`"


def test_what_the_simulation_covered_stays_behind_it() -> None:
    _, written = recorder.labels_and_text()
    assert recorder.SIMULATION in written
    assert written == recorder.DOCUMENT.read_text(), "run `make test-stores`"


def test_rows_name_tests_that_exist() -> None:
    rows = recorder.declared()
    for row in rows:
        path, _, name = row.test.partition("::")
        module = importlib.import_module(".".join(Path(path).with_suffix("").parts))
        assert callable(getattr(module, name))
    assert len(rows) > 30
