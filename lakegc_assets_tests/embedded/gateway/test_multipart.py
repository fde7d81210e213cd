"""Multipart uploads through the gateway: one object in the end, or nothing."""

from __future__ import annotations

import base64
import io
import os
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from boto3.s3.transfer import TransferConfig

from lakegc_assets.embedded import EmbeddedLakeFS
from lakegc_assets.embedded.gateway.uploads import Uploads
from lakegc_assets.storage.local import LocalStore
from lakegc_assets_tests.conformance.recorder import GATEWAY, conforms
from lakegc_assets_tests.embedded.api import TIMEOUT, Api, Repo
from lakegc_assets_tests.embedded.gateway.parts import (
    KEY,
    PATH,
    add,
    begin,
    complete,
    etag_of,
    files_of,
    objects_of,
)
from lakegc_assets_tests.embedded.gateway.s3 import S3, client_of, refused, send


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedLakeFS]:
    """One for each test: they look at all that is left of uploads."""
    with EmbeddedLakeFS(tmp_path) as running:
        yield running


@pytest.fixture
def s3(server: EmbeddedLakeFS) -> S3:
    return client_of(server)


@pytest.fixture
def repo(server: EmbeddedLakeFS) -> Iterator[Repo]:
    with Api.of(server) as api:
        yield api.repository()


@conforms(
    GATEWAY,
    "Multipart uploads",
    client="boto3",
    checked="create, parts in any order and again, list, complete, abort; what is under way, by "
    "prefix and page; wrong and missing parts; "
    "ETag and store; copies as parts; races of complete, abort and parts",
)
def test_parts_become_one_object(s3: S3, repo: Repo, server: EmbeddedLakeFS) -> None:
    where = begin(s3, ContentType="text/plain", Metadata={"k": "v"})
    third = add(s3, where, 30, b"three")
    add(s3, where, 1, b"not this one")
    first = add(s3, where, 1, b"one")
    second = add(s3, where, 2, b"two")
    add(s3, where, 4, b"left out")
    listed = s3.list_parts(**where)
    assert [(p["PartNumber"], p["Size"]) for p in listed["Parts"]] == [
        (1, 3), (2, 3), (4, 8), (30, 5),
    ]  # fmt: skip
    assert listed["Parts"][0]["ETag"] == first["ETag"]
    assert (repo.list(), len(files_of(server)), objects_of(server)) == ([], 4, [])
    etag = complete(s3, where, first, second, third)
    expected = etag_of(b"one", b"two", b"three")
    assert etag == f'"{expected}"'
    stat = repo.stat(PATH)
    assert (stat["checksum"], stat["size_bytes"]) == (expected, 11)
    assert (stat["content_type"], stat["metadata"]) == ("text/plain", {"X-Amz-Meta-k": "v"})
    assert repo.read(PATH) == b"onetwothree"
    assert (files_of(server), len(objects_of(server))) == ([], 1)
    assert complete(s3, where, first, second, third) == etag, "the answer may have been lost"
    assert repo.stat(PATH) == stat
    for late in (lambda: add(s3, where, 1, b"late"), lambda: s3.list_parts(**where)):
        with refused(404, "NoSuchUpload"):
            late()
    assert files_of(server) == []


def test_parts_are_listed_in_pages(s3: S3, repo: Repo) -> None:
    where = begin(s3)
    assert "Parts" not in s3.list_parts(**where)
    for number in range(1, 6):
        add(s3, where, number * 7, b"x")
    pages = s3.get_paginator("list_parts").paginate(**where, PaginationConfig={"PageSize": 2})
    found = [[part["PartNumber"] for part in page["Parts"]] for page in pages]
    assert found == [[7, 14], [21, 28], [35]]
    assert s3.list_parts(**where, MaxParts=0)["IsTruncated"] is False
    assert repo.list() == []


def test_uploads_that_are_under_way_are_listed_in_pages(s3: S3, repo: Repo) -> None:
    repo.branch("dev")
    assert "Uploads" not in s3.list_multipart_uploads(Bucket="repo")
    keys = ["dev/a", "main/a", "main/a", "main/a", "main/odd +%é\n", "main/z"]
    begun = [begin(s3, key) for key in reversed(keys)]
    expected = sorted((each["Key"], each["UploadId"]) for each in begun)

    def listed(**wanted: Any) -> list[tuple[str, str]]:
        pages = s3.get_paginator("list_multipart_uploads").paginate(Bucket="repo", **wanted)
        found = [upload for page in pages for upload in page.get("Uploads", [])]
        return [(each["Key"], each["UploadId"]) for each in found]

    for size in (1, 2, 4, 1000):
        assert listed(PaginationConfig={"PageSize": size}) == expected
    assert listed(Prefix="main/a") == expected[1:4]
    assert listed(KeyMarker="main/a") == expected[4:]
    assert listed(Prefix="other") == []
    complete(s3, begun[0], add(s3, begun[0], 1, b"z"))
    s3.abort_multipart_upload(**begun[-1])
    assert listed() == expected[1:-1]
    repo.call("DELETE", "/branches/dev", 204)
    with refused(404, "NoSuchBucket"):
        s3.list_multipart_uploads(Bucket="other")


