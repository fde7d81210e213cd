"""A server for each module, a repository and a client for each test."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from lakegc_assets.embedded import EmbeddedLakeFS
from lakegc_assets_tests.conformance.world import World, close_client, sdk, sdk_client

_NUMBERS = count(1)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedLakeFS]:
    """Small ranges."""
    with EmbeddedLakeFS(tmp_path_factory.mktemp("lake"), range_raggedness=3) as server:
        yield server


@pytest.fixture
def world(running: EmbeddedLakeFS) -> Iterator[World]:
    client = sdk_client(running)
    found = World(running, client, f"repo-{next(_NUMBERS)}")
    creation = sdk.RepositoryCreation(name=found.repo, storage_namespace=found.namespace)
    client.repositories_api.create_repository(creation)
    yield found
    close_client(client)
