"""The requests that change a repository are those of lakeFS's own client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lakegc_assets.lakefs import errors
from lakegc_assets.lakefs.writes import LakeFSWriter

from ..lazily import Lazy
from ..replay import ReplayServer, Request

lakefs_sdk = Lazy("lakefs_sdk")

COMMIT = {
    "id": "c1", "parents": [], "committer": "me", "message": "m", "creation_date": 5,
    "meta_range_id": "x", "metadata": None,
}  # fmt: skip
STATS = {
    "path": "p", "path_type": "object", "physical_address": "s3://b/p", "checksum": "c",
    "size_bytes": 2, "mtime": 1,
}  # fmt: skip


@pytest.fixture
def writer(server: ReplayServer, tmp_path: Path) -> LakeFSWriter:
    answers: dict[tuple[str, str], tuple[int, Any]] = {
        ("POST", "/repositories"): (201, server.recording.body("repository")),
        ("POST", "/repositories/r/branches"): (201, "c1"),
        ("DELETE", "/repositories/r/branches/b"): (204, None),
        ("PUT", "/repositories/r/branches/b"): (204, None),
        ("POST", "/repositories/r/tags"): (201, {"id": "t", "commit_id": "c1"}),
        ("POST", "/repositories/r/branches/b/objects"): (201, STATS),
        ("DELETE", "/repositories/r/branches/b/objects"): (204, None),
        ("POST", "/repositories/r/branches/b/commits"): (201, COMMIT),
        ("POST", "/repositories/r/refs/s/merge/b"): (200, {"reference": "c2"}),
        ("POST", "/repositories/r/branches/b/revert"): (204, None),
        ("PUT", "/repositories/r/settings/gc_rules"): (204, None),
        ("DELETE", "/repositories/r/settings/gc_rules"): (204, None),
    }
    server.overrides.update(answers)
    return server.config(tmp_path).connect_writer()


def _last(server: ReplayServer, method: str, path: str, model: str = "") -> Request:
    request = server.requests[-1]
    assert (request.method, request.path) == (method, path)
    if model:
        # lakeFS's own client refuses fields that are missing or of another type.
        parsed = getattr(lakefs_sdk, model).from_dict(request.json)
        assert parsed.to_dict().items() >= request.json.items()
    return request


def test_repositories(writer: LakeFSWriter, server: ReplayServer) -> None:
    made = writer.create_repository("new-repo", "s3://b/r", "trunk", read_only=True)
    assert made.id == "retention"
    request = _last(server, "POST", "/repositories", "RepositoryCreation")
    assert request.json == {
        "name": "new-repo",
        "storage_namespace": "s3://b/r",
        "default_branch": "trunk",
        "read_only": True,
    }


def test_branches_and_tags(writer: LakeFSWriter, server: ReplayServer) -> None:
    writer.create_branch("r", "b", "main", hidden=True)
    request = _last(server, "POST", "/repositories/r/branches", "BranchCreation")
    assert request.json == {"name": "b", "source": "main", "hidden": True}
    writer.reset_branch("r", "b")
    assert _last(server, "PUT", "/repositories/r/branches/b").json == {"type": "reset"}
    writer.delete_branch("r", "b")
    _last(server, "DELETE", "/repositories/r/branches/b")
    writer.create_tag("r", "t", "main")
    request = _last(server, "POST", "/repositories/r/tags", "TagCreation")
    assert request.json == {"id": "t", "ref": "main"}


def test_objects(writer: LakeFSWriter, server: ReplayServer) -> None:
    stats = writer.upload_object("r", "b", "d/ü +", b"\x00\xff", metadata={"k": "v"})
    assert stats.size_bytes == 2
    request = _last(server, "POST", "/repositories/r/branches/b/objects")
    assert (request.params, request.body) == ({"path": "d/ü +"}, b"\x00\xff")
    assert request.headers["X-Lakefs-Meta-k"] == "v"
    assert request.headers["Content-Type"] == "application/octet-stream"
    writer.upload_object("r", "b", "empty", b"")
    assert _last(server, "POST", "/repositories/r/branches/b/objects").body == b""
    writer.delete_object("r", "b", "d/ü +")
    assert _last(server, "DELETE", "/repositories/r/branches/b/objects").params["path"] == "d/ü +"


def test_commits(writer: LakeFSWriter, server: ReplayServer) -> None:
    made = writer.commit_branch("r", "b", "m", date=5, metadata={"k": "v"}, allow_empty=True)
    assert (made.id, made.metadata, made.version) == ("c1", {}, 1)
    request = _last(server, "POST", "/repositories/r/branches/b/commits", "CommitCreation")
    assert request.json == {"message": "m", "metadata": {"k": "v"}, "date": 5, "allow_empty": True}
    assert writer.merge("r", "s", "b", "m", squash_merge=True) == "c2"
    request = _last(server, "POST", "/repositories/r/refs/s/merge/b", "Merge")
    assert request.json == {"message": "m", "squash_merge": True}
    writer.revert("r", "b", "c1", parent_number=1)
    request = _last(server, "POST", "/repositories/r/branches/b/revert", "RevertCreation")
    assert request.json == {"ref": "c1", "parent_number": 1}


def test_rules(writer: LakeFSWriter, server: ReplayServer) -> None:
    writer.set_gc_rules("r", 21, {"dev": 7})
    path = "/repositories/r/settings/gc_rules"
    request = _last(server, "PUT", path, "GarbageCollectionRules")
    assert request.json == {
        "default_retention_days": 21, "branches": [{"branch_id": "dev", "retention_days": 7}],
    }  # fmt: skip
    older = "/repositories/r/gc/rules"
    server.overrides["PUT", path] = (500, {"message": "invalid API endpoint"})
    server.overrides["POST", older] = (204, None)
    writer.set_gc_rules("r", 21, {"dev": 7})
    assert _last(server, "POST", older).json == request.json
    writer.delete_gc_rules("r")
    _last(server, "DELETE", path)


def test_what_exists_is_a_conflict(writer: LakeFSWriter, server: ReplayServer) -> None:
    said = "error creating repository: not unique"
    server.overrides["POST", "/repositories"] = (409, {"message": said})
    with pytest.raises(errors.ConflictError, match=said):
        writer.create_repository("r", "s3://b/r")