def test_an_aborted_upload_leaves_nothing(s3: S3, repo: Repo, server: EmbeddedLakeFS) -> None:
    where = begin(s3)
    part = add(s3, where, 1, b"one")
    s3.abort_multipart_upload(**where)
    assert files_of(server) == []
    for call in (
        lambda: s3.abort_multipart_upload(**where),
        lambda: complete(s3, where, part),
        lambda: add(s3, where, 2, b"two"),
    ):
        with refused(404, "NoSuchUpload"):
            call()
    assert (repo.list(), objects_of(server)) == ([], [])


def test_what_does_not_fit_is_refused(s3: S3, repo: Repo, server: EmbeddedLakeFS) -> None:
    repo.branch("other")
    where = begin(s3)
    part, second = add(s3, where, 1, b"one"), add(s3, where, 2, b"two")
    for parts, code in (
        ([{**part, "ETag": second["ETag"]}], "InvalidPart"),
        ([{**part, "PartNumber": 3}], "InvalidPart"),
        ([second, part], "InvalidPartOrder"),
        ([part, part], "InvalidPartOrder"),
        ([{**part, "PartNumber": -1}], "MalformedXML"),
        ([], "MalformedXML"),
    ):
        with refused(400, code):
            complete(s3, where, *parts)
    for elsewhere in ({"Key": "main/b"}, {"Key": f"other/{PATH}"}, {"UploadId": "../x"}):
        with refused(404, "NoSuchUpload"):
            complete(s3, {**where, **elsewhere}, part)
        with refused(404, "NoSuchUpload"):
            add(s3, {**where, **elsewhere}, 1, b"x")
    for number in (0, 10_001):
        with refused(400, "InvalidArgument"):
            add(s3, where, number, b"x")
    path = f"/repo/main/odd%20%2B%25%C3%A9?uploadId={where['UploadId']}"
    for query, status in (("", 501), ("&partNumber=x", 400), ("&partNumber=", 400)):
        assert send(server, "PUT", path + query, b"x").status_code == status
    repo.put(PATH, b"before")
    written = objects_of(server)
    with refused(412, "PreconditionFailed"):
        complete(s3, where, part, IfNoneMatch="*")
    assert repo.read(PATH) == b"before"
    assert objects_of(server) == written, "lakeFS looks before it makes the object"
    complete(s3, where, part)
    assert repo.read(PATH) == b"one"


def test_a_deleted_branch_takes_its_uploads_along(s3: S3, repo: Repo, tmp_path: Path) -> None:
    repo.branch("topic")
    where = begin(s3, "topic/a")
    part = add(s3, where, 1, b"one")
    repo.call("DELETE", "/branches/topic", 204)
    with refused(404, "NoSuchBucket"):
        complete(s3, where, part)
    repo.branch("topic")
    with refused(404, "NoSuchUpload"):
        complete(s3, where, part)
    assert repo.list("topic") == []
    with EmbeddedLakeFS(tmp_path) as other:
        assert files_of(other) == []


def test_objects_are_copied_as_parts(s3: S3, repo: Repo) -> None:
    repo.put("source é", b"0123456789")
    source = {"Bucket": "repo", "Key": "main/source é"}
    where = begin(s3)

    def copy(number: int, **options: Any) -> dict[str, Any]:
        answer = s3.upload_part_copy(**where, PartNumber=number, CopySource=source, **options)
        return {"PartNumber": number, "ETag": answer["CopyPartResult"]["ETag"]}

    parts = [copy(1, CopySourceRange="bytes=8-9"), copy(2), copy(3, CopySourceRange="bytes=0-0")]
    for wrong in ("bytes=8-10", "bytes=5-4", "bytes=3-", "3-4"):
        with refused(400, "InvalidArgument"):
            copy(4, CopySourceRange=wrong)
    with refused(412, "PreconditionFailed"):
        copy(4, CopySourceIfMatch="other")
    complete(s3, where, *parts)
    assert repo.read(PATH) == b"8901234567890"


