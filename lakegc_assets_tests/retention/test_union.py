from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from lakegc_assets.retention.active_commits import ActiveCommits, Reason, active_commits
from lakegc_assets.retention.rules import Rules
from lakegc_assets.retention.union import Previous, missing_heads, still_inside, unite

from .graphs import NOW, History, commit, graph, histories

DAY = timedelta(days=1)
INSIDE = Reason("main", "inside", NOW + DAY, NOW - 6 * DAY)


def kept_of(
    reasons: Mapping[str, Reason],
    marked_at: datetime,
    heads: Mapping[str, str],
    rules: Rules,
    now: datetime,
) -> dict[str, Reason]:
    """What is still inside of commits of which one reason is known each."""
    previous = Previous({commit_id: [reason] for commit_id, reason in reasons.items()}, marked_at)
    kept = still_inside([previous], heads=heads, rules=rules, now=now)
    return {commit_id: reason for commit_id, (reason,) in kept.items()}


def test_both_sides_count_and_each_is_named() -> None:
    own = ActiveCommits({"both": INSIDE, "own": INSIDE}, frozenset({"server", "neither"}))
    united = unite(["both", "server"], own)
    assert united.active == {"both": INSIDE, "own": INSIDE, "server": Reason(None, "server")}
    assert united.only_server == {"server"}
    assert united.only_own == {"own"}
    assert united.only_previous == frozenset()


def test_heads_that_moved_meanwhile_are_active() -> None:
    own = ActiveCommits({"old head": INSIDE}, frozenset())
    united = unite(["old head"], own, later_heads={"main": "new head"})
    assert united.active["new head"] == Reason("main", "head")
    assert united.only_own == {"new head"}
    assert missing_heads(united.active, {"main": "new head"}) == {}


def test_the_previous_mark_adds_but_never_replaces_a_reason_that_lasts_as_long() -> None:
    kept = Reason("dev", "previous mark", NOW + DAY, NOW - DAY)
    own = ActiveCommits({"own": INSIDE}, frozenset())
    united = unite(["server"], own, previous={"own": kept, "server": kept, "kept": kept})
    assert united.active == {"own": INSIDE, "server": kept, "kept": kept}
    assert united.only_previous == {"kept"}
    assert united.only_server == frozenset()


def test_of_two_reasons_the_next_mark_knows_the_one_that_lasts_longer() -> None:
    kept = Reason("main", "previous mark", NOW + 2 * DAY, NOW - 5 * DAY)
    forever = Reason("main", "head")
    own = ActiveCommits({"c": INSIDE, "head": forever}, frozenset())
    united = unite(["c"], own, previous={"c": kept, "head": kept})
    assert united.active == {"c": kept, "head": forever}
    assert united.only_previous == united.only_own - {"head"} == frozenset()


@given(st.integers(1, 40), st.sets(st.integers(1, 30)))
def test_a_head_that_was_reset_stays_for_its_days_however_often_is_marked(
    age: int, marks: set[int]
) -> None:
    """The commit's own date is inside, too, for fewer days or none."""
    commits = graph(commit("a", 100), commit("b", age, "a"))
    rules = Rules(20)
    at = NOW
    found = unite(["a", "b"], active_commits(commits, {"main": "b"}, rules, NOW)).active
    for day in sorted({*marks, 19}):
        heads, now = {"main": "a"}, NOW + day * DAY
        kept = kept_of(found, at, heads, rules, now)
        own = active_commits(commits, heads, rules, now)
        found, at = unite(["a"], own, later_heads=heads, previous=kept).active, now
        assert ("b" in found) is (day < 20)


def test_missing_heads_are_named_with_their_branches() -> None:
    heads = {"main": "m", "dev": "d", "copy": "d"}
    assert missing_heads({"m", "d"}, heads) == {}
    assert missing_heads(["m"], heads) == {"copy": "d", "dev": "d"}
    assert missing_heads([], heads) == heads


def keep(previous: Reason, rules: Rules, marked_days_ago: float = 1) -> Reason | None:
    marked_at = NOW - marked_days_ago * DAY
    return kept_of({"c": previous}, marked_at, {"main": "another"}, rules, NOW).get("c")


def test_a_head_that_was_reset_stays_for_its_days() -> None:
    was_head = Reason("main", "head", None, NOW - 300 * DAY)
    rules = Rules(1, {"main": 7})
    expected = Reason("main", "previous mark", NOW + 6 * DAY, NOW - DAY)
    assert keep(was_head, rules) == expected
    assert keep(was_head, rules, marked_days_ago=6.9) is not None
    assert keep(was_head, rules, marked_days_ago=7) is None


def test_the_head_of_a_deleted_branch_is_dangling() -> None:
    def was_head(age: int) -> Reason:
        return Reason("deleted", "head", None, NOW - age * DAY)

    rules = Rules(7, {"deleted": 100})
    assert keep(was_head(6), rules) is not None
    assert keep(was_head(8), rules) is None


def test_the_rules_of_today_decide() -> None:
    assert keep(INSIDE, Rules(99, {"main": 7})) is not None
    assert keep(INSIDE, Rules(99, {"main": 6})) is None


def test_a_kept_commit_is_kept_again_until_its_day_comes() -> None:
    rules = Rules(1, {"main": 7})
    first = keep(Reason("main", "head", None, NOW - 300 * DAY), rules)
    assert first is not None
    for later, stays in ((5 * DAY, True), (6 * DAY, False)):
        again = kept_of({"c": first}, NOW, {"main": "x"}, rules, NOW + later)
        assert bool(again) is stays
        assert again in ({}, {"c": first})


def test_what_only_the_server_said_is_not_kept_without_it() -> None:
    assert keep(Reason(None, "server"), Rules(999)) is None


@given(histories(), st.integers(0, 20))
def test_an_unchanged_repository_keeps_only_what_is_active_anyway(
    history: History, days: int
) -> None:
    """Nothing moved, so of the previous mark only its own HEADs can be called active."""
    args = (history.commits, history.heads, history.rules)
    then = active_commits(*args, NOW)
    later = NOW + days * DAY
    kept = kept_of(then.active, NOW, history.heads, history.rules, later)
    assert kept.keys() <= active_commits(*args, later).active.keys()


def test_a_commit_that_the_server_forgot_is_kept_in_the_next_mark() -> None:
    """A branch was reset behind its youngest commit, which nothing lists any more."""
    before = graph(commit("a", 20), commit("b", 9, "a"), commit("c", 2, "b"))
    rules = Rules(1, {"main": 7})
    then = active_commits(before, {"main": "c"}, rules, NOW)
    after = {"a": before["a"]}
    now = NOW + DAY
    own = active_commits(after, {"main": "a"}, rules, now)
    kept = kept_of(then.active, NOW, {"main": "a"}, rules, now)
    united = unite(["a"], own, previous=kept)
    assert united.active.keys() == {"a", "b", "c"}
    assert united.only_previous == {"b", "c"}
