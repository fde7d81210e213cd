"""What stores hold beside their objects: uploads that never ended, and what was deleted."""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import boto3
import pytest

from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.errors import StorageError
from lakegc_assets.storage.opening import open_store
from lakegc_assets.storage.trash import TRASH
from lakegc_assets.storage.values import Retained, UncommittedBlob
from lakegc_assets_tests.storage import gcs_answers
from lakegc_assets_tests.storage.azure_answers import blob, page, refusal
from lakegc_assets_tests.storage.conftest import Answer, Script, azure_client
from lakegc_assets_tests.storage.servers import Server

_STORES = pytest.mark.stores
_XML = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'


@pytest.fixture(
    params=["moto", *(pytest.param(name, marks=_STORES) for name in ("minio", "versitygw"))]
)
def endpoint(request: pytest.FixtureRequest, aws_environment: None) -> str:  # noqa: ARG001 - it is wanted to be there
    if request.param == "moto":
        return str(request.getfixturevalue("s3_server"))
    server: Server = request.getfixturevalue(f"{request.param}_server")
    return server.endpoint


@pytest.fixture
def bucket(endpoint: str) -> str:
    name = f"bucket-{uuid.uuid4().hex}"
    boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket=name)
    return name


def test_uploads_that_never_ended(
    endpoint: str, bucket: str, request: pytest.FixtureRequest
) -> None:
    client = boto3.client("s3", endpoint_url=endpoint)
    store = open_store(f"s3://{bucket}/ns", StoreConfig(endpoint_url=endpoint))
    begun = {}
    for key in ("ns/data/a", "ns/data/b", "other/data/c"):
        begun[key] = client.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"]
    client.upload_part(
        Bucket=bucket, Key="ns/data/a", UploadId=begun["ns/data/a"], PartNumber=1, Body=b"12345"
    )
    soon = datetime.now(timezone.utc) + timedelta(hours=1)
    found = {one.key: one for one in store.multipart_uploads(soon)}
    assert {key: (one.upload_id, one.size) for key, one in found.items()} == {
        "data/a": (begun["ns/data/a"], 5),
        "data/b": (begun["ns/data/b"], 0),
    }
    assert found["data/a"].newest >= found["data/a"].begun
    # The stand-in for S3 says that all uploads were begun in 2010.
    assert not store.multipart_uploads(datetime(2009, 1, 1, tzinfo=timezone.utc))
    assert store.abort_upload(found["data/a"])
    # Some servers say so, and others take it for done.
    assert store.abort_upload(found["data/a"]) is ("minio" in request.node.name)
    assert [one.key for one in store.multipart_uploads(soon)] == ["data/b"]


def test_versions_that_a_bucket_holds(
    endpoint: str, bucket: str, request: pytest.FixtureRequest
) -> None:
    if "versitygw" in request.node.name:
        server: Server = request.getfixturevalue("versioned_gateway")
        endpoint = server.endpoint
        boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket=bucket)
    client = boto3.client("s3", endpoint_url=endpoint)
    store = open_store(f"s3://{bucket}/ns", StoreConfig(endpoint_url=endpoint))
    store.put("data/before", b"1")
    assert store.retained("data/") == Retained()
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    for content in (b"12", b"345"):
        store.put("data/a", content)
    store.put("elsewhere", b"1")
    store.delete_many(["data/a", "elsewhere"])
    assert store.retained("data/") == Retained(2, 5, 1)


def test_the_default_lock_of_a_bucket(endpoint: str, request: pytest.FixtureRequest) -> None:
    if "versitygw" in request.node.name:
        server: Server = request.getfixturevalue("versioned_gateway")
        endpoint = server.endpoint
    name = f"bucket-{uuid.uuid4().hex}"
    client = boto3.client("s3", endpoint_url=endpoint)
    client.create_bucket(Bucket=name, ObjectLockEnabledForBucket=True)
    client.put_object_lock_configuration(
        Bucket=name,
        ObjectLockConfiguration={
            "ObjectLockEnabled": "Enabled",
            "Rule": {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 2}},
        },
    )
    store = open_store(f"s3://{name}/ns", StoreConfig(endpoint_url=endpoint))
    digest = base64.b64encode(hashlib.md5(b"12", usedforsecurity=False).digest()).decode()
    client.put_object(Bucket=name, Key="ns/data/a", Body=b"12", ContentMD5=digest)
    store.delete_many(["data/a"])
    found = store.retained("data/")
    assert (found.objects, found.locked) == (1, 1)
    assert found.locked_until is not None
    assert found.locked_until - datetime.now(timezone.utc) < timedelta(days=2)


