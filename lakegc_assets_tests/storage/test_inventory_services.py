"""What inventory reports of Azure and of Google Cloud Storage say, and when they are refused."""

from __future__ import annotations

import csv
import io
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakegc_assets.errors import IntegrityError, LakegcError, RefusedError
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.storage.azure.auth import write_azure_credentials_file
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.config import AzureAccess, StoreConfig
from lakegc_assets.storage.inventory import Inventory, newest_inventory
from lakegc_assets.storage.opening import open_store
from lakegc_assets.storage.values import LISTING_SCHEMA, ObjectInfo
from lakegc_assets_tests.inventories import listed, md5
from lakegc_assets_tests.storage.conftest import azure_client
from lakegc_assets_tests.storage.servers import AZURE_ACCOUNT, AZURE_KEY, Server

BEGAN = datetime(2026, 5, 2, 1, 30, 15, tzinfo=timezone.utc)
AZURE = StorageNamespace.parse("https://account.blob.core.windows.net/data/lake/repo")
GCS = StorageNamespace.parse("gs://bucket/lake/repo")
PREFIX = "lake/repo/"
Rows = Sequence[Mapping[str, Any]]
KEYS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12)


def info(key: str, size: int = 1, etag: str = "0x8D0A", days: float = 3) -> ObjectInfo:
    return ObjectInfo(key, size, (BEGAN - timedelta(days=days)).replace(microsecond=0), etag)


def read(
    found: Inventory, opened: Callable[[str], ObjectStore] = open_store
) -> tuple[int, list[ObjectInfo]]:
    """How many rows a report has, and what it says, in the order of the keys."""
    store = opened(found.place)
    told = [pair for file in found.report.files for pair in found.rows(store, file)]
    table = pa.Table.from_batches([one for _, one in told if one is not None], LISTING_SCHEMA)
    objects = [ObjectInfo(**one) for one in table.to_pylist()]
    return sum(rows for rows, _ in told), sorted(objects, key=lambda one: one.key)


def encoded(rows: Rows, columns: Sequence[str], form: str, delimiter: str = ",") -> bytes:
    """Rows with a header; in CSV files as texts."""
    if form == "csv":
        out = io.StringIO()
        writer = csv.writer(out, delimiter=delimiter, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([text(row[name]) for name in columns] for row in rows)
        return out.getvalue().encode()
    types = {"Content-Length": pa.int64(), "size": pa.int64(), "generation": pa.int64()}
    kinds = {
        name: pa.timestamp("ms", "UTC")
        if name in {"Last-Modified", "updated", "timeDeleted"}
        else pa.bool_()
        if name in {"hdi_isfolder", "IsCurrentVersion", "Deleted"}
        else types.get(name, pa.string())
        for name in columns
    }
    arrays = {name: pa.array([row[name] for row in rows], kinds[name]) for name in columns}
    sink = io.BytesIO()
    pq.write_table(pa.table(arrays), sink)
    return sink.getvalue()


def text(value: Any) -> str:
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%dT%H:%M:%S}.{value.microsecond:06}0Z"
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


# Azure

BASE = ("Name", "Last-Modified", "Etag", "Content-Length", "BlobType")
ALL = (*BASE, "hdi_isfolder", "IsCurrentVersion", "Snapshot", "Deleted")
FILE = f"{BEGAN:%Y/%m/%d/%H-%M-%S}/Rule_1/x.parquet"
EVERYTHING = {"includeBlobVersions": True, "includeSnapshots": True, "includeDeleted": True}


def blob(one: ObjectInfo, **others: Any) -> dict[str, Any]:
    return {
        "Name": f"data/{PREFIX}{one.key}",
        "Last-Modified": one.last_modified,
        "Etag": one.etag,
        "Content-Length": one.size,
        "BlobType": "BlockBlob",
        "hdi_isfolder": None,
        "IsCurrentVersion": True,
        "Snapshot": None,
        "Deleted": None,
        **others,
    }


