"""A lake that was marked once, and a running copy of it for each test, with a past made up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lakegc_assets.mark import lookups
from lakegc_assets_tests.lake import Marked, SmallLake, copy_of, make_marked, running
from lakegc_assets_tests.prune.estate import AGE, OLD, Estate
from lakegc_assets_tests.prune.past import long_ago
from lakegc_assets_tests.sessions import Session


@pytest.fixture(autouse=True)
def _few_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small data needs few tasks."""
    monkeypatch.setattr(lookups, "_TASKS", 1)


@pytest.fixture(scope="session")
def marked(tmp_path_factory: pytest.TempPathFactory, spark: Session) -> Marked:
    return make_marked(tmp_path_factory.mktemp("marked"), spark)


@pytest.fixture
def lake(marked: Marked, tmp_path: Path) -> Iterator[SmallLake]:
    with running(copy_of(marked, tmp_path)) as found:
        yield found


@pytest.fixture
def estate(lake: SmallLake, spark: Session, tmp_path: Path) -> Estate:
    for run, days in ((OLD, AGE), ("later-1", 80), ("later-2", 70)):
        long_ago(lake.root, run, days)
    return Estate(lake, spark, tmp_path)
