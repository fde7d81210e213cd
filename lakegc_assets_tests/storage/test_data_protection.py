"""Stores that hold what is deleted, or do not delete it: by their settings, and their answers."""

from __future__ import annotations

import base64
import hashlib
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

import boto3
import pytest

from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.config import GcsAccess, StoreConfig
from lakegc_assets.storage.errors import (
    AccessDeniedError,
    ObjectLockedError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
    error_class,
    usual_code,
)
from lakegc_assets.storage.opening import open_store
from lakegc_assets.storage.probes import probe_recovery
from lakegc_assets.storage.values import FREED, HELD, PERHAPS_HELD, DataProtection, Recovery
from lakegc_assets_tests.storage.azure_answers import batch, blob, page
from lakegc_assets_tests.storage.conftest import Answer, Script, azure_client, query_of
from lakegc_assets_tests.storage.servers import AZURE_ACCOUNT, Server

_STORES = pytest.mark.stores
_NOW = datetime(2026, 11, 25, 3, tzinfo=timezone.utc)
_NOT_KNOWN = f"{HELD}, until when is not known"
#: Servers whose deletes leave markers, whatever is locked below them.
_WITH_VERSIONS = ["moto", *(pytest.param(name, marks=_STORES) for name in ("minio", "gateway"))]
_ENDPOINTS = {"minio": "minio_server", "gateway": "versioned_gateway"}


@dataclass
class Bucket:
    """A bucket of a real server, or of the stand-in."""

    client: Any
    name: str
    store: ObjectStore

    def lock(self, key: str, days: float = 2) -> None:
        until = datetime.now(timezone.utc) + timedelta(days=days)
        self.client.put_object_retention(
            Bucket=self.name, Key=f"ns/{key}",
            Retention={"Mode": "GOVERNANCE", "RetainUntilDate": until},
        )  # fmt: skip

    def default_lock(self, days: int = 2) -> None:
        rule = {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": days}}
        self.client.put_object_lock_configuration(
            Bucket=self.name,
            ObjectLockConfiguration={"ObjectLockEnabled": "Enabled", "Rule": rule},
        )

    def rules(self, **rule: Any) -> None:
        rule = {"ID": "ends", "Status": "Enabled", "Filter": {"Prefix": ""}, **rule}
        ends = {"NoncurrentVersionExpiration": {"NoncurrentDays": 30}, **rule}
        self.client.put_bucket_lifecycle_configuration(
            Bucket=self.name, LifecycleConfiguration={"Rules": [ends]}
        )


def new_bucket(endpoint: str, *, locks: bool) -> Bucket:
    client = boto3.client("s3", endpoint_url=endpoint)
    name = f"bucket-{uuid.uuid4().hex}"
    client.create_bucket(Bucket=name, ObjectLockEnabledForBucket=locks)
    store = open_store(f"s3://{name}/ns", StoreConfig(endpoint_url=endpoint))
    return Bucket(client, name, store)


@pytest.fixture(params=_WITH_VERSIONS)
def endpoint(request: pytest.FixtureRequest, aws_environment: None) -> str:  # noqa: ARG001 - it is wanted to be there
    if request.param == "moto":
        return str(request.getfixturevalue("s3_server"))
    server: Server = request.getfixturevalue(_ENDPOINTS[request.param])
    return server.endpoint


@pytest.fixture
def locking(versitygw_server: Server) -> Iterator[Bucket]:
    """A bucket without versions, where a locked object cannot be deleted."""
    bucket = new_bucket(versitygw_server.endpoint, locks=True)
    yield bucket
    pages = bucket.client.get_paginator("list_objects_v2").paginate(Bucket=bucket.name)
    for key in [one["Key"] for listed in pages for one in listed.get("Contents", ())]:
        bucket.client.delete_object(Bucket=bucket.name, Key=key, BypassGovernanceRetention=True)


@pytest.mark.parametrize(
    ("code", "status", "told"),
    [
        ("AccessDenied", "403", "Access Denied because object protected by object lock."),
        ("InvalidRequest", "400", "Object is WORM protected and cannot be overwritten"),
        ("retentionPolicyNotMet", "403", "Object 'b/o' is subject to bucket's retention policy"),
        (
            "forbidden",
            "403",
            "Object 'b/o' is under active Event-Based hold and cannot be deleted, overwritten",
        ),
        ("ObjectUnderActiveHold", "403", "held"),
        ("BlobImmutableDueToPolicy", "409", "the blob is immutable due to a policy"),
        ("BlobImmutableDueToLegalHold", "409", "immutable due to one or more legal holds"),
        ("LeaseIdMissing", "412", "There is currently a lease on the blob"),
        ("SnapshotsPresent", "409", "not permitted because the blob has snapshots"),
        # Ceph, Cloudflare R2, Dell ECS and Alibaba's OSS.
        ("AccessDenied", "403", "forbidden by object lock"),
        ("ObjectLockedByBucketPolicy", "409", "The object is locked by the bucket policy."),
        ("ObjectLockedByBucketPolicy", "403", "The object is locked by the bucket policy."),
        ("ObjectUnderRetention", "409", "The object is under retention"),
        ("FileImmutable", "409", "The object you specified is immutable."),
    ],
)
def test_how_stores_say_that_an_object_is_locked(code: str, status: str, told: str) -> None:
    assert error_class(usual_code(code, status, told)) is ObjectLockedError


@pytest.mark.parametrize(
    "told",
    [
        "Access Denied",
        'x is not authorized to perform: s3:DeleteObject on "arn:aws:s3:::b/object lock/WORM"',
        "x does not have storage.objects.delete access to the object b/under active hold",
    ],
)
def test_missing_permissions_are_no_lock(told: str) -> None:
    assert error_class(usual_code("AccessDenied", "403", told)) is AccessDeniedError


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [("notFound", "404", ObjectNotFoundError), ("", "412", PreconditionFailedError)],
)
def test_a_message_that_quotes_a_key_like_one_about_locks(
    code: str, status: str, kind: type[StorageError]
) -> None:
    """It says what it says about every other key."""
    message = "No such object: bucket/data/object is WORM protected"
    assert error_class(usual_code(code, status, message)) is kind


