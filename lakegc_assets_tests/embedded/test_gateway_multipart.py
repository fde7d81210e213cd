"""Multipart uploads through the gateway: one object in the end, or nothing."""

from __future__ import annotations

import hashlib
import io
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from boto3.s3.transfer import TransferConfig
from botocore.exceptions import BotoCoreError

from lakegc_assets.embedded import EmbeddedLakeFS
from lakegc_assets.embedded.gateway.assembly import SMALLEST_ON_S3
from lakegc_assets.embedded.gateway.errors import S3Error
from lakegc_assets.embedded.gateway.uploads import Uploads
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.local import LocalStore
from lakegc_assets_tests.conformance.recorder import DURABILITY, GATEWAY, conforms
from lakegc_assets_tests.embedded.api import Api, Repo
from lakegc_assets_tests.embedded.conftest import Clock
from lakegc_assets_tests.embedded.s3 import S3, client, client_of, refused, send
from lakegc_assets_tests.embedded.test_durability import process

KEY = "main/odd +%é"
PATH = "odd +%é"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedLakeFS]:
    """One whose clock is the machine's, as boto3's is."""
    with EmbeddedLakeFS(tmp_path) as running:
        yield running


@pytest.fixture
def s3(server: EmbeddedLakeFS) -> S3:
    return client_of(server)


def begin(s3: S3, key: str = KEY, **options: Any) -> dict[str, Any]:
    """The arguments that name a new upload."""
    upload = s3.create_multipart_upload(Bucket="repo", Key=key, **options)["UploadId"]
    return {"Bucket": "repo", "Key": key, "UploadId": upload}


def add(s3: S3, where: dict[str, Any], number: int, data: bytes) -> dict[str, Any]:
    """Upload a part; gives what completing asks for."""
    etag = s3.upload_part(**where, PartNumber=number, Body=data)["ETag"]
    return {"PartNumber": number, "ETag": etag}


def complete(s3: S3, where: dict[str, Any], *parts: dict[str, Any], **options: Any) -> str:
    """The object's ETag."""
    answer = s3.complete_multipart_upload(
        **where, MultipartUpload={"Parts": list(parts)}, **options
    )
    return str(answer["ETag"])


def etag_of(*parts: bytes) -> str:
    digests = b"".join(hashlib.md5(part).digest() for part in parts)
    return f"{hashlib.md5(digests).hexdigest()}-{len(parts)}"


def files_of(server: EmbeddedLakeFS) -> list[Path]:
    """What is kept of uploads."""
    return [p for p in (server.lake.settings.data_dir / "uploads").rglob("*") if p.is_file()]


def objects_of(server: EmbeddedLakeFS) -> list[Path]:
    return [p for p in (server.objects_dir / "repo" / "data").rglob("*") if p.is_file()]


