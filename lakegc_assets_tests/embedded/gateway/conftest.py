"""One server for all tests of the gateway, on the machine's clock: boto3 signs with it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from lakegc_assets.embedded import EmbeddedLakeFS
from lakegc_assets_tests.embedded.api import Api, Repo
from lakegc_assets_tests.embedded.gateway.s3 import S3, client_of

_numbers = itertools.count()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedLakeFS]:
    with EmbeddedLakeFS(tmp_path_factory.mktemp("gateway")) as running:
        yield running


@pytest.fixture(scope="session")
def s3(server: EmbeddedLakeFS) -> S3:
    return client_of(server)


@pytest.fixture(scope="session")
def api(server: EmbeddedLakeFS) -> Iterator[Api]:
    with Api.of(server) as found:
        yield found


@pytest.fixture
def repo(api: Api) -> Repo:
    """A repository of the test's own; its name is the bucket's."""
    return api.repository(f"repo-{next(_numbers)}")