def azure_report(
    place: ObjectStore,
    rows: Rows,
    form: str = "parquet",
    columns: Sequence[str] = BASE,
    rule: str = "Rule_1",
    began: datetime = BEGAN,
    filters: Mapping[str, Any] | None = None,
    **changes: Any,
) -> str:
    """Write a report of two files as the service writes it; its folder."""
    folder = f"{began:%Y/%m/%d/%H-%M-%S}/{rule}"
    files = []
    for number in range(2):
        content = encoded(rows[number::2], columns, form)
        key = f"{folder}/{rule}_1000000_{number}.{form}"
        place.put(key, content)
        files.append({"blob": key, "size": len(content)})
    manifest = {
        "destinationContainer": "reports",
        "endpoint": "https://account.blob.core.windows.net",
        "files": files,
        "inventoryCompletionTime": f"{began + timedelta(hours=2):%Y-%m-%dT%H:%M:%SZ}",
        "inventoryStartTime": f"{began:%Y-%m-%dT%H:%M:%SZ}",
        "ruleDefinition": {
            "filters": {"blobTypes": ["blockBlob"], **(filters or {})},
            "format": form,
            "objectType": "blob",
            "schedule": "daily",
            "schemaFields": list(columns),
        },
        "ruleName": rule,
        "status": "Succeeded",
        "summary": {"objectCount": len(rows), "totalObjectSize": 1},
        "version": "1.0",
        **changes,
    }
    content = json.dumps(manifest).encode()
    place.put(f"{folder}/{rule}-manifest.json", content)
    place.put(f"{folder}/{rule}-manifest.checksum", md5(content).encode())
    return folder


@pytest.fixture
def place(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path))


def azure(place: ObjectStore, folder: str = "") -> Inventory:
    url = f"{place.url}/{folder}" if folder else place.url
    return newest_inventory(AZURE, url, open_store)


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_azure_names_come_back_as_they_are(
    form: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    objects = st.builds(info, KEYS, st.integers(1, 2**40), st.just("0x8D"), st.integers(0, 99))

    @settings(max_examples=25, deadline=None)
    @given(st.lists(objects, max_size=7, unique_by=lambda one: one.key))
    def check(objects: list[ObjectInfo]) -> None:
        place = open_store(str(tmp_path_factory.mktemp("reports")))
        elsewhere = [blob(one, Name=f"data2/{PREFIX}{one.key}") for one in objects]
        azure_report(place, [*map(blob, objects), *elsewhere], form)
        found = azure(place)
        assert found.report.started == BEGAN
        assert read(found) == (2 * len(objects), sorted(objects, key=lambda one: one.key))

    check()


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_of_azure_only_base_blobs_that_are_there_count(place: ObjectStore, form: str) -> None:
    rows = [
        blob(info("data/now")),
        blob(info("data/empty", size=0)),
        blob(info("data/folder", size=0), hdi_isfolder=True),
        blob(info("data/older"), IsCurrentVersion=False),
        blob(info("data/unversioned"), IsCurrentVersion=None),
        blob(info("data/snapshot"), Snapshot="2026-01-01T00:00:00.0000000Z"),
        blob(info("data/deleted"), Deleted=True),
    ]
    azure_report(place, rows, form, ALL, filters=EVERYTHING)
    assert read(azure(place)) == (7, [info("data/empty", size=0), info("data/now")])
    without = [name for name in ALL if name != "hdi_isfolder"]
    azure_report(place, rows, form, without, began=BEGAN + timedelta(1), filters=EVERYTHING)
    assert read(azure(place)) == (7, [info("data/now")])


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("column", "name"),
    [("Etag", "Etag"), ("Last-Modified", "Last-Modified"), ("Content-Length", "Content-Length")],
)
def test_azure_columns_that_are_needed_and_missing_are_named(
    place: ObjectStore, form: str, column: str, name: str
) -> None:
    columns = [one for one in ALL if one != column]
    folder = azure_report(place, [blob(info("data/x"))], form, columns)
    with pytest.raises(RefusedError, match=rf"lacks {name}: .*schemaFields"):
        azure(place)
    # As if the rule had been changed: what counts is what the files have.
    manifest = json.loads(place.get(f"{folder}/Rule_1-manifest.json"))
    manifest["ruleDefinition"]["schemaFields"] = list(ALL)
    content = json.dumps(manifest).encode()
    place.put(f"{folder}/Rule_1-manifest.json", content)
    place.put(f"{folder}/Rule_1-manifest.checksum", md5(content).encode())
    with pytest.raises(RefusedError, match=rf"lacks {name}"):
        read(azure(place))


