"""lakefs-sdk: branches, tags, commits, merges, reverts, diffs and logs, one test each."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from lakegc_assets_tests.conformance.world import World, operation, refused, sdk


@operation(
    "create_branch", "the answer is the commit's id; duplicate 409, odd name 400, no ref 404"
)
def test_create_branch(world: World) -> None:
    world.put("a")
    made = world.commit()
    assert world.branch("dev") == made.id
    assert world.paths("dev") == ["a"]
    for name, source, status in (
        ("dev", "main", 409),
        ("a/b", "main", 400),
        ("new", "nothing", 404),
    ):
        with refused(status):
            world.branch(name, source)


@operation("get_branch", "id and commit; 404")
def test_get_branch(world: World) -> None:
    found = world.client.branches_api.get_branch(world.repo, "main")
    head = world.client.commits_api.get_commit(world.repo, "main").id
    assert (found.id, found.commit_id) == ("main", head)
    with refused(404):
        world.client.branches_api.get_branch(world.repo, "none")


@operation("list_branches", "pages, prefix, hidden branches only when asked for")
def test_list_branches(world: World) -> None:
    for name in ("b1", "b2", "c"):
        world.branch(name)
    world.branch("b0", hidden=True)
    listed = world.client.branches_api.list_branches

    def names(**options: Any) -> list[str]:
        return [branch.id for branch in listed(world.repo, **options).results]

    assert names() == ["b1", "b2", "c", "main"]
    assert names(show_hidden=True, prefix="b") == ["b0", "b1", "b2"]
    page = listed(world.repo, amount=2)
    assert page.pagination.has_more
    assert names(after=page.pagination.next_offset, amount=2) == ["c", "main"]


@operation("delete_branch", "it and what was staged on it are gone; never the default branch")
def test_delete_branch(world: World) -> None:
    world.branch("dev")
    world.put("a", branch="dev")
    world.client.branches_api.delete_branch(world.repo, "dev")
    with refused(404):
        world.head("dev")
    world.branch("dev")
    assert world.staged("dev") == {}
    with refused(400):
        world.client.branches_api.delete_branch(world.repo, "main")


@operation("reset_branch", "all, a prefix, a path; the rest stays staged")
def test_reset_branch(world: World) -> None:
    for path in ("a/1", "a/2", "b"):
        world.put(path)
    reset = world.client.branches_api.reset_branch
    reset(world.repo, "main", sdk.ResetCreation(type="object", path="a/1"))
    assert world.staged() == {"a/2": "added", "b": "added"}
    reset(world.repo, "main", sdk.ResetCreation(type="common_prefix", path="a/"))
    assert world.staged() == {"b": "added"}
    reset(world.repo, "main", sdk.ResetCreation(type="reset"))
    assert world.staged() == {}


@operation("hard_reset_branch", "the branch moves, commits stay; refused with staged changes")
def test_hard_reset_branch(world: World) -> None:
    first = world.head()
    world.put("a")
    left = world.commit().id
    reset = world.client.experimental_api.hard_reset_branch
    world.put("b")
    with refused(400):
        reset(world.repo, "main", first)
    world.remove("b")
    reset(world.repo, "main", first)
    assert (world.head(), world.paths()) == (first, [])
    assert world.paths(left) == ["a"]


@operation("diff_branch", "added, changed, removed; prefix, delimiter and pages")
def test_diff_branch(world: World) -> None:
    for path in ("x/1", "x/2"):
        world.put(path)
    world.commit()
    world.put("x/1", b"other")
    world.remove("x/2")
    world.put("y")
    assert world.staged() == {"x/1": "changed", "x/2": "removed", "y": "added"}
    diff = world.client.branches_api.diff_branch
    found = diff(world.repo, "main", delimiter="/").results
    assert [(d.path, d.path_type, d.type) for d in found] == [
        ("x/", "common_prefix", "prefix_changed"),
        ("y", "object", "added"),
    ]
    page = diff(world.repo, "main", prefix="x", amount=1)
    assert (page.results[0].path, page.pagination.next_offset) == ("x/1", "x/1")


@operation("commit", "date, metadata, parents, lakeFS's id; 400 without changes; a given tree")
def test_commit(world: World) -> None:
    world.put("a")
    before = world.head()
    made = world.commit("m ü", metadata={"k": "ü"}, date=1000)
    assert (made.creation_date, made.metadata, made.parents) == (1000, {"k": "ü"}, [before])
    assert (made.message, made.generation, made.version) == ("m ü", 2, 1)
    assert world.head() == made.id
    with refused(400):
        world.commit("nothing")
    world.remove("a")
    world.commit("empty")
    again = world.client.commits_api.commit(
        world.repo,
        "main",
        sdk.CommitCreation(message="again"),
        source_metarange=made.meta_range_id,
    )
    assert (again.meta_range_id, world.paths()) == (made.meta_range_id, ["a"])


@operation("get_commit", "by id, start of an id, branch, tag and ancestor; 404")
def test_get_commit(world: World) -> None:
    made = world.commit(allow_empty=True)
    world.client.tags_api.create_tag(world.repo, sdk.TagCreation(id="v1", ref="main"))
    world.commit(allow_empty=True)
    get = world.client.commits_api.get_commit
    for ref in (made.id, made.id[:12], "v1", "main~1", "main^"):
        assert get(world.repo, ref) == made
    with refused(404):
        get(world.repo, "nothing")


@operation("log_commits", "order, pages, first parents, since, until, by paths and prefixes")
def test_log_commits(world: World) -> None:
    for number, path in enumerate(("a/1", "b", "a/2")):
        world.put(path)
        world.commit(path, date=1000 + number)
    log = world.client.refs_api.log_commits

    def messages(**options: Any) -> list[str]:
        found = log(world.repo, "main", **options).results
        return [commit.message for commit in found if commit.parents]

    assert messages() == ["a/2", "b", "a/1"]
    assert messages(objects=["b"]) == ["b"]
    assert messages(prefixes=["a/"]) == ["a/2", "a/1"]
    assert messages(since=datetime.fromtimestamp(1001, timezone.utc)) == ["a/2", "b"]
    assert messages(stop_at="main~1") == ["a/2", "b"]
    page = log(world.repo, "main", amount=1)
    assert messages(after=page.pagination.next_offset, amount=1) == ["b"]
    assert not log(world.repo, "main", amount=1, limit=True).pagination.has_more
    world.branch("dev")
    world.commit("on dev", "dev", allow_empty=True)
    world.client.refs_api.merge_into_branch(
        world.repo, "dev", "main", merge=sdk.Merge(message="merge", allow_empty=True)
    )
    assert sorted(messages()[:2]) == ["merge", "on dev"]
    assert messages(first_parent=True) == ["merge", "a/2", "b", "a/1"]


def diverged(world: World) -> None:
    """On dev a changed and c is new; on main b changed."""
    for path in ("a", "b"):
        world.put(path)
    world.commit("base")
    world.branch("dev")
    world.put("a", b"dev", "dev")
    world.put("c", b"dev", "dev")
    world.commit("on dev", "dev")
    world.put("b", b"main")
    world.commit("on main")


@operation("diff_refs", "two-dot, three-dot, staged on the right, prefix, conflicts")
def test_diff_refs(world: World) -> None:
    diverged(world)

    def diff(right: str = "dev", **options: Any) -> dict[str, str]:
        found = world.client.refs_api.diff_refs(world.repo, "main", right, **options).results
        return {change.path: change.type for change in found}

    assert diff() == {"a": "changed", "c": "added"}
    assert diff(type="two_dot") == {"a": "changed", "b": "changed", "c": "added"}
    assert diff(type="two_dot", prefix="c") == {"c": "added"}
    world.put("z", branch="dev")
    assert diff("dev$", type="two_dot", prefix="z") == {"z": "added"}
    world.put("a", b"main")
    world.commit()
    assert diff() == {"a": "conflict", "c": "added"}


@operation("merge_into_branch", "three-way, conflict 409, both strategies, squash, dirty 400")
def test_merge_into_branch(world: World) -> None:
    diverged(world)
    merge = world.client.refs_api.merge_into_branch
    source, before = world.head("dev"), world.head()
    world.branch("kept")
    merged = merge(world.repo, "dev", "main", merge=sdk.Merge(message="in", metadata={"k": "v"}))
    found = world.client.commits_api.get_commit(world.repo, merged.reference)
    assert found.parents == [before, source]
    assert found.metadata == {"k": "v", ".lakefs.merge.strategy": "default"}
    assert [world.read(path) for path in "abc"] == [b"dev", b"main", b"dev"]
    with refused(400):
        merge(world.repo, "dev", "main")
    world.put("a", b"kept", "kept")
    with refused(400):
        merge(world.repo, "dev", "kept")
    world.commit("conflicting", "kept")
    with refused(409):
        merge(world.repo, "dev", "kept")
    for strategy, content in (("dest-wins", b"kept"), ("source-wins", b"dev")):
        world.branch(strategy, "kept")
        options = sdk.Merge(strategy=strategy, squash_merge=True)
        merge(world.repo, "dev", strategy, merge=options)
        assert world.read("a", strategy) == content
        squashed = world.client.commits_api.get_commit(world.repo, strategy)
        assert squashed.parents == [world.head("kept")]


@operation("find_merge_base", "source, destination and base")
def test_find_merge_base(world: World) -> None:
    diverged(world)
    found = world.client.refs_api.find_merge_base(world.repo, "dev", "main")
    base = world.client.commits_api.get_commit(world.repo, "main~1").id
    assert found.base_commit_id == base
    assert found.source_commit_id == world.head("dev")
    assert found.destination_commit_id == world.head()


@operation("revert_branch", "one commit; a merge by the number of its parent; message and metadata")
def test_revert_branch(world: World) -> None:
    diverged(world)
    revert = world.client.branches_api.revert_branch
    overrides = sdk.CommitOverrides(message="back", metadata={"k": "v"})
    revert(
        world.repo,
        "main",
        sdk.RevertCreation(ref="main", parent_number=0, commit_overrides=overrides),
    )
    found = world.client.commits_api.get_commit(world.repo, "main")
    assert (found.message, found.metadata) == ("back", {"k": "v"})
    assert world.read("b") == b"content"
    world.client.refs_api.merge_into_branch(world.repo, "dev", "main")
    with refused(409):
        revert(world.repo, "main", sdk.RevertCreation(ref="main", parent_number=0))
    revert(world.repo, "main", sdk.RevertCreation(ref="main", parent_number=1))
    assert world.paths() == ["a", "b"]


@operation(
    "cherry_pick",
    "one commit; a merge by the number of its parent; where it came from; 400 without changes",
)
def test_cherry_pick(world: World) -> None:
    diverged(world)
    pick = world.client.branches_api.cherry_pick
    made = pick(world.repo, "main", sdk.CherryPickCreation(ref="dev"))
    assert made.metadata["cherry-pick-origin"] == world.head("dev")
    assert [world.read(path) for path in "abc"] == [b"dev", b"main", b"dev"]
    world.branch("old", "main~2")
    world.client.refs_api.merge_into_branch(world.repo, "main", "dev")
    with refused(400):
        pick(world.repo, "old", sdk.CherryPickCreation(ref="dev"))
    pick(world.repo, "old", sdk.CherryPickCreation(ref="dev", parent_number=1))
    assert (world.read("b", "old"), world.paths("old")) == (b"main", ["a", "b"])
    world.commit("empty", "dev", allow_empty=True)
    with refused(400, "no changes"):
        pick(world.repo, "old", sdk.CherryPickCreation(ref="dev"))


@operation("create_tag", "at a reference; duplicate 409, odd name 400")
def test_create_tag(world: World) -> None:
    create = world.client.tags_api.create_tag
    made = create(world.repo, sdk.TagCreation(id="v1/ü", ref="main"))
    assert (made.id, made.commit_id) == ("v1/ü", world.head())
    for name, status in (("v1/ü", 409), ("a..b", 400)):
        with refused(status):
            create(world.repo, sdk.TagCreation(id=name, ref="main"))


@operation("get_tag", "id and commit; 404")
def test_get_tag(world: World) -> None:
    world.client.tags_api.create_tag(world.repo, sdk.TagCreation(id="v1", ref="main"))
    assert world.client.tags_api.get_tag(world.repo, "v1").commit_id == world.head()
    with refused(404):
        world.client.tags_api.get_tag(world.repo, "v2")


@operation("list_tags", "pages and prefix")
def test_list_tags(world: World) -> None:
    for name in ("a1", "a2", "b"):
        world.client.tags_api.create_tag(world.repo, sdk.TagCreation(id=name, ref="main"))
    listed = world.client.tags_api.list_tags
    assert [tag.id for tag in listed(world.repo, prefix="a").results] == ["a1", "a2"]
    page = listed(world.repo, amount=1)
    following = listed(world.repo, after=page.pagination.next_offset)
    assert [tag.id for tag in following.results] == ["a2", "b"]


@operation("delete_tag", "the tag is gone, its commit stays; 404")
def test_delete_tag(world: World) -> None:
    tags = world.client.tags_api
    commit = tags.create_tag(world.repo, sdk.TagCreation(id="v1", ref="main")).commit_id
    tags.delete_tag(world.repo, "v1")
    assert world.client.commits_api.get_commit(world.repo, commit).id == commit
    with refused(404):
        tags.delete_tag(world.repo, "v1")
