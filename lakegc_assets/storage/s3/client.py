"""Clients of S3 and its compatible servers: credentials, signatures, failures as our own errors.

A delete with a deadline has its signature in the URL, as a presigned URL does.

Format: https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-query-string-auth.html
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import urlsplit

import boto3
import botocore
import botocore.session
from botocore.auth import SIGV4_TIMESTAMP, S3SigV4QueryAuth
from botocore.config import Config
from botocore.credentials import (
    CredentialProvider,
    Credentials,
    ReadOnlyCredentials,
    RefreshableCredentials,
)
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    ReadTimeoutError,
)
from botocore.parsers import ResponseParserError

from lakegc_assets import outages, traffic
from lakegc_assets.errors import ConfigurationError
from lakegc_assets.storage.bulk import Deadline
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.errors import usual_code
from lakegc_assets.storage.files import read_private_fields, write_private_file
from lakegc_assets.storage.http import (
    LONGEST_PAUSE_S,
    HttpFailure,
    explaining,
    is_awaited,
    is_away,
    once_per_process,
    require_soon,
    seconds,
)
from lakegc_assets.storage.s3.delete_xml import put_body, read_deleted, write_body
from lakegc_assets.storage.s3.lifecycle import keep_rules
from lakegc_assets.storage.s3.listing import keep_page
from lakegc_assets.storage.s3.small_objects import SmallObjects, answer_probes
from lakegc_assets.storage.s3.versioning import keep_exclusions
from lakegc_assets.storage.streams import base64_of, md5_of

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

_QUERY: Final = re.compile(r"(?<=\S)\?[^\s\"']+")
_BEGUN: Final = "lakegc_begun"
_AWAY: Final = "lakegc_away"
_CONNECTIONS: Final = 64

# botocore searches a bucket's region without an end if every answer is a redirect.
BOTO_ERRORS: Final = (ClientError, BotoCoreError, ResponseParserError, RecursionError)
BotoError = ClientError | BotoCoreError | ResponseParserError | RecursionError
_DEADLINE: Final = ContextVar[Deadline | None]("deadline", default=None)
_OPERATIONS: Final = ("DeleteObject", "DeleteObjects")
_CHECKSUMS: Final = ("x-amz-checksum-", "x-amz-sdk-checksum-")
# botocore asks for new credentials once the old ones have less than 15 minutes left, so a renewed
# file is noticed after 5 minutes.
_LIFETIME: Final = timedelta(minutes=20)


def failure_of(error: BotoError) -> HttpFailure:
    """The failure that boto3 raised, with the store's own code if the store answered.

    A 404 without the code ``NoSuchKey`` does not prove that an object is missing: proxies and wrong
    endpoints send it, too. Only answers to HEAD cannot carry a code.
    """
    if isinstance(error, ClientError):
        answer = error.response.get("Error", {})
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        message = answer.get("Message")
        code = usual_code(str(answer.get("Code") or ""), str(status or ""), message)
        if code == "404" and error.operation_name == "HeadObject":
            code = "NoSuchKey"
        return HttpFailure(code, message, status)
    if isinstance(error, (NoCredentialsError, PartialCredentialsError)):
        return HttpFailure("NoCredentials", error)
    # At the recursion limit, botocore may wrap its HTTP client's error in an error of its own.
    if RecursionError in {type(error), type(error.__context__)}:
        return HttpFailure("RedirectLoop", "each answer of the server is a redirect")
    # The text may quote the URL, whose query may hold a signature.
    message = _QUERY.sub("", str(error))
    if isinstance(error, (ConnectTimeoutError, ReadTimeoutError)):
        return HttpFailure("Timeout", message)
    if isinstance(error, ResponseParserError):
        return HttpFailure("NoAnswer", message)
    return HttpFailure("ConnectionFailed", message)


@contextmanager
def failing() -> Iterator[None]:
    """Raise boto3's errors as HttpFailure."""
    try:
        yield
    except BOTO_ERRORS as error:
        raise failure_of(error) from error


def whole(pages: Iterable[Any], what: str) -> Iterator[Any]:
    """The pages of a list, by a paginator of boto3.

    The paginator takes a page for the last if the page does not say that more follow, or names no
    token. Raises HttpFailure: the last page does not say that it is the last; ``what`` is listed.
    """
    follows: object = None
    for page in pages:
        follows = page.get("IsTruncated")
        yield page
    if follows is not False:
        raise HttpFailure("NoAnswer", f"a list of {what} ends without saying that it is complete")


@contextmanager
def translated(where: str) -> Iterator[None]:
    """Raise boto3's errors as our own errors; ``where`` names the URL and the key."""
    with explaining(where), failing():
        yield


@dataclass(frozen=True)
class Clients:
    """The clients of one server, which threads may share.

    ``usual`` repeats a failed request. ``once`` sends it once, for writes that must not be repeated
    blindly. ``small`` sends simple requests about small objects.
    """

    usual: S3Client
    once: S3Client
    small: SmallObjects

    @property
    def endpoint(self) -> str:
        """URL of the server."""
        return self.usual.meta.endpoint_url


