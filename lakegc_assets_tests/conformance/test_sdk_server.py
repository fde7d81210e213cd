"""lakefs-sdk: repositories, rules and collection, imports, dumps and the server, one test each."""

from __future__ import annotations

import csv
import io
from typing import Any

import pyarrow.parquet as pq
import pytest

from lakegc_assets.graveler.ranges import read_metarange, read_range
from lakegc_assets.graveler.sstable import table_kind
from lakegc_assets.storage.opening import open_store
from lakegc_assets_tests.conformance.world import (
    World,
    close_client,
    operation,
    refused,
    sdk,
    sdk_client,
)


@operation("create_repository", "first commit and branch; 409 by name, 400 by namespace")
def test_create_repository(world: World) -> None:
    create = world.client.repositories_api.create_repository
    name = f"{world.repo}-two"
    made = create(
        sdk.RepositoryCreation(
            name=name, storage_namespace=f"local://{name}", default_branch="trunk"
        )
    )
    assert (made.id, made.default_branch, made.read_only) == (name, "trunk", False)
    (first,) = world.client.refs_api.log_commits(name, "trunk").results
    assert (first.message, first.meta_range_id) == ("Repository created", "")
    for other, namespace, status in (
        (name, "local://new", 409),
        ("other", f"local://{name}", 400),
        ("other", "s3://bucket/x", 400),
        ("other", "local://a/../b", 400),
    ):
        with refused(status):
            create(sdk.RepositoryCreation(name=other, storage_namespace=namespace))


@operation("get_repository", "id, namespace, default branch; 404")
def test_get_repository(world: World) -> None:
    found = world.client.repositories_api.get_repository(world.repo)
    assert (found.storage_namespace, found.default_branch) == (world.namespace, "main")
    with refused(404):
        world.client.repositories_api.get_repository("none")


@operation("list_repositories", "pages and prefix")
def test_list_repositories(world: World) -> None:
    listed = world.client.repositories_api.list_repositories
    assert [found.id for found in listed(prefix=world.repo, amount=1).results] == [world.repo]
    page = listed(amount=1)
    assert page.pagination.next_offset == page.results[0].id
    assert page.results[0].id not in [
        found.id for found in listed(after=page.results[0].id).results
    ]


@operation("delete_repository", "it is gone, its objects stay in the store")
def test_delete_repository(world: World) -> None:
    address = world.relative(world.put("a", b"one").physical_address)
    world.client.repositories_api.delete_repository(world.repo)
    with refused(404):
        world.client.repositories_api.get_repository(world.repo)
    assert world.store.get(address) == b"one"


@operation("get_repository_metadata", "empty", "an import does not set its time there")
def test_get_repository_metadata(world: World) -> None:
    assert world.client.repositories_api.get_repository_metadata(world.repo) == {}


@operation("list_repository_runs", "none; 404", "the server runs no actions")
def test_list_repository_runs(world: World) -> None:
    runs_of = world.client.actions_api.list_repository_runs
    assert runs_of(world.repo, branch="main").results == []
    with refused(404):
        runs_of("none")


@operation("list_users", "the one user, in pages and by prefix")
def test_list_users(world: World) -> None:
    listed = world.client.auth_api.list_users
    (found,) = listed().results
    assert found.id == world.client.auth_api.get_current_user().user.id
    assert [user.id for user in listed(prefix=found.id[:2], amount=1).results] == [found.id]
    assert listed(after=found.id).results == []
    assert listed(prefix="nobody").results == []


def rules(days: int, **branches: int) -> Any:
    return sdk.GarbageCollectionRules(
        default_retention_days=days,
        branches=[
            sdk.GarbageCollectionRule(branch_id=name, retention_days=d)
            for name, d in branches.items()
        ],
    )


