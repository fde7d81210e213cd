"""The gateway as an application: checks a request, selects its operation, answers errors."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping
from email.utils import formatdate
from typing import NamedTuple

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lakegc_assets.embedded.errors import ApiError
from lakegc_assets.embedded.gateway import buckets, errors, objects
from lakegc_assets.embedded.gateway.calls import Call, unquote_key
from lakegc_assets.embedded.gateway.documents import error_document
from lakegc_assets.embedded.gateway.errors import S3Error
from lakegc_assets.embedded.gateway.multipart import Multipart
from lakegc_assets.embedded.gateway.payload import Body, unpack
from lakegc_assets.embedded.gateway.signature import (
    V2_HEADERS,
    V2_PARAMETERS,
    Incoming,
    Signed,
    verify,
)
from lakegc_assets.embedded.gateway.uploads import Uploads
from lakegc_assets.embedded.lake import Lake

_LOG = logging.getLogger(__name__)
# Headers that ask for more than storing bytes: a client must not believe that they were honoured.
_REFUSED_HEADERS = (
    "x-amz-grant-",
    "x-amz-object-lock-",
    "x-amz-server-side-encryption",
    "x-amz-copy-source-server-side-encryption",
    "x-amz-tagging",
    "x-amz-website-",
    "x-amz-write-offset-bytes",
)
_LIST = frozenset({"prefix", "delimiter", "encoding-type", "max-keys"})

Handler = Callable[[Call], Response]


class Operation(NamedTuple):
    """An operation of S3.

    Attributes:
        level: its object: ``server``, ``bucket`` or ``object``.
        method: of HTTP.
        marks: required parameters.
        may: optional parameters; any other parameter means another operation.
        handler: makes the answer.
        takes: kind of its body: nothing, a ``document``, one that names ``parts``, or ``content``.
    """

    level: str
    method: str
    marks: frozenset[str]
    may: frozenset[str]
    handler: Handler
    takes: str = ""


class Gateway:
    """The application for all paths outside of the REST API."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._operations = _operations(Multipart(Uploads(lake)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request, body = Request(scope), Body(receive)
        request_id = uuid.uuid4().hex
        try:
            response = await self._answer(request, body)
        except S3Error as error:
            response = _told(error, request, request_id)
        except ApiError as error:
            response = _told(errors.of_api(error), request, request_id)
        except ClientDisconnect:
            # The client has gone, so nobody reads this answer.
            response = _told(errors.incomplete_body(), request, request_id)
        except Exception as error:  # noqa: BLE001 - whatever it was, the client must be told
            _LOG.exception("%s %s failed", request.method, request.url.path)
            failure = S3Error(500, "InternalError", str(error) or type(error).__name__)
            response = _told(failure, request, request_id)
        response.headers["Date"] = formatdate(self._lake.now(), usegmt=True)
        response.headers["x-amz-request-id"] = request_id
        if not await body.finish(waited_for="expect" in request.headers):
            # The server would take the rest of the body for the next request.
            response.headers["Connection"] = "close"
        await response(scope, receive, send)

    async def _answer(self, request: Request, body: Body) -> Response:
        settings = self._lake.settings
        incoming = Incoming(
            request.method,
            request.scope["raw_path"],
            request.scope["query_string"],
            request.scope["headers"],
        )
        signed = verify(incoming, settings.access_key, settings.secret_key, self._lake.now())
        query = _query(incoming)
        headers = _headers(incoming, query, signed)
        bucket, _, name = unquote_key(incoming.path).removeprefix("/").partition("/")
        level = "object" if name else "bucket" if bucket else "server"
        operation = _choose(self._operations, level, request.method, query)
        if request.method in {"PUT", "POST"}:
            _refuse_headers(headers)
        raw = await body.read(operation.takes, signed, headers, settings.max_upload_bytes)

        def handle() -> Response:
            payload = unpack(raw, signed, headers, names_parts=operation.takes == "parts")
            if operation.takes == "content" and len(payload.data) > settings.max_upload_bytes:
                raise errors.entity_too_large(settings.max_upload_bytes)
            call = Call(self._lake, bucket, name, query, headers, payload.data, payload.checksums)
            return operation.handler(call)

        return await run_in_threadpool(handle)


