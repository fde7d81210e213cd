"""The S3 gateway, driven by boto3: what it does to the branch that the REST API shows."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from time import time
from typing import Any

import pytest
import requests

from lakegc_assets.embedded import EmbeddedLakeFS
from lakegc_assets_tests.conformance.recorder import GATEWAY, conforms, left_out
from lakegc_assets_tests.embedded.api import TIMEOUT, Api, Repo
from lakegc_assets_tests.embedded.s3 import S3, client, client_of, refused, send
from lakegc_assets_tests.embedded.test_gateway_signature import SIGNATURES

MAX_BYTES = 1 << 20
_numbers = itertools.count()

left_out(
    GATEWAY,
    ["AWS Signature Version 2", "virtual-host style addresses", "temporary credentials"],
    "every client can do without; the answer says so",
)
left_out(
    GATEWAY,
    ["CreateBucket", "DeleteBucket", "ListMultipartUploads", "ListObjectVersions"],
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


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedLakeFS]:
    """One for all tests, since boto3 signs with the machine's clock; small bodies only."""
    data = tmp_path_factory.mktemp("gateway")
    with EmbeddedLakeFS(data, max_upload_bytes=MAX_BYTES) as running:
        yield running


@pytest.fixture(scope="module")
def s3(server: EmbeddedLakeFS) -> S3:
    return client_of(server)


@pytest.fixture(scope="module")
def api(server: EmbeddedLakeFS) -> Iterator[Api]:
    with Api.of(server) as found:
        yield found


@pytest.fixture
def repo(api: Api) -> Repo:
    """A repository of the test's own; its name is the bucket's."""
    return api.repository(f"repo-{next(_numbers)}")


def keys(s3: S3, repo: Repo, **options: Any) -> list[str]:
    """Keys and common prefixes of one listing, each in its own order."""
    found = s3.list_objects_v2(Bucket=repo.name, **options)
    contents = [item["Key"] for item in found.get("Contents", [])]
    return contents + [item["Prefix"] for item in found.get("CommonPrefixes", [])]


@conforms(
    GATEWAY,
    "PutObject",
    client="boto3",
    checked="bytes, ETag, content type and metadata, by both interfaces; If-None-Match: *",
    differs="a key that is a branch and a slash, with no content, is acknowledged: it is there",
)
def test_what_is_put_is_staged_as_by_the_api(s3: S3, repo: Repo) -> None:
    answer = s3.put_object(
        Bucket=repo.name,
        Key="main/a/b.txt",
        Body=b"content",
        ContentType="text/plain",
        Metadata={"Owner": "me", "note": "two  spaces"},
    )
    md5 = hashlib.md5(b"content").hexdigest()
    assert answer["ETag"] == f'"{md5}"'
    assert repo.read("a/b.txt") == b"content"
    stat = repo.stat("a/b.txt")
    assert (stat["checksum"], stat["size_bytes"], stat["content_type"]) == (md5, 7, "text/plain")
    # The names that lakeFS gives them: they are part of the entry's identity.
    assert stat["metadata"] == {"X-Amz-Meta-owner": "me", "X-Amz-Meta-note": "two  spaces"}
    assert stat["physical_address"].startswith(f"local://{repo.name}/data/")
    assert repo.staged() == {"a/b.txt": "added"}
    repo.commit()
    found = s3.get_object(Bucket=repo.name, Key=f"{repo.head()}/a/b.txt")
    assert found["Body"].read() == b"content"
    assert found["Metadata"] == {"owner": "me", "note": "two  spaces"}


