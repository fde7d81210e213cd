"""Whatever is sent, the server answers 2xx or 4xx, and what it took it can give back."""

from __future__ import annotations

import inspect
import json
import re
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_from_bytes

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakegc_assets.embedded import app
from lakegc_assets.embedded.api.calls import Endpoint
from lakegc_assets_tests.embedded.direct import Direct, Headers

Request = tuple[Endpoint, bytes, bytes, Headers, bytes]

ODD = (
    *(
        "",
        " ",
        "\n",
        "\0",
        "a\0b",
        "/",
        "//",
        "a/",
        "/a",
        ".",
        "..",
        "../../x",
        "a/../b",
        "%",
        "%2F",
    ),
    *(
        "é",
        "e\u0301",
        "\U0001f600",
        "\u202e",
        "\ufffd",
        "a|b",
        "a,b",
        "'",
        '"',
        "\\",
        "*",
        "x" * 5000,
    ),
    *("-1", "0", "1", "1.5", "1e999", "NaN", "true", "null", "9" * 30, "9" * 5000, "٣"),
    *("local://repo", "local://repo/data/x", "local://", "s3://b/c", "s3a://b/../c", "http://[::1"),
    *("local://" + "y" * 5000, "local://new", "local://a\0b", "local://new/\0", "file:///etc"),
    *(
        "main",
        "dev",
        "v1",
        "main@",
        "main~1",
        "main^2",
        "main~" + "9" * 20,
        "^" * 50,
        "main$$",
        "a",
    ),
    *("reset", "object", "common_prefix", "source-wins", "two_dot", "three_dot", "abuse", "GCPCx"),
    "eyJicmFuY2giOiAibWFpbiIsICJwYXRoIjogIiIsICJydW5faWQiOiAiLi4vLi4veCJ9",
)
TEXT = st.one_of(st.sampled_from(ODD), st.text(max_size=20))
NUMBERS = st.one_of(
    st.integers(-3, 3),
    st.sampled_from([10**10, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, -(2**63), 2**64, 10**400]),
    st.integers(),
)
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, st.floats(), TEXT)
# What JSON can say and Python's json does not write.
BODIES = (
    *(b"", b"{", b"null", b"[]", b"0", b'"x"', b"\xff\xfe", b"\xef\xbb\xbf{}", b"[" * 100_000),
    *(b'{"a":' * 20_000, b'{"message":"\\ud800"}', b'{"name":"\\udfff","source":"main"}'),
    *(b'{"paths":["\\ud800"]}', b'{"date":1e400,"message":""}', b'{"message":"\xff"}'),
    b'{"message":"m","date":' + b"9" * 5000 + b"}",
)
TYPES = (
    *(b"application/json", b"multipart/form-data", b"multipart/form-data; boundary=x", b"\xff"),
    *(
        "é".encode(),
        b"text/plain; charset=nonsense",
        b"a" * 5000,
        b"multipart/form-data; boundary=",
    ),
)
FORMS = (
    b'--x\r\nContent-Disposition: form-data; name="content"; filename="f"\r\n\r\nhi\r\n--x--\r\n',
    b'--x\r\nContent-Disposition: form-data; name="content"\r\n\r\nhi\r\n--x--\r\n',
    b"--x\r\n\r\nhi",
    b"--x--",
)
RANGES = (b"bytes=0-0", b"bytes=-0", b"bytes=5-", b"bytes=-", b"bytes=" + b"9" * 5000 + b"-", b"x")
MTIMES = (b"nan", b"inf", b"-1", b"1e300", b"1700000000", b"", b"\xff")


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with something to read, as it is before each example."""
    data = tmp_path_factory.mktemp("template")
    with Direct.on(data) as direct:
        repo = direct.repository()
        repo.put("a", b"1")
        repo.commit()
        repo.branch("dev")
        repo.put("b/c", b"2", "dev")
        repo.call("POST", "/tags", 201, json={"id": "v1", "ref": "main"})
        repo.rules(3)
        direct.lake.close()
    return data


@cache
def words(of: Callable[..., object]) -> tuple[str, ...]:
    """Names that a handler asks a request for."""
    return tuple(sorted(set(re.findall(r'"([a-z_]+)"', inspect.getsource(of)))))


RIGHT = {"repository": "repo", "branch": "main", "ref": "main", "tag": "v1"}
ODD_PARTS = st.one_of(
    TEXT.map(lambda text: quote(text, safe="")),
    st.binary(min_size=1, max_size=4).map(lambda data: quote_from_bytes(data, safe="")),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=6,
)
RULES = st.lists(st.fixed_dictionaries({"branch_id": TEXT, "retention_days": NUMBERS}), max_size=2)
FLAGS = ("allow_empty", "force", "squash_merge", "read_only", "hidden")
COUNTS = ("date", "mtime", "size_bytes", "parent_number", "default_retention_days")
# The right type for each name, so that odd values reach what lies behind the types.
RIGHT_TYPES = {
    **dict.fromkeys(COUNTS, NUMBERS),
    **dict.fromkeys(FLAGS, st.booleans()),
    **dict.fromkeys(("metadata", "user_metadata"), st.dictionaries(TEXT, TEXT, max_size=2)),
    "branches": RULES,
    "paths": st.lists(TEXT, max_size=3),
    "staging": st.fixed_dictionaries({"physical_address": TEXT}),
    "commit_overrides": st.fixed_dictionaries({"message": TEXT}),
}
HEADERS: st.SearchStrategy[dict[bytes, bytes]] = st.fixed_dictionaries(
    {},
    optional={
        b"content-type": st.sampled_from(TYPES),
        b"range": st.sampled_from(RANGES),
        b"if-none-match": st.sampled_from([b"*", b'"x"', b"\xff"]),
        b"x-lakegc-mtime": st.sampled_from(MTIMES),
        b"x-lakefs-meta-\xe9": st.just("é".encode()),
        b"x-lakefs-meta-k": st.sampled_from(["é".encode(), b"\xff", b"", b"v" * 5000]),
    },
)


# What makes a call succeed, so that the odd part of it is looked at for itself.
GOOD: dict[str, Any] = {
    "name": "new",
    "source": "main",
    "message": "m",
    "id": "v2",
    "ref": "main",
    "type": "reset",
    "path": "a",
    "src_path": "a",
    "dest_path": "z",
    "paths": ["a"],
    "branches": [],
    "checksum": "c",
    "physical_address": "local://elsewhere/x",
    "size_bytes": 1,
    "parent_number": 0,
    "amount": "5",
    "default_retention_days": 1,
    "storage_namespace": "local://new",
    "allow_empty": True,
    "delimiter": "/",
    "prefix": "",
    "after": "",
    "strategy": "",
}


def mostly(usual: st.SearchStrategy[Any], *odd: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """The usual three times out of four."""
    return st.integers(0, 3).flatmap(lambda number: usual if number else st.one_of(*odd))


def as_json(fields: object) -> bytes:
    return json.dumps(fields).encode()


@cache
def paths_of(endpoint: Endpoint) -> st.SearchStrategy[bytes]:
    """The endpoint's path, with names that exist or odd ones."""
    parts = [
        mostly(st.just(RIGHT.get(part[1:-1], "main")), ODD_PARTS)
        if part[:1] == "{"
        else st.just(part)
        for part in endpoint.path.split("/")
    ]
    return st.tuples(*parts).map(lambda found: "/".join(found).encode())


