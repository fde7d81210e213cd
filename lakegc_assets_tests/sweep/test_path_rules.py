"""Rules of paths hold in marks, in what checks them, and up to the last batch."""

from __future__ import annotations

from collections import Counter
from typing import Any

from lakegc_assets.attribution.attribution import attribute
from lakegc_assets.attribution.relations import COMMITTED, GARBAGE
from lakegc_assets.checks.invariants import evaluate
from lakegc_assets.estate.explanation import explain as why
from lakegc_assets.forecast.forecast import forecast
from lakegc_assets.forecast.proposed_rules import Change
from lakegc_assets.mark.metaranges import may_hold
from lakegc_assets.retention.retain_rules import Retain
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.lake import REPOSITORY, RUN, Marked, SmallLake, candidates
from lakegc_assets_tests.mark.histories import mark as mark_under
from lakegc_assets_tests.recovery.prunes import needed
from lakegc_assets_tests.sessions import Session
from lakegc_assets_tests.sweep.others import OTHER, commit, make_other, name_it
from lakegc_assets_tests.sweep.others import mark as mark_candidates
from lakegc_assets_tests.sweep.outcomes import after_first_delete, check_swept, spared, swept
from lakegc_assets_tests.sweep.test_delta import HELD
from lakegc_assets_tests.sweep.test_retain_rules import mark


def paths(**rules: Any) -> dict[str, Any]:
    return {"paths": {f"{name}/**": days for name, days in rules.items()}}


def test_what_lies_below_a_path_stays_for_its_days(
    lake: SmallLake, marked: Marked, spark: Session
) -> None:
    """Of main the first commit was replaced 90 days ago, and the second 80.

    So 85 days keep of the second what lies below ``r/``, and nothing else; and the commit of a
    deleted branch, of 90 days ago, if an earlier mark knew it.
    """
    groups, ctx = marked.groups, lake.context(spark, "kept")
    found = mark(lake, spark, "kept", paths={"r/**": 85})
    assert found == marked.candidates - groups["removed"]
    explained = why(ctx, min(groups["removed"]))
    assert f"commit {marked.commits['second']} of branch" in explained.because
    assert "holds it at 'r/" in explained.because
    assert "retain: paths: 'r/**' is kept for 85 days" in explained.because
    assert forecast(ctx, Change()).today.objects == len(found)
    assert forecast(ctx, Change(retain=Retain())).forecast.objects == len(marked.candidates)
    assert forecast(ctx, Change(retain=Retain.parse(paths(r=75)))).forecast.objects == len(
        marked.candidates
    )
    every = Change(retain=Retain.parse({"paths": {"**": "forever"}}))
    assert forecast(ctx, every).forecast.objects == len(groups["orphans"] | groups["given up"])

    lake.client.create_branch(REPOSITORY, "case", marked.commits["given up"])
    mark(lake, spark, "two")
    lake.client.delete_branch(REPOSITORY, "case")
    kept = {"try/**": "forever", "a/**": 95}
    left = groups["orphans"] | groups["removed"]
    assert mark(lake, spark, "three", paths=kept) == left
    # Whoever marks without the rules hands the commit on all the same.
    assert mark(lake, spark, "without") == marked.candidates
    assert mark(lake, spark, "four", paths=kept) == left
    assert mark(lake, spark, "all", paths={"**": "forever"}) == groups["orphans"]


def test_in_each_mode_and_without_rules(lake: SmallLake, marked: Marked, spark: Session) -> None:
    named = marked.candidates - marked.groups["orphans"]
    ctx = mark_candidates(lake, spark, "by-name", mode="committed", retain=paths(r=85))
    assert candidates(ctx) == named - marked.groups["removed"]
    ctx = mark_candidates(lake, spark, "staged", mode="uncommitted", retain=paths(r=85))
    assert candidates(ctx) == marked.groups["orphans"]
    lake.client.delete_gc_rules(REPOSITORY)
    ctx = mark_candidates(lake, spark, "unruled", retain=paths(r=85))
    assert candidates(ctx) == marked.groups["orphans"]


def test_what_is_kept_below_paths_is_committed_and_of_nobody(
    lake: SmallLake, spark: Session, marked: Marked
) -> None:
    def objects(run: str) -> dict[str, int]:
        found: Counter[str] = Counter()
        for name, _, count, _ in attribute(lake.context(spark, run)).facts["classes"]:
            found[name] += count
        return found

    mark(lake, spark, "plain")
    before = objects("plain")
    mark(lake, spark, "kept", paths={"r/**": 85})
    held, after = len(marked.groups["removed"]), objects("kept")
    assert after[COMMITTED] == before[COMMITTED] + held
    assert after[GARBAGE] == before[GARBAGE] - held
    facts = attribute(lake.context(spark, "kept")).facts
    assert any("below the paths of rules" in sentence for sentence in facts["covers"])