@conforms(
    GATEWAY,
    "GetObject",
    client="boto3",
    checked="bytes, headers, ranges, conditions; by branch, tag, commit and expression",
)
def test_what_the_api_uploaded_is_got(s3: S3, repo: Repo) -> None:
    repo.put("a", b"first", headers={"Content-Type": "text/html", "x-lakefs-meta-k": "v"})
    repo.commit()
    repo.call("POST", "/tags", 201, json={"id": "v1", "ref": "main"})
    repo.put("a", b"second")
    for ref, expected in {
        "main": b"second",
        "main@": b"first",
        "v1": b"first",
        repo.head(): b"first",
        repo.head()[:12]: b"first",
    }.items():
        found = s3.get_object(Bucket=repo.name, Key=f"{ref}/a")
        assert found["Body"].read() == expected
    assert found["ContentType"] == "text/html"
    assert found["Metadata"] == {}, "lakeFS tells only what the gateway was given"
    assert found["ETag"] == f'"{repo.stat("a", "v1")["checksum"]}"'
    assert found["LastModified"].timestamp() == repo.stat("a", "v1")["mtime"]
    for key in ("main/b", "main~1/a", "nothing/a", "main", "main/", "nothing"):
        with refused(404, "NoSuchKey"):
            s3.get_object(Bucket=repo.name, Key=key)
    with refused(404, "NoSuchBucket"):
        s3.get_object(Bucket="nothing", Key="main/a")


@conforms(GATEWAY, "HeadObject", client="boto3", checked="like GetObject, and for swept objects")
@conforms(
    GATEWAY,
    "Reads after a sweep",
    client="boto3",
    checked="GET and a copy are told it is gone; HEAD and listings know it",
    differs="410 with lakeFS's code NoSuchVersion, which its gateway sends with 404",
)
def test_a_swept_object_is_gone_but_known(s3: S3, repo: Repo, server: EmbeddedLakeFS) -> None:
    address = repo.put("a", b"content")["physical_address"]
    repo.commit()
    (server.objects_dir / address.removeprefix("local://")).unlink()
    with refused(410, "NoSuchVersion") as answer:
        s3.get_object(Bucket=repo.name, Key="main/a")
    assert str(answer["Error"]["Message"]).startswith("Indicates that the version ID")
    head = s3.head_object(Bucket=repo.name, Key="main/a")
    assert (head["ContentLength"], head["ETag"]) == (7, f'"{repo.stat("a")["checksum"]}"')
    assert keys(s3, repo, Prefix="main/") == ["main/a"]
    with refused(410, "NoSuchVersion"):
        s3.copy_object(
            Bucket=repo.name, Key="main/b", CopySource={"Bucket": repo.name, "Key": "main/a"}
        )
    assert repo.staged() == {}
    with refused(404, "404"):
        s3.head_object(Bucket=repo.name, Key="main/b")


def test_an_object_is_got_in_parts(s3: S3, repo: Repo) -> None:
    repo.put("a", b"0123456789")
    where = {"Bucket": repo.name, "Key": "main/a"}
    for wanted, expected in {
        "2-4": b"234",
        "7-": b"789",
        "-3": b"789",
        "8-99": b"89",
        "-99": b"0123456789",
        "0-0": b"0",
    }.items():
        found = s3.get_object(**where, Range=f"bytes={wanted}")
        assert found["Body"].read() == expected
        assert found["ResponseMetadata"]["HTTPStatusCode"] == 206
        head = s3.head_object(**where, Range=f"bytes={wanted}")
        assert (head["ContentLength"], head["ContentRange"]) == (
            len(expected),
            found["ContentRange"],
        )
    for whole in ("bytes=4-2", "bytes=x", "lines=1-2", "bytes=1-2,4-5", "bytes=-"):
        assert s3.get_object(**where, Range=whole)["Body"].read() == b"0123456789"
    for wanted in ("10-", "-0", "99-100"):
        with refused(416, "InvalidRange"):
            s3.get_object(**where, Range=f"bytes={wanted}")
    repo.put("a", b"")
    assert s3.get_object(**where)["Body"].read() == b""
    with refused(416, "InvalidRange"):
        s3.get_object(**where, Range="bytes=0-")


