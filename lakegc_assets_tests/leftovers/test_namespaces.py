"""Namespaces that no repository has: which they are, and why some stay."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.leftovers.namespaces import (
    NOBODY_KNOWS,
    OTHERS,
    OURS,
    LeftoverNamespace,
    leftover_namespaces,
)
from lakegc_assets.leftovers.server import Problem, Server
from lakegc_assets.leftovers.uploads import uncommitted_blobs
from lakegc_assets.mark.installation import MARKER
from lakegc_assets_tests.files import age
from lakegc_assets_tests.lake import SmallLake
from lakegc_assets_tests.leftovers.conftest import mark_as


def only(server: Server) -> LeftoverNamespace:
    (found,), problems = leftover_namespaces(server)
    assert problems == []
    return found


def test_the_namespace_of_a_deleted_repository_is_found(lake: SmallLake, server: Server) -> None:
    found = only(server)
    files = [p for p in (lake.server.objects_dir / "team/old").rglob("*") if p.is_file()]
    assert (found.url, found.server, found.repository) == ("local://team/old", NOBODY_KNOWS, None)
    assert (found.objects, found.size) == (len(files), sum(p.stat().st_size for p in files))
    assert found.stays == "its newest object is 0 days old, and must be older than 30 days"
    age(lake.server.objects_dir / "team", 31)
    assert only(server).stays == ""


def test_its_marker_tells_whose_it_was(
    lake: SmallLake, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LakeFSClient, "installation_id", lambda _: "mine")
    for told, whose in (("mine", OURS), ("another", OTHERS), (None, NOBODY_KNOWS)):
        mark_as(lake.server.objects_dir / "team/old", told)
        found = only(server)
        assert (found.server, found.repository) == (whose, "old")
        assert ("another lakeFS server" in found.stays) == (whose == OTHERS)
    mark_as(lake.server.objects_dir / "team/old", "mine")
    monkeypatch.setattr(LakeFSClient, "installation_id", lambda _: None)
    assert "this one, which does not show its id" in only(server).stays


def test_no_repositorys_namespace_is_one(lake: SmallLake, server: Server) -> None:
    lake.client.create_repository("again", "local://team/old/again")
    found, problems = leftover_namespaces(server)
    assert found == []
    assert "the namespace of repository 'again' is in it" in problems[0].what
    inside = replace(server, namespace_roots=("local://repo/data",))
    found, problems = leftover_namespaces(inside)
    assert found == []
    assert problems[0].what.startswith("the root lies in the namespace of repository 'repo'")


def test_what_cannot_be_looked_at_is_named(lake: SmallLake, server: Server) -> None:
    for folder in ("aaa", "zzz"):
        path = lake.server.objects_dir / "team" / folder / MARKER
        path.parent.mkdir(parents=True)
        path.write_text("damaged")
    found, problems = leftover_namespaces(
        replace(server, namespace_roots=("mem://x", "local://team"))
    )
    assert [one.url for one in found] == ["local://team/old"]
    damaged = ["local://team/aaa", "local://team/zzz"]
    assert [one.where for one in problems] == ["mem://x", *damaged]


def test_the_directory_of_a_lakefs_with_local_storage_is_a_root_by_each_name(
    lake: SmallLake, server: Server
) -> None:
    objects = lake.server.objects_dir
    # lakeFS makes this folder there, whose name no namespace can have.
    (objects / "_lakefs_cache").mkdir()
    expected: list[tuple[str, list[Problem]]] = [("local://team/old", [])]
    for root in ("local://", str(objects), f"file://{objects}", f"{objects}/team"):
        found, problems = leftover_namespaces(replace(server, namespace_roots=(root,)))
        assert [(one.url, problems) for one in found] == expected
        assert uncommitted_blobs(replace(server, namespace_roots=(root,))) == ([], [])
    (objects / "_lakefs_cache/dummy").touch()
    found, problems = leftover_namespaces(replace(server, namespace_roots=("local://",)))
    assert [one.url for one in found] == ["local://team/old"]
    assert [one.where for one in problems] == ["local://_lakefs_cache/"]


def test_repositories_below_a_folder_around_that_directory_are_recognized(
    lake: SmallLake, server: Server
) -> None:
    around = lake.server.objects_dir.parent
    found, problems = leftover_namespaces(replace(server, namespace_roots=(str(around),)))
    assert [one.url for one in found] == [f"file://{lake.server.objects_dir}/team/old"]
    assert problems == []


def test_folders_that_are_too_deep_are_one_problem(lake: SmallLake, server: Server) -> None:
    """Other programs may have many of them below a root."""
    objects = lake.server.objects_dir
    for name in "abc":
        (objects / "team" / name / "1/2/3/4").mkdir(parents=True)
        (objects / "team" / name / "1/2/3/4/file").write_text("of another program")
    (objects / "team/d/1/2/3").mkdir(parents=True)
    (objects / "team/d/1/2/3/file").write_text("of another program")
    found, (problem,) = leftover_namespaces(server)
    assert [one.url for one in found] == ["local://team/old"]
    assert problem.where == "local://team/a/1/2/3"
    for words in (
        "it has folders more than 4 folders below local://team, or",
        ", and so do 2 other folders below local://team. If",
        "name narrower roots in place of local://team",
    ):
        assert words in problem.what
    narrower = replace(server, namespace_roots=("local://team/old", "local://team/a/1"))
    found, problems = leftover_namespaces(narrower)
    assert ([one.url for one in found], problems) == (["local://team/old"], [])