@once_per_process("AWS_")
def clients(config: StoreConfig) -> Clients:
    """The clients of a configuration and the AWS variables. Raises ConfigurationError."""
    own = open_session(config.profile, config.credentials_file)
    session = boto3.Session(botocore_session=own)
    region = config.region or os.environ.get("AWS_REGION") or session.region_name or "us-east-1"

    def client(attempts: int, addressing: Literal["auto", "path", "virtual"]) -> S3Client:
        settings = Config(
            connect_timeout=config.connect_timeout_s,
            read_timeout=config.read_timeout_s,
            retries={"mode": "standard", "total_max_attempts": attempts},
            max_pool_connections=_CONNECTIONS,
            # Compatible servers know only the checksums that S3 has always required.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={"addressing_style": addressing},
        )
        made = session.client(
            "s3", endpoint_url=config.endpoint_url, region_name=region, config=settings
        )
        # With the wildcard it runs before botocore's own S3 handlers, one of which parses the
        # answer.
        made.meta.events.register("before-parse.*.ListObjectsV2", keep_page)
        made.meta.events.register("before-parse.*.GetBucketVersioning", keep_exclusions)
        made.meta.events.register("before-parse.*.GetBucketLifecycleConfiguration", keep_rules)
        made.meta.events.register("before-parse.*.DeleteObjects", read_deleted)
        made.meta.events.register("before-parameter-build.s3.DeleteObjects", write_body)
        made.meta.events.register("before-call.s3.DeleteObjects", put_body)
        made.meta.events.register("before-sign.s3.DeleteObjects", add_md5)
        made.meta.events.register("before-send.s3", _count)
        prepare(made, session)
        answer_probes(made)
        # Handlers of an operation run before the handler that signs and renews credentials.
        for name in ("DeleteObject", "DeleteObjects"):
            made.meta.events.register_first(f"request-created.s3.{name}", _begin_signing)
        made.meta.events.register_last(
            "request-created.s3", partial(_end_signing, config.connect_timeout_s)
        )
        return made

    addressing = config.addressing
    try:
        if addressing == "auto":
            aws = is_aws(client(1, "auto").meta.endpoint_url)
            addressing = "auto" if aws else "path"
        usual, once = (client(attempts, addressing) for attempts in (config.max_attempts, 1))
        # The first answer of these handlers counts: botocore's own retries come first.
        handler: Any = partial(_await, config.wait_s)
        usual.meta.events.register_last("needs-retry.s3", handler)
        once.meta.events.register("before-send.s3", _send_alone)
        small = SmallObjects(
            session, usual, config.connect_timeout_s, config.read_timeout_s,
            own.get_config_variable("ca_bundle"),
        )  # fmt: skip
        return Clients(usual, once, small)
    except (BotoCoreError, ValueError) as error:
        raise ConfigurationError(
            f"S3 cannot be reached with these settings: {error}. Check the endpoint and the region"
        ) from error


def is_aws(endpoint: str) -> bool:
    """True for AWS itself, False for a compatible server."""
    host = urlsplit(endpoint).hostname or ""
    return host.endswith((".amazonaws.com", ".amazonaws.com.cn"))


def _await(
    wait_s: float,
    *,
    attempts: int,
    operation: Any,  # noqa: ANN401 - as below
    request_dict: Any,  # noqa: ANN401 - as below
    response: Any,  # noqa: ANN401 - as below
    caught_exception: Exception | None,
    **_: object,
) -> float | None:
    """The pause before a failed request is sent again; None to leave that to botocore."""
    now, server = monotonic(), urlsplit(request_dict["url"]).netloc
    if isinstance(caught_exception, BOTO_ERRORS):
        failure = failure_of(caught_exception)
        failure.__cause__ = caught_exception
    elif response is not None and "Error" in response[1]:
        failure = failure_of(ClientError(response[1], operation.name))
    else:
        outages.note_answer(server, now)
        return None
    if not is_away(failure):
        outages.note_answer(server, now)
    waited: float = now - request_dict["context"].setdefault(_AWAY, now)
    if not is_awaited(failure, operation.http["method"], server, waited, wait_s):
        return None
    return min(2.0 ** min(attempts - 3, 10), LONGEST_PAUSE_S, wait_s - waited)


def _begin_signing(request: Any, **_: object) -> None:  # noqa: ANN401 - as below
    request.context[_BEGUN] = seconds()


def _end_signing(limit: float, request: Any, **_: object) -> None:  # noqa: ANN401 - as below
    begun = request.context.pop(_BEGUN, None)
    if begun is not None:
        require_soon(begun, limit)


def add_md5(request: Any, **_: object) -> None:  # noqa: ANN401 - botocore's AWSRequest, untyped
    """Add the MD5 of a bulk delete's body, which S3 has always required.

    Some compatible servers (OVHcloud's, for example) refuse a request with the checksum that
    botocore adds, and the MD5 proves the same.
    """
    headers = request.headers
    headers["Content-MD5"] = base64_of(md5_of(request.body))
    if not is_aws(request.url):
        for name in [one for one in headers if one.lower().startswith(_CHECKSUMS)]:
            del headers[name]


