"""Branches, tags, commits, merges and reverts."""

from __future__ import annotations

import pytest

from lakegc_assets_tests.embedded.api import Repo


def test_branches_are_listed_by_name_and_page(repo: Repo) -> None:
    repo.branch("dev")
    repo.branch("hidden", hidden=True)

    def names(**params: object) -> tuple[list[str], bool]:
        page = repo.call("GET", "/branches", params=params)
        assert page["pagination"]["results"] == len(page["results"])
        return [branch["id"] for branch in page["results"]], page["pagination"]["has_more"]

    assert names() == (["dev", "main"], False)
    assert names(show_hidden="true") == (["dev", "hidden", "main"], False)
    assert names(show_hidden="true", amount=1, after="dev") == (["hidden"], True)
    assert names(prefix="ma") == (["main"], False)


def test_a_deleted_branch_takes_its_staged_entries_along(repo: Repo) -> None:
    repo.branch("dev")
    repo.put("a", b"1", "dev")
    repo.call("DELETE", "/branches/dev", 204)
    assert repo.call("GET", "/branches/dev", 404) == {"message": "branch not found"}
    repo.branch("dev")
    assert repo.staged("dev") == {}


def test_branches_that_cannot_be(repo: Repo) -> None:
    body = {"name": "main", "source": "main"}
    assert "not unique" in repo.call("POST", "/branches", 409, json=body)["message"]
    repo.call("POST", "/branches", 404, json={"name": "x", "source": "nothing"})
    repo.call("POST", "/branches", 400, json={"name": "a/b", "source": "main"})
    repo.call("DELETE", "/branches/main", 400)
    where = {"params": {"path": "a"}, "data": b""}
    assert repo.call("POST", "/branches/none/objects", 404, **where) == {
        "message": "branch 'none' not found"
    }


def test_references_name_branches_tags_commits_and_ancestors(repo: Repo) -> None:
    ids = []
    for number in range(3):
        repo.put("a", f"{number}")
        ids.append(repo.commit(f"commit {number}")["id"])
    repo.call("POST", "/tags", 201, json={"id": "v1", "ref": "main~1"})
    repo.put("a", b"staged")
    for ref, content in (
        ("main", b"staged"),
        ("main@", b"2"),
        ("main~1", b"1"),
        ("main~2", b"0"),
        ("main^^", b"0"),
        ("v1", b"1"),
        ("v1~1", b"0"),
        (ids[0], b"0"),
        (ids[0][:10], b"0"),
    ):
        assert repo.read("a", ref) == content, ref
    for ref in ("main~9", "main^2", "nothing", "abcdef0", "main~x"):
        assert repo.stat("a", ref, 404) == {"message": "ref: not found"}
    assert repo.call("GET", "/tags/v1") == {"id": "v1", "commit_id": ids[1]}
    assert [tag["id"] for tag in repo.call("GET", "/tags")["results"]] == ["v1"]
    repo.call("POST", "/tags", 409, json={"id": "v1", "ref": "main"})
    repo.call("DELETE", "/tags/v1", 204)
    assert repo.call("GET", "/tags/v1", 404) == {"message": "tag not found"}
    repo.call("DELETE", "/tags/v1", 404)


def test_the_log_is_paged(repo: Repo) -> None:
    for number in range(4):
        repo.commit(f"{number}", allow_empty=True, date=1000 - number)
    assert repo.log() == ["3", "2", "1", "0", "Repository created"]
    first = repo.call("GET", "/refs/main/commits", params={"amount": 2})
    assert first["pagination"]["has_more"] is True
    after = first["pagination"]["next_offset"]
    assert after == first["results"][-1]["id"]
    assert repo.log(after=after, amount=2) == ["1", "0"]


def test_the_log_stops_where_it_is_told_to(repo: Repo) -> None:
    first = repo.commit("first", allow_empty=True)
    repo.commit("second", allow_empty=True)
    assert repo.log(stop_at=first["id"]) == ["second", "first"]
    # As lakectl asks for all of it.
    assert repo.log(stop_at="") == ["second", "first", "Repository created"]
    repo.call("GET", "/refs/main/commits", 404, params={"stop_at": "nothing"})


def test_a_commit_keeps_its_date_and_metadata(repo: Repo) -> None:
    repo.put("a", b"1")
    made = repo.commit("m", metadata={"k": "ü"}, date=123)
    assert (made["creation_date"], made["metadata"]) == (123, {"k": "ü"})
    assert made == repo.call("GET", f"/commits/{made['id']}") == repo.call("GET", "/commits/main")


