"""Cherry-picks, hard resets, resets, reverts of merges, given trees, and diffs of every kind."""

from __future__ import annotations

import pytest

from lakegc_assets.embedded import EmbeddedLakeFS
from lakegc_assets_tests.embedded.api import Api, Repo


@pytest.fixture
def two_sides(repo: Repo) -> Repo:
    """Dev has changed a, removed b and added d; main has changed c."""
    for name in "abc":
        repo.put(f"x/{name}", b"1")
    repo.commit("base")
    repo.branch("dev")
    repo.put("x/a", b"dev", "dev")
    repo.remove("x/b", "dev")
    repo.put("y/d", b"dev", "dev")
    repo.commit("on dev", "dev", metadata={"who": "dev"})
    repo.put("x/c", b"main")
    repo.commit("on main")
    return repo


def test_a_cherry_pick_does_what_a_commit_changed(two_sides: Repo) -> None:
    picked = two_sides.call("GET", "/commits/dev")
    before = two_sides.head()
    made = two_sides.call("POST", "/branches/main/cherry-pick", 201, json={"ref": "dev"})
    assert made == two_sides.call("GET", "/commits/main")
    assert (made["parents"], made["message"]) == ([before], "on dev")
    assert made["metadata"] == {
        "who": "dev",
        "cherry-pick-origin": picked["id"],
        "cherry-pick-committer": "admin",
    }
    assert two_sides.list() == ["x/a", "x/c", "y/d"]
    assert (two_sides.read("x/a"), two_sides.read("x/c")) == (b"dev", b"main")
    assert two_sides.stat("y/d") == two_sides.stat("y/d", "dev")


def test_a_cherry_pick_with_other_words(two_sides: Repo) -> None:
    body = {"ref": "dev", "commit_overrides": {"message": "mine", "metadata": {"a": "b"}}}
    made = two_sides.call("POST", "/branches/main/cherry-pick", 201, json=body)
    assert made["message"] == "mine"
    assert made["metadata"].keys() == {"a", "cherry-pick-origin", "cherry-pick-committer"}


def test_a_cherry_pick_of_a_commit_that_changed_nothing_is_refused(two_sides: Repo) -> None:
    two_sides.commit("empty", "dev", allow_empty=True)
    before = two_sides.head()
    answer = two_sides.call("POST", "/branches/main/cherry-pick", 400, json={"ref": "dev"})
    assert answer == {"message": "no changes"}
    assert two_sides.head() == before
    # What the branch has already is changed once more, as with lakeFS.
    for _ in range(2):
        two_sides.call("POST", "/branches/main/cherry-pick", 201, json={"ref": "dev~1"})


def test_a_merge_is_picked_relative_to_one_parent(two_sides: Repo) -> None:
    two_sides.branch("old", "main~1")
    two_sides.call("POST", "/refs/dev/merge/main")
    path = "/branches/old/cherry-pick"
    message = two_sides.call("POST", path, 400, json={"ref": "main"})["message"]
    assert "parent number" in message
    for number in (0, -1, 3):
        two_sides.call("POST", path, 400, json={"ref": "main", "parent_number": number})
    two_sides.call("POST", path, 201, json={"ref": "main", "parent_number": 1})
    assert two_sides.list("old") == ["x/a", "x/c", "y/d"]
    assert two_sides.read("x/c", "old") == b"1"
    two_sides.branch("older", "main~2")
    body = {"ref": "main", "parent_number": 2}
    two_sides.call("POST", "/branches/older/cherry-pick", 201, json=body)
    assert two_sides.read("x/c", "older") == b"main"
    assert two_sides.list("older") == ["x/a", "x/b", "x/c"]


def test_cherry_picks_that_cannot_be(two_sides: Repo) -> None:
    path = "/branches/main/cherry-pick"
    first = two_sides.call("GET", "/refs/main/commits")["results"][-1]["id"]
    assert "parent number" in two_sides.call("POST", path, 400, json={"ref": first})["message"]
    two_sides.call("POST", path, 404, json={"ref": "nothing"})
    two_sides.call("POST", path, 400, json={"ref": "dev$"})
    two_sides.put("x/a", b"main")
    assert "dirty" in two_sides.call("POST", path, 400, json={"ref": "dev"})["message"]
    two_sides.commit("conflicting")
    before = two_sides.head()
    assert "conflict" in two_sides.call("POST", path, 409, json={"ref": "dev"})["message"]
    assert two_sides.head() == before


