"""Objects through the S3 gateway, driven by boto3: what it does to the branch that REST shows."""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from lakegc_assets.embedded import EmbeddedLakeFS
from lakegc_assets.embedded.objects import copies
from lakegc_assets_tests.conformance.recorder import GATEWAY, conforms
from lakegc_assets_tests.embedded.api import Api, Repo
from lakegc_assets_tests.embedded.gateway.s3 import S3, refused, send


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
    listed = s3.list_objects_v2(Bucket=repo.name, Prefix="main/")["Contents"]
    assert [item["Key"] for item in listed] == ["main/a"]
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
    for whole in (
        "bytes=4-2",
        "bytes=x",
        "lines=1-2",
        "bytes=1-2,4-5",
        "bytes=-",
        "bytes=0-" + "9" * 5000,
    ):
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
    "condition",
    [
        {"if-match": '"other"'},
        {"x-amz-if-match-size": "7"},
        {"x-amz-if-match-last-modified-time": "Sat, 01 Jan 2000 00:00:00 GMT"},
    ],
    ids=lambda condition: next(iter(condition)),
)
def test_a_delete_with_a_condition_deletes_nothing(
    server: EmbeddedLakeFS, repo: Repo, condition: dict[str, str]
) -> None:
    repo.put("a", b"1")
    answer = send(server, "DELETE", f"/{repo.name}/main/a", b"", None, **condition)
    assert (answer.status_code, "<Code>NotImplemented</Code>" in answer.text) == (501, True)
    assert repo.read("a") == b"1"


@pytest.mark.parametrize("name", ["ETag", "LastModifiedTime", "Size"])
def test_a_bulk_delete_refuses_keys_with_a_condition(
    server: EmbeddedLakeFS, repo: Repo, name: str
) -> None:
    repo.put("a", b"1")
    repo.put("b", b"1")
    body = (
        f"<Delete><Object><Key>main/a</Key><{name}>7</{name}></Object>"
        "<Object><Key>main/b</Key></Object></Delete>"
    )
    answer = send(server, "POST", f"/{repo.name}?delete=", body.encode())
    assert "<Key>main/a</Key><Code>NotImplemented</Code>" in answer.text
    assert repo.list() == ["a"]


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
        "<Delete><Object><Key>main/a</Key></Object></Delete>".encode("utf-16"),
        b"<?xml version='1.0' encoding='none'?><Delete><Object><Key>a</Key></Object></Delete>",
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


@pytest.mark.parametrize("target", ["main", "dev"], ids=["shallow", "deep"])
def test_a_source_that_changes_after_its_conditions_were_compared_is_not_copied(
    s3: S3, repo: Repo, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    def overwrite_first(*args: Any, **options: Any) -> Any:
        repo.put("a", b"two")
        return copy(*args, **options)

    copy = copies.copy
    repo.branch("dev")
    where = {
        "Bucket": repo.name,
        "Key": f"{target}/b",
        "CopySource": {"Bucket": repo.name, "Key": "main/a"},
    }
    etag = repo.put("a", b"one")["checksum"]
    monkeypatch.setattr(copies, "copy", overwrite_first)
    with refused(412, "PreconditionFailed"):
        s3.copy_object(**where, CopySourceIfMatch=etag)
    assert repo.list(target) == (["a"] if target == "main" else [])
    s3.copy_object(**where)
    assert repo.read("b", target) == b"two"


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
