"""Small HTTP servers with prepared answers, so that they use little CPU of the machine."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

_END = b"\r\n\r\n"
_REASONS = {200: b"OK", 202: b"Accepted", 204: b"No Content", 404: b"Not Found"}


class Asked(NamedTuple):
    """A request.

    Attributes:
        method: of HTTP.
        path: decoded.
        query: decoded.
        headers: with names in lower case.
        body: all of it.
    """

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes


class Told(NamedTuple):
    """An answer; HEAD gets its headers, with the length of its body."""

    status: int
    body: bytes = b""
    headers: Sequence[tuple[str, str]] = ()


Answer = Callable[[Asked], Told]


class _Protocol(asyncio.Protocol):
    """One connection, with requests one after another."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._waiting = bytearray()
        self._invited = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._waiting += data
        while (end := self._waiting.find(_END)) >= 0:
            first, *lines = self._waiting[:end].decode("latin-1").split("\r\n")
            headers = {
                name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)
            }
            length = int(headers.get("content-length", 0))
            have = len(self._waiting) - end - len(_END)
            if have < length:
                if headers.get("expect") and not self._invited:
                    self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                    self._invited = True
                return
            body = bytes(self._waiting[end + len(_END) : end + len(_END) + length])
            del self._waiting[: end + len(_END) + length]
            self._invited = False
            method, target, _ = first.split(" ", 2)
            parts = urlsplit(target)
            query = dict(parse_qsl(parts.query, keep_blank_values=True))
            asked = Asked(method, unquote(parts.path), query, headers, body)
            self._tell(asked, self._answer(asked))

    def _tell(self, asked: Asked, told: Told) -> None:
        head = b"HTTP/1.1 %d %s\r\nDate: %s\r\n" % (
            told.status, _REASONS.get(told.status, b"Refused"), formatdate(usegmt=True).encode(),
        )  # fmt: skip
        for name, value in told.headers:
            head += f"{name}: {value}\r\n".encode()
        if told.status != 204:
            head += b"Content-Length: %d\r\n" % len(told.body)
        body = b"" if asked.method == "HEAD" else told.body
        self._transport.writelines([head + b"\r\n", body])


def _nothing(_message: Any) -> None:  # noqa: ANN401 - whatever the other side says
    """Ignore every message."""


class Service(NamedTuple):
    """The servers of one process.

    Attributes:
        answers: one for each server.
        told: called with each message from the parent process; returns the answer.
    """

    answers: Sequence[Answer]
    told: Callable[[Any], Any] = _nothing


@dataclass(frozen=True)
class Served:
    """A process with servers.

    Attributes:
        ports: on 127.0.0.1, one for each server.
        pid: of the process.
        pipe: to the process.
    """

    ports: Sequence[int]
    pid: int
    pipe: Connection

    def tell(self, message: object) -> Any:  # noqa: ANN401 - whatever it says
        """Send a message; the answer."""
        self.pipe.send(message)
        return self.pipe.recv()

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds of the process."""
        stat = Path(f"/proc/{self.pid}/stat").read_text()
        used = stat.rpartition(")")[2].split()[11:13]
        return sum(map(int, used)) / os.sysconf("SC_CLK_TCK")


@contextmanager
def running(make: Callable[[], Service]) -> Iterator[Served]:
    """Run servers in a process of their own, which calls ``make``; ``make`` must be picklable."""
    here, there = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_serve, args=(make, there), daemon=True)
    process.start()
    there.close()
    try:
        yield Served(here.recv(), process.pid or 0, here)
    finally:
        # Not terminate: whoever started this process may have let it ignore that signal.
        process.kill()
        process.join()


def _serve(make: Callable[[], Service], pipe: Connection) -> None:
    service = make()

    async def listen(answer: Answer) -> int:
        server = await asyncio.get_running_loop().create_server(
            lambda: _Protocol(answer), "127.0.0.1", 0
        )
        port: int = server.sockets[0].getsockname()[1]
        return port

    async def run() -> None:
        pipe.send([await listen(answer) for answer in service.answers])
        left_alone = asyncio.Event()

        def talk() -> None:
            try:
                pipe.send(service.told(pipe.recv()))
            except EOFError:
                left_alone.set()

        asyncio.get_running_loop().add_reader(pipe.fileno(), talk)
        await left_alone.wait()

    asyncio.run(run())
