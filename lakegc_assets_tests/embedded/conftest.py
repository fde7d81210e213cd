"""A server with local files, for each test its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lakegc_assets.embedded import EmbeddedLakeFS
from lakegc_assets_tests.embedded.api import Api, Repo

NOW = 1_795_236_036.0


@dataclass
class Clock:
    """A clock that tests set."""

    now: float = NOW

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def server(tmp_path: Path, clock: Clock) -> Iterator[EmbeddedLakeFS]:
    """Small pages and small ranges."""
    with EmbeddedLakeFS(
        tmp_path, clock=clock, uncommitted_page_steps=2, range_raggedness=3
    ) as running:
        yield running


@pytest.fixture
def api(server: EmbeddedLakeFS) -> Iterator[Api]:
    with Api.of(server) as found:
        yield found


@pytest.fixture
def repo(api: Api) -> Repo:
    return api.repository()
