"""lakeFS's own Python clients, and this project's, work against the embedded server."""

from __future__ import annotations

import io
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import boto3
import pyarrow.parquet as pq
import pytest

from lakegc_assets.embedded import EmbeddedLakeFS
from lakegc_assets.lakefs.config import LakeFSConfig
from lakegc_assets.lakefs.errors import GoneError, NoRulesError
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.opening import open_store
from lakegc_assets_tests.embedded.api import Api
from lakegc_assets_tests.embedded.conftest import Clock
from lakegc_assets_tests.lazily import Lazy

lakefs, lakefs_sdk = Lazy("lakefs"), Lazy("lakefs_sdk")


@pytest.fixture
def sdk(server: EmbeddedLakeFS) -> Iterator[Any]:
    configuration = lakefs_sdk.Configuration(
        host=f"{server.endpoint}/api/v1", username=server.access_key, password=server.secret_key
    )
    client = Lazy("lakefs_sdk.client").LakeFSClient(configuration)
    yield client
    client.objects_api.api_client.rest_client.pool_manager.clear()


def test_the_sdk_drives_the_main_operations(sdk: Any) -> None:
    created = sdk.repositories_api.create_repository(
        lakefs_sdk.RepositoryCreation(name="demo", storage_namespace="local://demo")
    )
    assert created.default_branch == "main"
    assert sdk.config_api.get_config().storage_config.blockstore_type == "local"
    stats = sdk.objects_api.upload_object("demo", "main", "a/1", content=b"one")
    assert stats.size_bytes == 3
    commit = sdk.commits_api.commit(
        "demo", "main", lakefs_sdk.CommitCreation(message="first", metadata={"k": "v"}, date=1000)
    )
    assert (commit.creation_date, commit.metadata) == (1000, {"k": "v"})
    head = sdk.branches_api.create_branch(
        "demo", lakefs_sdk.BranchCreation(name="dev", source="main")
    )
    assert head == commit.id
    sdk.objects_api.upload_object("demo", "dev", "a/2", content=b"two")
    sdk.objects_api.delete_object("demo", "dev", "a/1")
    diff = sdk.branches_api.diff_branch("demo", "dev")
    assert [(d.path, d.type) for d in diff.results] == [("a/1", "removed"), ("a/2", "added")]
    sdk.commits_api.commit("demo", "dev", lakefs_sdk.CommitCreation(message="second"))
    merged = sdk.refs_api.merge_into_branch("demo", "dev", "main", merge=lakefs_sdk.Merge())
    log = sdk.refs_api.log_commits("demo", "main")
    assert log.results[0].id == merged.reference
    assert sdk.objects_api.get_object("demo", "main", "a/2") == b"two"
    listed = sdk.objects_api.list_objects("demo", "main", delimiter="/").results
    assert [(item.path, item.path_type) for item in listed] == [("a/", "common_prefix")]
    with pytest.raises(lakefs_sdk.exceptions.NotFoundException):
        sdk.objects_api.stat_object("demo", "main", "a/1")
    sdk.branches_api.revert_branch(
        "demo", "main", lakefs_sdk.RevertCreation(ref="main", parent_number=1)
    )
    assert sdk.objects_api.get_object("demo", "main", "a/1") == b"one"
    sdk.tags_api.create_tag("demo", lakefs_sdk.TagCreation(id="v1", ref="main"))
    sdk.branches_api.delete_branch("demo", "dev")
    assert [branch.id for branch in sdk.branches_api.list_branches("demo").results] == ["main"]


def test_the_sdk_drives_garbage_collection(sdk: Any, server: EmbeddedLakeFS) -> None:
    creation = lakefs_sdk.RepositoryCreation(name="demo", storage_namespace="local://demo")
    sdk.repositories_api.create_repository(creation)
    rules = lakefs_sdk.GarbageCollectionRules(
        default_retention_days=7,
        branches=[lakefs_sdk.GarbageCollectionRule(branch_id="main", retention_days=1)],
    )
    sdk.repositories_api.set_gc_rules("demo", rules)
    assert sdk.repositories_api.get_gc_rules("demo") == rules
    prepared = sdk.internal_api.prepare_garbage_collection_commits("demo")
    assert prepared.gc_commits_location.endswith(f"run_id={prepared.run_id}/commits.csv")
    stats = sdk.objects_api.upload_object("demo", "main", "a", content=b"one")
    page = sdk.internal_api.prepare_garbage_collection_uncommitted("demo")
    store = open_store("local://demo", server.store_config)
    folder = page.gc_uncommitted_location.removeprefix("local://demo/")
    (batch,) = store.list(folder)
    table = pq.read_table(io.BytesIO(store.get(batch["key"][0].as_py())))
    address = stats.physical_address.removeprefix("local://demo/")
    assert table.to_pylist() == [{"physical_address": address, "creation_date": stats.mtime}]


