"""The web application: authentication, routes to handlers, and error answers."""

from __future__ import annotations

import base64
import logging
import re
import uuid
from collections.abc import Awaitable, Callable, Iterable, Sequence
from email.utils import formatdate
from functools import cache
from urllib.parse import unquote_to_bytes

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from lakegc_assets.embedded import errors
from lakegc_assets.embedded.api import gc, objects, refs, repositories, server, transfer
from lakegc_assets.embedded.api.calls import Call, Endpoint, Upload, answer
from lakegc_assets.embedded.errors import ApiError
from lakegc_assets.embedded.faults import Fault
from lakegc_assets.embedded.gateway import Gateway
from lakegc_assets.embedded.lake import Lake

BASE = "/api/v1"
_LOG = logging.getLogger(__name__)
_REFERENCE = re.compile(r"\{(tag|ref|left|right|source)\}")
ENDPOINTS = (
    *server.ENDPOINTS,
    *repositories.ENDPOINTS,
    *objects.ENDPOINTS,
    *refs.ENDPOINTS,
    *transfer.ENDPOINTS,
    *gc.ENDPOINTS,
)


def make_app(lake: Lake) -> Starlette:
    """The application of one server."""
    app = Starlette(routes=_routes(), exception_handlers={HTTPException: _no_such_endpoint})
    app.state.lake = lake
    app.router.redirect_slashes = False
    app.router.default = _elsewhere(Gateway(lake))
    return app


def _elsewhere(gateway: Gateway) -> ASGIApp:
    """Pass requests outside of the API's path to the S3 gateway."""

    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        if f"{scope['path']}/".startswith(f"{BASE}/"):
            raise HTTPException(404)
        await gateway(scope, receive, send)

    return handle


@cache
def _routes() -> Sequence[Route]:
    """The routes, compiled once for all servers."""
    return list(_routes_of(ENDPOINTS))


def _routes_of(endpoints: Sequence[Endpoint]) -> Iterable[Route]:
    for with_slashes in (False, True):
        for endpoint in endpoints:
            # Starlette decodes %2F before it selects a route, and tags may contain slashes.
            path = _REFERENCE.sub(r"{\1:path}", endpoint.path) if with_slashes else endpoint.path
            if with_slashes and path == endpoint.path:
                continue
            route = Route(BASE + path, _handle(endpoint), methods=[endpoint.method])
            # Starlette allows HEAD for every GET route; lakeFS allows it for objects only.
            route.methods = {endpoint.method}
            yield route


def _handle(endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
    async def handle(request: Request) -> Response:
        lake: Lake = request.app.state.lake
        try:
            if not endpoint.open_to_all:
                _authenticate(lake, request)
            _require_known(lake, endpoint)
            call = await _call(lake, request)
            response = await run_in_threadpool(endpoint.handler, call)
        except ApiError as error:
            response = _told(error, request.method)
        except HTTPException as error:
            response = _told(ApiError(error.status_code, error.detail), request.method)
        except Exception as error:  # noqa: BLE001 - whatever it was, the client must be told
            _LOG.exception("%s %s failed", request.method, request.url.path)
            response = _told(ApiError(500, str(error) or type(error).__name__), request.method)
        response.headers["Date"] = formatdate(lake.now(), usegmt=True)
        response.headers["X-Request-Id"] = str(uuid.uuid4())
        return response

    return handle


async def _call(lake: Lake, request: Request) -> Call:
    _require_utf8(request)
    body, upload = b"", None
    if request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        upload = await _uploaded(request)
    else:
        body = await request.body()
    return Call(lake, request.path_params, request.query_params, request.headers, body, upload)


async def _uploaded(request: Request) -> Upload:
    try:
        # In some versions, ``request.form()`` recognises the content type only in lower case.
        form = await MultiPartParser(request.headers, request.stream()).parse()
    except MultiPartException as error:
        raise errors.bad_request(error.message) from error
    try:
        content = form.get("content")
        if not isinstance(content, UploadFile):
            raise errors.bad_request("missing form part: content")
        return Upload(await content.read(), content.content_type or "")
    finally:
        await form.close()


def _require_utf8(request: Request) -> None:
    """400 for a path or query that is not UTF-8: after a repair it would name another object."""
    for raw in (request.scope["raw_path"], request.scope["query_string"]):
        try:
            unquote_to_bytes(raw).decode()
        except UnicodeDecodeError:
            raise errors.bad_request("the request's path and query must be UTF-8") from None


def _require_known(lake: Lake, endpoint: Endpoint) -> None:
    """500 for an endpoint that an older server does not have."""
    if endpoint.newer and Fault.OLD_SERVER in lake.settings.faults:
        raise ApiError(500, "invalid API endpoint")


def _authenticate(lake: Lake, request: Request) -> None:
    kind, _, encoded = request.headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer" and server.is_valid_token(lake, encoded):
        return
    try:
        given = base64.b64decode(encoded, validate=True) if kind.lower() == "basic" else b""
    except ValueError:
        given = b""
    if not server.are_keys(lake, given):
        raise ApiError(401, "error authenticating request")


def _told(error: ApiError, method: str) -> Response:
    if method == "HEAD":
        return Response(status_code=error.status)
    return answer({"message": error.message, **error.extra}, error.status)


async def _no_such_endpoint(request: Request, _: Exception) -> Response:
    return _told(ApiError(404, "invalid API endpoint"), request.method)
