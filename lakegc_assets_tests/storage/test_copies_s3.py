"""What S3 servers may answer to copies and uploads, and what is asked of them."""

from __future__ import annotations

import base64
import hashlib
import threading
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import inf
from pathlib import Path

import pytest

from lakegc_assets.errors import ConfigurationError, LakegcError
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.bucket_store import Sizes
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.copies import copy_object
from lakegc_assets.storage.errors import (
    AccessDeniedError,
    ChangedError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
    StoreFullError,
    StoreUnavailableError,
)
from lakegc_assets.storage.opening import open_store
from lakegc_assets.storage.s3.client import clients
from lakegc_assets.storage.s3.objects import etag_of_parts
from lakegc_assets.storage.s3.store import S3Store
from lakegc_assets.storage.streams import PART
from lakegc_assets_tests.storage.conftest import Answer, Script
from lakegc_assets_tests.storage.s3_answers import (
    BEGUN,
    DATE,
    MISSING,
    completed,
    copied,
    error,
    found,
    md5,
    part_copied,
)

_MIB = 2**20


@pytest.fixture
def two(script: Script) -> tuple[ObjectStore, ObjectStore]:
    """A store and a backup on the same server, which is asked once; tiny ones are not read."""
    clients(script.config()).small.pause("b", inf)
    return open_store("s3://b/ns", script.config()), open_store("s3://backup/x", script.config())


def small_parts(store: ObjectStore, part: int = 4, whole: int = 8, copied_part: int = 8) -> None:
    assert isinstance(store, S3Store)
    store.sizes = Sizes(part, whole, copied_part)


def methods(script: Script) -> list[str]:
    return [request.split("?")[0].replace(" /", " ") for request in script.requests]


def copy(
    stores: tuple[ObjectStore, ObjectStore], data: str, *, if_absent: bool = False
) -> tuple[str, str]:
    source, target = stores
    done = copy_object(
        source, "k", target, "k", size=len(data), etag=md5(data), if_absent=if_absent
    )
    return done.etag, done.verified_by


def test_a_small_copy_within_s3_is_one_request(
    two: tuple[ObjectStore, ObjectStore], script: Script
) -> None:
    script.answers = [copied(md5("data"))]
    assert copy(two, "data") == (md5("data"), "md5")
    assert script.requests == ["PUT /backup/x/k"]
    assert script.headers[0]["x-amz-copy-source"] == "b/ns/k"
    assert script.headers[0]["x-amz-copy-source-if-match"] == f'"{md5("data")}"'


def test_a_copy_that_must_not_replace_is_read_and_put(
    two: tuple[ObjectStore, ObjectStore], script: Script
) -> None:
    script.answers = [found("data"), Answer(headers={"ETag": f'"{md5("data")}"'})]
    assert copy(two, "data", if_absent=True) == (md5("data"), "md5")
    assert methods(script) == ["GET b/ns/k", "PUT backup/x/k"]
    assert script.headers[0]["if-match"] == f'"{md5("data")}"'
    assert script.headers[1]["if-none-match"] == "*"
    assert script.headers[1]["x-amz-content-sha256"] == hashlib.sha256(b"data").hexdigest()


@pytest.mark.parametrize("failing", ["get", "put"])
def test_what_goes_wrong_in_the_quickest_way_is_done_once_more(
    two: tuple[ObjectStore, ObjectStore], script: Script, failing: str
) -> None:
    """In the usual way, which repeats what may be, and never replaces what is there."""
    good = [found("data"), Answer(headers={"ETag": f'"{md5("data")}"'})]
    script.answers = [*good[: failing == "put"], Answer(503), *good]
    assert copy(two, "data", if_absent=True) == (md5("data"), "md5")
    assert methods(script)[-2:] == ["GET b/ns/k", "PUT backup/x/k"]
    assert len(script.requests) == len(good) + 1 + (failing == "put")
    assert script.headers[-1]["if-none-match"] == "*"
    digest = base64.b64encode(hashlib.md5(b"data").digest()).decode()
    assert script.headers[-1]["content-md5"] == digest