def _errors(*keys: str, code: str = "AccessDenied", told: str = "") -> str:
    told = told or "Access Denied because object protected by object lock."
    return "".join(
        f"<Error><Key>ns/{key}</Key><Code>{code}</Code><Message>{told}</Message></Error>"
        for key in keys
    )


@pytest.mark.parametrize("locked", [("b",), ("a", "b", "c")])
def test_locked_objects_of_a_batch_are_told_from_the_others(
    script: Script, locked: tuple[str, ...]
) -> None:
    gone = "".join(f"<Deleted><Key>ns/{k}</Key></Deleted>" for k in "abc" if k not in locked)
    script.answers = [Answer(body=f"<DeleteResult>{gone}{_errors(*locked)}</DeleteResult>")]
    store = open_store("s3://bucket/ns", script.config())
    told = store.delete_many(["a", "b", "c"])
    assert {o.key for o in told if o.outcome == "locked"} == set(locked)
    assert {o.key for o in told if o.outcome == "deleted"} == set("abc") - set(locked)
    assert {o.error_code for o in told if o.refused} == {"ObjectLocked"}
    assert all("lock" in str(o.detail) for o in told if o.refused)


def test_one_object_that_is_locked(script: Script) -> None:
    told = "Access Denied because object protected by object lock."
    script.answers = [
        Answer(403, f"<Error><Code>AccessDenied</Code><Message>{told}</Message></Error>")
    ]
    store = open_store("s3://bucket/ns", script.config())
    # One key for each request: the first says nothing about the others.
    outcomes = store.delete_many(["a", "b"], singly=True)
    assert [o.outcome for o in outcomes] == ["locked", "locked"]


@pytest.mark.parametrize("write", ["put", "put_if_absent", "put_if_match"])
def test_small_objects_are_written_with_their_digest(script: Script, write: str) -> None:
    """S3 refuses them else where a bucket has a default lock."""
    script.answers = [Answer(headers={"ETag": '"etag"'})]
    store = open_store("s3://bucket/ns", script.config())
    more = ["etag"] if write == "put_if_match" else []
    getattr(store, write)("a", b"content", *more)
    digest = hashlib.md5(b"content", usedforsecurity=False).digest()
    assert script.headers[-1]["content-md5"] == base64.b64encode(digest).decode()