@pytest.mark.parametrize(
    ("include", "field"),
    [
        ("includeBlobVersions", "IsCurrentVersion"),
        ("includeSnapshots", "Snapshot"),
        ("includeDeleted", "Deleted"),
    ],
)
def test_an_azure_rule_must_say_of_what_it_includes_what_it_is(
    place: ObjectStore, include: str, field: str
) -> None:
    azure_report(place, [blob(info("data/x"))], filters={include: True})
    with pytest.raises(RefusedError, match=f"lacks {field}"):
        azure(place)


def test_the_newest_complete_azure_report_is_read_or_the_one_that_is_named(
    place: ObjectStore,
) -> None:
    old = azure_report(place, [blob(info("data/old"))], began=BEGAN - timedelta(days=31))
    azure_report(place, [blob(info("data/new"))])
    azure_report(place, [], rule="others", filters={"prefixMatch": ["data2/"]})
    azure_report(place, [], rule="containers", ruleDefinition={
        "filters": {}, "format": "csv", "objectType": "container", "schemaFields": ["Name"],
    })  # fmt: skip
    pending = azure_report(place, [], began=BEGAN + timedelta(days=1))
    place.delete_many([f"{pending}/Rule_1-manifest.checksum"])
    assert read(azure(place)) == (1, [info("data/new")])
    assert read(azure(place, old)) == (1, [info("data/old")])
    with pytest.raises(RefusedError, match="no complete report"):
        azure(place, pending)
    again = azure_report(place, [], rule="again", filters={"prefixMatch": ["da"]})
    with pytest.raises(RefusedError, match=r"several rules .*\['Rule_1', 'again'\]"):
        azure(place)
    assert read(azure(place, again)) == (0, [])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"status": "PartiallySucceeded"}, "ended as 'PartiallySucceeded'"),
        ({"inventoryStartTime": "2026-05-02"}, "inventoryStartTime: "),
        ({"inventoryStartTime": None}, "inventoryStartTime: "),
        ({"files": [{"blob": "x", "size": 1}]}, "does not lie at"),
        ({"files": [{"blob": FILE, "size": "1"}]}, "size: "),
        ({"files": [{"blob": FILE, "size": 1}] * 2}, "names a file twice"),
    ],
)
def test_an_azure_manifest_that_makes_no_sense_is_refused(
    place: ObjectStore, changes: dict[str, Any], message: str
) -> None:
    azure_report(place, [blob(info("data/x"))], **changes)
    with pytest.raises(IntegrityError, match=message):
        azure(place)


def test_an_azure_report_that_was_changed_is_refused(place: ObjectStore) -> None:
    folder = azure_report(place, [blob(info("data/x"))])
    file = f"{folder}/Rule_1_1000000_0.parquet"
    content = place.get(file)
    place.put(file, content[:-1])
    with pytest.raises(IntegrityError, match="bytes, and"):
        read(azure(place))
    manifest = f"{folder}/Rule_1-manifest.json"
    place.put(manifest, place.get(manifest) + b" ")
    with pytest.raises(IntegrityError, match="its MD5 is"):
        azure(place)


