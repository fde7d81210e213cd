"""lakefs-sdk: branch protection, and what it forbids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lakegc_assets_tests.conformance.world import World, operation, refused, sdk

WRITE = "cannot write to protected branch"
COMMIT = "cannot commit to protected branch"
MOVE = "protected branch"

Forbidden = Callable[[World], Any]
FORBIDDEN: dict[str, tuple[str, Forbidden]] = {
    "an upload": (WRITE, lambda world: world.put("new")),
    "a delete": (WRITE, lambda world: world.remove("a")),
    "a copy": (
        WRITE,
        lambda world: world.client.objects_api.copy_object(
            world.repo, "main", "b", sdk.ObjectCopyCreation(src_path="a")
        ),
    ),
    "a copy of another branch": (
        WRITE,
        lambda world: world.client.objects_api.copy_object(
            world.repo, "main", "b", sdk.ObjectCopyCreation(src_path="a", src_ref="dev")
        ),
    ),
    "a staged address": (
        WRITE,
        lambda world: world.client.internal_api.stage_object(
            world.repo,
            "main",
            "b",
            sdk.ObjectStageCreation(
                physical_address="local://elsewhere/b", checksum="c", size_bytes=1
            ),
        ),
    ),
    "a reset": (WRITE, lambda world: reset(world, sdk.ResetCreation(type="reset"))),
    "a reset of an object": (
        WRITE,
        lambda world: reset(world, sdk.ResetCreation(type="object", path="a")),
    ),
    "a commit": (COMMIT, lambda world: world.commit("more", allow_empty=True)),
    "a commit of a tree": (
        COMMIT,
        lambda world: world.client.commits_api.commit(
            world.repo,
            "main",
            sdk.CommitCreation(message="m"),
            source_metarange=world.client.refs_api.log_commits(world.repo, "dev")
            .results[0]
            .meta_range_id,
        ),
    ),
    "a hard reset": (
        MOVE,
        lambda world: world.client.experimental_api.hard_reset_branch(world.repo, "main", "dev"),
    ),
}


def reset(world: World, creation: Any) -> None:
    world.client.branches_api.reset_branch(world.repo, "main", creation)


def protect(world: World, *patterns: str, **condition: str) -> None:
    rules = [sdk.BranchProtectionRule(pattern=pattern) for pattern in patterns]
    world.client.repositories_api.set_branch_protection_rules(world.repo, rules, **condition)


def patterns(world: World) -> list[str]:
    found = world.client.repositories_api.get_branch_protection_rules(world.repo)
    return [rule.pattern for rule in found]


@pytest.fixture
def guarded(world: World) -> World:
    """Main is protected and has one object; dev is not, and has another one."""
    world.put("a")
    world.commit("first")
    world.branch("dev")
    world.put("more", branch="dev")
    world.commit("on dev", "dev")
    protect(world, "mai?")
    return world


@operation("get_branch_protection_rules", "the patterns that were set, and their ETag; 404")
def test_get_branch_protection_rules(world: World) -> None:
    assert patterns(world) == []
    protect(world, "release-*", "main")
    assert patterns(world) == ["main", "release-*"]
    with refused(404):
        world.client.repositories_api.get_branch_protection_rules("none")


@operation(
    "set_branch_protection_rules",
    "what they forbid is 403 in lakeFS's words, merges are not; 412 for another ETag",
    "patterns have *, ? and [], not {}",
)
@pytest.mark.parametrize("what", FORBIDDEN)
@pytest.mark.filterwarnings("ignore:.* is deprecated:DeprecationWarning")
def test_set_branch_protection_rules(guarded: World, what: str) -> None:
    message, forbidden = FORBIDDEN[what]
    head, staged = guarded.head(), guarded.staged()
    with refused(403, message):
        forbidden(guarded)
    assert (guarded.head(), guarded.staged()) == (head, staged)
    protect(guarded, "dev")
    forbidden(guarded)
    assert (guarded.head(), guarded.staged()) != (head, staged) or what.startswith("a reset")


def test_what_is_protected_changes_by_merges(guarded: World) -> None:
    guarded.client.refs_api.merge_into_branch(guarded.repo, "dev", "main")
    assert guarded.paths() == ["a", "more"]
    branches = guarded.client.branches_api
    branches.revert_branch(guarded.repo, "main", sdk.RevertCreation(ref="dev", parent_number=0))
    assert guarded.paths() == ["a"]
    branches.cherry_pick(guarded.repo, "main", sdk.CherryPickCreation(ref="dev"))
    assert guarded.paths() == ["a", "more"]


def test_each_of_many_deletes_is_refused(guarded: World) -> None:
    answer = guarded.client.objects_api.delete_objects(
        guarded.repo, "main", sdk.PathList(paths=["a", "b"])
    )
    told = [(error.path, error.status_code, error.message) for error in answer.errors]
    assert told == [("a", 403, WRITE), ("b", 403, WRITE)]
    assert guarded.paths() == ["a"]


def test_rules_are_replaced_only_where_nobody_else_has(world: World) -> None:
    api = world.client.repositories_api

    def etag() -> str:
        told = api.get_branch_protection_rules_with_http_info(world.repo)
        return str(told.headers["ETag"])

    assert etag() == ""
    protect(world, "main")
    first = etag()
    protect(world, "dev", "dev", if_match=first)
    with refused(412):
        protect(world, "other", if_match=first)
    assert patterns(world) == ["dev"]
    protect(world)
    assert etag() == ""


def test_a_repository_of_the_same_name_begins_without_rules(guarded: World) -> None:
    api = guarded.client.repositories_api
    api.delete_repository(guarded.repo)
    namespace = f"local://{guarded.repo}-again"
    api.create_repository(sdk.RepositoryCreation(name=guarded.repo, storage_namespace=namespace))
    assert patterns(guarded) == []


@operation("internal_get_branch_protection_rules", "the same; 404")
@operation("internal_create_branch_protection_rule", "one more")
@operation("internal_delete_branch_protection_rule", "one less; 404")
@operation("create_branch_protection_rule_preflight", "allowed")
@pytest.mark.filterwarnings("ignore:.* is deprecated:DeprecationWarning")
def test_rules_one_by_one(world: World) -> None:
    api = world.client.internal_api
    api.create_branch_protection_rule_preflight(world.repo)
    for pattern in ("main", "dev", "main"):
        rule = sdk.BranchProtectionRule(pattern=pattern)
        api.internal_create_branch_protection_rule(world.repo, rule)
    gone = sdk.InternalDeleteBranchProtectionRuleRequest(pattern="main")
    api.internal_delete_branch_protection_rule(world.repo, gone)
    found = api.internal_get_branch_protection_rules(world.repo)
    assert [rule.pattern for rule in found] == ["dev"]
    with refused(404):
        api.internal_delete_branch_protection_rule(world.repo, gone)
    with refused(404):
        api.internal_get_branch_protection_rules("none")
