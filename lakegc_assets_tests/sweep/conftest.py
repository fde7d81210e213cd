"""A lake that was marked once, and a running copy of it for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lakegc_assets_tests.lake import REPOSITORY, SmallLake, running
from lakegc_assets_tests.marked import few_tasks, lake

__all__ = ["few_tasks", "lake"]


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[SmallLake]:
    """A repository that nobody has marked: for what needs branches and files, and no Spark."""
    with running(tmp_path / "bare") as found:
        found.client.create_repository(REPOSITORY, f"local://{REPOSITORY}")
        found.client.create_branch(REPOSITORY, "busy", "main")
        yield found
