"""Requests to S3 whose signature ends at a deadline: it goes into the URL, as a presigned one's.

Format: https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-query-string-auth.html
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import boto3
import botocore
from botocore.auth import SIGV4_TIMESTAMP, S3SigV4QueryAuth
from botocore.credentials import ReadOnlyCredentials
from botocore.exceptions import NoCredentialsError

from lakegc_assets.storage.bulk import Deadline

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

_DEADLINE: Final = ContextVar[Deadline | None]("deadline", default=None)
_OPERATIONS: Final = ("DeleteObject", "DeleteObjects")


@contextmanager
def ending(deadline: Deadline | None) -> Iterator[None]:
    """Let what a prepared client deletes in this thread be refused after a deadline."""
    token = _DEADLINE.set(deadline)
    try:
        yield
    finally:
        _DEADLINE.reset(token)


def prepare(client: S3Client, session: boto3.Session) -> None:
    """Let a client sign deletes for the deadline they have, each try anew."""

    def choose(**_: object) -> object:
        return None if _DEADLINE.get() is None else botocore.UNSIGNED

    def sign(request: Any, operation_name: str, **_: object) -> None:  # noqa: ANN401 - botocore's
        deadline = _DEADLINE.get()
        # After a redirect botocore itself asks where the bucket is.
        if deadline is None or operation_name not in _OPERATIONS:
            return
        credentials = session.get_credentials()
        if credentials is None:
            raise NoCredentialsError
        # What takes long here is over before the window is known.
        frozen = credentials.get_frozen_credentials()
        # After a redirect this is the bucket's own region.
        region = request.context.get("signing", {}).get("region") or client.meta.region_name
        _QueryAuth(frozen, region, *deadline.window()).add_auth(request)

    for name in _OPERATIONS:
        client.meta.events.register_first(f"choose-signer.s3.{name}", choose)  # type: ignore[arg-type]
    # After botocore's own signer, which adds the headers that are signed, too.
    client.meta.events.register_last("request-created.s3", sign)


class _QueryAuth(S3SigV4QueryAuth):
    """Botocore's, for a window that need not begin now."""

    def __init__(
        self, credentials: ReadOnlyCredentials, region: str, begin: datetime, length: int
    ) -> None:
        super().__init__(credentials, "s3", region, expires=length)
        self._begin = begin.strftime(SIGV4_TIMESTAMP)

    def _modify_request_before_signing(self, request: Any) -> None:  # noqa: ANN401 - as above
        request.context["timestamp"] = self._begin
        # Botocore would put the body into the URL, as a form's.
        body, request.data = request.data, b""
        super()._modify_request_before_signing(request)  # type: ignore[misc]
        request.data = body