def test_a_revert_of_a_merge_is_relative_to_the_parent_that_is_named(two_sides: Repo) -> None:
    two_sides.call("POST", "/refs/dev/merge/main")
    for number, listed, c in (
        (1, ["x/a", "x/b", "x/c"], b"main"),
        (2, ["x/a", "x/c", "y/d"], b"1"),
    ):
        branch = f"back{number}"
        two_sides.branch(branch)
        body = {
            "ref": "main",
            "parent_number": number,
            "commit_overrides": {"message": f"back {number}", "metadata": {"n": str(number)}},
        }
        two_sides.call("POST", f"/branches/{branch}/revert", 204, json=body)
        made = two_sides.call("GET", f"/commits/{branch}")
        assert (made["message"], made["metadata"]) == (f"back {number}", {"n": str(number)})
        assert two_sides.list(branch) == listed
        assert two_sides.read("x/c", branch) == c
    two_sides.call("POST", "/branches/main/revert", 400, json={"ref": "main", "parent_number": 3})


def test_a_squash_is_of_a_later_generation_than_its_source(repo: Repo) -> None:
    """As lakeFS 1.84 counts, although the source is none of its parents."""
    repo.branch("dev")
    for number in range(3):
        repo.put("a", b"%d" % number, "dev")
        last = repo.commit(branch="dev")
    made = repo.call("POST", "/refs/dev/merge/main", json={"squash_merge": True})["reference"]
    found = repo.call("GET", f"/commits/{made}")
    assert (len(found["parents"]), found["generation"]) == (1, last["generation"] + 1)


def test_a_merge_into_what_has_not_changed_has_the_tree_of_its_source(repo: Repo) -> None:
    """As lakeFS 1.84 has it: of an empty repository that is none."""
    repo.branch("dev")
    nothing = {"ref": repo.head(), "parent_number": 0}
    answer = repo.call("POST", "/branches/dev/revert", 400, json=nothing)
    assert answer["message"] == "no changes"
    made = repo.call("POST", "/refs/dev/merge/main", json={"force": True})["reference"]
    assert repo.call("GET", f"/commits/{made}")["meta_range_id"] == ""
    repo.put("a", b"1", "dev")
    tree = repo.commit(branch="dev")["meta_range_id"]
    made = repo.call("POST", "/refs/dev/merge/main", json={})["reference"]
    assert repo.call("GET", f"/commits/{made}")["meta_range_id"] == tree


def test_a_merge_of_nothing_takes_force_or_the_flag_for_it(repo: Repo) -> None:
    repo.branch("dev")
    for flag in ("force", "allow_empty"):
        repo.call("POST", "/refs/dev/merge/main", 400, json={})
        repo.call("POST", "/refs/dev/merge/main", 200, json={flag: True})


def test_a_hard_reset_moves_the_branch_and_leaves_its_commits(two_sides: Repo) -> None:
    left = two_sides.head()
    path = "/branches/main/hard_reset"
    two_sides.put("staged", b"1")
    answer = two_sides.call("PUT", path, 400, params={"ref": "dev"})
    assert "dirty" in answer["message"]
    two_sides.call("PUT", "/branches/main", 204, json={"type": "reset"})
    two_sides.call("PUT", path, 204, params={"ref": "dev"})
    assert two_sides.head() == two_sides.head("dev")
    assert two_sides.log() == ["on dev", "base", "Repository created"]
    assert two_sides.call("GET", f"/commits/{left}")["message"] == "on main"
    two_sides.call("PUT", path, 204, params={"ref": left})
    assert two_sides.read("x/c") == b"main"
    two_sides.call("PUT", path, 404, params={"ref": "nothing"})
    two_sides.call("PUT", path, 400)
    two_sides.call("PUT", "/branches/none/hard_reset", 404, params={"ref": "dev"})


