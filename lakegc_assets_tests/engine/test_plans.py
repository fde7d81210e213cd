"""Plans of relations outlive a process, and never the code, or the file, that they were made in."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

import lakegc_assets
from lakegc_assets.engine import plans, relation
from lakegc_assets.engine.plans import Plan, PlanCache, Query, plans_file
from lakegc_assets.mark.relations import candidates

#: Unites two frames; told to, where planning fails, and then two frames that nobody has united.
_JOB = """
import sys
import pyarrow as pa
from sqlframe.duckdb import DuckDBDataFrame
from lakegc_assets.engine.embedded import EmbeddedSession
from lakegc_assets.engine.relation import union_all
if sys.argv[1] == "fail":
    DuckDBDataFrame.unionByName = None
with EmbeddedSession(None, None) as session:
    # Names of queries differ from those of the process that planned.
    frames = [session.create(pa.table({"n": [number]})) for number in range(int(sys.argv[-1]))]
    rows = session.collect(union_all(*frames[-2:]), pa.schema([("n", pa.int64())]), "test")
    print(sorted(rows["n"].to_pylist()))
    if sys.argv[1] == "fail":
        new = session.create(pa.table({"m": [0]}))
        try:
            union_all(new, new)
        except TypeError:
            print("cannot plan")
"""
_QUERY = Query("lakegc_7", 'SELECT "a|\n" FROM "lakegc_3"', (("a|\n", "BIGINT"), ("é", "VARCHAR")))
_PLAN = Plan(["lakegc_3"], [_QUERY], "lakegc_7")
_ARGUMENTS = (("frame", 0), (str, "'x'")), (("a", "BIGINT"),)
# What `relation` makes of a rule calls it with the functions of an engine; plans are of the rule.
_RULE: Callable[..., Any] = candidates.__wrapped__  # type: ignore[attr-defined]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "caches" / "plans-1.json"


def _kept(file: Path, rule: Callable[..., Any] = _RULE) -> Path:
    cache = PlanCache(file)
    cache.add(rule, _ARGUMENTS, _PLAN)
    cache.save()
    return file


def test_another_process_does_not_plan_again(tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", _JOB, *arguments],
            env=os.environ | {"XDG_CACHE_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )

    assert run("2").stdout == "[0, 1]\n"
    assert run("fail", "5").stdout == "[3, 4]\ncannot plan\n"


def test_a_plan_is_what_it_was(file: Path) -> None:
    _kept(file)
    found = PlanCache(file).get(_RULE, _ARGUMENTS)
    assert found == _PLAN
    assert PlanCache(file).get(_RULE, (*_ARGUMENTS, None)) is None


def test_two_processes_keep_the_plans_of_both(file: Path) -> None:
    first, second = PlanCache(file), PlanCache(file)
    for number, cache in enumerate((first, second)):
        cache.add(_RULE, number, _PLAN)
        cache.save()
    assert [PlanCache(file).get(_RULE, number) for number in (0, 1)] == [_PLAN, _PLAN]


def test_what_is_no_function_of_the_package_is_not_kept(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_a_test(rows: DataFrame) -> DataFrame:
        return rows

    _kept(file, of_a_test)
    assert not file.exists()
    of_a_test.__module__, of_a_test.__qualname__ = relation.__name__, "union_all"
    _kept(file, of_a_test)
    assert not file.exists()
    _kept(file)
    monkeypatch.setattr("lakegc_assets.mark.relations.candidates", of_a_test)
    assert PlanCache(file).get(_RULE, _ARGUMENTS) is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data.replace(b"SELECT", b"select"),
        lambda _: b"",
        lambda _: b"\xff",
        lambda data: data.partition(b"\n")[2],
    ],
)
def test_a_damaged_file_is_none(file: Path, damage: Callable[[bytes], bytes]) -> None:
    _kept(file).write_bytes(damage(file.read_bytes()))
    assert PlanCache(file).get(_RULE, _ARGUMENTS) is None
    assert PlanCache(_kept(file)).get(_RULE, _ARGUMENTS) == _PLAN


def test_a_file_that_others_may_write_is_none(file: Path) -> None:
    _kept(file).chmod(0o622)
    assert PlanCache(file).get(_RULE, _ARGUMENTS) is None


def test_without_a_folder_that_can_be_written_nothing_is_kept(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cache = PlanCache(_kept(tmp_path / "file" / "plans.json"))
    assert cache.get(_RULE, _ARGUMENTS) is None


def test_files_of_code_that_is_gone_are_removed(file: Path) -> None:
    old, new = _kept(file.with_name("plans-0.json")), _kept(file.with_name("plans-2.json"))
    then = time.time() - 31 * 86_400
    os.utime(old, (then, then))
    _kept(file)
    assert sorted(file.parent.iterdir()) == [file, new]


def test_other_code_has_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lakegc_assets, "__file__", str(tmp_path / "__init__.py"))
    # Nothing tells which code a package without sources has.
    assert plans_file() is None
    (tmp_path / "__init__.py").write_text("a = 1")
    # It may have been loaded before that was written.
    assert plans_file() is None
    monkeypatch.setattr(plans, "LOADED_AT", time.time() + 60)
    found = [plans_file(), plans_file()]
    (tmp_path / "__init__.py").write_text("a = 2")
    found.append(plans_file())
    (tmp_path / "__init__.py").rename(tmp_path / "other.py")
    found.append(plans_file())
    monkeypatch.setattr(plans, "version", lambda _: "0")
    found.append(plans_file())
    (tmp_path / "gone.py").symlink_to(tmp_path / "nowhere")
    assert plans_file() is None
    assert None not in found
    assert len(set(found)) == 4
