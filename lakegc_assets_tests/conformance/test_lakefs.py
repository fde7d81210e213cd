"""The package ``lakefs``, lakeFS's client for people: each of its things, one test each."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from lakegc_assets.storage.opening import open_store
from lakegc_assets_tests.conformance.recorder import CLIENTS, conforms, left_out
from lakegc_assets_tests.conformance.world import World, close_client, lakefs

left_out(
    CLIENTS,
    ["lakeFS's Spark collector"],
    "no test runs it; the parts that mark and sweep, built by hand from its sources, read all that "
    "the server writes on S3 and delete nothing live",
)


def shows(what: str, checked: str) -> pytest.MarkDecorator:
    return conforms(CLIENTS, what, client="lakefs", checked=checked)


@pytest.fixture
def client(world: World) -> Iterator[Any]:
    client = lakefs.client.Client(
        host=world.server.endpoint,
        username=world.server.access_key,
        password=world.server.secret_key,
    )
    yield client
    close_client(client.sdk_client)


@pytest.fixture
def repo(client: Any, world: World) -> Any:
    return lakefs.Repository(world.repo, client=client)


def put(branch: Any, *paths: str, data: bytes = b"content") -> None:
    for path in paths:
        branch.object(path).upload(data=data)


@shows("Repository", "create, properties, branches, tags, delete; errors by class")
def test_repository(client: Any, world: World) -> None:
    other = lakefs.Repository(f"{world.repo}-two", client=client)
    other.create(f"local://{other.id}")
    with pytest.raises(lakefs.exceptions.ConflictException):
        other.create(f"local://{other.id}")
    assert other.create(f"local://{other.id}", exist_ok=True).properties.default_branch == "main"
    other.branch("b").create("main")
    other.tag("t").create("main")
    assert [branch.id for branch in other.branches()] == ["b", "main"]
    assert [tag.id for tag in other.tags()] == ["t"]
    other.delete()
    with pytest.raises(lakefs.exceptions.NotFoundException):
        lakefs.Repository(other.id, client=client).delete()


@shows("Branch", "create, commit, reset_changes, cherry_pick, revert, delete, delete_objects")
def test_branch(repo: Any) -> None:
    main = repo.branch("main")
    put(main, "a", "b")
    first = main.commit("first", metadata={"k": "v"})
    assert first.get_commit().metadata == {"k": "v"}
    dev = repo.branch("dev").create("main")
    put(dev, "c")
    picked = dev.commit("on dev")
    assert main.cherry_pick(picked).message == "on dev"
    assert [item.path for item in main.objects()] == ["a", "b", "c"]
    main.revert("main")
    assert [item.path for item in main.objects()] == ["a", "b"]
    main.delete_objects(["a", "b"])
    assert [change.path for change in main.uncommitted()] == ["a", "b"]
    main.reset_changes("object", "a")
    assert [change.path for change in main.uncommitted()] == ["b"]
    main.reset_changes()
    assert list(main.uncommitted()) == []
    dev.delete()
    with pytest.raises(lakefs.exceptions.NotFoundException):
        dev.get_commit()


@shows("Reference", "log, diff of both kinds, merge_into with a conflict")
def test_reference(repo: Any) -> None:
    main, dev = repo.branch("main"), repo.branch("dev")
    put(main, "a")
    main.commit("first")
    dev.create("main")
    put(dev, "a", "b", data=b"dev")
    dev.commit("on dev")
    assert [change.path for change in repo.ref("main").diff(dev)] == ["a", "b"]
    assert [change.type for change in dev.diff(main, type="two_dot")] == ["changed", "removed"]
    dev.merge_into(main, message="in")
    newest, *others = [commit.message for commit in main.log()]
    assert (newest, set(others)) == ("in", {"on dev", "first", "Repository created"})
    put(main, "a", data=b"main")
    main.commit("on main")
    put(dev, "a", data=b"again")
    dev.commit("again")
    with pytest.raises(lakefs.exceptions.ConflictException):
        dev.merge_into(main)
    dev.merge_into(main, strategy="source-wins")
    assert main.object("a").reader(mode="rb").read() == b"again"


@shows("Tag", "create, read by it, delete; errors by class")
def test_tag(repo: Any) -> None:
    main = repo.branch("main")
    put(main, "a")
    tag = repo.tag("v1").create(main.commit("first"))
    main.object("a").delete()
    main.commit("second")
    assert [item.path for item in tag.objects()] == ["a"]
    with pytest.raises(lakefs.exceptions.ConflictException):
        repo.tag("v1").create("main")
    tag.delete()
    with pytest.raises(lakefs.exceptions.NotFoundException):
        tag.delete()


@shows("Objects", "upload, exclusive upload, writer, reader with seek, copy, exists, stat, delete")
def test_objects(repo: Any) -> None:
    main = repo.branch("main")
    made = main.object("a.txt").upload(data="one\ntwo\n", mode="xb")
    with pytest.raises(lakefs.exceptions.ObjectExistsException):
        main.object("a.txt").upload(data="again", mode="xb")
    with main.object("b").writer(mode="wb", metadata={"k": "v"}) as writer:
        writer.write(b"0123")
        writer.write(b"4567")
    with main.object("b").reader(mode="rb") as reader:
        reader.seek(2)
        assert (reader.read(3), reader.read()) == (b"234", b"567")
    with made.reader(mode="r") as reader:
        assert list(reader) == ["one\n", "two\n"]
    assert main.object("b").stat().metadata == {"k": "v"}
    made.copy("main", "c")
    made.delete()
    assert [main.object(path).exists() for path in ("a.txt", "b", "c")] == [False, True, True]
    assert main.object("c").reader(mode="r").read() == "one\ntwo\n"


@shows("Transactions", "committed and merged when the block ends, nothing after an error")
def test_transactions(repo: Any) -> None:
    main = repo.branch("main")
    with main.transact(commit_message="in one", commit_metadata={"k": "v"}) as changes:
        put(changes, "a", "b")
        assert list(main.objects()) == []
    assert [item.path for item in main.objects()] == ["a", "b"]

    class StopError(Exception):
        pass

    def fail() -> None:
        with main.transact(commit_message="never") as changes:
            put(changes, "c")
            raise StopError

    with pytest.raises(StopError):
        fail()
    assert [item.path for item in main.objects()] == ["a", "b"]


@shows("Imports", "a prefix and an object, waited for; a failed one raises; cancelled too late")
def test_imports(repo: Any, world: World) -> None:
    outside = open_store("local://outside", world.server.store_config)
    for key in ("p/1", "p/2", "q"):
        outside.put(f"{world.repo}/{key}", key.encode())
    base, main = f"local://outside/{world.repo}", repo.branch("main")
    manager = main.import_data(commit_message="in", metadata={"k": "v"})
    manager.prefix(f"{base}/p/", "in/").object(f"{base}/q", "q")
    found = manager.run(poll_interval=timedelta(milliseconds=1))
    assert (found.ingested_objects, found.commit.message) == (3, "in")
    assert [item.path for item in main.objects()] == ["in/1", "in/2", "q"]
    with pytest.raises(lakefs.exceptions.ConflictException):
        manager.cancel()
    failing = main.import_data("never").object(f"{base}/none", "x")
    with pytest.raises(lakefs.exceptions.ImportManagerException, match="there is no object"):
        failing.run(poll_interval=timedelta(milliseconds=1))


@shows("Client", "version and storage of the server")
def test_client(client: Any) -> None:
    assert client.version == "1.84.0"
    assert client.storage_config.blockstore_type == "local"
    assert client.storage_config.import_support