@operation("set_gc_rules", "they are read back, replaced, and decide which commits are active")
def test_set_gc_rules(world: World) -> None:
    api = world.client.repositories_api
    for message in ("old", "new"):
        world.put(message)
        world.commit(message, date=1000)
    world.commit("young", allow_empty=True)
    active = []
    for wanted in (rules(7, main=1, dev=3), rules(7, main=36_500)):
        api.set_gc_rules(world.repo, wanted)
        assert api.get_gc_rules(world.repo) == wanted
        active.append(len(commits_file(world)))
    # The first commit is young, too.
    assert active == [3, 4]


@operation("get_gc_rules", "404 when there are none")
def test_get_gc_rules(world: World) -> None:
    with refused(404):
        world.client.repositories_api.get_gc_rules(world.repo)


@operation("delete_gc_rules", "there are none afterwards")
def test_delete_gc_rules(world: World) -> None:
    api = world.client.repositories_api
    api.set_gc_rules(world.repo, rules(7))
    api.delete_gc_rules(world.repo)
    with refused(404):
        api.get_gc_rules(world.repo)


@operation("internal_set_garbage_collection_rules", "read back by the public call")
@operation("internal_get_garbage_collection_rules", "what the public call has set")
@operation("internal_delete_garbage_collection_rules", "there are none afterwards")
@pytest.mark.filterwarnings("ignore:.* is deprecated:DeprecationWarning")
def test_internal_rules(world: World) -> None:
    api = world.client.internal_api
    api.internal_set_garbage_collection_rules(world.repo, rules(7, main=3))
    assert world.client.repositories_api.get_gc_rules(world.repo) == rules(7, main=3)
    assert api.internal_get_garbage_collection_rules(world.repo) == rules(7, main=3)
    api.internal_delete_garbage_collection_rules(world.repo)
    with refused(404):
        api.internal_get_garbage_collection_rules(world.repo)


@operation("set_garbage_collection_rules_preflight", "allowed")
def test_may_set_rules(world: World) -> None:
    world.client.internal_api.set_garbage_collection_rules_preflight(world.repo)
    with refused(404):
        world.client.internal_api.set_garbage_collection_rules_preflight("none")


def commits_file(world: World, prepared: Any = None) -> dict[str, str]:
    """The active commits and their metaranges, as the server wrote them."""
    prepare = world.client.internal_api.prepare_garbage_collection_commits
    found = prepared or prepare(world.repo)
    data = world.store.get(world.relative(found.gc_commits_location)).decode()
    rows = list(csv.DictReader(io.StringIO(data)))
    assert {row["expired"] for row in rows} == {"false"}
    return {row["commit_id"]: row["metarange_id"] for row in rows}


@operation("prepare_garbage_collection_commits", "commits.csv holds the active commits; 404, 403")
def test_prepare_commits(world: World) -> None:
    with refused(404):
        world.client.internal_api.prepare_garbage_collection_commits(world.repo)
    world.client.repositories_api.set_gc_rules(world.repo, rules(1))
    world.put("a")
    old = world.commit("old", date=1000)
    young = world.commit("young", allow_empty=True)
    first = world.client.commits_api.get_commit(world.repo, "main~2")
    assert commits_file(world) == {
        commit.id: commit.meta_range_id for commit in (first, old, young)
    }
    world.put("b")
    dead = world.commit("dead", date=1001)
    expired = world.commit("kept as the state before", date=1000, allow_empty=True)
    world.commit("newest", allow_empty=True)
    active = commits_file(world)
    assert len(active) == 5
    assert expired.id in active
    assert dead.id not in active


@operation("prepare_garbage_collection_commits_async", "a task that ends")
@operation("prepare_garbage_collection_commits_status", "the same list as of the direct call; 404")
def test_prepare_commits_async(world: World) -> None:
    api = world.client.internal_api
    world.client.repositories_api.set_gc_rules(world.repo, rules(1))
    task = api.prepare_garbage_collection_commits_async(world.repo).id
    found = api.prepare_garbage_collection_commits_status(world.repo, task)
    while not found.completed:
        found = api.prepare_garbage_collection_commits_status(world.repo, task)
    assert commits_file(world, found.result) == commits_file(world) != {}
    with refused(404):
        api.prepare_garbage_collection_commits_status(world.repo, "GCPCnone")