@pytest.mark.parametrize(
    ("found", "version", "space"),
    [
        (DataProtection(False, None, 0, False, ""), None, FREED),
        # Its settings have changed meanwhile: the answer to the delete counts.
        (DataProtection(False, None, 0, False, ""), "v1", _NOT_KNOWN),
        (DataProtection(False, 7, 0, True, ""), "_trash/a", f"{HELD} until 2026-12-03 at least"),
        (DataProtection(None, None, 0, False, ""), None, PERHAPS_HELD),
        (DataProtection(None, None, 0, False, ""), "null", PERHAPS_HELD),
        (DataProtection(None, None, 0, False, ""), "v1", _NOT_KNOWN),
        (DataProtection(True, None, 0, False, ""), None, _NOT_KNOWN),
        (DataProtection(True, None, 999, True, ""), "v1", _NOT_KNOWN),
        (DataProtection(True, 30, 0, False, ""), "v1", f"{HELD} until 2026-12-26"),
        (DataProtection(True, 30, 0, True, ""), None, f"{HELD} until 2026-12-26 at least"),
        # It was written 10 days ago, and is locked for 50.
        (DataProtection(True, 30, 50, True, ""), "v1", f"{HELD} until 2027-01-05 at least"),
        (DataProtection(True, 30, 20, True, ""), "v1", f"{HELD} until 2026-12-26 at least"),
        (DataProtection(True, 1e9, 0, False, ""), "v1", f"{HELD} until 2126-11-02"),
    ],
)
def test_the_space_of_a_deleted_object(
    found: DataProtection, version: str | None, space: str
) -> None:
    assert found.space_of(version, _NOW - timedelta(days=10), _NOW) == space


@pytest.mark.parametrize(
    ("kind", "held"),
    [("versions", True), ("soft_delete", True), ("trash", False), ("nothing", False)],
)
def test_what_recovery_says_of_space(kind: Any, *, held: bool) -> None:
    assert DataProtection.of(Recovery(kind, None, "x")).held is held
    assert DataProtection.of(Recovery("unknown", None, "x")).held is None


def test_a_bucket_without_versions_frees_what_is_deleted(endpoint: str) -> None:
    bucket = new_bucket(endpoint, locks=False)
    found = bucket.store.data_protection()
    assert (found.held, found.locked_days) == (False, 0)
    assert "lock" not in found.notice.lower()


def test_versions_are_held_until_a_rule_ends_them(endpoint: str) -> None:
    bucket = new_bucket(endpoint, locks=False)
    bucket.client.put_bucket_versioning(
        Bucket=bucket.name, VersioningConfiguration={"Status": "Enabled"}
    )
    assert bucket.store.data_protection()[:4] == (True, None, 0, True)
    try:
        bucket.rules()
    except bucket.client.exceptions.ClientError:
        # versitygw has no lifecycle rules.
        return
    assert bucket.store.data_protection()[:4] == (True, 30, 0, False)
    bucket.rules(Filter={"Prefix": "ns/data/"})
    assert bucket.store.data_protection()[:4] == (True, 30, 0, False)
    bucket.rules(Filter={"Prefix": "ns/data/part"})
    assert bucket.store.data_protection()[:4] == (True, 30, 0, True)
    bucket.client.put_bucket_versioning(
        Bucket=bucket.name, VersioningConfiguration={"Status": "Suspended"}
    )
    assert bucket.store.data_protection().held is None


def test_object_lock_with_a_default(endpoint: str) -> None:
    """Our own small objects are written, replaced and deleted there; the space is held."""
    bucket = new_bucket(endpoint, locks=True)
    found = bucket.store.data_protection()
    assert (found.held, found.locked_days) == (True, 0)
    assert "single objects may have locks and legal holds" in found.notice
    bucket.default_lock()
    found = bucket.store.data_protection()
    assert found[:4] == (True, None, 2, True)
    assert "each object is locked for 2 days from when it was written (GOVERNANCE)" in found.notice
    store = bucket.store
    etag = store.put_if_absent("lease", b"1")
    store.put_if_match("lease", b"2", etag)
    store.put("lease", b"3")
    store.put("data/a", b"content")
    assert probe_recovery(store, "probes/", None).kind == "versions"
    (outcome,) = store.delete_many(["data/a"])
    assert (outcome.outcome, outcome.version is None) == ("deleted", False)
    assert not store.exists("data/a")
    versions = bucket.client.list_object_versions(Bucket=bucket.name, Prefix="ns/data/a")
    assert [one["Size"] for one in versions["Versions"]] == [7]