def test_two_who_put_at_a_time_and_are_both_refused_are_not_believed(
    two: tuple[ObjectStore, ObjectStore], script: Script
) -> None:
    good = [found("data"), Answer(headers={"ETag": f'"{md5("data")}"'})]
    script.answers = [good[0], Answer(409), MISSING, *good]
    assert copy(two, "data", if_absent=True) == (md5("data"), "md5")
    assert [line.split()[0] for line in script.requests] == ["GET", "PUT", "HEAD", "GET", "PUT"]


@pytest.mark.parametrize("status", [409, 412])
def test_what_is_there_stays(
    two: tuple[ObjectStore, ObjectStore], script: Script, status: int
) -> None:
    script.answers = [found("data"), Answer(status), found("other")]
    with pytest.raises(PreconditionFailedError, match="something is there already"):
        copy(two, "data", if_absent=True)


def test_a_put_whose_etag_is_another_is_looked_at(
    two: tuple[ObjectStore, ObjectStore], script: Script
) -> None:
    sealed = {"x-amz-server-side-encryption": "aws:kms"}
    other = md5("other")
    put = Answer(headers={"ETag": f'"{other}"'})
    script.answers = [found("data"), put, found("data", other, sealed)]
    assert copy(two, "data", if_absent=True) == (other, "size")
    script.answers = [found("data"), put, found("data", other)]
    with pytest.raises(StorageError, match="the store got other bytes"):
        copy(two, "data", if_absent=True)


def test_between_two_servers_nothing_is_copied_by_either(
    two: tuple[ObjectStore, ObjectStore], script: Script
) -> None:
    """One that is asked under another name may be another one."""
    other = replace(script.config(), endpoint_url=script.endpoint.replace("127.0.0.1", "localhost"))
    script.answers = [found("data"), Answer(headers={"ETag": f'"{md5("data")}"'})]
    assert copy((open_store("s3://b/ns", other), two[1]), "data") == (md5("data"), "md5")
    assert methods(script) == ["GET b/ns/k", "PUT backup/x/k"]
    assert "if-none-match" not in script.headers[1]


def test_an_etag_that_proves_nothing_makes_both_sides_compared(
    two: tuple[ObjectStore, ObjectStore], script: Script
) -> None:
    """As where a key of KMS encrypts the backup."""
    crc = {"x-amz-checksum-crc64nvme": "AAAAAAAAAAE=", "x-amz-checksum-type": "FULL_OBJECT"}
    script.answers = [copied("f" * 32), found("data", None, crc), found("data", "f" * 32, crc)]
    script.answers[0].headers["x-amz-server-side-encryption"] = "aws:kms"
    script.answers[2].headers["x-amz-server-side-encryption"] = "aws:kms"
    assert copy(two, "data") == ("f" * 32, "crc64nvme")
    script.answers = [copied("f" * 31), found("data"), found("data", "f" * 31)]
    assert copy(two, "data") == ("f" * 31, "size")


@pytest.mark.parametrize(
    ("source", "target", "kind"),
    [
        (found("data"), found("dat", "f" * 31), StorageError),
        (found("data"), found("data", "e" * 31), StorageError),
        (found("data", "changed"), found("data", "f" * 31), ChangedError),
        (MISSING, found("data", "f" * 31), ObjectNotFoundError),
        (found("data"), MISSING, ObjectNotFoundError),
    ],
)
def test_what_is_no_copy_is_never_called_one(
    two: tuple[ObjectStore, ObjectStore],
    script: Script,
    source: Answer,
    target: Answer,
    kind: type[StorageError],
) -> None:
    """Cut short; replaced; made of a source that changed, by a server without conditions."""
    script.answers = [copied("f" * 31), source, target]
    with pytest.raises(kind):
        copy(two, "data")


def test_a_copy_with_another_md5_is_refused(
    two: tuple[ObjectStore, ObjectStore], script: Script
) -> None:
    script.answers = [copied(md5("dxta")), found("data"), found("dxta")]
    with pytest.raises(StorageError, match=md5("dxta")):
        copy(two, "data")


