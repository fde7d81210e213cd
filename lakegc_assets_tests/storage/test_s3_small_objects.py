"""Small objects that obstore reads and puts: under exactly the key that is asked for, or not."""

from __future__ import annotations

import string
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import boto3
import pytest

from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.errors import ObjectNotFoundError
from lakegc_assets.storage.opening import open_store
from lakegc_assets.storage.s3 import small_objects
from lakegc_assets.storage.s3.client import clients
from lakegc_assets.storage.s3.small_objects import AlreadyThereError, SmallObjects
from lakegc_assets_tests.storage.conftest import Answer, Script
from lakegc_assets_tests.storage.servers import Server
from lakegc_assets_tests.storage.test_copies import KEYS

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

_MARKS = [mark for mark in string.printable if mark not in "\t\n\r\x0b\x0c"]
#: What is in a key, at its begin and its end.
_PLAIN = [
    *(key for key in KEYS if key.isprintable()),
    *(f"{mark}in{mark * 2}between{mark}" for mark in _MARKS if mark != "/"),
    "...", "a/...", ".a/b.", "a%2Fb", "%2e%2e/a", "a\\..\\b", "\u0301combining/\u202eback",
]  # fmt: skip
_ODD = ["", "/", "/a", "a/", "a//b", ".", "..", "./a", "a/..", "a/../b", "a/./b", "new\nline", "\0"]
_REFUSED = {"minio_server": frozenset({"a\\..\\b"})}


@dataclass(frozen=True)
class _Place:
    """An empty bucket of a server, and keys of these tests that it refuses."""

    small: SmallObjects
    client: S3Client
    bucket: str
    refused: frozenset[str] = frozenset()


@pytest.fixture(
    params=[
        "s3_server",
        pytest.param("versitygw_server", marks=pytest.mark.stores),
        pytest.param("minio_server", marks=pytest.mark.stores),
    ]
)
def place(request: pytest.FixtureRequest) -> _Place:
    server: str | Server = request.getfixturevalue(request.param)
    endpoint = server.endpoint if isinstance(server, Server) else server
    bucket = f"bucket-{uuid.uuid4().hex}"
    client = boto3.client("s3", endpoint_url=endpoint)
    client.create_bucket(Bucket=bucket)
    refused = _REFUSED.get(request.param, frozenset())
    return _Place(clients(StoreConfig(endpoint_url=endpoint)).small, client, bucket, refused)


def test_keys_are_what_they_are(place: _Place) -> None:
    small, client, bucket = place.small, place.client, place.bucket
    plain = [key for key in _PLAIN if key not in place.refused]
    for key in plain:
        etag = small.put(bucket, key, key.encode())
        assert etag is not None, key
        told = client.get_object(Bucket=bucket, Key=key)
        assert (told["Body"].read(), told["ETag"]) == (key.encode(), f'"{etag}"')
        assert small.get(bucket, key, etag, len(key.encode())) == key.encode()
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
    assert sorted(one["Key"] for page in pages for one in page["Contents"]) == sorted(plain)


@pytest.mark.parametrize("key", _ODD)
def test_other_keys_are_not_asked_for(key: str, script: Script) -> None:
    small = clients(script.config()).small
    assert small.get("b", key, "e", 1) is None
    assert small.put("b", key, b"data") is None
    assert script.requests == []


def test_nothing_is_replaced(place: _Place) -> None:
    small, bucket = place.small, place.bucket
    etag = small.put(bucket, "k", b"first")
    assert etag is not None
    with pytest.raises(AlreadyThereError):
        small.put(bucket, "k", b"second")
    assert place.client.get_object(Bucket=bucket, Key="k")["Body"].read() == b"first"


def test_what_is_not_as_it_was_is_not_had(place: _Place) -> None:
    small, bucket = place.small, place.bucket
    etag = small.put(bucket, "k", b"first")
    assert etag is not None
    assert small.get(bucket, "k", etag, 5) == b"first"
    assert small.get(bucket, "k", etag, 6) is None
    assert small.get(bucket, "k", "another", 5) is None
    assert small.get(bucket, "missing", etag, 5) is None
    assert small.put(f"{bucket}-missing", "k", b"data") is None


def test_a_request_is_sent_once(script: Script) -> None:
    small = clients(script.config(5)).small
    script.answers = [Answer(503)] * 4
    assert small.get("b", "k", "e", 1) is None
    assert small.put("b", "k", b"data") is None
    assert [line.split()[0] for line in script.requests] == ["GET", "PUT"]