def test_conditions_of_reads(s3: S3, repo: Repo) -> None:
    stat = repo.put("a", b"content")
    where = {"Bucket": repo.name, "Key": "main/a"}
    etag, modified = stat["checksum"], datetime.fromtimestamp(stat["mtime"], tz=timezone.utc)
    earlier, later = modified - timedelta(seconds=1), modified + timedelta(seconds=1)
    met: list[dict[str, Any]] = [
        {"IfMatch": f'"{etag}"'},
        {"IfMatch": f'"other", "{etag}"'},
        {"IfMatch": "*"},
        {"IfNoneMatch": '"other"'},
        {"IfModifiedSince": earlier},
        {"IfUnmodifiedSince": modified},
        {"IfMatch": etag, "IfUnmodifiedSince": earlier},
        {"IfNoneMatch": '"other"', "IfModifiedSince": later},
    ]
    for condition in met:
        assert s3.get_object(**where, **condition)["Body"].read() == b"content"
    for condition in ({"IfMatch": '"other"'}, {"IfUnmodifiedSince": earlier}):
        with refused(412, "PreconditionFailed"):
            s3.get_object(**where, **condition)
        with refused(412, "412"):
            s3.head_object(**where, **condition)
    for condition in (
        {"IfNoneMatch": f'"{etag}"'},
        {"IfNoneMatch": "*"},
        {"IfModifiedSince": later},
    ):
        with refused(304, "304"):
            s3.get_object(**where, **condition)


def test_put_only_where_nothing_is(s3: S3, repo: Repo) -> None:
    where = {"Bucket": repo.name, "Key": "main/a"}
    s3.put_object(**where, Body=b"1", IfNoneMatch="*")
    with refused(412, "PreconditionFailed"):
        s3.put_object(**where, Body=b"2", IfNoneMatch="*")
    repo.commit()
    with refused(412, "PreconditionFailed"):
        s3.put_object(**where, Body=b"2", IfNoneMatch="*")
    repo.remove("a")
    s3.put_object(**where, Body=b"3", IfNoneMatch="*")
    for condition in ({"IfMatch": "x"}, {"IfNoneMatch": '"x"'}):
        with refused(501, "NotImplemented"):
            s3.put_object(**where, Body=b"4", **condition)
    assert repo.read("a") == b"3"


@conforms(GATEWAY, "DeleteObject", client="boto3", checked="by both interfaces; nothing there")
def test_delete_stages_a_tombstone(s3: S3, repo: Repo) -> None:
    repo.put("a", b"1")
    repo.commit()
    repo.put("b", b"1")
    for key in ("main/a", "main/b", "main/nothing"):
        answer = s3.delete_object(Bucket=repo.name, Key=key)
        assert answer["ResponseMetadata"]["HTTPStatusCode"] == 204
    assert repo.staged() == {"a": "removed"}
    assert (repo.read("a"), repo.read("a", "main@")) == (404, b"1")


@conforms(
    GATEWAY,
    "DeleteObjects",
    client="boto3",
    checked="an answer for each key, quiet and not; several branches, tags, versions",
)
def test_bulk_delete_answers_for_each_key(s3: S3, repo: Repo) -> None:
    for path in ("a", "b", "odd & <é>"):
        repo.put(path, b"1")
    repo.commit()
    repo.branch("other")
    repo.call("POST", "/tags", 201, json={"id": "v1", "ref": "main"})
    names = ["main/a", "other/b", "v1/a", "gone/a", "main/odd & <é>", "main/nothing", "main"]
    objects: list[Any] = [{"Key": name} for name in names]
    objects.append({"Key": "other/a", "VersionId": "7"})
    found = s3.delete_objects(Bucket=repo.name, Delete={"Objects": objects})
    assert [item["Key"] for item in found["Deleted"]] == [
        "main/a", "other/b", "main/odd & <é>", "main/nothing", "main",
    ]  # fmt: skip
    assert {item["Key"]: item["Code"] for item in found["Errors"]} == {
        "v1/a": "AccessDenied",
        "gone/a": "NoSuchBucket",
        "other/a": "NotImplemented",
    }
    assert (repo.list(), repo.list("other")) == (["b"], ["a", "odd & <é>"])
    quiet = s3.delete_objects(
        Bucket=repo.name,
        Delete={"Objects": [{"Key": "main/b"}, {"Key": "v1/a"}], "Quiet": True},
    )
    assert "Deleted" not in quiet
    assert [item["Key"] for item in quiet["Errors"]] == ["v1/a"]
    assert repo.list() == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no XML",
        b"<Delete></Delete>",
        b"<Other><Object><Key>main/a</Key></Object></Other>",
        b"<Delete><Object></Object></Delete>",
        b"<Delete><Object><Key>main/a</Key><Key>main/b</Key></Object></Delete>",
        b"<Delete><Object><Key>main/a</Key></Object>",
        b"<!DOCTYPE x [<!ENTITY a 'main/a'>]><Delete><Object><Key>&a;</Key></Object></Delete>",
        b"<Delete>" + b"<Object><Key>main/a</Key></Object>" * 1001 + b"</Delete>",
    ],
    ids=lambda body: body[:30],
)
def test_a_bulk_delete_that_is_not_understood_deletes_nothing(
    server: EmbeddedLakeFS, repo: Repo, body: bytes
) -> None:
    repo.put("a", b"1")
    answer = send(server, "POST", f"/{repo.name}?delete=", body)
    assert (answer.status_code, "<Code>MalformedXML</Code>" in answer.text) == (400, True)
    assert repo.read("a") == b"1"