def test_a_null_version_below_a_marker_is_held(endpoint: str) -> None:
    """It was written before versions were enabled; the delete frees nothing of it."""
    bucket = new_bucket(endpoint, locks=False)
    bucket.store.put("data/a", b"content")
    bucket.client.put_bucket_versioning(
        Bucket=bucket.name, VersioningConfiguration={"Status": "Enabled"}
    )
    found = bucket.store.data_protection()
    (outcome,) = bucket.store.delete_many(["data/a"])
    assert found.space_of(outcome.version, _NOW, _NOW).startswith(HELD)
    versions = bucket.client.list_object_versions(Bucket=bucket.name, Prefix="ns/data/a")
    assert [one["VersionId"] for one in versions["Versions"]] == ["null"]


@_STORES
def test_what_a_server_without_versions_keeps_from_being_deleted(locking: Bucket) -> None:
    store = locking.store
    etags = {f"data/{n}": store.put(f"data/{n}", b"x") for n in range(5)}
    locking.lock("data/1")
    locking.client.put_object_legal_hold(
        Bucket=locking.name, Key="ns/data/3", LegalHold={"Status": "ON"}
    )
    assert store.data_protection().held is False
    outcomes = store.delete_many(etags)
    assert [o.outcome for o in outcomes] == ["deleted", "locked", "deleted", "locked", "deleted"]
    single = store.delete_many(["data/1", "data/3"], etags, singly=True)
    assert [o.outcome for o in single] == ["locked", "locked"]
    with pytest.raises(ObjectLockedError, match="neither replaced nor removed"):
        store.put("data/1", b"y")
    locking.client.put_object_legal_hold(
        Bucket=locking.name, Key="ns/data/3", LegalHold={"Status": "OFF"}
    )


@_STORES
def test_a_blob_under_a_lease_is_locked(
    azure_container: tuple[str, StoreConfig], azurite_server: Server
) -> None:
    """Azurite knows neither policies nor legal holds: a lease is a lock that it has."""
    url, config = azure_container
    store = open_store(f"{url}/ns", config)
    etags = {f"data/{n}": store.put(f"data/{n}", b"x") for n in range(3)}
    box = azure_client(azurite_server).get_container_client(url.rsplit("/", 1)[-1])
    lease = box.get_blob_client("ns/data/1").acquire_lease()
    assert [o.outcome for o in store.delete_many(etags)] == ["deleted", "locked", "deleted"]
    (single,) = store.delete_many(["data/1"], etags)
    assert (single.outcome, single.error_code) == ("locked", "LeaseIdMissing")
    found = store.data_protection()
    assert "legal hold" not in found.notice
    lease.release()
    assert [o.outcome for o in store.delete_many(["data/1"])] == ["deleted"]


@_STORES
def test_a_blob_that_has_snapshots_is_locked(
    azure_container: tuple[str, StoreConfig], azurite_server: Server
) -> None:
    """They are what a backup of somebody else's consists of."""
    url, config = azure_container
    store = open_store(f"{url}/ns", config)
    etags = {f"data/{n}": store.put(f"data/{n}", b"x") for n in range(3)}
    box = azure_client(azurite_server).get_container_client(url.rsplit("/", 1)[-1])
    box.get_blob_client("ns/data/1").create_snapshot()
    assert [o.outcome for o in store.delete_many(etags)] == ["deleted", "locked", "deleted"]
    (single,) = store.delete_many(["data/1"], etags)
    assert (single.outcome, single.error_code) == ("locked", "SnapshotsPresent")
    box.get_blob_client("ns/data/1").delete_blob(delete_snapshots="only")
    assert [o.outcome for o in store.delete_many(["data/1"])] == ["deleted"]


