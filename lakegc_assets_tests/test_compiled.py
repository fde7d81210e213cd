"""Loops that numba compiles: none is older than its source, and no run waits for one."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

_PROJECT = Path(__file__).parents[1]


def loops() -> Iterator[tuple[Any, set[str]]]:
    """Each loop, and the names that its file has from other files of the package."""
    for path in (_PROJECT / "lakegc_assets").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if "\nimport numba\n" in text or "lakegc_assets.graveler.compilation import" in text:
            name = ".".join(path.relative_to(_PROJECT).with_suffix("").parts)
            taken = {
                alias.asname or alias.name
                for node in ast.walk(ast.parse(text))
                if isinstance(node, ast.ImportFrom) and "lakegc_assets" in str(node.module)
                for alias in node.names
            }
            compiled = vars(import_module(name)).values()
            yield from (
                (found, taken)
                for found in compiled
                if hasattr(found, "py_func") and found.__module__ == name
            )


def test_what_is_compiled_takes_nothing_from_another_file() -> None:
    """Numba looks for changes in the file of a loop alone, and keeps what it took from others."""
    found = {str(loop): taken & {*loop.py_func.__code__.co_names} for loop, taken in loops()}
    assert len(found) > 30
    assert {name for name, others in found.items() if others} == set()


def test_all_that_a_run_calls_is_compiled_before() -> None:
    code = (
        "from lakegc_assets.cli.kernels import main; main();"
        "from lakegc_assets_tests.test_compiled import loops;"
        "print([str(one) for one, _ in loops() if not one.signatures"
        " and '.embedded.' not in one.__module__ and not one.__name__.startswith('_')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=_PROJECT
    )
    assert done.stdout.strip() == "[]"