@conforms(
    GATEWAY,
    "Multipart uploads",
    client="boto3",
    checked="create, parts in any order and again, list, complete, abort; wrong and missing parts; "
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
    with refused(412, "PreconditionFailed"):
        complete(s3, where, part, IfNoneMatch="*")
    assert repo.read(PATH) == b"before"
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
        both.wait(20)
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


def test_an_upload_goes_on_after_a_restart(tmp_path: Path) -> None:
    with EmbeddedLakeFS(tmp_path, secret_key="s") as server, Api.of(server) as api:
        api.repository()
        s3 = client_of(server)
        where, other = begin(s3), begin(s3, "main/other")
        first, done = add(s3, where, 1, b"one"), add(s3, other, 1, b"done")
        complete(s3, other, done)
        # What a crash between the two steps of a complete leaves, and one before a part's row.
        for name in (other["UploadId"], "nobody"):
            (tmp_path / "uploads" / name).mkdir(exist_ok=True)
            (tmp_path / "uploads" / name / "1-x").write_bytes(b"left over")
        unnamed = tmp_path / "uploads" / where["UploadId"] / "2-unnamed"
        unnamed.write_bytes(b"no row")
    with EmbeddedLakeFS(tmp_path, secret_key="s") as server, Api.of(server) as api:
        s3, repo = client_of(server), Repo(api, "repo")
        assert {path.parent.name for path in files_of(server)} == {where["UploadId"]}
        second = add(s3, where, 2, b"two")
        complete(s3, where, first, second)
        assert (repo.read(PATH), repo.read("other")) == (b"onetwo", b"done")
        assert files_of(server) == []
        assert complete(s3, other, done) == f'"{etag_of(b"done")}"'


def test_ended_uploads_are_known_for_a_day(tmp_path: Path, clock: Clock) -> None:
    with EmbeddedLakeFS(tmp_path, clock=clock) as server, Api.of(server) as api:
        api.repository()
        uploads = Uploads(server.lake)
        with server.lake.state.read() as db:
            (branch,) = db.execute("SELECT uid FROM branches").fetchone()
        ended = uploads.start(branch, "a", "", {})
        with server.lake.state.write() as db:
            uploads.end(db, uploads.find(ended, branch, "a")[0], "etag-1")
        clock.now += 24 * 3600
        running = uploads.start(branch, "b", "", {})
        assert uploads.find(ended, branch, "a")[0].etag == "etag-1"
        clock.now += 1
        uploads.start(branch, "c", "", {})
        with pytest.raises(S3Error, match="does not exist"):
            uploads.find(ended, branch, "a")
        assert uploads.find(running, branch, "b")[0].path == "b"


@pytest.mark.conformance
@conforms(
    DURABILITY,
    "Writes through the gateway survive kill -9",
    client="boto3",
    checked="puts, deletes and multipart uploads, the server killed in the middle of them",
)
def test_what_the_gateway_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    acknowledged: dict[str, bytes] = {}
    open_uploads: list[tuple[dict[str, Any], dict[str, Any], bytes]] = []

    def work(s3: S3) -> None:
        try:
            for number in range(400):
                key, data = f"{number % 20}", f"{number}".encode()
                if number % 10 == 9:
                    where = begin(s3, f"main/{key}")
                    complete(s3, where, add(s3, where, 1, data))
                    another = begin(s3, f"main/open-{number}")
                    open_uploads.append((another, add(s3, another, 1, data), data))
                else:
                    s3.put_object(Bucket="repo", Key=f"main/{key}", Body=data)
                acknowledged[key] = data
                if number == 60:
                    far_enough.set()
        except BotoCoreError:
            pass

    far_enough = threading.Event()
    with process(tmp_path, "--access-key", "me", "--secret-key", "s") as (api, running, said):
        api.repository()
        endpoint = said.split("endpoint=")[1].split()[0]
        worker = threading.Thread(target=work, args=(client(endpoint, "me", "s"),))
        worker.start()
        assert far_enough.wait(60)
        os.kill(running.pid, signal.SIGKILL)
        worker.join()
    last = max(int(data) for data in acknowledged.values())
    assert last < 399, "it was killed while it worked"
    with process(tmp_path) as (api, _, said):
        repo, s3 = Repo(api, "repo"), client(said.split("endpoint=")[1].split()[0], "me", "s")
        for key, data in acknowledged.items():
            # The next one may have been done without its answer having been sent.
            following = str(last + 1).encode()
            assert repo.read(key) in ({data, following} if key == f"{(last + 1) % 20}" else {data})
        assert open_uploads
        for where, part, data in open_uploads:
            complete(s3, where, part)
            assert repo.read(where["Key"].removeprefix("main/")) == data


def test_on_s3_the_store_has_the_same_parts(tmp_path: Path, s3_server: str, s3_bucket: str) -> None:
    parts = [b"a" * SMALLEST_ON_S3, b"b" * 10]
    with (
        EmbeddedLakeFS(
            tmp_path, f"s3://{s3_bucket}/lake", store_config=StoreConfig(s3_server)
        ) as server,
        Api.of(server) as api,
    ):
        repo = api.repository(namespace=f"s3://{s3_bucket}/lake/repo")
        s3 = client_of(server)
        where = begin(s3)
        small = [add(s3, where, number, b"small") for number in (3, 4)]
        with refused(400, "EntityTooSmall"):
            complete(s3, where, *small)
        complete(s3, where, *[add(s3, where, n, part) for n, part in enumerate(parts, 1)])
        stat = repo.stat(PATH)
        assert stat["checksum"] == etag_of(*parts)
        assert repo.read(PATH) == b"".join(parts)
        behind: S3 = boto3.client("s3", endpoint_url=s3_server)
        key = stat["physical_address"].removeprefix(f"s3://{s3_bucket}/")
        assert behind.head_object(Bucket=s3_bucket, Key=key)["ETag"] == f'"{stat["checksum"]}"'
        assert "Uploads" not in behind.list_multipart_uploads(Bucket=s3_bucket)


def test_an_upload_that_the_store_refuses_is_taken_back(
    tmp_path: Path, s3_server: str, s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        EmbeddedLakeFS(
            tmp_path, f"s3://{s3_bucket}/lake", store_config=StoreConfig(s3_server)
        ) as server,
        Api.of(server) as api,
    ):
        repo = api.repository(namespace=f"s3://{s3_bucket}/lake/repo")
        s3 = client_of(server)
        where = begin(s3)
        part = add(s3, where, 1, b"one")

        def fail(*_: object) -> bytes:
            raise RuntimeError("died")

        with monkeypatch.context() as patch:
            patch.setattr(Uploads, "read", fail)
            with refused(500, "InternalError"):
                complete(s3, where, part)
        assert repo.list() == []
        behind: S3 = boto3.client("s3", endpoint_url=s3_server)
        assert "Uploads" not in behind.list_multipart_uploads(Bucket=s3_bucket)
        complete(s3, where, part)
        assert repo.read(PATH) == b"one"