def test_a_tombstone_of_nothing_is_gone_after_a_hard_reset(repo: Repo) -> None:
    first = repo.head()
    repo.put("a", b"1")
    second = repo.commit()["id"]
    repo.call("PUT", "/branches/main/hard_reset", 204, params={"ref": first})
    repo.put("a", b"2")
    repo.remove("a")
    assert repo.staged() == {}
    repo.call("PUT", "/branches/main/hard_reset", 204, params={"ref": second})
    assert repo.read("a") == b"1"
    assert repo.staged() == {}


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ({"type": "reset"}, {}),
        ({"type": "common_prefix", "path": "x/"}, {"y/d": "added"}),
        ({"type": "object", "path": "x/a"}, {"x/ab": "added", "x/b": "removed", "y/d": "added"}),
        (
            {"type": "object", "path": "x/"},
            {"x/a": "changed", "x/ab": "added", "x/b": "removed", "y/d": "added"},
        ),
        ({"type": "common_prefix", "path": "x/a"}, {"x/b": "removed", "y/d": "added"}),
    ],
)
def test_a_reset_forgets_all_a_prefix_or_a_path(
    repo: Repo, body: dict[str, str], left: dict[str, str]
) -> None:
    repo.put("x/a", b"1")
    repo.put("x/b", b"1")
    repo.commit()
    repo.put("x/a", b"2")
    repo.put("x/ab", b"2")
    repo.remove("x/b")
    repo.put("y/d", b"2")
    repo.call("PUT", "/branches/main", 204, json=body)
    assert repo.staged() == left
    repo.call("PUT", "/branches/main", 400, json={"type": "other"})


def test_a_given_tree_is_committed(two_sides: Repo) -> None:
    tree = two_sides.call("GET", "/commits/dev")["meta_range_id"]
    path, body = "/branches/main/commits", {"message": "theirs", "date": 7}
    made = two_sides.call("POST", path, 201, json=body, params={"source_metarange": tree})
    assert (made["meta_range_id"], made["creation_date"]) == (tree, 7)
    assert two_sides.list() == ["x/a", "x/c", "y/d"]
    dump = two_sides.call("PUT", "/refs/dump", 201)["commits_meta_range_id"]
    for name in ("0" * 64, "../data", "dummy", "a/b", dump):
        answer = two_sides.call("POST", path, 404, json=body, params={"source_metarange": name})
        assert answer == {"message": "metarange not found"}
    two_sides.put("staged", b"1")
    two_sides.call("POST", path, 400, json=body, params={"source_metarange": tree})


def diff(repo: Repo, left: str, right: str, **params: object) -> dict[str, str]:
    found = repo.call("GET", f"/refs/{left}/diff/{right}", params=params)
    assert found["pagination"]["results"] == len(found["results"])
    return {change["path"]: change["type"] for change in found["results"]}


def test_diffs_by_prefix_delimiter_and_page(two_sides: Repo) -> None:
    assert diff(two_sides, "main", "dev") == {
        "x/a": "changed",
        "x/b": "removed",
        "y/d": "added",
    }
    assert diff(two_sides, "main", "dev", type="two_dot", prefix="x/") == {
        "x/a": "changed",
        "x/b": "removed",
        "x/c": "changed",
    }
    assert diff(two_sides, "main", "dev", delimiter="/") == {
        "x/": "prefix_changed",
        "y/": "prefix_changed",
    }
    assert diff(two_sides, "main", "dev", amount=1, after="x/a") == {"x/b": "removed"}
    assert diff(two_sides, "dev", "dev~1", type="two_dot") == {
        "x/a": "changed",
        "x/b": "added",
        "y/d": "removed",
    }
    two_sides.call("GET", "/refs/main/diff/dev", 400, params={"type": "one_dot"})


def test_a_two_dot_diff_sees_what_is_staged_on_the_right(two_sides: Repo) -> None:
    two_sides.put("x/a", b"staged", "dev")
    two_sides.put("x/b", b"1", "dev")
    two_sides.remove("y/d", "dev")
    two_sides.put("a-first", b"staged", "dev")
    two_sides.put("z-last", b"staged", "dev")
    assert diff(two_sides, "main", "dev$", type="two_dot") == {
        "a-first": "added",
        "x/a": "changed",
        "x/c": "changed",
        "z-last": "added",
    }
    assert diff(two_sides, "main", "dev$", type="two_dot", after="x/a", amount=1) == {
        "x/c": "changed"
    }
    for left, right, kind in (("main", "dev$", "three_dot"), ("main$", "dev", "two_dot")):
        path = f"/refs/{left}/diff/{right}"
        message = two_sides.call("GET", path, 400, params={"type": kind})["message"]
        assert "staging area" in message


