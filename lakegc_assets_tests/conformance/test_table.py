"""docs/conformance.md says what the tests declare; it is written only when all of them passed."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakegc_assets_tests.conformance import recorder

pytest_plugins = ["pytester"]

TESTS = """
import pytest
from lakegc_assets_tests.conformance.recorder import GATEWAY, REST, Row, conforms
from lakegc_assets_tests.conformance import recorder

@conforms(REST, "b", client="c", checked="fast")
def test_fast(): pass

@pytest.mark.conformance
@conforms(GATEWAY, "a|a", client="c", checked="slow", differs="a little")
def test_slow(): assert {works}

def test_other(): pass
"""


def test_the_document_shows_what_is_declared() -> None:
    rows, omitted = recorder.declared()
    expected = recorder.render(rows, omitted)
    assert recorder.DOCUMENT.read_text() == expected, "run `make conformance`"


def test_no_row_is_declared_twice_in_other_words() -> None:
    rows, _ = recorder.declared()
    names = [(row.section, row.operation, row.client) for row in rows]
    assert len(names) == len(set(names))
    assert rows


@pytest.fixture
def document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a session inside a test writes; it knows no rows but those of its own tests."""
    path = tmp_path / "conformance.md"
    monkeypatch.setattr(recorder, "DOCUMENT", path)
    monkeypatch.setattr(recorder, "TESTS", tmp_path)
    monkeypatch.setattr(recorder, "ROWS", set())
    monkeypatch.setattr(recorder, "LEFT_OUT", set())
    return path


def run(pytester: pytest.Pytester, *, works: bool, args: tuple[str, ...]) -> pytest.RunResult:
    pytester.makeini("[pytest]\nmarkers = conformance: slow\n")
    pytester.makepyfile(TESTS.replace("{works}", str(works)))
    return pytester.runpytest_inprocess(
        "-p", "lakegc_assets_tests.conformance.recorder", "--strict-markers", *args
    )


def test_a_session_in_which_all_passed_writes_the_document(
    pytester: pytest.Pytester, document: Path
) -> None:
    run(pytester, works=True, args=("-m", "conformance")).assert_outcomes(passed=2, deselected=1)
    text = document.read_text()
    assert "## REST API\n\n| Operation | Client |" in text
    assert "| a\\|a | c | slow | a little |" in text
    assert text.index("| b | c | fast |") < text.index("## S3 gateway")


@pytest.mark.parametrize(
    ("works", "args"),
    [
        (False, ("-m", "conformance")),
        (True, ("-m", "conformance", "-k", "fast")),
        (True, ("-m", "not conformance")),
        (True, ()),
    ],
    ids=["one failed", "one did not run", "the normal suite", "no choice"],
)
def test_other_sessions_leave_the_document_alone(
    pytester: pytest.Pytester, document: Path, *, works: bool, args: tuple[str, ...]
) -> None:
    run(pytester, works=works, args=args)
    assert not document.exists()