@operation(
    "prepare_garbage_collection_uncommitted",
    "every staged address in parquet, one run id, pages by token",
    "pages without rows have no location only where nothing is staged",
)
def test_prepare_uncommitted(world: World) -> None:
    expected = set()
    world.branch("hidden", hidden=True)
    for branch in ("main", "hidden"):
        expected.add(world.relative(world.put("a", branch.encode(), branch).physical_address))
    api = world.client.internal_api
    found, token, runs = set(), None, set()
    while token != "":
        request = sdk.PrepareGCUncommittedRequest(continuation_token=token)
        page = api.prepare_garbage_collection_uncommitted(
            world.repo, prepare_gc_uncommitted_request=request
        )
        runs.add(page.run_id)
        token = page.continuation_token or ""
        for batch in world.store.list(world.relative(page.gc_uncommitted_location)):
            for key in batch["key"].to_pylist():
                table = pq.read_table(io.BytesIO(world.store.get(key)))
                found |= set(table["physical_address"].to_pylist())
    assert (found, len(runs)) == (expected, 1)


@operation("get_meta_range", "the file is there, and names the ranges of the commit")
@operation("get_range", "the file is there, and holds the entries of the commit")
@operation("get_metadata_object", "the same bytes as in the store; 404, 400")
def test_metadata_files(world: World) -> None:
    staged = [world.put(path) for path in "abcdefgh"]
    name = world.commit().meta_range_id
    files = world.client.metadata_api
    content = world.client.internal_api.get_metadata_object
    data = world.store.get(files.get_meta_range(world.repo, name).location)
    assert bytes(content(world.repo, name, "meta_range")) == data
    found = []
    for info in read_metarange(data, name):
        data = world.store.get(files.get_range(world.repo, info.id).location)
        assert bytes(content(world.repo, info.id, "range")) == data
        found += [(path, entry.address) for path, entry in read_range(data, info.id)]
    assert found == [(made.path, world.relative(made.physical_address)) for made in staged]
    with refused(404):
        content(world.repo, "0" * 64, "range")
    with refused(400):
        content(world.repo, name, "commit")


def start_import(world: World, *paths: tuple[str, str, str]) -> str:
    locations = [
        sdk.ImportLocation(type=kind, path=path, destination=to) for kind, path, to in paths
    ]
    creation = sdk.ImportCreation(paths=locations, commit=sdk.CommitCreation(message="import"))
    return str(world.client.import_api.import_start(world.repo, "main", creation).id)


@operation(
    "import_start",
    "a prefix and an object become one commit of full addresses; inside the namespace 400",
    "nothing found is an error: lakeFS would only remove what the destination has",
)
@operation("import_status", "the commit, the metarange and the number of objects; 404")
@operation("import_cancel", "404, and 409 once the import has ended")
def test_import(world: World) -> None:
    outside = open_store("local://outside", world.server.store_config)
    for key in ("p/1", "p/2", "q"):
        outside.put(f"{world.repo}/{key}", key.encode())
    base = f"local://outside/{world.repo}"
    task = start_import(world, ("common_prefix", f"{base}/p/", "in/"), ("object", f"{base}/q", "q"))
    status = world.client.import_api.import_status
    found = status(world.repo, "main", task)
    while not found.completed:
        found = status(world.repo, "main", task)
    assert (found.ingested_objects, found.error) == (3, None)
    assert found.commit == world.client.commits_api.get_commit(world.repo, "main")
    assert found.metarange_id == found.commit.meta_range_id
    assert world.paths() == ["in/1", "in/2", "q"]
    assert world.read("in/2") == b"p/2"
    stats = world.client.objects_api.stat_object(world.repo, "main", "q")
    assert stats.physical_address == f"{base}/q"
    with refused(409):
        world.client.import_api.import_cancel(world.repo, "main", task)
    for call in (status, world.client.import_api.import_cancel):
        with refused(404):
            call(world.repo, "main", "none")
    with refused(400):
        start_import(world, ("common_prefix", f"{world.namespace}/data/", "x/"))
    failed = status(world.repo, "main", start_import(world, ("object", f"{base}/none", "x")))
    assert not failed.completed
    assert world.log() == ["import", "Repository created"]