def _operations(multipart: Multipart) -> list[Operation]:
    nothing: frozenset[str] = frozenset()
    upload, list_type = frozenset({"uploadId"}), frozenset({"list-type"})
    parts = frozenset({"max-parts", "part-number-marker", "encoding-type"})
    uploads = frozenset({"prefix", "key-marker", "upload-id-marker", "max-uploads"})
    v2 = _LIST | {"start-after", "continuation-token", "fetch-owner"}
    return [
        Operation("server", "GET", nothing, nothing, buckets.list_buckets),
        Operation("bucket", "HEAD", nothing, nothing, buckets.head),
        Operation("bucket", "GET", frozenset({"location"}), nothing, buckets.location),
        Operation("bucket", "GET", frozenset({"versioning"}), nothing, buckets.versioning),
        Operation(
            "bucket",
            "GET",
            frozenset({"uploads"}),
            uploads | {"encoding-type"},
            multipart.list_uploads,
        ),
        Operation("bucket", "GET", list_type, v2, buckets.list_v2),
        Operation("bucket", "GET", nothing, _LIST | {"marker"}, buckets.list_v1),
        Operation(
            "bucket",
            "POST",
            frozenset({"delete"}),
            nothing,
            buckets.delete_objects,
            "document",
        ),
        Operation("object", "GET", upload, parts, multipart.list_parts),
        Operation("object", "GET", frozenset({"tagging"}), nothing, objects.tagging),
        Operation("object", "GET", nothing, frozenset(objects.OVERRIDES), objects.get),
        Operation("object", "HEAD", nothing, frozenset(objects.OVERRIDES), objects.head),
        Operation(
            "object", "PUT", upload | {"partNumber"}, nothing, multipart.upload_part, "content"
        ),
        Operation("object", "PUT", nothing, nothing, objects.put, "content"),
        Operation("object", "POST", frozenset({"uploads"}), nothing, multipart.create),
        Operation("object", "POST", upload, nothing, multipart.complete, "parts"),
        Operation("object", "DELETE", upload, nothing, multipart.abort),
        Operation("object", "DELETE", nothing, nothing, objects.delete),
    ]


def _choose(
    operations: list[Operation], level: str, method: str, query: Mapping[str, str]
) -> Operation:
    """The requested operation; a request with an unknown part is refused as a whole."""
    given = {name for name in query if name != "x-id" and not name.lower().startswith("x-amz-")}
    if "AWSAccessKeyId" in given:
        given -= V2_PARAMETERS
    for operation in operations:
        if (operation.level, operation.method) != (level, method):
            continue
        if operation.marks <= given <= operation.marks | operation.may:
            return operation
    wanted = "&".join(sorted(given))
    raise errors.not_implemented(f"{method} for a {level}" + (f" with ?{wanted}" if wanted else ""))


def _query(incoming: Incoming) -> dict[str, str]:
    """The parameters by name; a plus is a space here, as in a form."""
    found: dict[str, str] = {}
    for item in incoming.query.replace(b"+", b"%20").split(b"&"):
        name, _, value = item.partition(b"=")
        if name:
            found.setdefault(unquote_key(name), unquote_key(value))
    return found


def _headers(incoming: Incoming, query: Mapping[str, str], signed: Signed) -> dict[str, str]:
    """The headers by name; the query of a presigned URL may contain some of them."""
    found = {
        name.decode("latin-1"): value.strip(b" \t").decode("latin-1")
        for name, value in incoming.headers
    }
    if signed.presigned:
        for name, value in query.items():
            if name.startswith("x-amz-") or name in V2_HEADERS:
                found.setdefault(name, value.encode().decode("latin-1"))
    return found


def _refuse_headers(headers: Mapping[str, str]) -> None:
    for name in headers:
        if name.startswith(_REFUSED_HEADERS) and name != "x-amz-tagging-directive":
            raise errors.not_implemented(f"the header {name}")


def _told(error: S3Error, request: Request, request_id: str) -> Response:
    if request.method == "HEAD":
        return Response(status_code=error.status, headers=error.headers)
    return error_document(error, request.url.path, request_id)
