"""Who is let in, what is refused, and how it is told."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path
from time import time
from typing import Any

import pytest
import requests

from lakegc_assets.embedded import EmbeddedLakeFS
from lakegc_assets.embedded.gateway import Gateway
from lakegc_assets_tests.conformance.recorder import GATEWAY, conforms, left_out
from lakegc_assets_tests.embedded.api import TIMEOUT, Api, Repo
from lakegc_assets_tests.embedded.gateway.s3 import (
    S3,
    client,
    client_of,
    refused,
    send,
    signed_headers,
)
from lakegc_assets_tests.embedded.gateway.test_signature import SIGNATURES

left_out(
    GATEWAY,
    ["AWS Signature Version 2", "virtual-host style addresses", "temporary credentials"],
    "every client can do without; the answer says so",
)
left_out(
    GATEWAY,
    ["CreateBucket", "DeleteBucket", "ListObjectVersions"],
    "repositories are made by the REST API; 501 NotImplemented, as for all that is not listed",
)
left_out(
    GATEWAY,
    ["server-side encryption with given keys", "object locks", "ACLs in grants", "tags on PUT"],
    "501 NotImplemented: to store the object without them would be a lie",
)
left_out(
    GATEWAY,
    ["Cache-Control, Content-Encoding and the like as metadata"],
    "lakeFS's entries have no place for them either",
)


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("PUT", "", {}),
        ("DELETE", "", {}),
        ("PUT", "/main/a?acl=", {}),
        ("PUT", "/main/a?tagging=", {}),
        ("PUT", "/main/a?partNumber=1", {}),
        ("DELETE", "/main/a?versionId=1", {}),
        ("DELETE", "/main/a?tagging=", {}),
        ("GET", "/main/a?acl=", {}),
        ("GET", "/main/a?partNumber=1", {}),
        ("POST", "/main/a", {}),
        ("POST", "/main/a?restore=", {}),
        ("PATCH", "/main/a", {}),
        ("PUT", "/main/a", {"x_amz_write_offset_bytes": "1"}),
        ("PUT", "/main/a", {"x_amz_server_side_encryption_customer_key": "k"}),
        ("PUT", "/main/a", {"x_amz_object_lock_mode": "COMPLIANCE"}),
        ("PUT", "/main/a", {"x_amz_tagging": "k=v"}),
        ("PUT", "/main/a", {"x_amz_checksum_md4": "k"}),
    ],
)
def test_what_is_not_implemented_does_nothing(
    server: EmbeddedLakeFS, repo: Repo, method: str, path: str, headers: dict[str, str]
) -> None:
    repo.put("a", b"content")
    body = b"<x/>" if method in {"PUT", "POST"} else b""
    answer = send(server, method, f"/{repo.name}{path}", body, **headers)
    assert (answer.status_code, "<Code>NotImplemented</Code>" in answer.text) == (501, True)
    assert repo.read("a") == b"content"


@conforms(
    GATEWAY,
    "Writes that must be refused",
    client="boto3",
    checked="tags, commits, expressions, unknown branches and repositories, read-only repositories",
    differs="403 AccessDenied for a tag or commit; lakeFS answers as if the bucket did not exist",
)
def test_only_branches_of_writable_repositories_are_written(s3: S3, repo: Repo, api: Api) -> None:
    repo.put("a", b"1")
    repo.commit()
    repo.call("POST", "/tags", 201, json={"id": "v1", "ref": "main"})
    body = {"name": f"{repo.name}-ro", "storage_namespace": f"local://{repo.name}-ro"}
    api.call("POST", "/repositories", 201, json={**body, "read_only": True})
    for bucket, ref, status, code in (
        (repo.name, "v1", 403, "AccessDenied"),
        (repo.name, repo.head(), 403, "AccessDenied"),
        (repo.name, "main~1", 403, "AccessDenied"),
        (repo.name, "main@", 403, "AccessDenied"),
        (repo.name, "nothing", 404, "NoSuchBucket"),
        ("nothing", "main", 404, "NoSuchBucket"),
        (f"{repo.name}-ro", "main", 403, "ErrReadOnlyRepository"),
    ):
        where = {"Bucket": bucket, "Key": f"{ref}/a"}
        with refused(status, code):
            s3.put_object(**where, Body=b"2")
        with refused(status, code):
            s3.delete_object(**where)
        with refused(status, code):
            s3.create_multipart_upload(**where)
        with refused(status, code):
            s3.copy_object(**where, CopySource={"Bucket": repo.name, "Key": "main/a"})
    for key in ("main", "main/"):
        with refused(400, "InvalidArgument"):
            s3.put_object(Bucket=repo.name, Key=key, Body=b"2")
    s3.put_object(Bucket=repo.name, Key="main/", Body=b"")
    assert repo.staged() == {}


@SIGNATURES
def test_only_the_right_credentials_are_let_in(server: EmbeddedLakeFS, repo: Repo) -> None:
    repo.put("a", b"1")
    wrong_secret = client(server.endpoint, server.access_key, "wrong")
    wrong_key = client(server.endpoint, "AKIAWRONG", server.secret_key)
    with refused(403, "SignatureDoesNotMatch"):
        wrong_secret.get_object(Bucket=repo.name, Key="main/a")
    with refused(403, "SignatureDoesNotMatch"):
        wrong_secret.delete_object(Bucket=repo.name, Key="main/a")
    with refused(403, "InvalidAccessKeyId"):
        wrong_key.get_object(Bucket="nothing", Key="main/a")
    for path in ("/", f"/{repo.name}", f"/{repo.name}/main/a", "/nothing", "/%ff", "//"):
        for headers in ({}, {"Authorization": "Basic x"}, {"Authorization": "AWS4-HMAC-SHA256"}):
            answer = requests.get(server.endpoint + path, headers=headers, timeout=TIMEOUT)
            assert answer.status_code in {400, 403}
            assert repo.name not in answer.text.replace(path, "")
    assert repo.read("a") == b"1"


@pytest.mark.parametrize("config", [
    {},
    {"request_checksum_calculation": "when_required"},
    {"s3": {"payload_signing_enabled": True}},
    {"s3": {"payload_signing_enabled": True}, "request_checksum_calculation": "when_required"},
])  # fmt: skip
def test_each_way_of_sending_content(
    server: EmbeddedLakeFS, repo: Repo, config: dict[str, Any], tmp_path: Path
) -> None:
    s3 = client_of(server, **config)
    file = tmp_path / "file"
    file.write_bytes(b"x" * 300_000)
    with file.open("rb") as body:
        s3.put_object(Bucket=repo.name, Key="main/file", Body=body)
    s3.put_object(Bucket=repo.name, Key="main/bytes", Body=b"y" * 300_000)
    s3.put_object(Bucket=repo.name, Key="main/nothing")
    assert repo.read("file") == b"x" * 300_000
    assert repo.read("bytes") == b"y" * 300_000
    assert repo.read("nothing") == b""


@pytest.mark.parametrize("algorithm", ["CRC32", "SHA1", "SHA256"])
def test_checksums_are_compared_and_told(s3: S3, repo: Repo, algorithm: Any) -> None:
    answer: Any = s3.put_object(
        Bucket=repo.name, Key="main/a", Body=b"123456789", ChecksumAlgorithm=algorithm
    )
    good = answer[f"Checksum{algorithm}"]
    wrong: dict[str, Any] = {f"Checksum{algorithm}": good}
    with refused(400, "BadDigest"):
        s3.put_object(Bucket=repo.name, Key="main/a", Body=b"123456780", **wrong)
    with refused(400, "BadDigest"):
        s3.put_object(
            Bucket=repo.name, Key="main/a", Body=b"other", ContentMD5="1B2M2Y8AsgTpgAmY7PhCfg=="
        )
    with refused(400, "InvalidDigest"):
        s3.put_object(Bucket=repo.name, Key="main/a", Body=b"other", ContentMD5="AAAA")
    assert repo.read("a") == b"123456789"


def test_content_that_is_not_what_was_signed_is_refused(server: EmbeddedLakeFS, repo: Repo) -> None:
    other = hashlib.sha256(b"other").hexdigest()
    for declared, code in (
        (other, "XAmzContentSHA256Mismatch"),
        ("STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD", "NotImplemented"),
        ("nonsense", "InvalidArgument"),
    ):
        path = f"/{repo.name}/main/a"
        answer = send(server, "PUT", path, b"content", declared)
        assert f"<Code>{code}</Code>" in answer.text
    assert repo.list() == []


def test_a_body_that_breaks_off_writes_nothing(
    server: EmbeddedLakeFS, repo: Repo, caplog: pytest.LogCaptureFixture
) -> None:
    path = f"/{repo.name}/main/a"
    headers = {"host": "h", "content-length": "10"}
    signed = signed_headers(
        server, "PUT", f"http://h{path}", declared="UNSIGNED-PAYLOAD", headers=headers
    )
    pieces = [
        {"type": "http.request", "body": b"hello", "more_body": True},
        {"type": "http.disconnect"},
        {"type": "http.disconnect"},
    ]
    sent: list[Any] = []

    async def receive() -> Any:
        return pieces.pop(0)

    async def keep(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "PUT",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(k.lower().encode(), v.encode()) for k, v in signed.items()],
    }
    asyncio.run(Gateway(server.lake)(scope, receive, keep))
    assert (sent[0]["status"], (b"connection", b"close") in sent[0]["headers"]) == (400, True)
    assert repo.list() == []
    told = [record for record in caplog.records if record.name.startswith("lakegc_assets.")]
    assert not told, "it is no fault of the server"


def test_what_is_too_large_is_refused(tmp_path: Path) -> None:
    most = 1 << 20
    with (
        EmbeddedLakeFS(tmp_path, max_upload_bytes=most) as server,
        Api.of(server) as api,
    ):
        repo, s3 = api.repository(), client_of(server)
        s3.put_object(Bucket="repo", Key="main/a", Body=b"x" * most)
        with refused(400, "EntityTooLarge") as error:
            s3.put_object(Bucket="repo", Key="main/a", Body=b"x" * (most + 1))
        assert f"{most} bytes" in error["Error"]["Message"]
        unannounced = (b"x" * 1024 for _ in range(most // 1024 + 1))
        assert (
            send(server, "PUT", "/repo/main/a", unannounced, "UNSIGNED-PAYLOAD").status_code == 400
        )
        assert repo.stat("a")["size_bytes"] == most
        upload = s3.create_multipart_upload(Bucket="repo", Key="main/b")["UploadId"]
        where: dict[str, Any] = {"Bucket": "repo", "Key": "main/b", "UploadId": upload}
        parts = [
            {"PartNumber": n, "ETag": s3.upload_part(**where, PartNumber=n, Body=data)["ETag"]}
            for n, data in ((1, b"x"), (2, b"x" * most))
        ]
        with refused(400, "EntityTooLarge"):
            s3.complete_multipart_upload(**where, MultipartUpload={"Parts": parts})
        assert repo.list() == ["a"]


def test_chunks_with_an_unsigned_trailer_are_taken(server: EmbeddedLakeFS, repo: Repo) -> None:
    kind = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
    options = {
        "content_encoding": "aws-chunked",
        "x_amz_trailer": "x-amz-checksum-crc32",
        "x_amz_decoded_content_length": "5",
    }
    good = b"2\r\nhe\r\n3\r\nllo\r\n0\r\nx-amz-checksum-crc32:NhCmhg==\r\n\r\n"
    for body, code in (
        (good.replace(b"hello", b"hallo").replace(b"llo", b"lla"), "BadDigest"),
        (good.replace(b"Nh", b"NH"), "BadDigest"),
        (good.replace(b"-crc32:", b"-sha1:"), "MalformedTrailerError"),
        (good[:-20], "MalformedTrailerError"),
        (good[:12], "IncompleteBody"),
        (good.replace(b"2\r\nhe\r\n", b""), "IncompleteBody"),
    ):
        answer = send(server, "PUT", f"/{repo.name}/main/a", body, kind, **options)
        assert f"<Code>{code}</Code>" in answer.text, body
    assert repo.list() == []
    assert send(server, "PUT", f"/{repo.name}/main/a", good, kind, **options).ok
    assert repo.read("a") == b"hello"


@conforms(
    GATEWAY,
    "Presigned URLs",
    client="boto3 and requests",
    checked="GET and PUT, until they expire; signatures of version 4, and of version 2, which "
    "`aws s3 presign` may make",
)
@pytest.mark.parametrize("version", ["s3v4", "s3"])
def test_presigned_urls(tmp_path: Path, version: str) -> None:
    ahead = [0.0]
    with (
        EmbeddedLakeFS(tmp_path, clock=lambda: time() + ahead[0]) as server,
        Api.of(server) as api,
    ):
        repo, s3 = api.repository(), client_of(server, signature_version=version)
        where = {"Bucket": "repo", "Key": "main/odd +%é"}
        put = s3.generate_presigned_url("put_object", Params=where, ExpiresIn=600)
        get = s3.generate_presigned_url(
            "get_object", Params={**where, "ResponseContentType": "text/é x"}, ExpiresIn=600
        )
        assert requests.put(put, data=b"content", timeout=TIMEOUT).status_code == 200
        answer = requests.get(get, timeout=TIMEOUT)
        assert answer.content == b"content"
        assert answer.headers["Content-Type"].encode("latin-1").decode() == "text/é x"
        assert requests.put(get, data=b"x", timeout=TIMEOUT).status_code == 403
        added = {"x-amz-meta-k": "v"}
        assert requests.put(put, data=b"x", headers=added, timeout=TIMEOUT).status_code == 403
        described = {**where, "Metadata": added, "ContentType": "text/plain"}
        told = s3.generate_presigned_url("put_object", Params=described, ExpiresIn=600)
        if version == "s3":  # Version 4 wants what it signs in headers.
            assert requests.put(told, data=b"content", timeout=TIMEOUT).status_code == 200
            assert requests.head(get, timeout=TIMEOUT).status_code == 403
            assert repo.stat("odd +%é")["content_type"] == "text/plain"
        ahead[0] = 1200
        assert "expired" in requests.get(get, timeout=TIMEOUT).text
        assert repo.read("odd +%é") == b"content"


def test_signatures_that_are_out_of_time_or_of_version_2(tmp_path: Path) -> None:
    with EmbeddedLakeFS(tmp_path, clock=lambda: time() + 1200) as server, Api.of(server) as api:
        repo = api.repository()
        where = {"Bucket": repo.name, "Key": "main/a"}
        with refused(403, "RequestTimeTooSkewed"):
            client_of(server, signature_version="s3v4").get_object(**where)
        with refused(400, "InvalidRequest"):
            client_of(server, signature_version="s3").get_object(**where)


@pytest.mark.usefixtures("server")
def test_a_protected_branch_is_written_to_by_nobody(repo: Repo, s3: S3) -> None:
    where = {"Bucket": repo.name, "Key": "main/a"}
    s3.put_object(**where, Body=b"1")
    upload = s3.create_multipart_upload(Bucket=repo.name, Key="main/b")["UploadId"]
    whole = {"Bucket": repo.name, "Key": "main/b", "UploadId": upload}
    part = s3.upload_part(**whole, PartNumber=1, Body=b"2")["ETag"]
    repo.call("PUT", "/settings/branch_protection", 204, json=[{"pattern": "m*"}])
    writes: list[Callable[[], object]] = [
        lambda: s3.put_object(**where, Body=b"2"),
        lambda: s3.delete_object(**where),
        lambda: s3.copy_object(Bucket=repo.name, Key="main/c", CopySource=where),
        lambda: s3.complete_multipart_upload(
            **whole, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part}]}
        ),
    ]
    for write in writes:
        with refused(403, "ErrWriteToProtectedBranch"):
            write()
    (error,) = s3.delete_objects(Bucket=repo.name, Delete={"Objects": [{"Key": "main/a"}]})[
        "Errors"
    ]
    assert (error["Key"], error["Code"]) == ("main/a", "ErrWriteToProtectedBranch")
    assert (repo.list(), repo.read("a")) == (["a"], b"1")


def test_errors_are_told_as_s3_tells_them(server: EmbeddedLakeFS, repo: Repo) -> None:
    answer = send(server, "GET", f"/{repo.name}/main/a%26b")
    assert answer.status_code == 404
    assert answer.headers["Content-Type"] == "application/xml"
    request_id = answer.headers["x-amz-request-id"]
    assert answer.text == (
        '<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>NoSuchKey</Code>'
        "<Message>The specified key does not exist.</Message>"
        f"<Resource>/{repo.name}/main/a&amp;b</Resource>"
        f"<RequestId>{request_id}</RequestId></Error>"
    )
    assert "Date" in answer.headers
    head = send(server, "HEAD", f"/{repo.name}/main/a")
    assert (head.status_code, head.content) == (404, b"")


def test_the_api_keeps_its_path(server: EmbeddedLakeFS) -> None:
    for path in ("/api/v1", "/api/v1/", "/api/v1/nothing", "/api/v1//x", "/api%2Fv1/x"):
        answer = requests.get(server.endpoint + path, timeout=TIMEOUT)
        assert (answer.status_code, answer.json()) == (404, {"message": "invalid API endpoint"})
    for path in ("/api", "/api/v2", "/api/v11/x"):
        answer = requests.get(server.endpoint + path, timeout=TIMEOUT)
        assert (answer.status_code, "AccessDenied" in answer.text) == (403, True)
