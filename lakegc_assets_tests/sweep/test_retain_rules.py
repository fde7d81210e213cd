"""Rules that lakeFS does not have hold in marks, in what checks them, and up to the last batch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from lakegc_assets.checks.invariants import evaluate
from lakegc_assets.errors import IntegrityError
from lakegc_assets.estate.explanation import explain as why
from lakegc_assets.forecast.forecast import forecast
from lakegc_assets.forecast.proposed_rules import Change
from lakegc_assets.mark.commits import find_active_commits
from lakegc_assets.retention.retain_rules import Retain
from lakegc_assets.sweep.batch_guard import seen_now
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.lake import REPOSITORY, STAGES, Marked, SmallLake, candidates
from lakegc_assets_tests.lake import mark as mark_all
from lakegc_assets_tests.sessions import Session
from lakegc_assets_tests.sweep.outcomes import after_first_delete, check_swept, spared
from lakegc_assets_tests.sweep.test_delta import HELD

KINDS: Mapping[str, Any] = {
    "tags": ["v[0-9]"],
    "branches": {"ma*": {"last_commits": 2, "days": 1}},
    "metadata": {"legal-hold": "true"},
}


def mark(lake: SmallLake, spark: Session, run: str, **retain: Any) -> set[str]:
    """Mark under rules; the candidates."""
    return candidates(mark_all(lake.context(spark, run, retain=retain)))


def test_what_each_kind_of_rule_keeps_is_no_candidate(
    lake: SmallLake, marked: Marked, spark: Session
) -> None:
    """A tag on what a deleted branch had, and a commit of a branch that is then deleted."""
    client, groups = lake.client, marked.groups
    client.create_tag(REPOSITORY, "v1", marked.commits["given up"])
    lake.calendar.days_ago = 60
    client.create_branch(REPOSITORY, "case", marked.commits["first"])
    lake.upload("case", "note", "of a case")
    held = client.commit_branch(REPOSITORY, "case", "a case", metadata={"legal-hold": "true"}).id
    lake.calendar.days_ago = 50
    for n in range(4):
        client.delete_object(REPOSITORY, "case", f"a/{n}")
    lake.commit("case")
    lake.calendar.days_ago = 0

    assert mark(lake, spark, "plain") == marked.candidates
    found = mark(lake, spark, "kept", **KINDS)
    assert found == groups["orphans"]
    ctx = lake.context(spark, "kept")
    rules = {
        "given up": "retain: tags: 'v[0-9]' names 'v1'",
        "replaced": "retain: metadata: 'legal-hold' is 'true'",
    }
    for group, rule in rules.items():
        assert rule in why(ctx, min(groups[group])).because
    assert forecast(ctx, Change()).today.objects == len(found)
    assert forecast(ctx, Change(retain=Retain())).forecast.objects == len(marked.candidates)

    client.delete_branch(REPOSITORY, "case")
    assert mark(lake, spark, "later", **KINDS) == found
    rows = lake.root.attempt(REPOSITORY, "later").read("active_commits").to_pylist()
    assert {row["commit_id"]: row["kind"] for row in rows}[held] == "metadata"

    # Whoever marks without the rules meanwhile hands the commit on all the same.
    assert mark(lake, spark, "meanwhile") > marked.candidates
    assert mark(lake, spark, "again", **KINDS) == found
    lake.root.attempt(REPOSITORY, "again").store().put("active_commits/manifest.json", b"{")
    with pytest.raises(IntegrityError, match="manifest"):
        mark(lake, spark, "spoilt", **KINDS)


def test_longer_days_of_branches(lake: SmallLake, marked: Marked, spark: Session) -> None:
    """Of main the first commit was replaced 90 days ago, and the second 80: dev keeps it for 85."""
    found = mark(lake, spark, "longer", branches={"d*": {"days": 85}, "*": {"days": 1}})
    groups = marked.groups
    assert found == groups["orphans"] | groups["given up"] | groups["replaced"]
    explained = why(lake.context(spark, "longer"), min(groups["removed"]))
    assert "retain: branches: 'd*' has days: 85" in explained.because


def test_a_sweep_follows_its_own_rules_and_those_of_its_mark(
    lake: SmallLake, marked: Marked, spark: Session
) -> None:
    client, groups = lake.client, marked.groups
    assert mark(lake, spark, "kept", branches={"main": {"last_commits": 2}}) == (
        marked.candidates - groups["second"]
    )
    explained = why(lake.context(spark, "kept"), min(groups["second"]))
    assert "retain: branches: 'main' has last_commits: 2" in explained.because
    client.create_tag(REPOSITORY, "v1", marked.commits["given up"])
    sweep(lake.context(spark, "kept", retain={"tags": ["v*"]}))
    found = spared(lake, "kept")
    assert found == dict.fromkeys(groups["given up"] | groups["removed"], HELD)
    assert groups["second"] | found.keys() <= lake.keys()


@pytest.mark.parametrize(
    ("option", "kept"),
    [
        ({"retain": {"branches": {"main": {"last_commits": 2}}}}, ["second"]),
        ({"protect_tags": True}, ["second", "given up", "removed"]),
    ],
)
def test_a_sweep_follows_what_a_later_mark_has_protected_by_an_option(
    lake: SmallLake, marked: Marked, spark: Session, option: dict[str, Any], kept: list[str]
) -> None:
    """Also where the last mark did not, and has read the one that did; but nothing earlier."""
    lake.client.create_tag(REPOSITORY, "v1", marked.commits["given up"])
    commits = STAGES[: STAGES.index(find_active_commits) + 1]
    everything = {"retain": {"branches": {"*": {"days": 200}}}}
    mark_all(lake.context(spark, "earlier", **everything), commits)
    assert mark(lake, spark, "swept") == marked.candidates
    mark_all(lake.context(spark, "later", **option), commits)
    mark_all(lake.context(spark, "last"), commits)
    sweep(lake.context(spark, "swept"))
    found = frozenset().union(*(marked.groups[name] for name in kept))
    assert spared(lake, "swept") == dict.fromkeys(found, HELD)
    assert lake.keys() == marked.live | found


def test_a_tag_that_is_set_in_the_middle(lake: SmallLake, marked: Marked, spark: Session) -> None:
    left: set[str] = set()
    held = frozenset().union(*(marked.groups[name] for name in ("given up", "second", "removed")))

    def tag(there: set[str]) -> None:
        left.update(there & held)
        lake.client.create_tag(REPOSITORY, "v9", marked.commits["given up"])

    # Another tag tells nobody anything.
    lake.client.create_tag(REPOSITORY, "other", marked.commits["first"])
    after_first_delete(lake, marked, tag)
    manifest = sweep(lake.context(spark, sweep_batch=2, retain={"tags": ["v*"]}))
    assert manifest.facts["rounds"] == 2
    assert left
    check_swept(lake, marked, dict.fromkeys(left, HELD))


@pytest.mark.parametrize("kind", ["tags", "metadata"])
def test_any_tag_that_may_lead_to_what_rules_keep_ends_a_delta_mark(
    kind: str, lake: SmallLake, marked: Marked
) -> None:
    retain = Retain.parse({kind: KINDS[kind]})
    seen = partial(seen_now, lake.client, REPOSITORY, protect_tags=False, retain=retain)
    before = seen()
    lake.client.create_tag(REPOSITORY, "v1", marked.commits["given up"])
    assert seen() != before


def test_a_branch_that_is_made_in_the_middle(
    lake: SmallLake, marked: Marked, spark: Session
) -> None:
    """The task that deletes extends the delta mark by the days of the pattern."""
    left: set[str] = set()

    def branch(there: set[str]) -> None:
        left.update(there & (marked.groups["replaced"] | marked.groups["removed"]))
        lake.client.create_branch(REPOSITORY, "release-1", marked.commits["second"])

    after_first_delete(lake, marked, branch)
    retain = {"branches": {"release-*": {"last_commits": 2}}}
    manifest = sweep(lake.context(spark, sweep_batch=2, retain=retain))
    assert manifest.facts["rounds"] == 1
    assert left & marked.groups["replaced"]
    assert left <= spared(lake).keys()


def test_the_checks_see_candidates_that_the_rules_keep(
    lake: SmallLake, marked: Marked, spark: Session
) -> None:
    held = [marked.groups[name] for name in ("given up", "second", "removed")]
    lake.client.create_tag(REPOSITORY, "v1", marked.commits["given up"])
    results = evaluate(lake.context(spark, retain={"tags": ["v?"]}))
    (found,) = [one for one in results if not one.passed and one.blocking]
    assert found.name == "none_retained"
    assert found.facts["count"] == sum(map(len, held))
