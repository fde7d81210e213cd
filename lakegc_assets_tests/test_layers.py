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


#: Imports of packages that are called otherwise.
_IMPORTED_AS = {"azure-identity": "azure.identity", "google-auth": "google.auth", "pyyaml": "yaml"}
_TASKS = """
import importlib, pkgutil, sys
class Lacking:
    def find_spec(self, name, path=None, target=None):
        if name in {lacking}:
            raise ImportError(name)
sys.meta_path.insert(0, Lacking())
for package in ("checks", "mark", "recovery", "storage", "sweep"):
    found = importlib.import_module("lakegc_assets." + package)
    for module in pkgutil.walk_packages(found.__path__, found.__name__ + "."):
        importlib.import_module(module.name)
"""


def test_nodes_of_a_cluster_need_no_more_than_is_documented() -> None:
    page = (_PROJECT / "docs/clusters.md").read_text()
    listed = page.partition("On the nodes these are needed: ")[2].partition(". Dagster")[0]
    there = set(re.findall(r"[a-z0-9-]+", listed))
    pyproject = (_PROJECT / "pyproject.toml").read_text()
    declared = pyproject.partition("\ndependencies = [")[2].partition("\n]")[0]
    packages = set(re.findall(r'^  "([a-z0-9-]+)', declared, re.MULTILINE))
    lacking = {
        _IMPORTED_AS.get(one, one.replace("-", "_")) for one in packages - there - {"pyspark"}
    }
    assert {"dagster", "duckdb"} <= lacking
    code = _TASKS.replace("{lacking}", repr(lacking))
    subprocess.run([sys.executable, "-c", code], check=True, cwd=_PROJECT)


def test_nothing_is_used_that_dagster_has_no_public_name_for() -> None:
    package = _PROJECT / "lakegc_assets"
    private = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        # In strings, too: instances are configured by names of modules.
        if re.search(r"\bdagster(_\w+)?\._", path.read_text())
    }
    assert private == set()