def test_what_another_repository_has_below_a_path_stays(
    lake: SmallLake, marked: Marked, spark: Session
) -> None:
    """By the rules of this one, since the objects lie here."""
    make_other(lake)
    lake.client.set_gc_rules(OTHER, 20, {})
    held, lost, *_ = sorted(marked.groups["orphans"])
    lake.calendar.days_ago = 80
    name_it(lake, held, "legal/a")
    commit(lake)
    lake.client.delete_object(OTHER, "main", "legal/a")
    name_it(lake, lost, "else/b")
    commit(lake)
    lake.client.delete_object(OTHER, "main", "else/b")
    for _ in range(2):
        commit(lake)
    lake.calendar.days_ago = 0
    assert candidates(mark_candidates(lake, spark, "plain")) == marked.candidates
    ctx = mark_candidates(lake, spark, "kept", retain=paths(legal="forever"))
    assert candidates(ctx) == marked.candidates - {held}


def test_a_sweep_follows_paths_that_were_set_after_its_mark(
    lake: SmallLake, marked: Marked, spark: Session
) -> None:
    # By the second rule no more commits stay than without it.
    ctx = lake.context(spark, retain=paths(r=85, a=1))
    rows = ctx.root.attempt(REPOSITORY, RUN).read(
        "deletion_candidates", columns=["address", "size"]
    )
    why = "a rule of `paths` keeps it"
    assert needed(ctx, rows) == dict.fromkeys(marked.groups["removed"], why)
    sweep(ctx)
    check_swept(lake, marked, dict.fromkeys(marked.groups["removed"], HELD))


def test_a_sweep_follows_paths_of_its_mark(lake: SmallLake, marked: Marked, spark: Session) -> None:
    """They are in no rule of its own, and what they keep is no candidate."""
    groups = marked.groups
    found = mark(lake, spark, "kept", paths={"r/**": 85})
    sweep(lake.context(spark, "kept", retain=paths(a=95)))
    kept = spared(lake, "kept").keys()
    assert kept == groups["replaced"] | groups["second"]
    assert found - kept == {a for a, (o, _) in swept(lake, "kept").items() if o == "deleted"}
    assert kept | groups["removed"] <= lake.keys()


def test_a_branch_that_is_made_in_the_middle_keeps_what_paths_say(
    lake: SmallLake, marked: Marked, spark: Session
) -> None:
    """It leads to old commits that nobody knew, which a task leaves to the next delta mark."""
    left: set[str] = set()

    def branch(there: set[str]) -> None:
        left.update(there & marked.groups["given up"])
        lake.calendar.days_ago = 60
        lake.client.create_branch(REPOSITORY, "again", marked.commits["given up"])
        for n in range(3):
            lake.client.delete_object(REPOSITORY, "again", f"try/{n}")
        for _ in range(2):
            lake.commit("again")
        lake.calendar.days_ago = 0

    after_first_delete(lake, marked, branch)
    ctx = lake.context(spark, sweep_batch=2, retain=paths(**{"try": "forever"}))
    manifest = sweep(ctx)
    assert manifest.facts["rounds"] == 2
    assert left
    assert left <= spared(lake).keys()


def test_the_checks_see_candidates_below_paths(
    lake: SmallLake, marked: Marked, spark: Session
) -> None:
    for _ in ("read", "from the cache"):
        results = evaluate(lake.context(spark, retain=paths(r=85)))
        (found,) = [one for one in results if not one.passed and one.blocking]
        assert found.name == "none_retained"
        assert found.facts["count"] == len(marked.groups["removed"])
        assert set(found.facts["examples"]) == marked.groups["removed"]
    results = evaluate(lake.context(spark, retain=paths(r=75)))
    assert not [one for one in results if not one.passed and one.blocking]


def test_nothing_more_is_asked_or_read_without_such_rules(lake: SmallLake, spark: Session) -> None:
    mark_under(lake, spark, "plain")
    root = lake.root.attempt(REPOSITORY, "plain")
    for asset in ("active_commits", "committed_addresses"):
        assert not {"paths", "path_ranges"} & root.manifest(asset).parts.keys()
    cache = lake.context(spark).connect().connections.cache()
    assert not list(cache.list("metarange_bounds/"))


def test_a_range_can_hold_what_begins_with_a_prefix() -> None:
    texts = [b"a", b"a/", b"a/b", b"a0", b"b/", b"b/\xff", b"b/\xff\xff", b"c"]
    for first in texts:
        for last in texts:
            inside = [one for one in [*texts, b"b/x", b"b/\xff\xff\xff"] if first <= one <= last]
            if any(one.startswith(b"b/") for one in inside):
                assert may_hold(b"b/", first, last)
    assert not may_hold(b"b/", b"a", b"b")
    assert not may_hold(b"b/", b"b0", b"c")
    assert may_hold(b"", b"b0", b"c")
