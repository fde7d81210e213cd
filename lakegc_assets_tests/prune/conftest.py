"""A lake that was marked once, and a running copy of it for each test, with a past made up."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakegc_assets_tests.lake import SmallLake
from lakegc_assets_tests.marked import few_tasks, lake
from lakegc_assets_tests.prune.estate import AGE, OLD, Estate
from lakegc_assets_tests.prune.past import long_ago
from lakegc_assets_tests.sessions import Session

__all__ = ["few_tasks", "lake"]


@pytest.fixture
def estate(lake: SmallLake, spark: Session, tmp_path: Path) -> Estate:
    for run, days in ((OLD, AGE), ("later-1", 80), ("later-2", 70)):
        long_ago(lake.root, run, days)
    return Estate(lake, spark, tmp_path)
