"""A namespace in a bucket: it goes where versions keep it, or copies, and nowhere else."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import timedelta

import boto3
import pytest

from lakegc_assets.errors import RefusedError
from lakegc_assets.leftovers import namespaces
from lakegc_assets.leftovers.namespace_removal import plan_namespace, remove_namespace
from lakegc_assets.leftovers.removal import COPIES, Choices, unfinished
from lakegc_assets.leftovers.server import Server as LakeFS
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets_tests.storage.servers import Server

_STORES = pytest.mark.stores


@pytest.fixture(
    params=["moto", *(pytest.param(name, marks=_STORES) for name in ("minio", "versitygw"))]
)
def endpoint(request: pytest.FixtureRequest, aws_environment: None) -> str:  # noqa: ARG001 - it is wanted to be there
    if request.param == "moto":
        return str(request.getfixturevalue("s3_server"))
    name = "versioned_gateway" if request.param == "versitygw" else "minio_server"
    server: Server = request.getfixturevalue(name)
    return server.endpoint


def test_a_namespace_in_a_bucket(
    endpoint: str, server: LakeFS, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(namespaces, "MIN_AGE", timedelta(days=-1))
    bucket = f"bucket-{uuid.uuid4().hex}"
    client = boto3.client("s3", endpoint_url=endpoint)
    client.create_bucket(Bucket=bucket)
    stores = replace(server.root.stores, endpoint_url=endpoint, read_timeout_s=60)
    root = f"s3://{bucket}/lake"
    there = replace(server, root=replace(server.root, stores=stores), namespace_roots=(root,))
    assert isinstance(stores, StoreConfig)
    store = there.open(f"{root}/team/old")
    keys = ["_lakefs/" + "a" * 64, f"data/{'g0' * 10}/{'c0' * 10}", "dummy"]
    for key in keys:
        store.put(key, b"12345")
    (found,), problems = namespaces.leftover_namespaces(there)
    assert (found.url, found.objects, found.size, found.stays) == (store.url, 3, 15, "")
    assert problems == []

    def choices(backup: str | None = None) -> Choices:
        plan = plan_namespace(there, store.url, unclaimed=True)
        return Choices("somebody", plan.id, backup)

    with pytest.raises(RefusedError, match="with --backup URL"):
        remove_namespace(there, store.url, choices(), unclaimed=True)
    backup = f"s3://{bucket}/copies"
    removed = remove_namespace(there, store.url, choices(backup), unclaimed=True)
    assert removed == {"deleted": 3}
    (copies,) = there.open(backup).list_prefixes().prefixes
    names = [k for page in there.open(f"{backup}/{copies}").list() for k in page["key"].to_pylist()]
    assert names == sorted([*keys, COPIES])
    assert namespaces.leftover_namespaces(there) == ([], [])

    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    for key in keys:
        store.put(key, b"123")
    assert remove_namespace(there, store.url, choices(), unclaimed=True) == {"deleted": 3}
    assert store.retained("data/").objects == 1
    assert not unfinished(there.root)
