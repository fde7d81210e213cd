"""A lake in which all races are prepared, once for all tests."""

from __future__ import annotations

import pytest

from lakegc_assets.mark import lookups
from lakegc_assets_tests.races.collecting import Prepared, prepare


@pytest.fixture(autouse=True)
def _few_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small data needs few tasks."""
    monkeypatch.setattr(lookups, "_TASKS", 1)


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return prepare(tmp_path_factory.mktemp("races") / "lake")