@conforms(
    GATEWAY,
    "CopyObject",
    client="boto3",
    checked="shallow where staged on the same branch; across branches, tags, repositories; new "
    "metadata; conditions",
)
def test_copies(s3: S3, repo: Repo, api: Api) -> None:
    other = api.repository(f"{repo.name}-other")
    first = repo.put("odd +%é", b"content", headers={"Content-Type": "text/css"})

    def copy(target: Repo, key: str, source: str, **options: Any) -> Any:
        return s3.copy_object(
            Bucket=target.name,
            Key=key,
            CopySource={"Bucket": repo.name, "Key": source},
            **options,
        )

    answer = copy(repo, "main/shallow", "main/odd +%é")
    assert answer["CopyObjectResult"]["ETag"] == f'"{first["checksum"]}"'
    assert repo.stat("shallow")["physical_address"] == first["physical_address"]
    repo.commit()
    repo.call("POST", "/tags", 201, json={"id": "v1", "ref": "main"})
    copy(repo, "main/deep", "v1/odd +%é")
    copy(other, "main/away", "main/odd +%é")
    copy(
        repo,
        "main/told anew",
        "main/deep",
        MetadataDirective="REPLACE",
        Metadata={"k": "v"},
        ContentType="text/html",
    )
    found = {path: repo.stat(path) for path in ("deep", "told anew")}
    assert found["deep"]["physical_address"] != first["physical_address"]
    assert found["deep"]["content_type"] == "text/css"
    assert found["told anew"]["content_type"] == "text/html"
    assert found["told anew"]["metadata"] == {"X-Amz-Meta-k": "v"}
    assert other.stat("away")["physical_address"].startswith(f"local://{other.name}/data/")
    assert (repo.read("deep"), other.read("away")) == (b"content", b"content")
    with refused(412, "PreconditionFailed"):
        copy(repo, "main/x", "main/deep", CopySourceIfMatch="other")
    with refused(412, "PreconditionFailed"):
        copy(repo, "main/x", "main/deep", CopySourceIfNoneMatch=first["checksum"])
    for source in ("main/nothing", "nothing/a"):
        with refused(404, "NoSuchKey"):
            copy(repo, "main/x", source)
    with refused(400, "InvalidRequest"):
        copy(repo, "main/deep", "main/deep")
    copy(repo, "main/deep", "main/deep", MetadataDirective="REPLACE", Metadata={"again": "1"})
    assert repo.stat("deep")["metadata"] == {"X-Amz-Meta-again": "1"}
    with refused(403, "AccessDenied"):
        copy(repo, "v1/x", "main/deep")
    with refused(404, "NoSuchBucket"):
        s3.copy_object(
            Bucket=repo.name, Key="main/x", CopySource={"Bucket": "none", "Key": "main/deep"}
        )
    assert repo.stat("x", status=404)