@pytest.mark.parametrize(
    ("answers", "kind", "named"),
    [
        ([Answer(412, error("PreconditionFailed"))], ChangedError, "s3://b/ns"),
        ([Answer(404, error("NoSuchKey"))], ObjectNotFoundError, "s3://b/ns"),
        ([Answer(404), MISSING], ObjectNotFoundError, "s3://b/ns"),
        ([Answer(403, error("AccessDenied")), found("data")], AccessDeniedError, "s3://backup/x"),
        ([Answer(403, error("AccessDenied")), Answer(403)], AccessDeniedError, "s3://b/ns"),
        ([Answer(507, error("QuotaExceeded"))], StoreFullError, "s3://backup/x.*make room"),
        ([Answer(404, error("NoSuchBucket"))], ConfigurationError, "s3://backup/x.*s3://b/ns"),
        ([Answer(507)], StoreFullError, "s3://backup/x.*make room"),
        ([Answer(500, error("InternalError"))], StoreUnavailableError, "s3://backup/x"),
        ([Answer(200, error("InternalError"))], StoreUnavailableError, "s3://backup/x"),
        ([Answer(200, "")], LakegcError, "s3://backup/x"),
    ],
)
def test_refusals_name_the_store_that_refuses(
    two: tuple[ObjectStore, ObjectStore],
    script: Script,
    answers: list[Answer],
    kind: type[LakegcError],
    named: str,
) -> None:
    script.answers = answers
    with pytest.raises(kind, match=named) as raised:
        copy(two, "data")
    assert type(raised.value) is kind or kind is LakegcError


def test_a_large_copy_is_made_in_parts(
    two: tuple[ObjectStore, ObjectStore], script: Script
) -> None:
    small_parts(two[1])
    data = "0123456789abcdef!"
    etags = [md5(data[at : at + 8]) for at in (0, 8, 16)]
    whole = etag_of_parts(etags)
    assert whole is not None
    script.answers = [
        BEGUN, *map(part_copied, etags), found(data), completed(whole), found(data),
        found(data, whole),
    ]  # fmt: skip
    assert copy(two, data) == (whole, "size")
    assert [h.get("x-amz-copy-source-range") for h in script.headers[1:4]] == [
        "bytes=0-7", "bytes=8-15", "bytes=16-16"
    ]  # fmt: skip
    assert {h["x-amz-copy-source-if-match"] for h in script.headers[1:4]} == {f'"{md5(data)}"'}


def test_a_large_copy_that_must_not_replace_is_one_part(
    two: tuple[ObjectStore, ObjectStore], script: Script
) -> None:
    """Its etag is the MD5 of the object, so nothing else is asked about the source."""
    small_parts(two[1], copied_part=100)
    whole = etag_of_parts([md5("12345")])
    assert whole is not None
    script.answers = [BEGUN, part_copied(md5("12345")), MISSING, completed(whole)]
    assert copy(two, "12345", if_absent=True) == (whole, "md5")
    assert script.headers[3]["if-none-match"] == "*"
    assert len(script.requests) == 4


@pytest.mark.parametrize(
    ("answers", "kind"),
    [
        ([part_copied(md5("12345")), found("there")], PreconditionFailedError),
        (
            [part_copied(md5("12345")), MISSING, Answer(412, error("PreconditionFailed"))],
            PreconditionFailedError,
        ),
        (
            [part_copied(md5("12345")), MISSING, Answer(409, error("ConditionalRequestConflict"))],
            StoreUnavailableError,
        ),
        (
            [part_copied(md5("12345")), MISSING, Answer(500, error("InternalError"))],
            StoreUnavailableError,
        ),
        ([part_copied("e" * 32), found("54321")], ChangedError),
        ([Answer(412, error("PreconditionFailed"))], ChangedError),
        ([Answer(416, error("InvalidRange"))], ChangedError),
        ([Answer(403, error("AccessDenied")), found("12345")], AccessDeniedError),
    ],
)
def test_an_upload_that_fails_is_aborted(
    two: tuple[ObjectStore, ObjectStore],
    script: Script,
    answers: list[Answer],
    kind: type[StorageError],
) -> None:
    small_parts(two[1], copied_part=100)
    script.answers = [BEGUN, *answers, Answer(204)]
    with pytest.raises(kind):
        copy(two, "12345", if_absent=True)
    assert script.requests[-1] == "DELETE /backup/x/k?uploadId=upload"
    assert script.requests.count(script.requests[-1]) == 1


