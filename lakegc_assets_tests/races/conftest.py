"""A lake in which all races are prepared, once for all tests."""

from __future__ import annotations

import pytest

from lakegc_assets_tests.marked import few_tasks
from lakegc_assets_tests.races.collecting import Prepared, prepare

__all__ = ["few_tasks"]


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return prepare(tmp_path_factory.mktemp("races") / "lake")
