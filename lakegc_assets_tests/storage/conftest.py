"""Stores to test: every kind behind one fixture, and a server that answers what it is told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends

from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.config import StoreConfig

Plant = Callable[[Iterable[str]], None]


@pytest.fixture(params=["local", "s3", "s3 whole bucket"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    """An empty store of each kind."""
    if request.param == "local":
        root = tmp_path / "root %41"
        root.mkdir()
        return StoreConfig().open(str(root))
    config = StoreConfig(endpoint_url=request.getfixturevalue("s3_server"))
    bucket = request.getfixturevalue("s3_bucket")
    return config.open(f"s3://{bucket}" if "whole" in request.param else f"s3a://{bucket}/n s/%41/")


@pytest.fixture
def plant(store: ObjectStore, tmp_path: Path) -> Plant:
    """Put many or odd keys into the store behind its back."""

    def plant_files(keys: Iterable[str]) -> None:
        for key in keys:
            path = tmp_path / "root %41" / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x")

    def plant_objects(keys: Iterable[str]) -> None:
        bucket, _, prefix = store.url.removeprefix("s3://").partition("/")
        backend = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
        for key in keys:
            backend.put_object(bucket, f"{prefix}/{key}" if prefix else key, b"x")

    return plant_files if store.url.startswith("file:") else plant_objects


@dataclass
class Answer:
    status: int = 200
    body: str = ""
    date: str = "Sat, 21 Nov 2026 07:00:00 GMT"
    cut: bool = False


@dataclass
class Script:
    """An HTTP server whose answers a test writes beforehand; the last one is repeated."""

    endpoint: str = ""
    answers: list[Answer] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    def config(self, max_attempts: int = 1) -> StoreConfig:
        return StoreConfig(endpoint_url=self.endpoint, max_attempts=max_attempts)


@pytest.fixture
def script(s3_server: str) -> Iterator[Script]:
    assert s3_server, "its fixture sets the credentials"
    told = Script()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            told.requests.append(f"{self.command} {self.path}")
            told.bodies.append(self.rfile.read(int(self.headers.get("Content-Length", 0))))
            answer = told.answers.pop(0) if len(told.answers) > 1 else told.answers[0]
            body = answer.body.encode()
            self.send_response_only(answer.status)
            self.send_header("Date", answer.date)
            self.send_header("Content-Length", str(len(body) + 10 * answer.cut))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)
            self.close_connection = answer.cut

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _answer  # noqa: N815 - http.server's names

        def log_message(self, *_: object) -> None:
            """Silence."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    told.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield told
    server.shutdown()
    thread.join()
    server.server_close()
