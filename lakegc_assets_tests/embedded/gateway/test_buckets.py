"""Repositories as buckets, and listings of what is in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lakegc_assets.embedded import EmbeddedLakeFS
from lakegc_assets_tests.conformance.recorder import GATEWAY, conforms
from lakegc_assets_tests.embedded.api import Repo
from lakegc_assets_tests.embedded.gateway.s3 import S3, refused, send


def keys(s3: S3, repo: Repo, **options: Any) -> list[str]:
    """Keys and common prefixes of one listing, each in its own order."""
    found = s3.list_objects_v2(Bucket=repo.name, **options)
    contents = [item["Key"] for item in found.get("Contents", [])]
    return contents + [item["Prefix"] for item in found.get("CommonPrefixes", [])]


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
        ("uploads=&delimiter=%2F", 501, "NotImplemented"),
        ("list-type=2&marker=a", 501, "NotImplemented"),
    ],
)
def test_listings_that_are_not_understood_are_refused(
    server: EmbeddedLakeFS, repo: Repo, query: str, status: int, code: str
) -> None:
    answer = send(server, "GET", f"/{repo.name}?{query}")
    assert (answer.status_code, f"<Code>{code}</Code>" in answer.text) == (status, True)