def test_the_high_level_client_works(server: EmbeddedLakeFS) -> None:
    client = lakefs.client.Client(
        host=server.endpoint, username=server.access_key, password=server.secret_key
    )
    repo = lakefs.Repository("demo", client=client).create("local://demo")
    branch = repo.branch("main")
    branch.object("data/a.txt").upload(data=b"hello", mode="xb")
    with pytest.raises(lakefs.exceptions.ObjectExistsException):
        branch.object("data/a.txt").upload(data=b"again", mode="xb")
    commit = branch.commit("first", metadata={"k": "v"})
    assert commit.get_commit().message == "first"
    with branch.object("data/a.txt").reader(mode="rb") as reader:
        assert reader.read(2) == b"he"
        assert reader.read() == b"llo"
    dev = repo.branch("dev").create("main")
    dev.object("data/a.txt").delete()
    dev.commit("without")
    dev.merge_into(branch)
    assert [item.path for item in branch.objects()] == []
    assert [change.type for change in repo.ref("main~1").diff("main")] == ["removed"]
    client.sdk_client.objects_api.api_client.rest_client.pool_manager.clear()


def test_this_projects_client_works(
    server: EmbeddedLakeFS, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    monkeypatch.setenv("LAKECTL_CREDENTIALS_ACCESS_KEY_ID", server.access_key)
    monkeypatch.setenv("LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY", server.secret_key)
    client = LakeFSConfig(server.endpoint).connect_writer()
    client.check_supported()
    assert client.grace_period() == timedelta(hours=24)
    now = datetime.fromtimestamp(clock.now, tz=timezone.utc)
    assert client.server_time() == now
    client.create_repository("demo", "local://demo")
    assert client.gc_rules("demo") is None
    with pytest.raises(NoRulesError):
        client.prepare_commits("demo")
    client.upload_object("demo", "main", "ü", b"one", metadata={"k": "v"})
    first = client.commit_branch("demo", "main", "first", date=1000)
    client.create_branch("demo", "hidden", "main", hidden=True)
    assert [branch.id for branch in client.branches("demo")] == ["hidden", "main"]
    assert next(client.log("demo", "main")).id == first.id
    staged = client.upload_object("demo", "hidden", "a", b"two")
    assert [(d.path, d.type) for d in client.diff_branch("demo", "hidden")] == [("a", "added")]
    client.set_gc_rules("demo", 3, {"main": 2})
    assert client.prepare_commits("demo").run_id
    pages = list(client.prepare_uncommitted("demo"))
    assert all(page.gc_uncommitted_location for page in pages)
    (server.objects_dir / staged.physical_address.removeprefix("local://")).unlink()
    with pytest.raises(GoneError):
        client.get_object("demo", "hidden", "a")
    assert client.stat("demo", "hidden", "a").physical_address == staged.physical_address
    assert client.get_object("demo", "main", "ü") == b"one"


def test_objects_and_ranges_live_on_s3(s3_server: str, s3_bucket: str, tmp_path: Path) -> None:
    config = StoreConfig(endpoint_url=s3_server)
    store = f"s3://{s3_bucket}/lake"
    with EmbeddedLakeFS(tmp_path, store, store_config=config) as server, Api.of(server) as api:
        assert api.call("GET", "/config/storage")["blockstore_type"] == "s3"
        repo = api.repository(namespace=f"{store}/repo/")
        address = repo.put("a", b"content")["physical_address"]
        assert address.startswith(f"{store}/repo/data/")
        made = repo.commit()
        assert repo.read("a") == b"content"
        dated = {"headers": {"X-Lakegc-Mtime": "5"}, "params": {"path": "b"}, "data": b""}
        message = repo.call("POST", "/branches/main/objects", 400, **dated)["message"]
        assert "local files" in message
        client = boto3.client("s3", endpoint_url=s3_server)
        listed = client.list_objects_v2(Bucket=s3_bucket)["Contents"]
        keys = {item["Key"].removeprefix("lake/repo/") for item in listed}
        assert {"_lakefs/dummy", f"_lakefs/{made['meta_range_id']}"} <= keys
        assert {key.split("/")[0] for key in keys} == {"_lakefs", "data"}
        client.delete_object(Bucket=s3_bucket, Key=address.removeprefix(f"s3://{s3_bucket}/"))
        assert repo.read("a") == 410