def test_what_a_merge_starts_from(two_sides: Repo) -> None:
    assert two_sides.call("GET", "/refs/dev/merge/main") == {
        "source_commit_id": two_sides.head("dev"),
        "destination_commit_id": two_sides.head("main"),
        "base_commit_id": two_sides.call("GET", "/commits/main~1")["id"],
    }


@pytest.mark.parametrize(
    "name", ["", "@", "a.", "a.lock", "a/", "a..b", "a//b", "a@{b", "a b", "a:b", "a\nb", "a\\b"]
)
def test_names_that_no_tag_can_have(repo: Repo, name: str) -> None:
    repo.call("POST", "/tags", 400, json={"id": name, "ref": "main"})
    assert repo.call("GET", "/tags")["results"] == []


def test_a_tag_may_have_slashes(two_sides: Repo) -> None:
    name = "v/1/ü"
    two_sides.call("POST", "/tags", 201, json={"id": name, "ref": "main"})
    for spelling in ("v%2F1%2F%C3%BC", "v/1/ü"):
        assert two_sides.call("GET", f"/tags/{spelling}")["id"] == name
        assert two_sides.log(spelling) == two_sides.log()
        assert two_sides.list(f"{spelling}~1") == two_sides.list("main~1")
        assert two_sides.read("x/c", spelling) == b"main"
        assert diff(two_sides, spelling, "dev") == diff(two_sides, "main", "dev")
        assert diff(two_sides, "dev", spelling) == diff(two_sides, "dev", "main")
        assert two_sides.call("GET", f"/commits/{spelling}")["id"] == two_sides.head()
    merged = two_sides.call("POST", "/refs/v%2F1%2F%C3%BC/merge/dev", json={})["reference"]
    assert two_sides.call("GET", f"/commits/{merged}")["parents"][1] == two_sides.head()
    two_sides.branch("commits")
    assert "base_commit_id" in two_sides.call("GET", "/refs/dev/merge/commits")
    two_sides.call("DELETE", "/tags/v%2F1%2F%C3%BC", 204)
    two_sides.call("GET", f"/tags/{name}", 404)


def test_a_name_is_a_branch_a_tag_or_a_commit(repo: Repo) -> None:
    repo.call("POST", "/tags", 201, json={"id": "v1", "ref": "main"})
    repo.call("POST", "/branches", 409, json={"name": "v1", "source": "main"})
    repo.call("POST", "/tags", 409, json={"id": "main", "ref": "main"})
    repo.call("POST", "/tags", 409, json={"id": repo.head(), "ref": "main"})
    repo.call("POST", "/branches", 409, json={"name": repo.head(), "source": "main"})
    for name in ("ü", "-a", "a b", ""):
        repo.call("POST", "/branches", 400, json={"name": name, "source": "main"})
    repo.call("POST", "/branches", 400, json={"name": "x", "source": "main$"})


def test_a_read_only_repository_is_changed_by_force_alone(api: Api, server: EmbeddedLakeFS) -> None:
    repo = api.repository("repo")
    repo.branch("dev")
    repo.commit("on dev", "dev", allow_empty=True)
    with server.lake.state.write() as db:
        db.execute("UPDATE repositories SET read_only = 1")
    for force in (False, True):
        body = {"force": force}
        expected = {"POST": 201 if force else 403, "PUT": 204 if force else 403}
        for method, path, fields in (
            ("POST", "/branches", {"name": "new", "source": "main"}),
            ("POST", "/tags", {"id": "v1", "ref": "main"}),
            ("PUT", "/branches/dev", {"type": "reset"}),
            ("POST", "/branches/main/commits", {"message": "m", "allow_empty": True}),
            ("POST", "/branches/main/cherry-pick", {"ref": "dev"}),
        ):
            repo.call(method, path, expected[method], json={**body, **fields})
        undo = {**body, "ref": "main", "parent_number": 0, "allow_empty": True}
        repo.call("POST", "/branches/main/revert", expected["PUT"], json=undo)
        repo.call("POST", "/refs/dev/merge/main", 200 if force else 403, json=body)
        params = {"force": str(force).lower(), "ref": "dev"}
        repo.call("PUT", "/branches/new/hard_reset", expected["PUT"], params=params)
        repo.call("DELETE", "/branches/new", expected["PUT"], params=params)
        repo.call("DELETE", "/tags/v1", expected["PUT"], params=params)
