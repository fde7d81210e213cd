"""Imports go one way, as pyproject.toml says; and the command starts without loading everything."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

_PROJECT = Path(__file__).parents[1]


def test_the_contracts_of_imports_hold() -> None:
    done = subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"],
        cwd=_PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "8 kept, 0 broken" in done.stdout


@pytest.mark.parametrize(
    ("loading", "others"),
    [
        ("import lakegc_assets.cli.main", {"dagster", "pyspark", "starlette", "uvicorn"}),
        (
            "from lakegc_assets.definitions import defs; defs()",
            {"matplotlib", "starlette"},
        ),
    ],
)
def test_what_loads_slowly_is_loaded_where_it_is_needed(loading: str, others: set[str]) -> None:
    code = f"import sys; {loading}; print({others} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=_PROJECT
    )
    assert done.stdout.strip() == "set()"


def test_what_is_compiled_takes_nothing_from_another_file() -> None:
    """Numba looks for changes in the file of a loop alone, and keeps what it took from others."""
    loops = {}
    for path in (_PROJECT / "lakegc_assets").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if "\nimport numba\n" in text:
            name = ".".join(path.relative_to(_PROJECT).with_suffix("").parts)
            compiled = [
                found.py_func
                for found in vars(import_module(name)).values()
                if hasattr(found, "py_func") and found.__module__ == name
            ]
            taken = {
                alias.asname or alias.name
                for node in ast.walk(ast.parse(text))
                if isinstance(node, ast.ImportFrom) and "lakegc_assets" in str(node.module)
                for alias in node.names
            }
            loops[name] = {one.__name__: taken & {*one.__code__.co_names} for one in compiled}
    assert loops["lakegc_assets.graveler.decode_kernels"].keys() > {"decode_blocks", "hash_etags"}
    assert all(of.keys() for of in loops.values())
    assert {name for of in loops.values() for name, others in of.items() if others} == set()