@cache
def queries_of(endpoint: Endpoint) -> st.SearchStrategy[bytes]:
    """The parameters that it asks for, others, and bytes that are none."""
    names = ("path", "dest_path", "id", "ref", "prefix", "after", "amount", "delimiter", "type")
    wanted = [name for name in names if name in words(endpoint.handler)] or ["path"]
    near = {name: mostly(st.just(GOOD[name]), TEXT) for name in wanted}
    other = st.dictionaries(st.sampled_from(names), TEXT, max_size=2)
    raw = st.sampled_from(["%ff=1", "path=%ff", "=", "&&", "path", "%00=%00"])
    return st.tuples(
        st.fixed_dictionaries(near), mostly(st.just({}), other), mostly(st.just(""), raw)
    ).map(
        lambda found: "&".join(
            [f"{quote(k)}={quote(v, safe='')}" for k, v in {**found[0], **found[1]}.items()]
            + [found[2]]
        ).encode()
    )


@cache
def bodies_of(endpoint: Endpoint) -> st.SearchStrategy[bytes]:
    """JSON with the names that it asks for, of right types or wrong ones, and other bytes."""
    names = words(endpoint.handler) or ("name",)
    right = {name: RIGHT_TYPES.get(name, TEXT) for name in names}
    good = {name: GOOD[name] for name in names if name in GOOD}
    one_odd = st.sampled_from(sorted(right)).flatmap(
        lambda name: right[name].map(lambda value: {**good, name: value})
    )
    return mostly(
        st.one_of(st.just(good), one_odd, one_odd).map(as_json),
        st.fixed_dictionaries(right).map(as_json),
        st.dictionaries(st.sampled_from(names), VALUES, max_size=3).map(as_json),
        st.sampled_from((*BODIES, *FORMS)),
    )


