"""The requests that come once for each object or page, without boto3's general machinery.

Most of what a small request costs is what boto3 does in Python before and after it. So listings,
and reads, writes and copies of single objects are signed here by botocore's own signer, sent by
urllib3, and the members of an answer that are asked for are read here, under boto3's names. Where a
bucket is, and how what is sent there is signed, is still botocore's to say: it is asked for that
once, without a request. What it would sign in another way than by header, and what is answered by a
redirect or by 400, which may mean another region, goes through boto3.

Format: https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
"""

from __future__ import annotations

import random
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from time import sleep
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

import boto3
from botocore.auth import S3SigV4Auth
from urllib3 import BaseHTTPResponse, HTTPConnectionPool, Retry
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError, ReadTimeoutError

from lakegc_assets import traffic
from lakegc_assets.storage.codes import error_class, usual_code
from lakegc_assets.storage.errors import StoreThrottledError, StoreUnavailableError
from lakegc_assets.storage.http import HttpFailure
from lakegc_assets.storage.s3.listing import page_in
from lakegc_assets.storage.s3.pools import Pools

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

_METHODS: Final = {
    "head_object": "HEAD", "get_object": "GET", "put_object": "PUT", "copy_object": "PUT",
    "list_objects_v2": "GET",
}  # fmt: skip
_ASKED: Final = {
    "IfMatch": "If-Match",
    "IfNoneMatch": "If-None-Match",
    "Range": "Range",
    "ChecksumMode": "x-amz-checksum-mode",
    "ContentMD5": "Content-MD5",
    "CopySourceIfMatch": "x-amz-copy-source-if-match",
}
#: What is asked of a listing, besides ``list-type`` and ``encoding-type``.
_QUERY: Final = {
    "Prefix": "prefix",
    "Delimiter": "delimiter",
    "MaxKeys": "max-keys",
    "StartAfter": "start-after",
    "ContinuationToken": "continuation-token",
}
#: Whatever else is asked for, boto3 has to say how.
_KNOWN: Final = frozenset({"Bucket", "Key", "CopySource", *_ASKED, *_QUERY})
_TOLD: Final = {
    "etag": "ETag",
    "content-range": "ContentRange",
    "x-amz-server-side-encryption": "ServerSideEncryption",
    "x-amz-server-side-encryption-customer-algorithm": "SSECustomerAlgorithm",
    "x-amz-checksum-type": "ChecksumType",
    "x-amz-checksum-sha256": "ChecksumSHA256",
    "x-amz-checksum-crc64nvme": "ChecksumCRC64NVME",
    "x-amz-checksum-crc32c": "ChecksumCRC32C",
}
#: What may mean that a bucket is somewhere else, or that credentials are too old.
_ELSEWHERE: Final = frozenset({301, 302, 303, 307, 308, 400})
_GOOD: Final = range(200, 300)
_MISSING: Final = 404
_REFUSED: Final = 412
_LONGEST_PAUSE_S: Final = 20.0
#: No redirect is followed: it could carry the signature elsewhere.
_ONCE: Final = Retry(False)
_ASKING: Final = ContextVar[list[Any] | None]("asking", default=None)


@dataclass(frozen=True)
class _Way:
    """How the objects of a bucket are reached.

    Attributes:
        pool: of connections.
        url: of the bucket, without a slash at its end.
        target: the same in the first line of a request.
        host: as it is signed.
        region: that is signed for.
    """

    pool: HTTPConnectionPool
    url: str
    target: str
    host: str
    region: str

    def path(self, asked: Mapping[str, Any]) -> str:
        """What comes behind the URL of a bucket in that of an object, or of a page of a listing."""
        if "Key" in asked:
            return "/" + quote(asked["Key"], safe="/~")
        query = {"list-type": "2", "encoding-type": "url"}
        query |= {name: str(asked[member]) for member, name in _QUERY.items() if member in asked}
        told = "&".join(f"{name}={quote(query[name], safe='~')}" for name in sorted(query))
        return f"?{told}" if urlsplit(self.url).path else f"/?{told}"


