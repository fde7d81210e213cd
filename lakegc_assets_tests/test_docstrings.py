"""Docstrings say what a thing is or does: none begins with a question that the sentence answers."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import lakegc_assets

_PACKAGE = Path(lakegc_assets.__file__).parent
_QUESTIONS = {"What", "Who", "Whose", "Whether", "How", "Which", "Where", "When"}


def questions(source: str) -> list[str]:
    """First lines of docstrings of a module that begin with a question word."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = (
        ast.get_docstring(node) for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)
    )
    return [text.splitlines()[0] for text in found if text and text.split()[0] in _QUESTIONS]


def test_a_question_is_found() -> None:
    assert questions('"""Rows."""\ndef f():\n    """Whether it is.\n\n    More."""') == [
        "Whether it is."
    ]


@pytest.mark.parametrize(
    "folder", [_PACKAGE, _PACKAGE.parent / "examples"], ids=lambda path: path.name
)
def test_no_docstring_begins_with_a_question(folder: Path) -> None:
    found = {
        str(path.relative_to(folder)): asked
        for path in sorted(folder.rglob("*.py"))
        if (asked := questions(path.read_text()))
    }
    assert found == {}