@cache
def requests_to(endpoint: Endpoint) -> st.SearchStrategy[Request]:
    """An endpoint with path, query, headers and body: near to what it wants, or far from it."""
    headers = HEADERS.map(lambda found: list(found.items()))
    return st.tuples(
        st.just(endpoint),
        paths_of(endpoint),
        queries_of(endpoint),
        mostly(st.just([]), headers),
        bodies_of(endpoint),
    )


CALLS = st.lists(st.sampled_from(app.ENDPOINTS).flatmap(requests_to), min_size=1, max_size=20)


def ask(direct: Direct, method: str, url: str, **params: str) -> Any:
    response = direct.send(method, url, params=params)
    assert response.status_code < 500, (method, url, params, response.content)
    return response


def look_at_everything(direct: Direct) -> None:
    """Read all that is there by every way of reading, and let a collector ask."""
    for repo in ask(direct, "GET", "/repositories").json()["results"]:
        base = f"/repositories/{repo['id']}"
        for branch in ask(direct, "GET", f"{base}/branches", show_hidden="true").json()["results"]:
            at = quote(branch["id"], safe="")
            ask(direct, "GET", f"{base}/branches/{at}/diff")
            ask(direct, "GET", f"{base}/refs/{at}/commits")
            for found in ask(direct, "GET", f"{base}/refs/{at}/objects/ls").json()["results"]:
                for method in ("GET", "HEAD"):
                    ask(direct, method, f"{base}/refs/{at}/objects", path=found["path"])
                ask(direct, "GET", f"{base}/refs/{at}/objects/stat", path=found["path"])
        ask(direct, "GET", f"{base}/tags")
        for path in ("settings/gc_rules", "branches", "metadata"):
            ask(direct, "GET", f"{base}/{path}")
        for path in ("prepare_commits", "prepare_uncommited"):
            ask(direct, "POST", f"{base}/gc/{path}")


def run(template: Path, chosen: list[Request]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        shutil.copytree(template, data)
        with Direct.on(data) as direct:
            for endpoint, path, query, headers, body in chosen:
                response = direct.raw(
                    endpoint.method,
                    app.BASE.encode() + path,
                    query,
                    [direct.authorization, *headers],
                    body,
                )
                assert response.status_code < 500, response.content
                if response.status_code >= 400 and endpoint.method != "HEAD":
                    assert response.json()["message"]
            look_at_everything(direct)
            direct.lake.close()


FUZZ = {"suppress_health_check": list(HealthCheck)}


@settings(max_examples=20, **FUZZ)  # type: ignore[arg-type]
@given(CALLS)
def test_odd_requests_are_refused_and_never_fail(template: Path, chosen: list[Request]) -> None:
    run(template, chosen)


@pytest.mark.conformance
@settings(max_examples=80, **FUZZ)  # type: ignore[arg-type]
@given(CALLS)
def test_many_odd_requests_are_refused_and_never_fail(
    template: Path, chosen: list[Request]
) -> None:
    run(template, chosen)