@dataclass(frozen=True)
class Quick:
    """Sends what ``client`` would send, and repeats what failed as often as that.

    Attributes:
        session: has the credentials, which renew themselves.
        client: knows the ways, and takes what is none of the usual.
        tries: of each request.
        pools: connections.
    """

    session: boto3.Session
    client: S3Client
    tries: int
    pools: Pools
    _ways: dict[str, _Way | None] = field(default_factory=dict)

    def head_object(self, **asked: Any) -> dict[str, Any]:  # noqa: ANN401 - as boto3's
        """HEAD of an object. Raises HttpFailure, or what boto3 raises; so do all."""
        return self._ask("head_object", asked)

    def get_object(self, **asked: Any) -> dict[str, Any]:  # noqa: ANN401 - as above
        """GET of an object. Its ``Body`` has ``read``, ``iter_chunks`` and ``close``."""
        return self._ask("get_object", asked)

    def put_object(self, *, Body: bytes, **asked: Any) -> dict[str, Any]:  # noqa: ANN401, N803 - as above
        """PUT of an object, all of it at once."""
        return self._ask("put_object", asked, Body)

    def copy_object(self, **asked: Any) -> dict[str, Any]:  # noqa: ANN401 - as above
        """A copy that the store makes, of up to 5 GiB."""
        return self._ask("copy_object", asked)

    def list_objects_v2(self, **asked: Any) -> dict[str, Any]:  # noqa: ANN401 - as above
        """A page of a listing, for ``listing.read_page``."""
        return self._ask("list_objects_v2", asked)

    def _ask(
        self, operation: str, asked: dict[str, Any], body: bytes | None = None
    ) -> dict[str, Any]:
        bucket = asked["Bucket"]
        way = self._way(bucket) if asked.keys() <= _KNOWN else None
        tries = 0
        while way is not None:
            tries += 1
            try:
                answer = self._send(way, operation, asked, body)
                if answer is not None:
                    return answer
                # Which boto3 will have found when it is asked for the way again.
                self._ways.pop(bucket, None)
                break
            except HttpFailure as failure:
                kind = error_class(failure.code)
                again = kind in {StoreThrottledError, StoreUnavailableError}
                if not again or tries >= self.tries:
                    raise
            sleep(min(_LONGEST_PAUSE_S, 2 ** (tries - 1)) * random.uniform(0, 1))
        more = {} if body is None else {"Body": body}
        answered: dict[str, Any] = getattr(self.client, operation)(**asked, **more)
        return answered

    def directly(self, bucket: str) -> tuple[str, str] | None:
        """URL and region of a bucket that is reached without a proxy, and trusted as usual.

        Raises:
            HttpFailure: nobody can tell; or what boto3 raises.
        """
        way = self._way(bucket)
        if way is None or not self.pools.plain(way.url, self.client.meta.endpoint_url):
            return None
        return way.url, way.region

    def _way(self, bucket: str) -> _Way | None:
        """Where botocore would send what is about a bucket; None where it is not that simple."""
        if bucket not in self._ways:
            self._ways[bucket] = self._ask_way(bucket)
        return self._ways[bucket]

    def _ask_way(self, bucket: str) -> _Way | None:
        told: list[Any] = []
        token = _ASKING.set(told)
        try:
            self.client.head_object(Bucket=bucket, Key="k")
        finally:
            _ASKING.reset(token)
        (params,) = told
        url, context = params["url"], params["context"]
        signing = context.get("signing", {})
        simple = (
            self.client.meta.config.signature_version == "s3v4"  # type: ignore[attr-defined]
            and context.get("auth_type") == "v4"
            and signing.get("signing_name", "s3") == "s3"
            and url.endswith("/k")
        )
        if not simple:
            return None
        pool, prefix = self.pools.to(url, self.client.meta.endpoint_url)
        region = signing.get("region") or self.client.meta.region_name
        parts = urlsplit(url)
        host = parts.netloc.removesuffix(":443" if parts.scheme == "https" else ":80")
        return _Way(pool, url[:-2], prefix + parts.path[:-2], host, region)

    def _send(
        self, way: _Way, operation: str, asked: Mapping[str, Any], body: bytes | None
    ) -> dict[str, Any] | None:
        """What the store answers; None if it may have to be asked elsewhere."""
        path = way.path(asked)
        headers = {header: asked[name] for name, header in _ASKED.items() if name in asked}
        headers["Host"] = way.host
        if "CopySource" in asked:
            source = asked["CopySource"]
            headers["x-amz-copy-source"] = quote(f"{source['Bucket']}/{source['Key']}", safe="/~")
        request: Any = SimpleNamespace(
            method=_METHODS[operation], url=way.url + path, params={}, headers=headers, body=body,
            context={"client_config": self.client.meta.config, "has_streaming_input": bool(body)},
        )  # fmt: skip
        credentials = self.session.get_credentials()
        if credentials is None:
            raise HttpFailure("NoCredentials", "Unable to locate credentials")
        _Signer(credentials.get_frozen_credentials(), "s3", way.region).add_auth(request)
        headers["User-Agent"] = "lakegc-assets"
        traffic.add(traffic.STORE, request.method)
        with _failing(way.url):
            response = way.pool.urlopen(
                request.method, way.target + path, body, headers, _ONCE,
                redirect=False, assert_same_host=False, preload_content=False, decode_content=False,
            )  # fmt: skip
            if response.status in _GOOD and operation == "get_object":
                return {**_told(response), "Body": _Body(response, way.url)}
            if response.status == _REFUSED:
                raise _refusal(response)
            data = response.read()
        if response.status in _ELSEWHERE:
            return None
        if response.status not in _GOOD:
            raise _failure(data, response.status, operation)
        told = _told(response)
        if operation == "list_objects_v2":
            told |= _page(data)
        elif operation == "copy_object":
            told["CopyObjectResult"] = {"ETag": _copied(data)}
        elif operation == "head_object":
            told |= _modified(response)
        return told


