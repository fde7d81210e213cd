"""A lake that is marked once in each worker, and a running copy of it for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lakegc_assets.mark import lookups
from lakegc_assets_tests.lake import Marked, SmallLake, copy_of, make_marked, running
from lakegc_assets_tests.sessions import Session


@pytest.fixture(autouse=True)
def few_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small data needs few tasks."""
    monkeypatch.setattr(lookups, "TASKS", 1)


@pytest.fixture(scope="session")
def marked(tmp_path_factory: pytest.TempPathFactory, spark: Session) -> Marked:
    return make_marked(tmp_path_factory.mktemp("marked"), spark)


@pytest.fixture
def lake(marked: Marked, tmp_path: Path) -> Iterator[SmallLake]:
    with running(copy_of(marked, tmp_path)) as found:
        yield found
