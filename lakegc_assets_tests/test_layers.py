"""The command starts without loading everything, and nothing private of Dagster is used."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

_PROJECT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("loading", "others"),
    [
        ("import lakegc_assets.cli.main", {"dagster", "pyspark", "starlette", "uvicorn"}),
        (
            "from lakegc_assets.definitions import defs; defs()",
            {"starlette"},
        ),
    ],
)
def test_what_loads_slowly_is_loaded_where_it_is_needed(loading: str, others: set[str]) -> None:
    code = f"import sys; {loading}; print({others} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=_PROJECT
    )
    assert done.stdout.strip() == "set()"


def test_nothing_is_used_that_dagster_has_no_public_name_for() -> None:
    package = _PROJECT / "lakegc_assets"
    private = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        # In strings, too: instances are configured by names of modules.
        if re.search(r"\bdagster(_\w+)?\._", path.read_text())
    }
    assert private == set()