@pytest.mark.stores
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_what_azure_lists_is_what_its_report_says(
    form: str, azurite_server: Server, tmp_path: Path
) -> None:
    path = tmp_path / "azure.json"
    write_azure_credentials_file(path, account_key=AZURE_KEY)
    access = AzureAccess(f"{azurite_server.endpoint}/{AZURE_ACCOUNT}", str(path))
    config = StoreConfig(azure=access, read_timeout_s=60)

    def opened(url: str) -> ObjectStore:
        return open_store(url, config)

    base = f"https://{AZURE_ACCOUNT}.blob.core.windows.net"
    names = [f"box-{uuid.uuid4().hex}" for _ in range(2)]
    for name in names:
        azure_client(azurite_server).create_container(name)
    url = f"{base}/{names[0]}/lake/repo"
    store = opened(url)
    for key in ("data/a b/c+d", "data/é", "data/100%"):
        store.put(key, key.encode())
    there = listed(store)
    rows = [blob(one, Name=f"{names[0]}/{PREFIX}{one.key}") for one in there]
    azure_report(opened(f"{base}/{names[1]}"), rows, form)
    found = newest_inventory(StorageNamespace.parse(url), f"{base}/{names[1]}", opened)
    assert read(found, opened) == (3, there)


# Google Cloud Storage

FIELDS = ("project", "bucket", "name", "size", "updated", "timeDeleted", "generation", "etag")
CONFIG = "8a7d4e1c-0000-4000-8000-1234567890ab"


def live(one: ObjectInfo, **others: Any) -> dict[str, Any]:
    return {
        "project": "1234",
        "bucket": "bucket",
        "name": PREFIX + one.key,
        "size": one.size,
        "updated": one.last_modified + timedelta(microseconds=123_000),
        "timeDeleted": None,
        "generation": int(one.etag),
        "etag": "CJ=",
        **others,
    }


def gcs_report(
    place: ObjectStore,
    rows: Rows,
    form: str = "parquet",
    columns: Sequence[str] = FIELDS,
    began: datetime = BEGAN,
    bucket: str | None = "bucket",
    folder: str = "",
    delimiter: str = ",",
    **changes: Any,
) -> str:
    """Write a report of two files as the service writes it; the key of its manifest."""
    stem = f"{CONFIG}_{began:%Y-%m-%dT%H:%M}"
    names = [f"{stem}_{number}.{form}" for number in range(2)]
    for number, name in enumerate(names):
        place.put(folder + name, encoded(rows[number::2], columns, form, delimiter))
    filters = {"storage_filters": {"bucket": bucket}} if bucket else {}
    manifest = {
        "report_config": {
            "name": f"projects/1234/locations/eu/reportConfigs/{CONFIG}",
            "object_metadata_report_options": {"metadata_fields": list(columns), **filters},
            **({"csv_options": {"delimiter": delimiter}} if form == "csv" else {}),
        },
        "records_processed": len(rows),
        "snapshot_time": f"{began:%Y-%m-%dT%H:%M:%SZ}",
        "shard_count": len(names),
        "report_shards_file_names": names,
        **changes,
    }
    key = f"{folder}{stem}_manifest.json"
    place.put(key, json.dumps(manifest).encode())
    return key


