"""Recorded repositories on an S3 server, for marks that are written by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import boto3
import pytest
from botocore.exceptions import ClientError

from lakegc_assets_tests.checks.handmade import BUCKET, Lab
from lakegc_assets_tests.replay import ReplayServer

Labs = Callable[[str], Lab]


@pytest.fixture
def labs(s3_server: str, tmp_path: Path) -> Iterator[Labs]:
    """Gives a recorded repository by its name; what a test does to it is undone."""
    client = boto3.client("s3", endpoint_url=s3_server)
    try:
        client.head_bucket(Bucket=BUCKET)
    except ClientError:
        client.create_bucket(Bucket=BUCKET)
    with ExitStack() as stack:

        def lab(repository: str) -> Lab:
            server = stack.enter_context(ReplayServer(repository))
            found = Lab(server, s3_server, tmp_path)
            found.clear()
            found.load()
            stack.callback(found.clear)
            return found

        yield lab


@pytest.fixture
def lab(labs: Labs) -> Lab:
    return labs("retention")