@pytest.mark.parametrize(
    ("header", "code"),
    [
        ("", "InvalidArgument"),
        ("bucket", "InvalidArgument"),
        ("/bucket/main", "InvalidArgument"),
        ("bucket/main/", "InvalidArgument"),
        ("bucket/main/a?versionId=3", "NotImplemented"),
        ("bucket/main/%ff", "InvalidURI"),
    ],
)
def test_a_copy_source_that_names_no_object_is_refused(
    server: EmbeddedLakeFS, repo: Repo, header: str, code: str
) -> None:
    answer = send(server, "PUT", f"/{repo.name}/main/x", x_amz_copy_source=header)
    assert f"<Code>{code}</Code>" in answer.text
    assert repo.list() == []


@conforms(GATEWAY, "ListBuckets", client="boto3", checked="all repositories")
@conforms(GATEWAY, "HeadBucket", client="boto3", checked="known and unknown repositories")
@conforms(GATEWAY, "GetBucketLocation", client="boto3", checked="it has no name")
@conforms(GATEWAY, "GetBucketVersioning", client="boto3", checked="there is none")
@conforms(GATEWAY, "GetObjectTagging", client="boto3", checked="there is none")
def test_buckets_are_repositories(s3: S3, repo: Repo) -> None:
    listed = {item["Name"]: item["CreationDate"] for item in s3.list_buckets()["Buckets"]}
    created = repo.call("GET", "")["creation_date"]
    assert listed[repo.name].timestamp() == created
    s3.head_bucket(Bucket=repo.name)
    assert s3.get_bucket_location(Bucket=repo.name)["LocationConstraint"] is None
    assert "Status" not in s3.get_bucket_versioning(Bucket=repo.name)
    repo.put("a", b"")
    assert s3.get_object_tagging(Bucket=repo.name, Key="main/a")["TagSet"] == []
    with refused(404, "404"):
        s3.head_bucket(Bucket="nothing")
    for unknown in (s3.get_bucket_location, s3.get_bucket_versioning, s3.list_objects_v2):
        with refused(404, "NoSuchBucket"):
            unknown(Bucket="nothing")


@conforms(
    GATEWAY,
    "ListObjectsV2",
    client="boto3",
    checked="prefix, delimiter, start-after, tokens, max-keys from 0, branches as folders; keys "
    "that XML cannot hold",
)
def test_lists_by_prefix_and_delimiter(s3: S3, repo: Repo) -> None:
    paths = ["a", "b/1", "b/2", "b/c/3", "b0", "c/4", "d"]
    for path in paths[:4]:
        repo.put(path, path)
    repo.commit()
    for path in paths[4:]:
        repo.put(path, path)
    repo.branch("other")
    repo.branch("hidden", hidden=True)
    assert keys(s3, repo) == keys(s3, repo, Delimiter="/") == ["main/", "other/"]
    assert keys(s3, repo, Prefix="ot") == ["other/"]
    assert keys(s3, repo, StartAfter="main/") == ["other/"]
    assert keys(s3, repo, Prefix="main/") == [f"main/{path}" for path in paths]
    assert keys(s3, repo, Prefix="hidden/") == [f"hidden/{path}" for path in paths[:4]]
    assert keys(s3, repo, Prefix="main/b/", Delimiter="/") == ["main/b/1", "main/b/2", "main/b/c/"]
    assert keys(s3, repo, Prefix="main/b") == ["main/b/1", "main/b/2", "main/b/c/3", "main/b0"]
    assert keys(s3, repo, Prefix="main/", StartAfter="main/b/2") == [
        "main/b/c/3", "main/b0", "main/c/4", "main/d",
    ]  # fmt: skip
    assert len(keys(s3, repo, Prefix="main/", StartAfter="lain/x")) == 7
    assert keys(s3, repo, Prefix="main/", StartAfter="nain/x") == []
    assert keys(s3, repo, Prefix="nothing/") == []
    found = s3.list_objects_v2(Bucket=repo.name, Prefix="main/", Delimiter="/", MaxKeys=0)
    assert (found["KeyCount"], found["IsTruncated"], found["MaxKeys"]) == (0, False, 0)
    item = s3.list_objects_v2(Bucket=repo.name, Prefix="main/a")["Contents"][0]
    stat = repo.stat("a")
    assert (item["ETag"], item["Size"]) == (f'"{stat["checksum"]}"', 1)
    assert item["LastModified"].timestamp() == stat["mtime"]