def test_the_trash_of_a_folder(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    for key in ("data/a", "b"):
        store.put(key, b"123")
    store.delete_many(["data/a", "b"], trash=f"{TRASH}20260101T000000Z-0h-x/")
    assert (store.retained("data/"), store.retained()) == (Retained(1, 3), Retained(2, 6))


def test_versions_and_deleted_blobs_of_azure(azure: Callable[..., ObjectStore]) -> None:
    def kept(name: str, more: str) -> str:
        return blob(f"ns/{name}").replace("<Properties>", f"{more}<Properties>")

    first = page(
        blob(
            "ns/a",
            properties="<LegalHold>true</LegalHold><ImmutabilityPolicyUntilDate>"
            "Fri, 02 Jan 2099 03:04:05 GMT</ImmutabilityPolicyUntilDate>",
        ).replace("<Properties>", "<VersionId>2026-01-01</VersionId><Properties>"),
        kept("a", "<VersionId>2026-01-02</VersionId><IsCurrentVersion>true</IsCurrentVersion>"),
        marker="next",
    )
    second = page(kept("b", "<Deleted>true</Deleted>"), kept("c", ""))
    refused = Answer(400, headers={"x-ms-error-code": "InvalidQueryParameterValue"})
    until = datetime(2099, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
    assert azure(first, second).retained() == Retained(2, 14, 0, 1, until)
    assert azure(refused, refused, second).retained() == Retained(1, 7)


def test_blocks_that_nobody_committed(azure: Callable[..., ObjectStore], script: Script) -> None:
    """Azure lists such a blob like an empty one."""
    empty = blob("ns/data/a").replace("<Content-Length>7<", "<Content-Length>0<")
    sizes = "".join(f"<Block><Name>x</Name><Size>{size}</Size></Block>" for size in (3, 4))
    blocks = [
        Answer(body=f"<BlockList><UncommittedBlocks>{content}</UncommittedBlocks></BlockList>")
        for content in (sizes, "")
    ]
    other = empty.replace("data/a", "data/b")
    store = azure(page(empty, blob("ns/full")), blocks[0])
    assert store.uncommitted_blobs() == [UncommittedBlob("data/a", 7)]
    assert len(script.requests) == 2
    assert azure(page(other), blocks[1]).uncommitted_blobs() == []
    assert azure(page(other), refusal(404, "BlobNotFound")).uncommitted_blobs() == []
    with pytest.raises(StorageError, match="listing uncommitted blobs"):
        azure(page(other), refusal(403, "AuthorizationFailure")).uncommitted_blobs()


@_STORES
def test_blocks_in_azurite(
    azure_container: tuple[str, StoreConfig], azurite_server: Server
) -> None:
    url, config = azure_container
    container = azure_client(azurite_server).get_container_client(url.rpartition("/")[2])
    for key in ("ns/data/a", "elsewhere"):
        container.get_blob_client(key).stage_block("MQ==", b"12345")
    store = open_store(f"{url}/ns", config)
    store.put("data/b", b"")
    store.put("data/c", b"1")
    assert store.uncommitted_blobs() == [UncommittedBlob("data/a", 5)]
    assert [key for page in store.list() for key in page["key"].to_pylist()] == ["data/b", "data/c"]


#: A bucket of S3 with versions, and without locks.
_VERSIONED = (
    Answer(
        body=f"<VersioningConfiguration {_XML}><Status>Enabled</Status></VersioningConfiguration>"
    ),
    Answer(404, "<Error><Code>ObjectLockConfigurationNotFoundError</Code></Error>"),
)


def generations(*items: object, **more: str) -> Answer:
    return Answer(body=json.dumps({"kind": "storage#objects", "items": items, **more}))


def test_generations_of_google(gcs: Callable[..., ObjectStore], script: Script) -> None:
    live, old = {"size": "9"}, {"size": "4", "timeDeleted": "2026-01-01T00:00:00Z"}
    later = "2099-01-01T00:00:00Z"
    locks = ({"temporaryHold": True}, {"retention": {"retainUntilTime": later}})
    soft = {
        "size": "5",
        "softDeleteTime": "2026-01-01T00:00:00Z",
        "retentionExpirationTime": "2020-01-01T00:00:00Z",
    }
    pages = [
        generations(live, {**old, **locks[0]}, nextPageToken="t"),
        generations({**old, **locks[1]}),
        generations(soft),
    ]
    until = datetime(2099, 1, 1, tzinfo=timezone.utc)
    assert gcs(*pages).retained("data/") == Retained(3, 13, 0, 2, until)
    assert ["softDeleted" in one for one in script.requests] == [False, False, True]


def test_a_bucket_of_google_without_soft_delete_keeps_old_generations_only(
    gcs: Callable[..., ObjectStore],
) -> None:
    old = {"size": "4", "timeDeleted": "2026-01-01T00:00:00Z"}
    message = "Soft delete policy is required to list soft-deleted versions"
    refused = gcs_answers.refusal(400, "invalid", message)
    assert gcs(generations(old), refused).retained("data/") == Retained(1, 4)
    with pytest.raises(StorageError, match="told invalid"):
        gcs(generations(old), gcs_answers.refusal(400, "invalid")).retained("data/")


@pytest.mark.parametrize(
    ("pages", "words"),
    [
        ([generations(nextPageToken="t")] * 2, "does not go on"),
        ([generations(nextPageToken=one) for one in "tut"], "does not go on"),
        ([generations(nextPageToken="")], "damaged"),
        ([Answer(body="{}")], "damaged"),
        ([Answer(body='{"kind": "storage#buckets"}')], "damaged"),
    ],
)
def test_a_list_of_generations_that_does_not_go_on_is_no_number(
    gcs: Callable[..., ObjectStore], pages: list[Answer], words: str
) -> None:
    with pytest.raises(StorageError, match=words):
        gcs(*pages).retained("data/")


@pytest.mark.parametrize("follows", ["", "<IsTruncated>true</IsTruncated>"])
def test_a_list_of_versions_that_does_not_say_that_it_is_whole_is_no_number(
    script: Script, follows: str
) -> None:
    """boto3 takes the page for the last one."""
    script.answers = [
        *_VERSIONED,
        Answer(body=f"<ListVersionsResult {_XML}>{follows}</ListVersionsResult>"),
    ]  # fmt: skip
    with pytest.raises(StorageError, match="a list of versions ends without saying"):
        open_store("s3://bkt/ns", script.config()).retained()


@pytest.mark.parametrize(
    ("end", "words"), [("", "may be cut"), ("<NextMarker>again</NextMarker>", "does not go on")]
)
def test_a_list_of_blobs_that_does_not_say_that_it_is_whole_is_none(
    azure: Callable[..., ObjectStore], end: str, words: str
) -> None:
    cut = Answer(body=f"<EnumerationResults><Blobs/>{end}</EnumerationResults>")
    for call in ("uncommitted_blobs", "retained"):
        store = azure(cut, page(marker="other"), cut)
        with pytest.raises(StorageError, match=words):
            getattr(store, call)()


def test_what_was_written_by_a_clock_ahead_is_not_locked(script: Script) -> None:
    version = (
        "<Version><Key>ns/a</Key><VersionId>v</VersionId><IsLatest>false</IsLatest>"
        "<LastModified>2099-01-02T03:04:05.000Z</LastModified><Size>7</Size></Version>"
    )
    listed = f"<ListVersionsResult {_XML}><IsTruncated>false</IsTruncated>{version}"
    script.answers = [
        *_VERSIONED,
        Answer(body=f"{listed}</ListVersionsResult>"),
    ]  # fmt: skip
    found = open_store("s3://bkt/ns", script.config()).retained()
    assert found == Retained(1, 7)


def test_uploads_of_others_that_a_server_lists_are_left_out(script: Script) -> None:
    uploads = "".join(
        f"<Upload><Key>{key}</Key><UploadId>u</UploadId>"
        "<Initiated>2026-01-02T03:04:05.000Z</Initiated></Upload>"
        for key in ("ns/a", "other/b")
    )
    ended = "<IsTruncated>false</IsTruncated>"
    script.answers = [
        Answer(body=f"<{kind} {_XML}>{ended}{content}</{kind}>")
        for kind, content in (("ListMultipartUploadsResult", uploads), ("ListPartsResult", ""))
    ]
    store = open_store("s3://bkt/ns", script.config())
    found = store.multipart_uploads(datetime(2026, 2, 1, tzinfo=timezone.utc))
    assert [one.key for one in found] == ["a"]


#: A page that another follows, at no place.
_FOLLOWED = "<IsTruncated>true</IsTruncated>"


@pytest.mark.parametrize(
    ("scheme", "end"),
    [
        ("s3", ""), ("s3", _FOLLOWED),
        ("gs", ""), ("gs", _FOLLOWED), ("gs", "<IsTruncated>no</IsTruncated>"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["ListMultipartUploadsResult", "ListPartsResult"])
def test_uploads_are_known_by_lists_that_say_that_they_are_whole(
    gcs: Callable[..., ObjectStore], script: Script, scheme: str, kind: str, end: str
) -> None:
    """An upload whose last parts are missing in the answer would look older than it is."""
    upload = (
        "<Upload><Key>ns/a</Key><UploadId>u</UploadId>"
        "<Initiated>2026-01-02T03:04:05.000Z</Initiated></Upload>"
    )
    part = "<Part><LastModified>2026-01-03T00:00:00Z</LastModified><Size>7</Size></Part>"
    ends = {kind: end}
    whole = "<IsTruncated>false</IsTruncated>"
    script.answers = [
        Answer(body=f"<{one} {_XML}>{ends.get(one, whole)}{content}</{one}>")
        for one, content in (("ListMultipartUploadsResult", upload), ("ListPartsResult", part))
        for _ in range(2 if scheme == "gs" and ends.get(one) == _FOLLOWED else 1)
    ]
    store = gcs(*script.answers) if scheme == "gs" else open_store("s3://bkt/ns", script.config())
    with pytest.raises(StorageError, match=r"a list of|does not go on|lacks a IsTruncated"):
        store.multipart_uploads(datetime(2026, 2, 1, tzinfo=timezone.utc))


def test_uploads_of_googles_xml_api(gcs: Callable[..., ObjectStore], script: Script) -> None:
    def upload(key: str) -> str:
        return (
            f"<Upload><Key>{key}</Key><UploadId>id-{key}</UploadId>"
            "<Initiated>2026-01-02T03:04:05.678Z</Initiated></Upload>"
        )

    def uploads(content: str, more: str = "<IsTruncated>false</IsTruncated>") -> Answer:
        kind = "ListMultipartUploadsResult"
        return Answer(body=f"<{kind} {_XML}>{more}{content}</{kind}>")

    following = (
        "<IsTruncated>true</IsTruncated><NextKeyMarker>ns/a</NextKeyMarker>"
        "<NextUploadIdMarker>id-ns/a</NextUploadIdMarker>"
    )
    part = "<Part><LastModified>2026-01-03T00:00:00Z</LastModified><Size>7</Size></Part>"
    parts = Answer(
        body=f"<ListPartsResult {_XML}><IsTruncated>false</IsTruncated>{part}</ListPartsResult>"
    )
    store = gcs(uploads(upload("ns/a"), following), uploads(upload("ns/b")), parts)
    moment = datetime(2026, 2, 1, tzinfo=timezone.utc)
    found = store.multipart_uploads(moment)
    assert [(one.key, one.upload_id, one.size) for one in found] == [
        ("a", "id-ns/a", 7), ("b", "id-ns/b", 7)
    ]  # fmt: skip
    assert found[0].newest == datetime(2026, 1, 3, tzinfo=timezone.utc)
    assert "key-marker=ns%2Fa" in script.requests[1]
    with pytest.raises(StorageError, match="no list of Uploads"):
        gcs(Answer(body="<ListBucketResult/>")).multipart_uploads(moment)
    assert gcs(Answer()).abort_upload(found[0])
    assert script.requests[-1] == "DELETE /bkt/ns/a?uploadId=id-ns%2Fa"