@pytest.mark.parametrize(
    "bad", [Answer(403, error("AccessDenied")), Answer(headers={"ETag": f'"{"0" * 32}"'})]
)
def test_parts_that_are_refused_or_arrive_as_others_are_aborted(
    two: tuple[ObjectStore, ObjectStore], script: Script, bad: Answer
) -> None:
    small_parts(two[1])
    script.answers = [BEGUN, Answer(headers={"ETag": f'"{md5("0123")}"'}), bad, Answer(204)]
    with pytest.raises(StorageError, match="s3://backup/x"):
        two[1].put_stream("k", [b"01", b"23456"], 7)
    assert script.bodies[1:3] == [b"0123", b"456"]
    assert script.requests[-1] == "DELETE /backup/x/k?uploadId=upload"


@pytest.mark.parametrize(("kms", "verified"), [(True, "size"), (False, "md5 of parts")])
def test_parts_that_kms_encrypts_prove_nothing(
    two: tuple[ObjectStore, ObjectStore], script: Script, verified: str, *, kms: bool
) -> None:
    """Their etags look like MD5s, and are none."""
    small_parts(two[1])
    etags = ["a" * 32, "b" * 32] if kms else [md5("0123"), md5("456")]
    whole = etag_of_parts(etags)
    assert whole is not None
    encrypted = {"x-amz-server-side-encryption": "aws:kms"} if kms else {}
    parts = [Answer(headers={"ETag": f'"{etag}"', **encrypted}) for etag in etags]
    script.answers = [BEGUN, *parts, completed(whole), found("0123456", whole)]
    done = two[1].put_stream("k", [b"0123456"], 7, if_absent=False)
    assert (done.etag, done.verified_by) == (whole, verified)


def test_an_object_that_arrives_as_another_is_refused(
    two: tuple[ObjectStore, ObjectStore], script: Script
) -> None:
    script.answers = [Answer(headers={"ETag": f'"{"0" * 32}"'})]
    with pytest.raises(StorageError, match="other bytes"):
        two[1].put_stream("k", [b"01"], 2)
    script.answers = [Answer(headers={"ETag": '"random"'}), found("0", "random")]
    with pytest.raises(StorageError, match="cut it short"):
        two[1].put_stream("k", [b"01"], 2)


@pytest.fixture
def sink(aws_environment: None) -> Iterator[tuple[str, list[int]]]:  # noqa: ARG001
    """URL of a server that takes objects and keeps nothing; and the sizes of what it got."""
    sizes: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # one write for head and body: two would wait for each other

        def _answer(self) -> None:
            left, digest = int(self.headers.get("Content-Length", 0)), hashlib.md5()
            if self.command == "PUT":
                sizes.append(left)
            while left:
                piece = self.rfile.read(min(left, 65536))
                left -= len(piece)
                digest.update(piece)
            body = {"POST": BEGUN.body if "uploads" in self.path else completed("x").body}
            answer = body.get(self.command, "").encode()
            self.send_response_only(200)
            self.send_header("ETag", '"x"' if self.command == "HEAD" else f'"{digest.hexdigest()}"')
            self.send_header("Last-Modified", DATE)
            told = sum(sizes) if self.command == "HEAD" else len(answer)
            self.send_header("Content-Length", str(told))
            self.end_headers()
            self.wfile.write(answer)

        do_PUT = do_POST = do_HEAD = _answer  # noqa: N815 - http.server's names

        def log_message(self, *_: object) -> None:
            """Silence."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", sizes
    server.shutdown()
    thread.join()
    server.server_close()


def test_no_object_is_held_in_memory(sink: tuple[str, list[int]], tmp_path: Path) -> None:
    """From a local file to S3: a few parts at most, however large the object is."""
    endpoint, sent = sink
    source = open_store(str(tmp_path / "local"))
    size = 48 * _MIB + 1
    etag = source.put_stream("k", [*[bytes(_MIB)] * 48, b"1"], size).etag
    target = open_store("s3://backup/x", StoreConfig(endpoint_url=endpoint))
    target.put_stream("first", [b"clients are made once"], 21)
    sent.clear()
    tracemalloc.start()
    try:
        done = copy_object(source, "k", target, "k", size=size, etag=etag, if_absent=False)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert done.verified_by == "size"
    assert sent == [*[PART] * 9, 3 * _MIB + 1]
    assert peak < 32 * _MIB