@conforms(GATEWAY, "ListObjects", client="boto3", checked="like ListObjectsV2, by marker")
@pytest.mark.parametrize("version", ["list_objects", "list_objects_v2"])
@pytest.mark.parametrize("size", [1, 2, 1000])
def test_pages_of_a_listing_miss_nothing_and_repeat_nothing(
    s3: S3, repo: Repo, version: str, size: int
) -> None:
    paths = ["a", "b/1", "b/2", "b/c/3", "b0", "c/4", "é", "x y+z", "\n", "a|b"]
    for path in paths:
        repo.put(path, b"")
    for branch in ("one", "two", "three"):
        repo.branch(branch)
    pages: Callable[..., Any] = s3.get_paginator(version).paginate
    for options, expected in (
        ({"Prefix": "main/"}, sorted(f"main/{path}" for path in paths)),
        (
            {"Prefix": "main/", "Delimiter": "/"},
            sorted(f"main/{p}" for p in ["\n", "a", "a|b", "b/", "b0", "c/", "x y+z", "é"]),
        ),
        ({"Prefix": "main/b/", "Delimiter": "/"}, ["main/b/1", "main/b/2", "main/b/c/"]),
        ({"Delimiter": "/"}, ["main/", "one/", "three/", "two/"]),
        ({}, ["main/", "one/", "three/", "two/"]),
    ):
        found: list[str] = []
        for page in pages(Bucket=repo.name, PaginationConfig={"PageSize": size}, **options):
            items = [item["Key"] for item in page.get("Contents", [])]
            items += [item["Prefix"] for item in page.get("CommonPrefixes", [])]
            assert 0 < len(items) <= size
            found += items
        assert sorted(found) == expected


def test_a_listing_without_encoding_escapes_what_xml_can_hold(
    server: EmbeddedLakeFS, repo: Repo
) -> None:
    repo.put('<a> & "b"\r\n\x01', b"")
    answer = send(server, "GET", f"/{repo.name}?list-type=2&prefix=main%2F")
    assert "<Key>main/&lt;a&gt; &amp; &quot;b&quot;&#xd;&#xa;&#x1;</Key>" in answer.text


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("list-type=2&continuation-token=%20", 400, "InvalidArgument"),
        ("list-type=2&continuation-token=AAA", 400, "InvalidArgument"),
        ("list-type=2&continuation-token=_w%3D%3D", 400, "InvalidArgument"),
        ("list-type=3", 400, "InvalidArgument"),
        ("max-keys=-1", 400, "InvalidArgument"),
        ("max-keys=x", 400, "InvalidArgument"),
        ("max-keys=2147483648", 400, "InvalidArgument"),
        ("encoding-type=xml", 400, "InvalidArgument"),
        ("prefix=%FF", 400, "InvalidURI"),
        ("acl=", 501, "NotImplemented"),
        ("versions=", 501, "NotImplemented"),
        ("uploads=", 501, "NotImplemented"),
        ("list-type=2&marker=a", 501, "NotImplemented"),
    ],
)
def test_listings_that_are_not_understood_are_refused(
    server: EmbeddedLakeFS, repo: Repo, query: str, status: int, code: str
) -> None:
    answer = send(server, "GET", f"/{repo.name}?{query}")
    assert (answer.status_code, f"<Code>{code}</Code>" in answer.text) == (status, True)


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


