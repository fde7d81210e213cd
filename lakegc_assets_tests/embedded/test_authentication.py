"""Nobody without the credentials learns or changes anything, whichever endpoint they ask."""

from __future__ import annotations

import base64
import re
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from lakegc_assets.embedded import EmbeddedLakeFS, app
from lakegc_assets.embedded.api import server
from lakegc_assets.embedded.api.calls import Endpoint
from lakegc_assets_tests.embedded.api import TIMEOUT, Api
from lakegc_assets_tests.embedded.direct import SECRET, Direct

KEY = "AKIALAKEGCEMBEDDED"
OPEN = {
    ("GET", "/healthcheck"),
    ("GET", "/setup_lakefs"),
    ("POST", "/setup_lakefs"),
    ("POST", "/auth/login"),
}
NAMES = {"repository": "repo", "branch": "dev", "ref": "main", "tag": "v1", "type": "range"}


def basic(pair: bytes) -> bytes:
    return b"Basic " + base64.b64encode(pair)


RIGHT = f"{KEY}:{SECRET}".encode()
WRONG: dict[str, bytes | None] = {
    "none": None,
    "empty": b"",
    "only the kind": b"Basic",
    "no pair": b"Basic ",
    "no base64": b"Basic !!!",
    "no padding": basic(RIGHT + b"x").rstrip(b"="),
    "not encoded": b"Basic " + RIGHT,
    "Latin-1": b"Basic \xe9",
    "UTF-8": "Basic \U0001f600é".encode(),
    "not UTF-8": b"Basic \xff\xfe\x80",
    "encoded unicode": basic(f"{KEY}:🔑é".encode()),
    "encoded bytes": basic(b"\xff\xfe:\x80"),
    "another kind": b"Bearer " + base64.b64encode(RIGHT),
    "a kind of no name": b" " + base64.b64encode(RIGHT),
    "no colon": basic(KEY.encode()),
    "no secret": basic(f"{KEY}:".encode()),
    "no key": basic(f":{SECRET}".encode()),
    "another secret": basic(f"{KEY}:another".encode()),
    "another key": basic(f"another:{SECRET}".encode()),
    "a longer secret": basic(RIGHT + b"x"),
    "a shorter secret": basic(RIGHT[:-1]),
    "a line break": basic(RIGHT + b"\n"),
    "a NUL": basic(RIGHT + b"\0"),
    "another case": basic(RIGHT.upper()),
    "the two exchanged": basic(f"{SECRET}:{KEY}".encode()),
    "something behind it": basic(RIGHT) + b" x",
    "encoded twice": basic(basic(RIGHT)),
    "huge": basic(b"x" * 200_000),
    "a token of nobody": b"Bearer a.b.c",
    "a token of no form": b"Bearer \xff..",
    "a token signed by nobody": b"Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJBS0lBIiwiZXhwIjo5ZTl9.",
    "a huge token": b"Bearer " + b"." * 200_000,
}


@pytest.fixture(scope="module")
def direct(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Direct]:
    """A repository with something of everything that a call could change."""
    with Direct.on(tmp_path_factory.mktemp("lake")) as found:
        repo = found.repository()
        repo.put("a", b"1")
        repo.commit()
        repo.branch("dev")
        repo.put("b", b"2", "dev")
        repo.call("POST", "/tags", 201, json={"id": "v1", "ref": "main"})
        repo.rules(3)
        yield found
        found.lake.close()


def everything(data: Path) -> object:
    """All that the server keeps: rows of its state and content of its files."""
    with closing(sqlite3.connect(data / "state.db")) as db:
        rows = list(db.iterdump())
    files = {p: p.read_bytes() for p in (data / "objects").rglob("*") if p.is_file()}
    return rows, files


def send(
    direct: Direct, endpoint: Endpoint, authorization: bytes | None
) -> tuple[int, bytes, dict[str, str]]:
    """A call that would do something, were it let in."""
    path = re.sub(r"\{(\w+)\}", lambda found: NAMES.get(found[1], "main"), endpoint.path)
    response = direct.raw(
        endpoint.method,
        f"{app.BASE}{path}".encode(),
        b"path=a&dest_path=c&id=1&ref=main&force=true",
        [(b"authorization", authorization)] if authorization is not None else [],
        b'{"name":"new","source":"main","storage_namespace":"local://new","message":"m",'
        b'"id":"v2","ref":"main","type":"reset","src_path":"a","paths":["a"],"branches":[],'
        b'"default_retention_days":1,"parent_number":0}',
    )
    return response.status_code, response.content, dict(response.headers)


def test_endpoints_are_registered_with_the_door_that_they_declare(direct: Direct) -> None:
    assert {(e.method, e.path) for e in app.ENDPOINTS if e.open_to_all} == OPEN
    below = [route for route in direct.app.routes if route.path.startswith(app.BASE)]  # type: ignore[attr-defined]
    registered = {(m, r.path.replace(":path}", "}")) for r in below for m in r.methods}  # type: ignore[attr-defined]
    assert registered == {(e.method, app.BASE + e.path) for e in app.ENDPOINTS}