@pytest.mark.parametrize("failed", [Answer(503), Answer(404), Answer(body="tab", cut=True)])
def test_what_cannot_be_fetched_is_left_to_the_usual_way(script: Script, failed: Answer) -> None:
    """And so is what follows: a store that refuses this way is not asked twice each time."""
    store = open_store("s3://bkt/ns", script.config())
    whole = Answer(body="table", headers={"ETag": '"e"', "Last-Modified": failed.date})
    script.answers = [whole, failed, whole]
    assert [store.fetch("_lakefs/t") for _ in range(3)] == [b"table"] * 3
    assert script.requests == ["GET /bkt/ns/_lakefs/t"] * 4
    usual = ["Boto3" in headers["user-agent"] for headers in script.headers]
    assert usual == [False, False, True, True]


def test_what_is_missing_is_missing_whoever_asks(place: _Place) -> None:
    endpoint = place.client.meta.endpoint_url
    store = open_store(f"s3://{place.bucket}/ns", StoreConfig(endpoint_url=endpoint))
    store.put("_lakefs/t", b"table")
    assert store.fetch("_lakefs/t") == b"table"
    with pytest.raises(ObjectNotFoundError):
        store.fetch("_lakefs/other")


def test_renewed_credentials_are_asked_for(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    small = clients(script.config()).small
    asked = small.provide_credentials()
    assert asked["access_key_id"]
    monkeypatch.setattr(small.session, "get_credentials", lambda: None)
    with pytest.raises(ValueError, match="no credentials"):
        small.provide_credentials()


def test_a_proxy_or_certificates_of_ones_own_are_left_to_the_usual_way(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", "/nowhere")
    secure = StoreConfig(endpoint_url="https://127.0.0.1:1", region="r")
    assert clients(secure).small.get("b", "k", "e", 1) is None
    monkeypatch.setenv("HTTP_PROXY", script.endpoint)
    monkeypatch.setenv("AWS_PROFILE_SEEN", "changed")
    plain = StoreConfig(endpoint_url="http://store.invalid", region="r")
    assert clients(plain).small.get("b", "k", "e", 1) is None
    assert script.requests == []


@pytest.mark.parametrize(
    ("bucket", "addressing", "expected"),
    [
        ("bkt", "auto", ("https://bkt.s3.eu-west-1.amazonaws.com", "true")),
        ("bkt", "path", ("https://s3.eu-west-1.amazonaws.com", "false")),
        ("b.dots", "auto", ("https://s3.eu-west-1.amazonaws.com", "false")),
        ("dir--use1-az4--x-s3", "auto", None),
    ],
)
def test_a_bucket_is_where_botocore_says(
    aws_environment: None,  # noqa: ARG001 - wanted to be there
    monkeypatch: pytest.MonkeyPatch,
    bucket: str,
    addressing: str,
    expected: tuple[str, str] | None,
) -> None:
    """And one whose requests are signed in another way is left to boto3."""
    for name in ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    config = StoreConfig(region="eu-west-1", addressing=addressing)  # type: ignore[arg-type]
    opened = clients(config).small.open_bucket(bucket)
    assert (opened is None) == (expected is None)
    if opened is not None:
        reached = {str(name): str(value) for name, value in opened.config.items()}
        assert (reached["endpoint"], reached["virtual_hosted_style_request"]) == expected
        assert reached["region"] == "eu-west-1"


def test_no_credentials_are_left_to_the_usual_way(
    place: _Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where they end while requests are sent."""
    assert place.small.put(place.bucket, "first", b"data") is not None

    known, asked = place.small.session.get_credentials(), []

    def ended() -> object:
        asked.append(known)
        if len(asked) != 2:
            raise ValueError("they have ended")
        return known

    monkeypatch.setattr(place.small.session, "get_credentials", ended)
    other = replace(place.small, _stores={})
    for count in (1, 3):
        assert other.put(place.bucket, "k", b"data") is None
        assert len(asked) == count
    monkeypatch.setattr(place.small.session, "get_credentials", lambda: None)
    assert other.put(place.bucket, "k", b"data") is None
    monkeypatch.undo()
    assert other.put(place.bucket, "k", b"data") is not None


def test_a_process_that_was_forked_does_not_use_it(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = clients(script.config()).small
    script.answers = [Answer(503)] * 2
    assert small.put("b", "k", b"data") is None
    monkeypatch.setattr(small_objects, "getpid", lambda: -1)
    assert small.put("b", "k", b"data") is None
    assert small.get("b", "k", "e", 1) is None
    assert len(script.requests) == 1