def gcs(place: ObjectStore, key: str = "") -> Inventory:
    url = f"{place.url}/{key}" if key else place.url
    return newest_inventory(GCS, url, open_store)


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize("delimiter", [",", "|"])
def test_gcs_names_come_back_as_they_are(
    form: str, delimiter: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    generation = st.integers(1, 2**62).map(str)
    objects = st.builds(info, KEYS, st.integers(0, 2**40), generation, st.integers(0, 99))

    @settings(max_examples=25, deadline=None)
    @given(st.lists(objects, max_size=7, unique_by=lambda one: one.key))
    def check(objects: list[ObjectInfo]) -> None:
        place = open_store(str(tmp_path_factory.mktemp("reports")))
        gone = [live(one, timeDeleted=BEGAN) for one in objects]
        elsewhere = [live(one, name=f"lake/repo2/{one.key}") for one in objects]
        rows = [*map(live, objects), *gone, *elsewhere]
        gcs_report(place, rows, form, delimiter=delimiter, folder="dated/")
        found = gcs(place)
        assert found.report.started == BEGAN
        assert found.report.rows == len(rows)
        assert read(found) == (len(rows), sorted(objects, key=lambda one: one.key))

    check()


def test_times_of_a_database_are_read(place: ObjectStore) -> None:
    row = live(info("data/x", etag="7"), updated="2026-04-29 01:30:15.987654321 UTC")
    gcs_report(place, [row], "csv")
    assert read(gcs(place)) == (1, [info("data/x", etag="7")])
    row = live(info("data/x", etag="7"), updated="2026-04-29 01:30:15")
    gcs_report(place, [row], "csv")
    with pytest.raises(IntegrityError, match="a value is missing, or makes no sense"):
        read(gcs(place))


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize("column", ["bucket", "size", "updated", "generation", "timeDeleted"])
def test_gcs_columns_that_are_needed_and_missing_are_named(
    place: ObjectStore, form: str, column: str
) -> None:
    columns = [name for name in FIELDS if name != column]
    gcs_report(place, [live(info("data/x", etag="7"))], form, columns)
    with pytest.raises(RefusedError, match=f"lacks {column}: "):
        read(gcs(place))


def test_the_newest_gcs_report_about_the_bucket_is_read_or_the_one_that_is_named(
    place: ObjectStore,
) -> None:
    old = gcs_report(place, [live(info("data/old", etag="1"))], began=BEGAN - timedelta(days=1))
    gcs_report(place, [live(info("data/new", etag="2"))], bucket=None)
    other = gcs_report(place, [], began=BEGAN + timedelta(days=1), bucket="other")
    assert read(gcs(place)) == (1, [info("data/new", etag="2")])
    assert read(gcs(place, old)) == (1, [info("data/old", etag="1")])
    with pytest.raises(RefusedError, match=r"'bucket', but about \['other'\]"):
        gcs(place, other)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shard_count": 3}, "names 2 files, and has the count 3"),
        ({"report_shards_file_names": ["a.csv", "b.parquet"]}, "CSV and Parquet can be read"),
        ({"report_shards_file_names": ["a.csv", "a.csv"]}, "names 1 files, and has the count 2"),
        ({"snapshot_time": "today"}, "snapshot_time: "),
        ({"records_processed": None}, "records_processed: "),
        ({"report_config": None}, "report_config: "),
    ],
)
def test_a_gcs_manifest_that_makes_no_sense_is_refused(
    place: ObjectStore, changes: dict[str, Any], message: str
) -> None:
    gcs_report(place, [live(info("data/x", etag="7"))], **changes)
    with pytest.raises(LakegcError, match=message):
        gcs(place)


def test_a_gcs_row_of_another_bucket_is_refused(place: ObjectStore) -> None:
    gcs_report(place, [live(info("data/x", etag="7"), bucket="other")], bucket=None)
    with pytest.raises(IntegrityError, match="about the bucket 'other', not 'bucket'"):
        read(gcs(place))


@pytest.mark.stores
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_what_gcs_lists_is_what_its_report_says(
    form: str, gcs_bucket: tuple[str, StoreConfig]
) -> None:
    name, config = gcs_bucket

    def opened(url: str) -> ObjectStore:
        return open_store(url, config)

    url = f"gs://{name}/lake/repo"
    store = opened(url)
    for key in ("data/a b/c+d", "data/é", "data/100%"):
        store.put(key, key.encode())
    there = listed(store)
    rows = [live(one, bucket=name, updated=one.last_modified) for one in there]
    place = f"gs://{name}/reports"
    gcs_report(opened(place), rows, form, bucket=name)
    found = newest_inventory(StorageNamespace.parse(url), place, opened)
    whole = [replace(one, last_modified=one.last_modified.replace(microsecond=0)) for one in there]
    assert read(found, opened) == (3, whole)