def test_a_merge_brings_what_the_branch_changed(repo: Repo) -> None:
    for name in "abcdefghij":
        repo.put(name, b"1")
    repo.commit()
    repo.branch("dev")
    repo.put("a", b"dev", "dev")
    repo.remove("b", "dev")
    repo.put("k", b"dev", "dev")
    repo.commit("on dev", "dev")
    repo.put("j", b"main")
    repo.commit("on main")
    three_dot = repo.call("GET", "/refs/main/diff/dev")["results"]
    assert {d["path"]: d["type"] for d in three_dot} == {
        "a": "changed",
        "b": "removed",
        "k": "added",
    }
    two_dot = repo.call("GET", "/refs/main/diff/dev", params={"type": "two_dot"})["results"]
    assert {d["path"]: d["type"] for d in two_dot} == {
        "a": "changed",
        "b": "removed",
        "j": "changed",
        "k": "added",
    }
    merged = repo.call("POST", "/refs/dev/merge/main", json={"message": "in"})["reference"]
    assert merged == repo.head()
    commit = repo.call("GET", f"/commits/{merged}")
    assert commit["metadata"] == {".lakefs.merge.strategy": "default"}
    assert commit["parents"][1] == repo.head("dev")
    assert repo.list() == list("acdefghijk")
    assert (repo.read("a"), repo.read("j")) == (b"dev", b"main")
    assert repo.call("POST", "/refs/dev/merge/main", 400) == {"message": "no changes"}


@pytest.mark.parametrize(
    ("strategy", "expected"), [("source-wins", b"dev"), ("dest-wins", b"main")]
)
def test_conflicts_need_a_strategy(repo: Repo, strategy: str, expected: bytes) -> None:
    repo.put("a", b"1")
    repo.put("other", b"1")
    repo.commit()
    repo.branch("dev")
    for branch in ("main", "dev"):
        repo.put("a", branch, branch)
        repo.commit(f"on {branch}", branch)
    found = repo.call("GET", "/refs/main/diff/dev")["results"]
    assert [(d["path"], d["type"]) for d in found] == [("a", "conflict")]
    before = repo.head()
    answer = repo.call("POST", "/refs/dev/merge/main", 409, json={})
    assert "conflict" in answer["message"]
    assert repo.head() == before
    repo.call("POST", "/refs/dev/merge/main", json={"strategy": strategy, "squash_merge": True})
    assert repo.read("a") == expected
    assert len(repo.call("GET", "/commits/main")["parents"]) == 1
    repo.call("POST", "/refs/dev/merge/main", 400, json={"strategy": "unknown"})


def test_a_merge_needs_a_clean_branch(repo: Repo) -> None:
    repo.branch("dev")
    repo.put("a", b"1", "dev")
    repo.commit("x", "dev")
    repo.put("b", b"staged")
    assert repo.call("POST", "/refs/dev/merge/main", 400) == {
        "message": "uncommitted changes (dirty branch)"
    }


def test_a_revert_undoes_one_commit(repo: Repo) -> None:
    repo.put("a", b"1")
    first = repo.put("b", b"1")["physical_address"]
    repo.commit("first")
    repo.put("b", b"2")
    repo.remove("a")
    bad = repo.commit("second")["id"]
    repo.put("c", b"3")
    repo.commit("third")
    repo.call("POST", "/branches/main/revert", 204, json={"ref": bad, "parent_number": 0})
    assert repo.list() == ["a", "b", "c"]
    assert repo.stat("b")["physical_address"] == first
    assert repo.log()[0] == f"Revert {bad}"
    again = repo.call("POST", "/branches/main/revert", 400, json={"ref": bad, "parent_number": 0})
    assert again == {"message": "no changes"}
    repo.call("POST", "/branches/main/revert", 400, json={"ref": bad, "parent_number": 2})


def test_reverting_a_merge_needs_the_parents_number(repo: Repo) -> None:
    repo.branch("dev")
    repo.put("a", b"1", "dev")
    repo.commit("on dev", "dev")
    repo.call("POST", "/refs/dev/merge/main")
    body = {"ref": "main", "parent_number": 0}
    assert "parent number" in repo.call("POST", "/branches/main/revert", 409, json=body)["message"]
    repo.call("POST", "/branches/main/revert", 204, json={**body, "parent_number": 1})
    assert repo.list() == []
