"""lakefs-sdk: objects, and addresses for clients that write to the store, one test each."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from lakegc_assets_tests.conformance.world import World, operation, refused, sdk


@operation("upload_object", "stats, address below data/, if-none-match 412")
def test_upload_object(world: World) -> None:
    made = world.put("ü/a b", b"one")
    assert (made.path, made.size_bytes) == ("ü/a b", 3)
    assert made.checksum == hashlib.md5(b"one").hexdigest()
    assert world.relative(made.physical_address).startswith("data/")
    assert world.store.get(world.relative(made.physical_address)) == b"one"
    with refused(412):
        world.client.objects_api.upload_object(
            world.repo, "main", "ü/a b", content=b"two", if_none_match="*"
        )
    assert world.read("ü/a b") == b"one"


@operation("get_object", "content, a range of it, 404; 410 once the object was swept")
def test_get_object(world: World) -> None:
    made = world.put("a", b"0123456789")
    get = world.client.objects_api.get_object
    assert get(world.repo, "main", "a") == b"0123456789"
    assert get(world.repo, "main", "a", range="bytes=2-4") == b"234"
    with refused(404):
        get(world.repo, "main", "b")
    world.store.delete_many([world.relative(made.physical_address)])
    with refused(410):
        get(world.repo, "main", "a")
    assert world.client.objects_api.stat_object(world.repo, "main", "a") == made


@operation("head_object", "headers of a get; 404")
def test_head_object(world: World) -> None:
    world.put("a", b"one")
    head = world.client.objects_api.head_object_with_http_info
    headers = head(world.repo, "main", "a").headers
    assert headers["Content-Length"] == "3"
    assert headers["ETag"].strip('"') == hashlib.md5(b"one").hexdigest()
    with refused(404):
        head(world.repo, "main", "b")


@operation("stat_object", "staged, committed and deleted states")
def test_stat_object(world: World) -> None:
    first = world.put("a", b"one")
    world.commit()
    second = world.put("a", b"two")
    stat = world.client.objects_api.stat_object
    assert stat(world.repo, "main", "a") == second
    assert stat(world.repo, "main@", "a") == first
    world.remove("a")
    with refused(404):
        stat(world.repo, "main", "a")


@operation("list_objects", "pages, prefix, delimiter; staged over committed")
def test_list_objects(world: World) -> None:
    for path in ("a/1", "a/2", "b", "c"):
        world.put(path)
    world.commit()
    world.put("a/3")
    world.remove("b")
    assert world.paths() == ["a/1", "a/2", "a/3", "c"]
    listed = world.client.objects_api.list_objects
    found = listed(world.repo, "main", delimiter="/").results
    assert [(item.path, item.path_type) for item in found] == [
        ("a/", "common_prefix"),
        ("c", "object"),
    ]
    page = listed(world.repo, "main", prefix="a/", amount=2)
    following = listed(world.repo, "main", prefix="a/", after=page.pagination.next_offset)
    assert [item.path for item in following.results] == ["a/3"]


@operation(
    "delete_object", "gone on the branch, still in its commit; no error for what is not there"
)
def test_delete_object(world: World) -> None:
    world.put("a")
    world.commit()
    for _ in range(2):
        world.remove("a")
    assert (world.paths(), world.paths("main@")) == ([], ["a"])


@operation("delete_objects", "several at once")
def test_delete_objects(world: World) -> None:
    for path in "abc":
        world.put(path)
    answer = world.client.objects_api.delete_objects(
        world.repo, "main", sdk.PathList(paths=["a", "c", "none"])
    )
    assert (answer.errors, world.paths()) == ([], ["b"])


@operation(
    "copy_object",
    "content and stats of the copy; the source may go",
    "a staged object copied within its branch is a shallow copy that the server tracks",
)
def test_copy_object(world: World) -> None:
    first = world.put("a", b"one")
    copy = world.client.objects_api.copy_object
    shallow = copy(world.repo, "main", "b", sdk.ObjectCopyCreation(src_path="a"))
    assert shallow.physical_address == first.physical_address
    world.commit()
    full = copy(world.repo, "main", "c", sdk.ObjectCopyCreation(src_path="a", src_ref="main@"))
    assert full.physical_address != first.physical_address
    world.remove("a")
    assert [world.read(path) for path in "bc"] == [b"one", b"one"]


@pytest.mark.filterwarnings("ignore:PUT .* is deprecated:DeprecationWarning")
@operation(
    "stage_object",
    "an address outside is staged as it is; inside 400",
    "lakeFS takes addresses inside the namespace, which its collector may then delete",
)
def test_stage_object(world: World) -> None:
    outside = sdk.ObjectStageCreation(
        physical_address="local://elsewhere/x", checksum="c0ffee", size_bytes=8
    )
    stage = world.client.internal_api.stage_object
    made = stage(world.repo, "main", "a", outside)
    assert (made.physical_address, made.checksum) == ("local://elsewhere/x", "c0ffee")
    inside = sdk.ObjectStageCreation(
        physical_address=f"{world.namespace}/data/x", checksum="c0ffee", size_bytes=8
    )
    with refused(400):
        stage(world.repo, "main", "b", inside)
    assert world.paths() == ["a"]


@pytest.mark.filterwarnings("ignore:PUT .* is deprecated:DeprecationWarning")
def test_force_changes_objects_of_a_read_only_repository(world: World) -> None:
    name = f"{world.repo}-frozen"
    world.client.repositories_api.create_repository(
        sdk.RepositoryCreation(name=name, storage_namespace=f"local://{name}", read_only=True)
    )
    frozen = replace(world, repo=name)
    with refused(403):
        frozen.put("a")
    api = world.client.objects_api
    for path in "abc":
        api.upload_object(name, "main", path, content=b"one", force=True)
    copied = sdk.ObjectCopyCreation(src_path="a", force=True)
    assert api.copy_object(name, "main", "d", copied).path == "d"
    api.delete_object(name, "main", "a", force=True)
    assert api.delete_objects(name, "main", sdk.PathList(paths=["b"]), force=True).errors == []
    outside = sdk.ObjectStageCreation(
        physical_address="local://elsewhere/x", checksum="c0ffee", size_bytes=8, force=True
    )
    world.client.internal_api.stage_object(name, "main", "e", outside)
    assert frozen.paths() == ["c", "d", "e"]
    assert frozen.commit(force=True).id == frozen.head()


@operation("get_physical_address", "an address below data/ with a token; nothing is staged")
def test_get_physical_address(world: World) -> None:
    found = world.client.staging_api.get_physical_address(world.repo, "main", "a")
    relative = world.relative(found.physical_address)
    assert relative.startswith("data/")
    assert "," in relative
    assert world.staged() == {}


@operation(
    "link_physical_address",
    "what was written is read at the path; a second link and another path are 400",
    "a token is good for one use and one path, and size and checksum are checked",
)
def test_link_physical_address(world: World) -> None:
    staging = world.client.staging_api
    location = staging.get_physical_address(world.repo, "main", "a")
    metadata = sdk.StagingMetadata(
        staging=location, checksum=hashlib.md5(b"one").hexdigest(), size_bytes=3
    )
    with refused(400):
        staging.link_physical_address(world.repo, "main", "a", metadata)
    world.store.put(world.relative(location.physical_address), b"one")
    with refused(400):
        staging.link_physical_address(world.repo, "main", "b", metadata)
    made = staging.link_physical_address(world.repo, "main", "a", metadata)
    assert made.physical_address == location.physical_address
    assert world.read("a") == b"one"
    with refused(400):
        staging.link_physical_address(world.repo, "main", "a", metadata)
