"""boto3 as the client of the gateway, and other ways to send it a request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import boto3
import pytest
import requests
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from lakegc_assets.embedded import EmbeddedLakeFS
from lakegc_assets_tests.embedded.api import TIMEOUT

REGION = "us-east-1"
# Its stubs know no call that takes its arguments from a dictionary.
S3: TypeAlias = Any


def client(endpoint: str, access_key: str, secret_key: str, **config: Any) -> S3:
    """boto3 as it comes, but for a single try."""
    untyped: Any = boto3
    s3: Any = {"addressing_style": "path", **config.pop("s3", {})}
    return untyped.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
        region_name=REGION,
        config=Config(s3=s3, retries={"total_max_attempts": 1}, **config),
    )


def client_of(server: EmbeddedLakeFS, **config: Any) -> S3:
    return client(server.endpoint, server.access_key, server.secret_key, **config)


@contextmanager
def refused(status: int, code: str) -> Iterator[dict[str, Any]]:
    """Expect an error of boto3's; gives its answer."""
    answer: dict[str, Any] = {}
    with pytest.raises(ClientError) as caught:
        yield answer
    answer.update(caught.value.response)
    found = answer["ResponseMetadata"]["HTTPStatusCode"], answer["Error"]["Code"]
    assert found == (status, code), answer


class _Declaring(S3SigV4Auth):
    def __init__(self, credentials: Credentials, declared: str | None) -> None:
        super().__init__(credentials, "s3", REGION)
        self._declared = declared

    def payload(self, request: AWSRequest) -> str:
        return str(super().payload(request)) if self._declared is None else self._declared


def send(
    server: EmbeddedLakeFS,
    method: str,
    path: str,
    body: bytes | Iterator[bytes] = b"",
    declared: str | None = None,
    **headers: str,
) -> requests.Response:
    """Send what no client would, signed; underscores in names of headers are hyphens.

    ``declared`` is what the body is said to be, instead of its SHA-256.
    """
    url = server.endpoint + path
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    signed = signed_headers(server, method, url, body, declared, given)
    prepared = requests.Request(method, url, headers=signed, data=body).prepare()
    # What was signed is what is sent: requests would resolve dots in the path.
    prepared.url = url
    with requests.Session() as session:
        return session.send(prepared, timeout=TIMEOUT)


def signed_headers(
    server: EmbeddedLakeFS,
    method: str,
    url: str,
    body: bytes | Iterator[bytes] = b"",
    declared: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The headers of a request, and those that sign it."""
    request = AWSRequest(method, url, headers=headers or {}, data=body)
    request.context["payload_signing_enabled"] = True
    _Declaring(Credentials(server.access_key, server.secret_key), declared).add_auth(request)
    return dict(request.headers)
