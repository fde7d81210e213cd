"""Repositories: made, listed, deleted, and made again in the same place."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from lakegc_assets.embedded import EmbeddedLakeFS
from lakegc_assets_tests.embedded.api import Api, Repo
from lakegc_assets_tests.embedded.conftest import Clock


def test_repositories_are_listed_by_name_and_page(api: Api) -> None:
    for name in ("one", "three", "two"):
        api.repository(name)

    def names(**params: object) -> tuple[list[str], str]:
        page = api.call("GET", "/repositories", params=params)
        return [found["id"] for found in page["results"]], page["pagination"]["next_offset"]

    assert names() == (["one", "three", "two"], "")
    assert names(amount=2) == (["one", "three"], "three")
    assert names(after="three") == (["two"], "")
    assert names(prefix="t", amount=1) == (["three"], "three")


def test_a_new_repository_has_its_first_commit(api: Api) -> None:
    body = {"name": "repo", "storage_namespace": "local://repo/", "default_branch": "trunk"}
    made = api.call("POST", "/repositories", 201, json=body)
    assert (made["storage_namespace"], made["default_branch"]) == ("local://repo", "trunk")
    (first,) = api.call("GET", "/repositories/repo/refs/trunk/commits")["results"]
    assert (first["message"], first["meta_range_id"]) == ("Repository created", "")
    assert (first["committer"], first["parents"]) == ("", [])


@pytest.mark.parametrize(
    "namespace",
    ["local://repo", "s3://bucket/x", "local://a/../b", "local://", "/somewhere"],
)
def test_namespaces_that_cannot_be_used(api: Api, server: EmbeddedLakeFS, namespace: str) -> None:
    api.repository("repo")
    before = sorted(server.objects_dir.rglob("*"))
    body = {"name": "another", "storage_namespace": namespace}
    api.call("POST", "/repositories", 400, json=body)
    assert api.call("GET", "/repositories/another", 404) == {"message": "repository not found"}
    assert sorted(server.objects_dir.rglob("*")) == before


def test_a_deleted_repository_leaves_its_objects_and_its_place_taken(
    api: Api, server: EmbeddedLakeFS
) -> None:
    repo = api.repository("repo")
    address = repo.put("a", b"1")["physical_address"]
    repo.commit()
    api.call("DELETE", "/repositories/repo", 204)
    api.call("GET", "/repositories/repo", 404)
    assert (server.objects_dir / address.removeprefix("local://")).read_bytes() == b"1"
    body = {"name": "repo", "storage_namespace": "local://repo"}
    message = api.call("POST", "/repositories", 400, json=body)["message"]
    assert message.endswith("storage namespace already in use")


def test_a_cleared_place_can_be_used_again(api: Api, server: EmbeddedLakeFS) -> None:
    trees = []
    for _ in range(2):
        repo = api.repository("repo")
        # A commit of nothing has the same tree each time, so its files must be written again.
        trees.append(repo.commit(allow_empty=True)["meta_range_id"])
        assert (server.objects_dir / "repo" / "_lakefs" / trees[-1]).is_file()
        api.call("DELETE", "/repositories/repo", 204)
        shutil.rmtree(server.objects_dir / "repo")
    assert trees[0] == trees[1]


def test_a_place_that_another_process_cleared_can_be_used_again(
    server: EmbeddedLakeFS, api: Api, clock: Clock
) -> None:
    other = EmbeddedLakeFS(server.objects_dir.parent, clock=clock, range_raggedness=3)
    with other, Api.of(other) as second:
        for _ in range(2):
            api.repository("repo")
            tree = Repo(second, "repo").commit(allow_empty=True)["meta_range_id"]
            # This process knows the tree from the first time, and nothing of what became of it.
            assert (server.objects_dir / "repo" / "_lakefs" / tree).is_file()
            api.call("DELETE", "/repositories/repo", 204)
            shutil.rmtree(server.objects_dir / "repo")


def test_what_is_written_while_its_repository_is_made_anew_is_not_acknowledged(
    server: EmbeddedLakeFS, api: Api, repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_late(*args: Any, **options: Any) -> None:
        write(*args, **options)
        api.call("DELETE", "/repositories/repo", 204)
        api.repository("repo", "local://elsewhere")

    write = server.lake.stores.write
    monkeypatch.setattr(server.lake.stores, "write", write_late)
    where = {"params": {"path": "a"}, "data": b"1"}
    assert repo.call("POST", "/branches/main/objects", 404, **where) == {
        "message": "repository not found"
    }
    assert repo.list() == []