@pytest.mark.parametrize("given", WRONG)
def test_every_endpoint_answers_401_and_nothing_else(
    direct: Direct, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    async def inside(*_: object) -> None:
        raise AssertionError("a handler was called")

    monkeypatch.setattr(app, "run_in_threadpool", inside)
    data = direct.lake.settings.data_dir
    before = everything(data)
    for endpoint in app.ENDPOINTS:
        if (endpoint.method, endpoint.path) in OPEN:
            continue
        status, body, headers = send(direct, endpoint, WRONG[given])
        assert status == 401, endpoint.path
        told = b"" if endpoint.method == "HEAD" else b'{"message":"error authenticating request"}\n'
        assert body == told, endpoint.path
        assert {name.lower() for name in headers} <= {
            *("content-length", "content-type", "date", "x-request-id")
        }
    assert everything(data) == before


def test_the_right_credentials_open_every_endpoint(direct: Direct) -> None:
    for scheme in (b"Basic ", b"basic ", b"BASIC "):
        endpoint = next(e for e in app.ENDPOINTS if e.path == "/user")
        assert send(direct, endpoint, scheme + base64.b64encode(RIGHT))[0] == 200


def test_what_is_open_to_all_heeds_no_credentials_and_changes_nothing(direct: Direct) -> None:
    before = everything(direct.lake.settings.data_dir)
    for endpoint in app.ENDPOINTS:
        if (endpoint.method, endpoint.path) in OPEN:
            answers = {send(direct, endpoint, given)[:2] for given in WRONG.values()}
            assert answers == {send(direct, endpoint, basic(RIGHT))[:2]}
    assert everything(direct.lake.settings.data_dir) == before


@pytest.mark.parametrize(
    "keys", [(KEY, ""), ("", SECRET), (KEY, f"{SECRET} "), ("é", "🔑"), (SECRET, KEY), ("\0", "\0")]
)
def test_nobody_logs_in_with_other_keys(direct: Direct, keys: tuple[str, str]) -> None:
    body = dict(zip(("access_key_id", "secret_access_key"), keys, strict=True))
    answer = direct.call("POST", "/auth/login", 401, json=body)
    assert answer == {"message": "credentials are not valid"}


def test_only_a_comparison_in_constant_time_decides(
    direct: Direct, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = []

    def compare_digest(given: bytes, expected: bytes) -> bool:
        compared.append((given, expected))
        return False

    monkeypatch.setattr(server, "compare_digest", compare_digest)
    endpoint = next(e for e in app.ENDPOINTS if e.path == "/user")
    for authorization in (basic(RIGHT), basic(b"x"), b"Basic !", None):
        assert send(direct, endpoint, authorization)[0] == 401
    assert compared == [(RIGHT, RIGHT), (b"x", RIGHT), (b"", RIGHT), (b"", RIGHT)]


def test_credentials_may_be_unicode(tmp_path: Path) -> None:
    with EmbeddedLakeFS(tmp_path, access_key="schlüssel", secret_key="gehëim 🔑") as server:
        for pair, status in (("schlüssel:gehëim 🔑", 200), ("schlüssel:geheim 🔑", 401)):
            with Api(server.endpoint, "", "") as api:
                api.session.auth = None
                headers = {"Authorization": basic(pair.encode()).decode()}
                api.call("GET", "/user", status, headers=headers)


def raw_answer(server: EmbeddedLakeFS, request: bytes) -> bytes:
    """What a real connection answers to bytes that no client library would send."""
    port = int(server.endpoint.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT) as connection:
        found = b""
        try:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(65536):
                found += part
        except (ConnectionResetError, BrokenPipeError):
            pass
        return found


@pytest.mark.parametrize(
    ("line", "header"),
    [
        (b"GET /api/v1/user HTTP/1.1", b"Authorization: Basic " + b"x" * 2_000_000),
        (b"GET /api/v1/user HTTP/1.1", b"X-Other: " + b"x" * 2_000_000),
        (b"GET /api/v1/user HTTP/1.1", b"Authorization: Basic \xff\xfe"),
        (b"GET /api/v1/user?a=" + b"x" * 200_000 + b" HTTP/1.1", b"A: b"),
        (b"GET /api/v1/repositories/%ff%fe HTTP/1.1", b"A: b"),
        (b"GET /api/v1/repositories/\xff\xfe HTTP/1.1", b"A: b"),
        (b"GET /api/v1/repositories/a%00b HTTP/1.1", b"A: b"),
        (b"GET /api/v1/user HTTP/1.1", b"A: b\0c"),
        (b"\x16\x03\x01 HTTP/1.1", b"A: b"),
        (b"GET http://[::1 HTTP/1.1", b"A: b"),
    ],
)
def test_connections_with_odd_bytes_learn_nothing_and_break_nothing(
    server: EmbeddedLakeFS, line: bytes, header: bytes
) -> None:
    answer = raw_answer(server, line + b"\r\nHost: x\r\n" + header + b"\r\n\r\n")
    assert answer == b"" or re.match(rb"HTTP/1\.[01] 4\d\d", answer), answer[:200]
    assert b"Traceback" not in answer
    with Api.of(server) as api:
        api.call("GET", "/user")
