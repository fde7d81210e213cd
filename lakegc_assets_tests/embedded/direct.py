"""The server's application without a socket: what a client would send, given to it as bytes."""

from __future__ import annotations

import asyncio
import base64
import io
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes, urlsplit

import requests
from anyio.from_thread import start_blocking_portal
from requests.structures import CaseInsensitiveDict

from lakegc_assets.embedded import tasks
from lakegc_assets.embedded.app import make_app
from lakegc_assets.embedded.lake import Lake
from lakegc_assets.embedded.lake.settings import ServerSettings
from lakegc_assets_tests.embedded.api import Api

Headers = list[tuple[bytes, bytes]]
SECRET = "a secret"


class Direct(Api):
    """Calls one server's application in this process, from any number of threads."""

    def __init__(self, lake: Lake) -> None:
        settings = lake.settings
        super().__init__("http://127.0.0.1", settings.access_key, settings.secret_key)
        self.lake = lake
        self.app = make_app(lake)
        self._open = ExitStack()
        self._portal = self._open.enter_context(start_blocking_portal())

    @classmethod
    def on(cls, data: Path, **settings: Any) -> Direct:
        """A server of its own on a data directory."""
        lake = Lake(ServerSettings(data, secret_key=SECRET, **settings))
        tasks.end_interrupted(lake)
        return cls(lake)

    def __exit__(self, *_: object) -> None:
        super().__exit__(None, None, None)
        self._open.close()

    def send(self, method: str, path: str, **options: Any) -> requests.Response:
        """As ``Api.send``."""
        made = requests.Request(method, self.base + path, auth=self.session.auth, **options)
        request = made.prepare()
        body = request.body or b""
        headers = [(k.lower().encode("latin-1"), as_bytes(v)) for k, v in request.headers.items()]
        url = urlsplit(str(request.url))
        return self.raw(
            method,
            url.path.encode(),
            url.query.encode(),
            headers,
            body.encode() if isinstance(body, str) else bytes(body),
        )

    def raw(
        self, method: str, path: bytes, query: bytes, headers: Headers, body: bytes = b""
    ) -> requests.Response:
        """Send bytes as they are; path and query are percent-encoded."""
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": unquote_to_bytes(path).decode(errors="replace"),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": headers,
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }
        response = requests.Response()
        content: list[bytes] = []
        unread = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict[str, object]:
            if unread:
                return unread.pop()
            await asyncio.Event().wait()
            raise AssertionError("a client that waits sends nothing")

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                response.status_code = message["status"]
                response.headers = CaseInsensitiveDict(
                    {k.decode("latin-1"): v.decode("latin-1") for k, v in message["headers"]}
                )
                for name, value in message["headers"]:
                    require_writable(name, value)
            else:
                content.append(message.get("body", b""))

        self._portal.call(self.app, scope, receive, send)
        response.raw = io.BytesIO(b"".join(content))
        return response

    @property
    def authorization(self) -> tuple[bytes, bytes]:
        """The header of this server's user."""
        settings = self.lake.settings
        pair = f"{settings.access_key}:{settings.secret_key}".encode()
        return b"authorization", b"Basic " + base64.b64encode(pair)


def as_bytes(text: str | bytes) -> bytes:
    """A header's value, in the coding of ``http.client``."""
    return text.encode("latin-1") if isinstance(text, str) else text


def require_writable(name: bytes, value: bytes) -> None:
    """Fail for a header that a real server cannot send."""
    token = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz"
    assert name, "a header without a name"
    assert not name.lower().strip(token), f"the header's name {name!r} cannot be sent"
    assert not any((c < 32 and c != 9) or c == 127 for c in value), f"{name!r}: {value!r}"
    assert value == value.strip(), f"{name!r}: {value!r}"