def tell_ways(client: S3Client) -> None:
    """Let a client tell where it would send a request."""

    def tell(params: Any, **_: object) -> tuple[object, dict[str, Any]] | None:  # noqa: ANN401
        asking = _ASKING.get()
        if asking is None:
            return None
        asking.append(params)
        return SimpleNamespace(status_code=200), {}

    client.meta.events.register("before-call.s3.HeadObject", tell)  # type: ignore[arg-type]


class _Signer(S3SigV4Auth):
    """Botocore's, which would find out twice which headers it signs."""

    def headers_to_sign(self, request: Any) -> Any:  # noqa: ANN401 - untyped
        signed = request.context.get("signed")
        if signed is None:
            signed = request.context["signed"] = super().headers_to_sign(request)
        return signed


class _Body:
    """The content in an answer, as boto3's ``StreamingBody``; it raises HttpFailure."""

    def __init__(self, response: BaseHTTPResponse, url: str) -> None:
        self._response = response
        self._url = url

    def read(self) -> bytes:
        with _failing(self._url):
            return self._response.read()

    def iter_chunks(self, size: int) -> Iterator[bytes]:
        with _failing(self._url):
            yield from self._response.stream(size)

    def close(self) -> None:
        """Give the connection back; one with something left to be read is closed."""
        self._response.close()


@contextmanager
def _failing(url: str) -> Iterator[None]:
    try:
        yield
    except (ConnectTimeoutError, ReadTimeoutError) as error:
        if isinstance(error, NewConnectionError):
            told = f"Could not connect to {url}: {type(error).__name__}"
            raise HttpFailure("ConnectionFailed", told) from error
        raise HttpFailure("Timeout", f"{url}: {type(error).__name__}") from error
    except (HTTPError, HTTPException, OSError) as error:
        raise HttpFailure("ConnectionFailed", f"{url}: {type(error).__name__}") from error


def _told(response: BaseHTTPResponse) -> dict[str, Any]:
    """The members of an answer under boto3's names."""
    told: dict[str, Any] = {"ResponseMetadata": {"HTTPStatusCode": response.status}}
    for name, value in response.headers.items():
        member = _TOLD.get(name.lower())
        if member is not None:
            told[member] = value
    length = response.headers.get("content-length", "")
    if length.isdecimal():
        told["ContentLength"] = int(length)
    return told


def _modified(response: BaseHTTPResponse) -> dict[str, Any]:
    """The time that an answer names, as boto3 gives it. Raises HttpFailure."""
    modified = response.headers.get("last-modified")
    if modified is None:
        return {}
    try:
        return {"LastModified": parsedate_to_datetime(modified)}
    except ValueError as error:
        raise HttpFailure("NoAnswer", f"it was modified {modified!r}", response.status) from error


def _page(body: bytes) -> dict[str, Any]:
    """The page that an answer holds; nothing where it is no listing. Raises HttpFailure."""
    try:
        page = page_in(body)
        if not page:
            _require_no_error(body, "list_objects_v2")
    except ET.ParseError as error:
        raise HttpFailure("NoAnswer", "the answer to a listing is damaged", 200) from error
    return page


def _require_no_error(body: bytes, operation: str) -> ET.Element:
    """What a good answer holds. Raises HttpFailure where it is an error after all."""
    root = ET.fromstring(body)  # noqa: S314 - as botocore itself does
    if root.tag.rpartition("}")[2] == "Error":
        raise _failure(body, 500, operation)
    return root


def _copied(body: bytes) -> str | None:
    """The etag that an answer to a copy names. Raises HttpFailure: it failed after it began."""
    try:
        return _require_no_error(body, "copy_object").findtext("{*}ETag")
    except ET.ParseError as error:
        raise HttpFailure("NoAnswer", "the answer to a copy is damaged", 200) from error


def _refusal(response: BaseHTTPResponse) -> HttpFailure:
    """What a condition that does not hold says; the connection is not used again.

    MinIO closes it behind this answer without saying so: the next request might be one that must
    not be repeated, and would get no answer.
    """
    response.close()
    response.release_conn()
    return HttpFailure("PreconditionFailed", "the condition does not hold", response.status)


def _failure(body: bytes, status: int, operation: str) -> HttpFailure:
    """What the store says, as ``failure_of`` tells it of what boto3 raises."""
    code, message = "", ""
    try:
        root = ET.fromstring(body)  # noqa: S314 - as above
        code, message = root.findtext("{*}Code", ""), root.findtext("{*}Message", "")
    except ET.ParseError:
        pass
    code = usual_code(code, str(status))
    if code == str(_MISSING) and operation == "head_object":
        code = "NoSuchKey"
    return HttpFailure(code, message or None, status)
