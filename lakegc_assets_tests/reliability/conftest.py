"""Real stores behind proxies, and a repository that was never marked."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import boto3
import pytest

from lakegc_assets.storage.azure.auth import write_azure_credentials_file
from lakegc_assets.storage.config import AzureAccess, StoreConfig
from lakegc_assets_tests.reliability.places import AzureDialect, Place, S3Dialect
from lakegc_assets_tests.reliability.proxy import proxied
from lakegc_assets_tests.reliability.recorder import AZURE, S3
from lakegc_assets_tests.storage.conftest import azure_client
from lakegc_assets_tests.storage.servers import AZURE_ACCOUNT, AZURE_KEY, Server
from lakegc_assets_tests.sweep.conftest import bare

__all__ = ["bare"]

#: The servers are on this machine, and may be slow.
_ANSWER_S = 60.0
_PAGE = 20


def s3_behind(endpoint: str) -> Iterator[Place]:
    """A new bucket of an S3 server, behind a proxy."""
    bucket = f"bucket-{uuid.uuid4().hex}"
    boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket=bucket)
    direct = StoreConfig(endpoint_url=endpoint)
    with proxied(endpoint.removeprefix("http://")) as proxy:
        config = StoreConfig(
            endpoint_url=proxy.endpoint, read_timeout_s=_ANSWER_S, max_attempts=2, page_size=_PAGE
        )
        yield Place(S3, f"s3://{bucket}/n s", config, direct, proxy, S3Dialect)


@pytest.fixture
def s3_place(versitygw_server: Server) -> Iterator[Place]:
    yield from s3_behind(versitygw_server.endpoint)


@pytest.fixture
def moto_place(s3_server: str) -> Iterator[Place]:
    """For the few tests of the normal suite."""
    yield from s3_behind(s3_server)


@pytest.fixture
def azure_place(azurite_server: Server, tmp_path: Path) -> Iterator[Place]:
    path = tmp_path / "azure.json"
    write_azure_credentials_file(path, account_key=AZURE_KEY)
    name = f"box-{uuid.uuid4().hex}"
    azure_client(azurite_server).create_container(name)
    access = AzureAccess(f"{azurite_server.endpoint}/{AZURE_ACCOUNT}", str(path))
    direct = StoreConfig(azure=access, read_timeout_s=60)
    with proxied(azurite_server.address) as proxy:
        config = StoreConfig(
            azure=replace(access, account_url=f"{proxy.endpoint}/{AZURE_ACCOUNT}"),
            read_timeout_s=_ANSWER_S, max_attempts=2, page_size=_PAGE,
        )  # fmt: skip
        url = f"https://{AZURE_ACCOUNT}.blob.core.windows.net/{name}/n"
        yield Place(AZURE, url, config, direct, proxy, AzureDialect)


@pytest.fixture(params=["s3_place", "azure_place"])
def place(request: pytest.FixtureRequest) -> Place:
    found: Place = request.getfixturevalue(request.param)
    return found
