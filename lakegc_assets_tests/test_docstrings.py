"""Docstrings say what a thing is or does: none begins with a question that the sentence answers."""

from __future__ import annotations

import ast
import inspect
import pkgutil
from importlib import import_module
from pathlib import Path

import pytest

import lakegc_assets
from lakegc_assets import storage

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


def undocumented(module: object) -> list[str]:
    """Public methods of the classes of a module that neither have nor inherit a docstring."""
    return [
        f"{kind.__qualname__}.{name}"
        for kind in vars(module).values()
        if inspect.isclass(kind) and kind.__module__ == getattr(module, "__name__", "")
        if not kind.__name__.startswith("_")
        for name, member in vars(kind).items()
        if not name.startswith("_")
        and getattr(member, "__name__", "") != "<lambda>"
        and (inspect.isfunction(member) or isinstance(member, property))
        and not inspect.getdoc(getattr(kind, name))
    ]


def test_methods_of_stores_have_or_inherit_a_docstring() -> None:
    names = [one.name for one in pkgutil.walk_packages(storage.__path__, f"{storage.__name__}.")]
    assert len(names) > 30
    assert [found for name in names for found in undocumented(import_module(name))] == []
