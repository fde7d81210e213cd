"""Servers and clients for the tests of the lakeFS client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lakegc_assets.lakefs.client import LakeFSClient

from ..replay import ReplayServer


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[ReplayServer]:
    """The recorded repository that the test's parameter names; ``retention`` by default."""
    with ReplayServer(getattr(request, "param", "retention")) as running:
        yield running


@pytest.fixture
def client(server: ReplayServer, tmp_path: Path) -> Iterator[LakeFSClient]:
    with server.config(tmp_path).connect() as connected:
        yield connected
