"""A server that fails in the way a test says, once for each request."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from lakegc_assets.lakefs.config import LakeFSConfig

Behaviour = Callable[[socket.socket], None]


def answer(
    status: int, body: object = None, headers: dict[str, str] | None = None, *, cut: int = 0
) -> Behaviour:
    """A complete answer; or, with ``cut``, one whose last bytes never come."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {
        "Content-Type": "application/json",
        "Content-Length": str(len(raw)),
        "Connection": "close",
        **(headers or {}),
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    whole = f"HTTP/1.1 {status} X\r\n{head}\r\n".encode() + raw
    return lambda connection: connection.sendall(whole[: len(whole) - cut])


def silence(connection: socket.socket) -> None:
    """Close without a word, after the request was read."""
    connection.shutdown(socket.SHUT_RDWR)


def sleep(seconds: float) -> Behaviour:
    return lambda _connection: time.sleep(seconds)


class FaultServer:
    """Behaves in turn as told; after the last, as the last. Requests are kept as raw bytes."""

    def __init__(self, *behaviours: Behaviour, port: int = 0) -> None:
        self.behaviours = list(behaviours)
        self.requests: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", port))
        self._listener.settimeout(0.05)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> FaultServer:  # noqa: PYI034 # never subclassed
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._listener.close()

    def config(self, directory: Path, **settings: Any) -> LakeFSConfig:
        path = directory / "lakectl.yaml"
        path.write_text("credentials:\n  access_key_id: key\n  secret_access_key: hush-hush\n")
        fast = {"first_backoff_s": 0.01, **settings}
        return LakeFSConfig(endpoint=self.endpoint, credentials_file=str(path), **fast)

    def _serve(self) -> None:
        while not self._stop.is_set():
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            with connection:
                connection.settimeout(60)
                self.requests.append(_read(connection))
                behave = self.behaviours.pop(0) if len(self.behaviours) > 1 else self.behaviours[0]
                behave(connection)


def _read(connection: socket.socket) -> bytes:
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(65536)
    head, _, body = received.partition(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            while len(body) < int(line.split(b":")[1]):
                body += connection.recv(65536)
    return head + b"\r\n\r\n" + body
