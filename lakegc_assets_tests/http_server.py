"""An HTTP server in a thread, which answers as a test says: whole, cut, late, or not at all."""

from __future__ import annotations

import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit


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


class Silence(Enum):
    """Where an answer, or the rest of one, should be."""

    #: The connection is closed.
    CLOSE = "close"
    #: The connection is reset.
    RESET = "reset"
    #: Nothing comes, until the client goes away.
    WAIT = "wait"


@dataclass(frozen=True)
class Answer:
    """An answer, with the length of its body.

    Attributes:
        status: of HTTP.
        body: all of it, if it is not cut.
        headers: but for the length of a body that is sent.
        cut: only so many bytes of the body are sent; None for all.
        rest: what comes in place of the others.
        last: the connection answers nothing from then on, and does not say so.
    """

    status: int
    body: bytes = b""
    headers: Sequence[tuple[str, str]] = ()
    cut: int | None = None
    rest: Silence = Silence.CLOSE
    last: bool = False


#: Called in the thread of a connection.
Respond = Callable[[Asked], Answer | Silence]


@contextmanager
def serving(respond: Respond, port: int = 0) -> Iterator[str]:
    """Run a server on a port, or on a free one; its URL, without a slash at the end."""

    class Handler(_Handler):
        answer_to = staticmethod(respond)

    server = _Server(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
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

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients go away in the middle here, and that is no news."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    answer_to: Respond
    protocol_version = "HTTP/1.1"
    # One write for head and body: two would wait for each other on a kept connection.
    wbufsize = -1
    ended = False

    def handle_expect_100(self) -> bool:
        """Tell a client that waits for it to send its body."""
        goes_on = super().handle_expect_100()
        self.wfile.flush()
        return goes_on

    def _answer(self) -> None:
        if self.ended:
            self.close_connection = True
            return
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        answer = self.answer_to(Asked(self.command, self.path, self.headers.items(), body))
        if isinstance(answer, Answer):
            self._send(answer)
            if answer.cut is None:
                return
            answer = answer.rest
        self.close_connection = True
        if answer is Silence.WAIT:
            with suppress(OSError):
                self.connection.recv(1)
        elif answer is Silence.RESET:
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)

    def _send(self, answer: Answer) -> None:
        self.send_response_only(answer.status)
        length = str(len(answer.body))
        for name, value in answer.headers:
            if name.lower() != "content-length":
                self.send_header(name, value)
            elif self.command == "HEAD":
                length = value
        if self.close_connection:
            self.send_header("Connection", "close")
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body[: answer.cut])
        self.wfile.flush()
        self.ended = answer.last

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _answer  # noqa: N815 - http.server's names

    def log_message(self, *_: object) -> None:
        """Silence."""