def test_blobs_of_a_batch_that_are_immutable(azure: Callable[..., ObjectStore]) -> None:
    held = ["BlobImmutableDueToPolicy", "BlobImmutableDueToLegalHold"]
    answer = batch((0, 202, ""), *((n, 409, code) for n, code in enumerate(held, 1)))
    outcomes = azure(answer).delete_many(["a", "b", "c"])
    assert [o.outcome for o in outcomes] == ["deleted", "locked", "locked"]


def test_locks_of_a_container(azure: Callable[..., ObjectStore]) -> None:
    headers = {"x-ms-has-legal-hold": "true", "x-ms-has-immutability-policy": "false"}
    properties = Answer(
        body="<StorageServiceProperties><DeleteRetentionPolicy><Enabled>true</Enabled><Days>7"
        "</Days></DeleteRetentionPolicy></StorageServiceProperties>"
    )
    listed = Answer(body="<EnumerationResults><Blobs/></EnumerationResults>")
    found = azure(Answer(headers=headers), properties, listed).data_protection()
    assert found[:4] == (True, 7.0, 0, True)
    assert "soft delete is on" in found.notice
    assert found.notice.endswith("the container has a legal hold: its blobs cannot be deleted")
    denied = Answer(403, headers={"x-ms-error-code": "AuthorizationFailure"})
    found = azure(denied).data_protection()
    assert found.held is None
    assert "not known whether" in found.notice


@pytest.mark.parametrize(
    ("written", "listed", "kind", "held"),
    [
        # What was written before versioning was turned on has no version yet.
        ({"x-ms-version-id": "2026"}, "", "versions", True),
        # What was written before it was turned off may stay as one.
        ({}, "<VersionId>2025</VersionId>", "nothing", None),
        ({}, "", "nothing", False),
        (None, "<VersionId>2025</VersionId>", "versions", True),
        (None, "", "nothing", None),
    ],
)
def test_versions_of_azure_are_told_by_what_is_written_now(
    azure: Callable[..., ObjectStore],
    script: Script,
    written: dict[str, str] | None,
    listed: str,
    kind: str,
    *,
    held: bool | None,
) -> None:
    """No request asks an account whether versioning is on."""
    off = "<DeleteRetentionPolicy><Enabled>false</Enabled></DeleteRetentionPolicy>"
    properties = Answer(body=f"<StorageServiceProperties>{off}</StorageServiceProperties>")
    first = page(blob("ns/data/a").replace("<Properties>", f"{listed}<Properties>"))
    put = [] if written is None else [Answer(201, headers={"ETag": '"0x1"', **written})]
    store = azure(*put, Answer(), properties, first, properties, first)
    if put:
        store.put("lease", b"1")
    found = store.data_protection()
    assert found.held is held
    assert found.at_least is (held is not False)
    assert store.recovery().kind == kind
    assert ("was on" in found.notice) is (held is None and bool(listed))
    # Of the data, where lakeFS's newest comes first: what is listed before it was written long ago.
    assert query_of(script.requests[-1])["prefix"] == "ns/data/"


def _gcs(script: Script, *answers: Answer) -> ObjectStore:
    script.answers = list(answers)
    access = GcsAccess(endpoint=script.endpoint)
    return open_store("gs://bucket/ns", StoreConfig(max_attempts=1, gcs=access))


def test_objects_of_a_batch_that_google_retains(script: Script) -> None:
    def refusal(reason: str, told: str) -> str:
        body = f'{{"error": {{"errors": [{{"reason": "{reason}"}}], "message": "{told}"}}}}'
        return f"HTTP/1.1 403 Forbidden\r\nContent-Type: application/json\r\n\r\n{body}"

    hold = "is under active Temporary hold and cannot be deleted, overwritten or archived"
    parts = [
        "HTTP/1.1 204 No Content\r\n\r\n",
        refusal("retentionPolicyNotMet", "Object is subject to bucket's retention policy"),
        refusal("forbidden", f"Object 'b/c' {hold}"),
        refusal("forbidden", "x does not have storage.objects.delete access"),
    ]
    body = "".join(
        f"--b\r\nContent-Type: application/http\r\nContent-ID: <response-{n}>\r\n\r\n{part}\r\n"
        for n, part in enumerate(parts)
    )
    headers = {"Content-Type": "multipart/mixed; boundary=b"}
    store = _gcs(script, Answer(body=f"{body}--b--", headers=headers))
    outcomes = store.delete_many(["a", "b", "c", "d"])
    assert [o.outcome for o in outcomes] == ["deleted", "locked", "locked", "failed"]


