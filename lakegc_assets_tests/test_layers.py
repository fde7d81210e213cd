"""Imports go one way, as pyproject.toml says; and the command starts without loading everything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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


def test_help_loads_neither_dagster_nor_spark() -> None:
    code = "import sys, lakegc_assets.cli.main; print({'dagster', 'pyspark'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=_PROJECT
    )
    assert done.stdout.strip() == "set()"
