"""Requests to S3 about single objects: where they go, how they are signed, and repeated."""

from __future__ import annotations

import ssl
import threading
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, HTTPServer
from ipaddress import IPv4Address
from math import inf
from pathlib import Path
from urllib.parse import quote

import pytest
from botocore.awsrequest import AWSRequest
from botocore.exceptions import HTTPClientError
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from lakegc_assets.errors import ConfigurationError
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.copies import copy_object
from lakegc_assets.storage.errors import (
    AccessDeniedError,
    StoreThrottledError,
    StoreUnavailableError,
)
from lakegc_assets.storage.opening import open_store
from lakegc_assets.storage.s3.client import add_md5, clients, failure_of
from lakegc_assets_tests.storage.conftest import Answer, Script
from lakegc_assets_tests.storage.s3_answers import SPACE, error

_DATE = "Fri, 02 Jan 2026 03:04:05 GMT"
_FOUND = Answer(body="data", headers={"ETag": '"e"', "Last-Modified": _DATE})
_MD5 = "8d777f385d3dfec8815d20f7496026dc"
_COPIED = Answer(
    body=f'<CopyObjectResult {SPACE}><ETag>"{_MD5}"</ETag></CopyObjectResult>',
)


@pytest.fixture
def store(script: Script) -> ObjectStore:
    script.answers = [_FOUND]
    # So that tiny objects are copied as larger ones are.
    clients(script.config(3)).small.pause("b", inf)
    return open_store("s3://b/ns", script.config(3))


@pytest.mark.parametrize(
    "key", ["a b", "ü", "~-._", "%41", "+&=?#;:@!$'()*,", "d//e", '"<>\\^`{|}']
)
def test_what_is_sent_is_what_was_signed(store: ObjectStore, script: Script, key: str) -> None:
    store.head(key)
    backup = open_store("s3://backup/x", script.config(3))
    script.answers = [_COPIED]
    copy_object(store, key, backup, key, size=4, etag=_MD5, if_absent=False)
    path = quote(key, safe="/~")
    assert script.requests == [f"HEAD /b/ns/{path}", f"PUT /backup/x/{path}"]
    assert script.headers[1]["x-amz-copy-source"] == f"b/ns/{path}"