def _send_alone(request: Any, **_: object) -> None:  # noqa: ANN401 - as above
    """Use a new connection for a request that is sent once: a used one may be closed by now."""
    request.headers["Connection"] = "close"


def _count(request: Any, **_: object) -> None:  # noqa: ANN401 - as above
    """Count each attempt as a request; a returned value would replace the store's answer."""
    traffic.add(traffic.STORE, request.method)


@contextmanager
def ending(deadline: Deadline | None) -> Iterator[None]:
    """Set a deadline after which a prepared client's deletes in this thread are refused."""
    token = _DEADLINE.set(deadline)
    try:
        yield
    finally:
        _DEADLINE.reset(token)


def prepare(client: S3Client, session: boto3.Session) -> None:
    """Make a client sign deletes with the deadline of the thread, each attempt anew."""

    def choose(**_: object) -> object:
        return None if _DEADLINE.get() is None else botocore.UNSIGNED

    def sign(request: Any, operation_name: str, **_: object) -> None:  # noqa: ANN401 - botocore's
        deadline = _DEADLINE.get()
        # After a redirect botocore itself asks for the region of the bucket.
        if deadline is None or operation_name not in _OPERATIONS:
            return
        credentials = session.get_credentials()
        if credentials is None:
            raise NoCredentialsError
        # The slow request for credentials comes first: the window starts after it.
        frozen = credentials.get_frozen_credentials()
        # After a redirect this is the bucket's own region.
        region = request.context.get("signing", {}).get("region") or client.meta.region_name
        _QueryAuth(frozen, region, *deadline.window()).add_auth(request)

    for name in _OPERATIONS:
        client.meta.events.register_first(f"choose-signer.s3.{name}", choose)  # type: ignore[arg-type]
    # Sign after botocore's own signer, which adds headers that are part of the signature.
    client.meta.events.register_last("request-created.s3", sign)


class _QueryAuth(S3SigV4QueryAuth):
    """botocore's query signature, for a window that need not begin now."""

    def __init__(
        self, credentials: ReadOnlyCredentials, region: str, begin: datetime, length: int
    ) -> None:
        super().__init__(credentials, "s3", region, expires=length)
        self._begin = begin.strftime(SIGV4_TIMESTAMP)

    def _modify_request_before_signing(self, request: Any) -> None:  # noqa: ANN401 - as above
        request.context["timestamp"] = self._begin
        # botocore would put the body into the URL, as for a form.
        body, request.data = request.data, b""
        super()._modify_request_before_signing(request)  # type: ignore[misc]
        request.data = body


def write_credentials_file(
    path: str | os.PathLike[str], access_key: str, secret_key: str, session_token: str | None = None
) -> None:
    """Write a JSON file for ``StoreConfig.credentials_file``, for its owner only, atomically.

    A second write renews the credentials of the stores that use the file.
    """
    content = {"access_key": access_key, "secret_key": secret_key, "session_token": session_token}
    write_private_file(path, json.dumps(content))


def read_credentials_file(path: str | os.PathLike[str]) -> Mapping[str, str | None]:
    """The fields of a file that ``write_credentials_file`` wrote. Raises ConfigurationError."""
    content = read_private_fields(path, "write_credentials_file")
    if not (content.get("access_key") and content.get("secret_key")):
        raise ConfigurationError(
            f"the credentials file {path} lacks access_key or secret_key: write it again with "
            "write_credentials_file"
        )
    return {name: content.get(name) for name in ("access_key", "secret_key", "session_token")}


def open_session(profile: str | None, credentials_file: str | None) -> botocore.session.Session:
    """A session with credentials that renew themselves. Raises ConfigurationError."""
    session = botocore.session.Session(profile=profile)
    try:
        session.get_scoped_config()
    except ProfileNotFound as error:
        raise ConfigurationError(f"{error}: see ~/.aws/config and AWS_PROFILE") from error
    if credentials_file is not None:
        read_credentials_file(credentials_file)
        chain = session.get_component("credential_provider")
        chain.providers.insert(0, _FileProvider(credentials_file))
    return session


class _FileProvider(CredentialProvider):
    """The source of a credentials file in botocore's chain, before all other sources."""

    METHOD = "lakegc-credentials-file"

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def load(self) -> Credentials:
        return RefreshableCredentials.create_from_metadata(
            metadata=self._fetch(), refresh_using=self._fetch, method=self.METHOD
        )

    def _fetch(self) -> dict[str, str | None]:
        content = read_credentials_file(self._path)
        return {
            "access_key": content["access_key"],
            "secret_key": content["secret_key"],
            "token": content["session_token"],
            "expiry_time": (datetime.now(timezone.utc) + _LIFETIME).isoformat(),
        }