def test_boto3_uploads_large_files_on_its_own(s3: S3, repo: Repo) -> None:
    content = os.urandom(1 << 20) * 12
    s3.upload_fileobj(io.BytesIO(content), "repo", KEY)
    assert repo.read(PATH) == content
    parts = [content[at : at + (8 << 20)] for at in range(0, len(content), 8 << 20)]
    assert repo.stat(PATH)["checksum"] == etag_of(*parts)
    found = io.BytesIO()
    s3.download_fileobj("repo", KEY, found)
    assert found.getvalue() == content
    config = TransferConfig(multipart_threshold=1 << 20, multipart_chunksize=6 << 20)
    s3.copy({"Bucket": "repo", "Key": KEY}, "repo", "main/copy", Config=config)
    assert repo.read("copy") == content


@pytest.mark.parametrize("kind", ["COMPOSITE", "FULL_OBJECT"])
def test_a_checksum_of_the_whole_is_compared(s3: S3, repo: Repo, kind: str) -> None:
    data = [b"12345", b"6789"]
    crcs = [zlib.crc32(part).to_bytes(4, "big") for part in data]
    whole = b"".join(crcs if kind == "COMPOSITE" else data)
    checksum = base64.b64encode(zlib.crc32(whole).to_bytes(4, "big")).decode()
    if kind == "COMPOSITE":
        checksum += "-2"
    where = begin(s3, ChecksumAlgorithm="CRC32", ChecksumType=kind)
    parts = [add(s3, where, number, part) for number, part in enumerate(data, 1)]
    with refused(400, "BadDigest"):
        complete(s3, where, *parts[:1], ChecksumCRC32=checksum, ChecksumType=kind)
    assert repo.list() == []
    complete(s3, where, *parts, ChecksumCRC32=checksum, ChecksumType=kind)
    assert repo.read(PATH) == b"123456789"


def test_of_an_abort_and_a_complete_one_wins(
    s3: S3, repo: Repo, server: EmbeddedLakeFS, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = begin(s3)
    part = add(s3, where, 1, b"one")
    read = Uploads.read

    def abort_first(uploads: Uploads, wanted: Any) -> bytes:
        data = read(uploads, wanted)
        s3.abort_multipart_upload(**where)
        return data

    monkeypatch.setattr(Uploads, "read", abort_first)
    with refused(404, "NoSuchUpload"):
        complete(s3, where, part)
    assert (repo.list(), files_of(server)) == ([], [])


def test_a_part_that_is_replaced_during_a_complete_is_not_mixed_in(
    s3: S3, repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = begin(s3)
    parts = [add(s3, where, 1, b"one"), add(s3, where, 2, b"two")]
    read = Uploads.read

    def replace_first(uploads: Uploads, wanted: Any) -> bytes:
        if wanted.number == 1:
            add(s3, where, 2, b"other")
        return read(uploads, wanted)

    with monkeypatch.context() as patch:
        patch.setattr(Uploads, "read", replace_first)
        with refused(400, "InvalidPart"):
            complete(s3, where, *parts)
    assert repo.list() == []
    complete(s3, where, parts[0])
    assert repo.read(PATH) == b"one"


def test_a_part_that_comes_during_an_abort_is_removed(
    s3: S3, repo: Repo, server: EmbeddedLakeFS, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = begin(s3)
    put = LocalStore.put

    def abort_first(store: LocalStore, key: str, data: bytes) -> str:
        s3.abort_multipart_upload(**where)
        return put(store, key, data)

    monkeypatch.setattr(LocalStore, "put", abort_first)
    with refused(404, "NoSuchUpload"):
        add(s3, where, 1, b"one")
    assert (repo.list(), files_of(server)) == ([], [])


def test_two_completes_at_once_make_one_entry(
    s3: S3, repo: Repo, server: EmbeddedLakeFS, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = begin(s3)
    part = add(s3, where, 1, b"one")
    both = threading.Barrier(2)
    read = Uploads.read

    def together(uploads: Uploads, wanted: Any) -> bytes:
        data = read(uploads, wanted)
        both.wait(TIMEOUT)
        return data

    monkeypatch.setattr(Uploads, "read", together)
    etags: list[str] = []
    workers = [
        threading.Thread(target=lambda: etags.append(complete(client_of(server), where, part)))
        for _ in range(2)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert etags == [f'"{etag_of(b"one")}"'] * 2
    assert (repo.read(PATH), len(objects_of(server))) == (b"one", 2)