def test_every_header_that_matters_is_signed(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
    script.answers = [Answer(headers={"ETag": '"e"'})]
    open_store("s3://b/ns", script.config()).put_if_absent("k", b"data")
    (sent,) = script.headers
    assert sent["x-amz-security-token"] == "token"
    assert sent["if-none-match"] == "*"
    signed = sent["authorization"].split("SignedHeaders=")[1].split(",")[0].split(";")
    assert signed == [
        "content-md5", "host", "if-none-match", "x-amz-content-sha256", "x-amz-date",
        "x-amz-security-token",
    ]  # fmt: skip
    assert sent["host"] == script.endpoint.removeprefix("http://")


def test_a_bulk_delete_has_the_digest_that_all_servers_know(script: Script) -> None:
    """OVHcloud's, for one, refused a request for the checksum that newer SDKs add."""
    body = "<DeleteResult><Deleted><Key>ns/k</Key></Deleted></DeleteResult>"
    script.answers = [Answer(body=body)]
    store = open_store("s3://b/ns", script.config())
    for expires_s in (None, 60):
        assert store.delete_many(["k"], expires_s=expires_s)[0].outcome == "deleted"
        assert "content-md5" in script.headers[-1]
        assert not [name for name in script.headers[-1] if "checksum" in name]


def test_aws_gets_the_checksum_of_a_bulk_delete_too() -> None:
    """Not all of its kinds of buckets need to know the digest."""
    checksum = {"x-amz-checksum-crc32": "AAAAAA=="}
    url = "https://b.s3.eu-west-1.amazonaws.com/?delete"
    request = AWSRequest("POST", url, checksum, b"<Delete/>")
    add_md5(request)
    assert set(request.headers) == {"x-amz-checksum-crc32", "Content-MD5"}


def test_a_server_that_only_redirects_is_a_wrong_endpoint(
    store: ObjectStore, script: Script
) -> None:
    script.answers = [Answer(301, headers={"Location": "https://elsewhere.invalid/"})]
    with pytest.raises(ConfigurationError, match=r"set the endpoint to where it leads.*redirect"):
        store.head("one")


def test_the_limit_of_redirects_may_be_reached_within_the_http_client() -> None:
    """As on Python 3.12; which call reaches the limit depends on the depth of each."""
    failed = HTTPClientError(error="maximum recursion depth exceeded")
    assert failure_of(failed).code == "ConnectionFailed"
    failed.__context__ = RecursionError()
    assert failure_of(failed).code == "RedirectLoop"


def test_a_bucket_in_another_region_is_found_once(store: ObjectStore, script: Script) -> None:
    script.answers = [Answer(301, headers={"x-amz-bucket-region": "eu-west-1"}), _FOUND]
    assert store.head("one").size == 4
    assert store.head("two").size == 4
    regions = [h["authorization"].split("/")[2] for h in script.headers]
    assert regions == ["us-east-1", "eu-west-1", "eu-west-1"]


def test_credentials_that_are_too_old_are_to_be_renewed(store: ObjectStore, script: Script) -> None:
    script.answers = [Answer(400, error("ExpiredToken"))]
    with pytest.raises(AccessDeniedError, match="renew them"):
        store.get("one")


def test_what_may_be_repeated_is(store: ObjectStore, script: Script) -> None:
    script.answers = [Answer(503, error("SlowDown")), Answer(500), _FOUND]
    assert store.get("one") == b"data"
    assert len(script.requests) == 3
    script.answers = [Answer(503, error("SlowDown"))]
    with pytest.raises(StoreThrottledError):
        store.get("one")
    assert len(script.requests) == 6
    script.answers = [Answer(403, error("AccessDenied"))]
    with pytest.raises(AccessDeniedError):
        store.get("one")
    assert len(script.requests) == 7


def test_an_answer_that_breaks_off_is_no_content(store: ObjectStore, script: Script) -> None:
    rest = Answer(206, "ta90123456", headers={"ETag": '"e"', "Content-Range": "bytes 2-11/12"})
    script.answers = [Answer(body="da", headers={"ETag": '"e"'}, cut=True), rest]
    assert store.get("one") == b"data90123456"
    assert len(script.requests) == 2


def test_a_copy_that_fails_after_it_began_is_none(script: Script) -> None:
    source, target = (open_store(url, script.config(1)) for url in ("s3://b/ns", "s3://backup/x"))
    for body in (error("InternalError"), "<CopyObjectResult", ""):
        script.answers = [Answer(body=body)]
        with pytest.raises(StoreUnavailableError):
            copy_object(source, "k", target, "k", size=4, etag=_MD5, if_absent=False)


def test_a_proxy_is_asked(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", script.endpoint)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    script.answers = [_FOUND]
    config = StoreConfig(endpoint_url="http://store.example:9000", max_attempts=1)
    assert open_store("s3://b/ns", config).get("one") == b"data"
    assert script.requests == ["GET http://store.example:9000/b/ns/one"]
    assert script.headers[0]["host"] == "store.example:9000"


def _certificate(folder: Path) -> Path:
    """A file with a key and a certificate for 127.0.0.1 that nobody trusts."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "lakegc test")])
    now = datetime.now(timezone.utc)
    host = x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(host, critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path = folder / "certificate.pem"
    path.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return path


def test_only_a_server_whose_certificate_is_trusted_is_asked(
    aws_environment: None,  # noqa: ARG001 - wanted to be there
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response_only(200)
            self.send_header("ETag", '"e"')
            self.send_header("Content-Length", "4")
            self.end_headers()
            self.wfile.write(b"data")

        def log_message(self, *_: object) -> None:
            """Silence."""

    path = _certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    server = HTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        endpoint = f"https://127.0.0.1:{server.server_address[1]}"
        store = open_store("s3://b/ns", StoreConfig(endpoint_url=endpoint, max_attempts=1))
        with pytest.raises(StoreUnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
            store.get("one")
        assert asked == []
        monkeypatch.setenv("AWS_CA_BUNDLE", str(path))
        assert store.get("one") == b"data"
        assert asked == ["/b/ns/one"]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