@pytest.mark.parametrize(
    ("settings", "found", "notice"),
    [
        ("{}", (False, None), "keeps nothing"),
        ('{"softDeletePolicy": {"retentionDurationSeconds": "604800"}}', (True, 7.0), "soft del"),
        ('{"versioning": {"enabled": true}}', (True, None), "versioning is on"),
        ('{"retentionPolicy": {"retentionPeriod": "86400"}}', (False, None), "younger objects"),
        ('{"defaultEventBasedHold": true}', (False, None), "event-based hold"),
        ('{"objectRetention": {"mode": "Enabled"}}', (False, None), "may have a retention"),
    ],
)
def test_what_a_bucket_of_google_holds(
    script: Script, settings: str, found: tuple[bool, float | None], notice: str
) -> None:
    told = _gcs(script, Answer(body=settings)).data_protection()
    assert (told.held, told.days) == found
    assert notice in told.notice


@pytest.mark.parametrize(
    ("condition", "days"),
    [
        ('{"age": 7}', [7, 7]),
        ('{"age": 7, "isLive": true, "matchesPrefix": ["ns/_lakefs/"]}', [7, None]),
        ('{"age": 7, "isLive": false}', [None, None]),
        ('{"daysSinceNoncurrentTime": 7}', [None, None]),
        ('{"age": 7, "matchesStorageClass": ["NEARLINE"]}', [None, None]),
    ],
)
def test_what_rules_of_google_remove(
    script: Script, condition: str, days: list[float | None]
) -> None:
    rule = f'{{"action": {{"type": "Delete"}}, "condition": {condition}}}'
    moved = rule.replace("Delete", "SetStorageClass")
    rules, no_rules = (f'{{"lifecycle": {{"rule": [{some}]}}}}' for some in (rule, f"{moved}, 1"))
    moves = f'{{"lifecycle": {{"rule": [{moved}]}}}}'
    store = _gcs(script, *(Answer(body=body) for body in (rules, moves, no_rules)), Answer(403))
    assert store.expires_after(["_lakefs/retention/gc/lakegc/", "data/"]) == days
    for _ in ("moves", "damaged", "denied"):
        assert store.expires_after(["data/"]) == [None]


@_STORES
def test_soft_delete_of_azurite_is_said_to_hold(
    azure_container: tuple[str, StoreConfig], azurite_server: Server
) -> None:
    from azure.storage.blob import RetentionPolicy  # noqa: PLC0415 - here alone

    url, config = azure_container
    store = open_store(f"{url}/ns", config)
    client = azure_client(azurite_server)
    store.put("a", b"")
    assert store.data_protection().held is False
    client.set_service_properties(delete_retention_policy=RetentionPolicy(enabled=True, days=9))
    try:
        found = store.data_protection()
        assert found[:3] == (True, 9.0, 0)
        assert AZURE_ACCOUNT in found.notice
    finally:
        client.set_service_properties(delete_retention_policy=RetentionPolicy(enabled=False))


@_STORES
def test_a_bucket_of_fake_gcs_with_versions(fake_gcs_server: Server) -> None:
    import requests  # noqa: PLC0415 - here alone

    name = f"bucket-{uuid.uuid4().hex}"
    body = {"name": name, "versioning": {"enabled": True}}
    requests.post(
        f"{fake_gcs_server.endpoint}/storage/v1/b", json=body, timeout=60
    ).raise_for_status()
    store = open_store(
        f"gs://{name}/ns", StoreConfig(gcs=GcsAccess(endpoint=fake_gcs_server.endpoint))
    )
    store.put("data/a", b"content")
    found = store.data_protection()
    (outcome,) = store.delete_many(["data/a"])
    assert outcome.outcome == "deleted"
    assert found.space_of(outcome.version, _NOW, _NOW) == _NOT_KNOWN