def test_what_is_too_large_is_refused(s3: S3, repo: Repo) -> None:
    s3.put_object(Bucket=repo.name, Key="main/a", Body=b"x" * MAX_BYTES)
    with refused(400, "EntityTooLarge") as answer:
        s3.put_object(Bucket=repo.name, Key="main/a", Body=b"x" * (MAX_BYTES + 1))
    assert f"{MAX_BYTES} bytes" in answer["Error"]["Message"]
    assert repo.stat("a")["size_bytes"] == MAX_BYTES
    upload = s3.create_multipart_upload(Bucket=repo.name, Key="main/b")["UploadId"]
    where: dict[str, Any] = {"Bucket": repo.name, "Key": "main/b", "UploadId": upload}
    parts: list[Any] = [
        {"PartNumber": n, "ETag": s3.upload_part(**where, PartNumber=n, Body=b"x" * n)["ETag"]}
        for n in (1, MAX_BYTES // 1024)
    ]
    large = s3.upload_part(**where, PartNumber=5, Body=b"x" * MAX_BYTES)["ETag"]
    parts.insert(1, {"PartNumber": 5, "ETag": large})
    with refused(400, "EntityTooLarge"):
        s3.complete_multipart_upload(**where, MultipartUpload={"Parts": parts})
    assert repo.list() == ["a"]


def test_metadata_that_is_not_ascii_travels_encoded(
    server: EmbeddedLakeFS, s3: S3, repo: Repo
) -> None:
    path = f"/{repo.name}/main/a"
    for sent, expected in (
        ("=?UTF-8?B?w7w=?=", "ü"),
        ("=?UTF-8?Q?=C3=BC_and_more?=", "ü and more"),
        ("=?nonsense", "=?nonsense"),
    ):
        send(server, "PUT", path, x_amz_meta_k=sent)
        assert repo.stat("a")["metadata"] == {"X-Amz-Meta-k": expected}
    body = {"physical_address": "s3://elsewhere/x", "checksum": 'a"\nb', "size_bytes": 0}
    metadata = {"X-Amz-Meta-Line": "a\nb", "X-Amz-Meta-no name": "x", "X-Amz-Meta-é": "x"}
    repo.call(
        "PUT",
        "/branches/main/objects",
        201,
        params={"path": "b"},
        json={**body, "metadata": metadata, "content_type": "text/é\n"},
    )
    head = s3.head_object(Bucket=repo.name, Key="main/b")
    assert head["Metadata"] == {"line": "=?utf-8?b?YQpi?="}
    assert (head["MissingMeta"], head["ETag"]) == (2, '"a"b"')
    with refused(400, "MetadataTooLarge"):
        s3.put_object(Bucket=repo.name, Key="main/a", Metadata={"k": "x" * 2048})


@conforms(
    GATEWAY, "Presigned URLs", client="boto3 and requests", checked="GET and PUT, until they expire"
)
def test_presigned_urls(tmp_path: Path) -> None:
    ahead = [0.0]
    with (
        EmbeddedLakeFS(tmp_path, clock=lambda: time() + ahead[0]) as server,
        Api.of(server) as api,
    ):
        repo, s3 = api.repository(), client_of(server, signature_version="s3v4")
        where = {"Bucket": "repo", "Key": "main/odd +%é"}
        put = s3.generate_presigned_url("put_object", Params=where, ExpiresIn=60)
        get = s3.generate_presigned_url(
            "get_object", Params={**where, "ResponseContentType": "text/é x"}, ExpiresIn=60
        )
        assert requests.put(put, data=b"content", timeout=TIMEOUT).status_code == 200
        answer = requests.get(get, timeout=TIMEOUT)
        assert answer.content == b"content"
        assert answer.headers["Content-Type"].encode("latin-1").decode() == "text/é x"
        assert requests.put(get, data=b"x", timeout=TIMEOUT).status_code == 403
        added = {"x-amz-meta-k": "v"}
        assert requests.put(put, data=b"x", headers=added, timeout=TIMEOUT).status_code == 403
        ahead[0] = 1200
        assert "expired" in requests.get(get, timeout=TIMEOUT).text
        with refused(403, "RequestTimeTooSkewed"):
            s3.get_object(Bucket="repo", Key="main/odd +%é")
        old = client_of(server, signature_version="s3")
        with refused(400, "InvalidRequest"):
            old.get_object(Bucket="repo", Key="main/odd +%é")
        assert repo.read("odd +%é") == b"content"


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
