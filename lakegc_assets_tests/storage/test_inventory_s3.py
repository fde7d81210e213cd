"""What an S3 Inventory report says of a namespace, in each form, and when it is refused."""

from __future__ import annotations

import json
import uuid
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import boto3
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakegc_assets.errors import IntegrityError, LakegcError, RefusedError
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.inventory import newest_inventory
from lakegc_assets.storage.opening import open_store
from lakegc_assets.storage.values import LISTING_SCHEMA, ObjectInfo
from lakegc_assets_tests.inventories import CURRENT, S3_COLUMNS, S3Reports, listed, md5, s3_row

ENCODINGS = ("CSV", "Parquet", "ORC")
BEGAN = datetime(2026, 5, 2, 1, 30, tzinfo=timezone.utc)
NAMESPACE = StorageNamespace.parse("s3://bucket/lake/repo")
PREFIX = "lake/repo/"


def info(key: str, size: int = 1, etag: str = "a" * 32, days: float = 3) -> ObjectInfo:
    at = (BEGAN - timedelta(days=days)).replace(microsecond=0)
    return ObjectInfo(key, size, at, etag)


def row(one: ObjectInfo, **others: Any) -> dict[str, Any]:
    return s3_row("bucket", PREFIX, one, **others)


@pytest.fixture
def reports(tmp_path: Path) -> S3Reports:
    return S3Reports(open_store(str(tmp_path)), "bucket")


def read(
    reports: S3Reports, namespace: StorageNamespace = NAMESPACE, place: str = ""
) -> list[ObjectInfo]:
    """What the newest report says, in the order of the keys."""
    found = newest_inventory(namespace, place or reports.place, open_store)
    assert found.report.started == BEGAN
    store = open_store(found.place)
    told = [
        one for file in found.report.files for _, one in found.rows(store, file) if one is not None
    ]
    assert all(one.schema == LISTING_SCHEMA and one.num_rows for one in told)
    assert all(one["key"].to_pylist() == sorted(one["key"].to_pylist()) for one in told)
    table = pa.Table.from_batches(told, LISTING_SCHEMA)
    return sorted((ObjectInfo(**one) for one in table.to_pylist()), key=lambda one: one.key)


KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
OBJECTS = st.builds(
    info,
    st.one_of(KEYS, KEYS.map("data/%2F+ {}\n,\"'".format)),
    st.integers(0, 2**40),
    st.sampled_from(["a" * 32, "b" * 32 + "-7"]),
    st.integers(0, 4000),
)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_key_comes_back_as_it_is(
    encoding: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    @settings(max_examples=30, deadline=None)
    @given(st.lists(OBJECTS, max_size=9, unique_by=lambda one: one.key), st.integers(1, 3))
    def check(objects: list[ObjectInfo], parts: int) -> None:
        reports = S3Reports(open_store(str(tmp_path_factory.mktemp("reports"))), "bucket")
        elsewhere = [s3_row("bucket", "lake/repo2/", one) for one in objects]
        reports.write(BEGAN, [*map(row, objects), *elsewhere], encoding, parts=parts)
        assert read(reports) == sorted(objects, key=lambda one: one.key)

    check()


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_only_current_versions_that_are_objects_count(reports: S3Reports, encoding: str) -> None:
    rows = [
        row(info("data/now"), VersionId="v3"),
        row(info("data/now", days=9), VersionId="v2", IsLatest=False),
        row(info("data/gone"), VersionId="v1", IsLatest=False),
        row(info("data/gone"), VersionId="m", IsDeleteMarker=True, Size=None, ETag=None),
        row(info("data/untold"), IsLatest=None),
        row(info("data/untold too"), IsDeleteMarker=None),
    ]
    reports.write(BEGAN, rows, encoding, tuple(S3_COLUMNS))
    assert read(reports) == [info("data/now")]


def test_the_newest_complete_report_is_read_or_the_one_that_is_named(reports: S3Reports) -> None:
    reports.write(BEGAN - timedelta(days=2), [row(info("data/older"))])
    older = reports.write(BEGAN - timedelta(days=1), [row(info("data/old"))])
    reports.write(BEGAN, [row(info("data/new"))])
    unfinished = reports.write(BEGAN + timedelta(days=1), [row(info("data/newest"))])
    reports.store.delete_many([f"{unfinished}manifest.checksum"])
    reports.store.put(
        f"{reports.folder}/hive/dt=2026-05-02-01-30/symlink.txt", b"s3://destination/x"
    )
    assert read(reports) == [info("data/new")]
    url = f"{reports.store.url}/{older}"
    found = newest_inventory(NAMESPACE, url, open_store)
    assert found.report.started == BEGAN - timedelta(days=1)
    with pytest.raises(RefusedError, match=r"has no 2026-05-03.*manifest.checksum"):
        newest_inventory(NAMESPACE, f"{reports.store.url}/{unfinished}", open_store)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("column", ["Size", "LastModifiedDate", "ETag", "IsLatest"])
def test_a_column_that_is_needed_and_missing_is_named(
    reports: S3Reports, encoding: str, column: str
) -> None:
    columns = [name for name in S3_COLUMNS if name != column]
    reports.write(BEGAN, [row(info("data/x"))], encoding, columns)
    with pytest.raises(RefusedError, match=rf"lacks {column}: .*OptionalFields"):
        read(reports)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("column", ["Key", "Size", "LastModifiedDate", "ETag"])
def test_a_row_that_lacks_a_value_is_refused(
    reports: S3Reports, encoding: str, column: str
) -> None:
    reports.write(BEGAN, [row(info("data/x")), row(info("data/y"), **{column: None})], encoding)
    with pytest.raises(IntegrityError, match=r"a value is missing, or .*the object .* has no"):
        read(reports)


def test_a_row_of_another_bucket_is_refused(reports: S3Reports) -> None:
    reports.write(BEGAN, [row(info("data/x")), row(info("data/y"), Bucket="other")])
    with pytest.raises(IntegrityError, match=r"about the bucket 'other', not 'bucket'"):
        read(reports)


def corrupted(reports: S3Reports, key: str, *, cut: bool) -> None:
    content = reports.store.get(key)
    reports.store.put(key, content[:-1] if cut else content[:-1] + bytes([content[-1] ^ 1]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sourceBucket": "other"}, "about the bucket 'other'"),
        ({"sourceBucket": None}, "sourceBucket: "),
        ({"creationTimestamp": "soon"}, "no milliseconds"),
        ({"creationTimestamp": "9" * 30}, "creationTimestamp: "),
        ({"fileFormat": "Avro"}, "CSV, Parquet and ORC"),
        ({"files": None}, "files: "),
        ({"files": [{"key": "x", "size": 1}]}, "MD5checksum: "),
        ({"files": [{"key": "x", "size": 1, "MD5checksum": "-"}]}, "MD5checksum: "),
        ({"files": [{"key": "x", "size": 1, "MD5checksum": "a" * 32}]}, "does not lie at"),
        ({"files": [{"key": "x", "size": 1, "MD5checksum": "a" * 32}] * 2}, "names a file twice"),
    ],
)
def test_a_manifest_that_makes_no_sense_is_refused(
    reports: S3Reports, changes: dict[str, Any], message: str
) -> None:
    reports.write(BEGAN, [row(info("data/x"))], **changes)
    with pytest.raises(LakegcError, match=message):
        read(reports)


@pytest.mark.parametrize("cut", [False, True])
def test_a_report_that_was_changed_is_refused(reports: S3Reports, *, cut: bool) -> None:
    folder = reports.write(BEGAN, [row(info("data/x"))], parts=1)
    (file,) = json.loads(reports.store.get(f"{folder}manifest.json"))["files"]
    corrupted(reports, file["key"], cut=cut)
    with pytest.raises(IntegrityError, match="bytes, and" if cut else "its MD5 is"):
        read(reports)
    reports.store.delete_many([file["key"]])
    with pytest.raises(IntegrityError, match=r"its file .* is gone"):
        read(reports)
    corrupted(reports, f"{folder}manifest.json", cut=cut)
    with pytest.raises(IntegrityError, match="its MD5 is"):
        read(reports)


def test_a_file_that_is_none_is_refused(reports: S3Reports) -> None:
    folder = reports.write(BEGAN, [row(info("data/x"))], parts=1)
    manifest = json.loads(reports.store.get(f"{folder}manifest.json"))
    (file,) = manifest["files"]
    for encoding in ENCODINGS:
        content = b'"bucket","lake/repo/x"\n' if encoding == "CSV" else b"no file of that form"
        reports.store.put(file["key"], content)
        file |= {"size": len(content), "MD5checksum": md5(content)}
        changed = {**manifest, "fileFormat": encoding, "fileSchema": ", ".join(CURRENT)}
        raw = json.dumps(changed).encode()
        reports.store.put(f"{folder}manifest.json", raw)
        reports.store.put(f"{folder}manifest.checksum", md5(raw).encode())
        with pytest.raises(IntegrityError, match="it cannot be decoded"):
            read(reports)


def test_without_a_report_it_is_said_where_one_should_be(reports: S3Reports) -> None:
    reports.store.put(f"{reports.prefix}bucket/{CURRENT[0]}/x", b"")
    with pytest.raises(RefusedError, match=r"inventory_place is the folder .*\['bucket'\]"):
        read(reports, place=f"{reports.store.url}/inventories")


def test_a_store_without_reports_is_refused(reports: S3Reports) -> None:
    with pytest.raises(RefusedError, match="cannot be read; list the store"):
        read(reports, StorageNamespace.parse("/a/folder"))


@pytest.mark.parametrize(
    "server",
    [
        "s3_server",
        pytest.param("minio_server", marks=pytest.mark.stores),
        pytest.param("versitygw_server", marks=pytest.mark.stores),
    ],
)
@pytest.mark.parametrize("encoding", ["CSV", "Parquet"])
def test_what_a_store_lists_is_what_its_report_says(
    server: str, encoding: str, request: pytest.FixtureRequest
) -> None:
    running = request.getfixturevalue(server)
    endpoint = running if isinstance(running, str) else running.endpoint
    s3_bucket = f"bucket-{uuid.uuid4().hex}"
    boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket=s3_bucket)
    config = StoreConfig(endpoint_url=endpoint)

    def opened(url: str) -> ObjectStore:
        return open_store(url, config)

    namespace = StorageNamespace.parse(f"s3://{s3_bucket}/lake/repo")
    store = opened(namespace.url())
    for key in ("data/a b/c+d", "data/é", "_lakefs/x", "data/100%"):
        store.put(key, key.encode())
    reports = S3Reports(opened(f"s3://{s3_bucket}"), s3_bucket)
    reports.write(BEGAN, [s3_row(s3_bucket, PREFIX, one) for one in listed(store)], encoding)
    found = newest_inventory(namespace, reports.place, opened)
    place = opened(found.place)
    told = [one for file in found.report.files for _, one in found.rows(place, file) if one]
    rows = [ObjectInfo(**one) for batch in told for one in batch.to_pylist()]
    for one, there in zip(sorted(rows, key=lambda r: r.key), listed(store), strict=True):
        assert (one.key, one.size, one.etag) == (there.key, there.size, there.etag)
        assert one.last_modified == there.last_modified.replace(microsecond=0)
