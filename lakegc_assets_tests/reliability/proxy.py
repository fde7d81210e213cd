"""An HTTP proxy in front of a real server, through which a test lets through what it wants.

It sits where a load balancer would: requests reach the server as they were signed, and every answer
can be changed, held back, cut in the middle or thrown away after the server has done its work.
"""

from __future__ import annotations

import http.client
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

_TIMEOUT_S: Final = 60
#: What one connection tells the other side of it, and not the one behind.
_OF_A_CONNECTION: Final = {"connection", "transfer-encoding", "keep-alive", "expect"}


@dataclass(frozen=True)
class Asked:
    """A request as it came; ``target`` is its path and query, percent-encoded."""

    method: str
    target: str
    headers: Sequence[tuple[str, str]]
    body: bytes

    @property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(urlsplit(self.target).query, keep_blank_values=True))

    @property
    def path(self) -> str:
        return urlsplit(self.target).path


@dataclass(frozen=True)
class Answer:
    """An answer; only its first ``cut`` bytes are sent where that is not None."""

    status: int
    body: bytes = b""
    headers: Sequence[tuple[str, str]] = ()
    cut: int | None = None


class Silence(Enum):
    """What a client may get in place of an answer."""

    #: The connection is reset.
    RESET = "reset"
    #: Nothing, until the client goes away.
    WAIT = "wait"


Ask = Callable[[], Answer]
#: Gets a request, and what forwards it to the server; tells what the client is to see.
Meddle = Callable[[Asked, Ask], Answer | Silence]


def leave_alone(_asked: Asked, ask: Ask) -> Answer:
    """Let everything through."""
    return ask()


@dataclass
class Proxy:
    """A running proxy.

    Attributes:
        address: of the server, ``host:port``.
        endpoint: URL of the proxy, without a slash at its end.
        meddle: what happens to requests; a test changes it at any time.
        asked: the requests that came, in their order.
    """

    address: str
    endpoint: str = ""
    meddle: Meddle = leave_alone
    asked: list[Asked] = field(default_factory=list)

    def forward(self, asked: Asked) -> Answer:
        """Ask the server."""
        connection = http.client.HTTPConnection(self.address, timeout=_TIMEOUT_S)
        try:
            connection.putrequest(
                asked.method, asked.target, skip_host=True, skip_accept_encoding=True
            )
            for name, value in asked.headers:
                if name.lower() not in _OF_A_CONNECTION:
                    connection.putheader(name, value)
            connection.endheaders(asked.body)
            found = connection.getresponse()
            return Answer(found.status, found.read(), found.getheaders())
        finally:
            connection.close()


@contextmanager
def proxied(address: str) -> Iterator[Proxy]:
    """Run a proxy in front of a server at ``host:port``."""
    proxy = Proxy(address)

    class Handler(_Handler):
        behind = proxy

    server = _Server(("127.0.0.1", 0), Handler)
    proxy.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def shutdown_request(self, request: Any) -> None:
        """Close at once: a handler may have arranged for a reset."""
        self.close_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients go away in the middle here, and that is no news."""


class _Handler(BaseHTTPRequestHandler):
    behind: Proxy
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        asked = Asked(self.command, self.path, self.headers.items(), body)
        self.behind.asked.append(asked)
        answer = self.behind.meddle(asked, lambda: self.behind.forward(asked))
        if isinstance(answer, Answer):
            self._send(answer)
            return
        self.close_connection = True
        if answer is Silence.WAIT:
            with suppress(OSError):
                self.connection.recv(1)
            return
        linger = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)

    def _send(self, answer: Answer) -> None:
        self.send_response_only(answer.status)
        for name, value in answer.headers:
            unchanged = name.lower() != "content-length" or self.command == "HEAD"
            if unchanged and name.lower() not in _OF_A_CONNECTION:
                self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body[: answer.cut])
        self.close_connection = answer.cut is not None

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _answer  # noqa: N815 - http.server's names

    def log_message(self, *_: object) -> None:
        """Silence."""
