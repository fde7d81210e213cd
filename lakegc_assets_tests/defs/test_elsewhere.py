"""Another project gets the component by six lines, also from the wheel."""

from __future__ import annotations

import importlib
import os
import shutil
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from dagster.components.core.component_tree import ComponentTreeException

_PROJECT = Path(__file__).parents[2]
_SIX_LINES = """\
type: lakegc_assets.GarbageCollection
attributes:
  lakefs:
    endpoint: https://lakefs.example.com
  sweep: approved
  cron: 0 3 * * 6
"""
_DG = "from dagster_dg_cli.cli import main; main()"
_PYPROJECT = """\
[project]
name = "fresh"
version = "0.1.0"
[tool.dg]
directory_type = "project"
[tool.dg.project]
root_module = "fresh"
"""
_DEFINITIONS = """\
from pathlib import Path
from dagster import definitions, load_from_defs_folder

@definitions
def defs():
    return load_from_defs_folder(path_within_project=Path(__file__).parent)
"""


def _make_project(folder: Path) -> Path:
    """A project of another package, which has nothing yet; its package."""
    package = folder / "src/fresh"
    (package / "defs").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "defs/__init__.py").touch()
    (package / "definitions.py").write_text(_DEFINITIONS)
    (folder / "pyproject.toml").write_text(_PYPROJECT)
    return package


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel beside its dependencies, and a project that has nothing yet."""
    folder = tmp_path_factory.mktemp("elsewhere")
    source = folder / "source"
    shutil.copytree(
        _PROJECT / "lakegc_assets",
        source / "lakegc_assets",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(_PROJECT / name, source)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    wheel = ["wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(folder / "dist")]
    subprocess.run([*pip, *wheel, str(source)], check=True, capture_output=True)
    (built,) = (folder / "dist").iterdir()
    venv.create(folder / "venv", symlinks=True)
    python = str(folder / "venv/bin/python")
    install = ["--python", python, "install", "--no-deps", "--no-index", str(built)]
    subprocess.run([*pip, *install], check=True, capture_output=True)
    (packages,) = (folder / "venv/lib").glob("python*/site-packages")
    # What it depends on is found where these tests find it, behind the wheel.
    (packages / "beside.pth").write_text("\n".join(site.getsitepackages()))
    _make_project(folder / "project")
    (folder / "dagster").mkdir()
    (folder / "dagster/dagster.yaml").touch()
    return folder


def _dg(elsewhere: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(elsewhere / "venv/bin/python"), "-c", _DG, *arguments],
        cwd=elsewhere / "project",
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(elsewhere / "project/src"),
            "DAGSTER_HOME": str(elsewhere / "dagster"),
            "HOME": str(elsewhere),
            "LANG": "C.UTF-8",
            "COLUMNS": "300",
        },
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.filterwarnings("ignore::dagster.BetaWarning")
def test_another_project_loads_six_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = _make_project(tmp_path)
    monkeypatch.syspath_prepend(str(package.parent))
    for name in ("fresh", "fresh.defs", "fresh.definitions"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    file = package / "defs/collection/defs.yaml"
    file.parent.mkdir()
    file.write_text(_SIX_LINES)
    load = importlib.import_module("fresh.definitions").defs
    loaded = load()
    keys = {key.to_user_string() for key in loaded.resolve_asset_graph().get_all_asset_keys()}
    assert "swept_set" in keys
    assert {schedule.name for schedule in loaded.schedules} >= {"gc_schedule"}
    assert {job.name for job in loaded.jobs} >= {"gc_approve"}
    file.write_text(_SIX_LINES.replace("0 3 * * 6", "0 33 * * 6"))
    with pytest.raises(ComponentTreeException) as refused:
        load()
    said = str(refused.value.__cause__)
    assert f"cron at {file}:6" in said
    assert "'0 33 * * 6' is not a cron schedule" in said


@pytest.mark.conformance
def test_another_project_gets_collection_by_six_lines(elsewhere: Path) -> None:
    listed = _dg(elsewhere, "list", "components")
    assert "lakegc_assets.GarbageCollection" in listed.stdout, listed.stderr
    made = _dg(elsewhere, "scaffold", "defs", "lakegc_assets.GarbageCollection", "collection")
    assert made.returncode == 0, made.stderr
    file = elsewhere / "project/src/fresh/defs/collection/defs.yaml"
    assert file.read_text().startswith("type: lakegc_assets.GarbageCollection")
    file.write_text(_SIX_LINES)
    assert len(_SIX_LINES.splitlines()) == 6
    loaded = _dg(elsewhere, "list", "defs", "--json")
    assert loaded.returncode == 0, loaded.stderr
    for name in ("swept_set", "gc_schedule", "gc_approvals", "gc_approve", "candidate_share"):
        assert f'"{name}"' in loaded.stdout or f":{name}" in loaded.stdout, name