@operation(
    "dump_refs",
    "metaranges of commits, branches and tags that say what they are",
    "the ids differ: lakeFS's own depend on how its build prints the schema",
)
@operation("dump_submit", "a task that ends")
@operation("dump_status", "the same metaranges; 404")
def test_dump(world: World) -> None:
    world.commit(allow_empty=True)
    dumped = world.client.internal_api.dump_refs(world.repo)
    for name in dumped.to_dict().values():
        assert table_kind(world.store.get(f"_lakefs/{name}"), name) == "refs"
    api = world.client.repositories_api
    task = api.dump_submit(world.repo).id
    found = api.dump_status(world.repo, task)
    while not found.done:
        found = api.dump_status(world.repo, task)
    assert (found.refs, found.error) == (dumped, None)
    with refused(404):
        api.dump_status(world.repo, "DRnone")


@operation("get_config", "block store, namespace, import support and version")
def test_get_config(world: World) -> None:
    found = world.client.config_api.get_config()
    assert found.storage_config.blockstore_type == "local"
    assert found.storage_config.import_support is True
    told = found.version_config
    assert (told.version, told.version_context) == ("1.84.0", "lakeFS")


@operation("get_storage_config", "the same as in get_config")
@operation("get_lake_fs_version", "the same as in get_config")
@pytest.mark.filterwarnings("ignore:.* is deprecated:DeprecationWarning")
def test_parts_of_the_config(world: World) -> None:
    api, config = world.client.internal_api, world.client.config_api.get_config()
    assert api.get_storage_config() == config.storage_config
    assert api.get_lake_fs_version() == config.version_config


@operation("get_garbage_collection_config", "the lifetime of link addresses")
def test_get_garbage_collection_config(world: World) -> None:
    found = world.client.internal_api.get_garbage_collection_config()
    assert found.grace_period == 24 * 3600


@operation("health_check", "without credentials too")
def test_health_check(world: World) -> None:
    client = sdk_client(world.server, username="x", password="y")
    client.health_check_api.health_check()
    close_client(client)


@operation("login", "the token opens the API; wrong keys 401")
@operation("get_current_user", "the one user; wrong keys and forged tokens 401", "no other users")
def test_login(world: World) -> None:
    keys = {
        "access_key_id": world.server.access_key,
        "secret_access_key": world.server.secret_key,
    }
    login = world.client.auth_api.login
    found = login(login_information=sdk.LoginInformation(**keys))
    with refused(401):
        login(login_information=sdk.LoginInformation(**{**keys, "secret_access_key": "x"}))
    header, claims, signature = found.token.split(".")
    for token, status in (
        (found.token, None),
        (f"{header}.{claims}.{signature[::-1]}", 401),
        (f"{header}.{claims[:-2]}.{signature}", 401),
        ("", 401),
    ):
        client = sdk_client(world.server, username="", password="", access_token=token)
        if status is None:
            assert client.auth_api.get_current_user().user.id == "admin"
        else:
            with refused(status):
                client.auth_api.get_current_user()
        close_client(client)


@operation("get_setup_state", "initialized")
@operation("setup", "409: the server has its user from the start")
def test_setup(world: World) -> None:
    assert world.client.internal_api.get_setup_state().state == "initialized"
    with refused(409):
        world.client.internal_api.setup(sdk.Setup(username="another"))


@operation("post_stats_events", "taken, and forgotten")
def test_post_stats_events(world: World) -> None:
    event = sdk.StatsEvent(**{"class": "test", "name": "event", "count": 1})
    world.client.internal_api.post_stats_events(sdk.StatsEventsList(events=[event]))
