from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakegc_assets.errors import IntegrityError
from lakegc_assets.retention.active_commits import Reason, active_commits
from lakegc_assets.retention.commits import Commit, dangling_commits
from lakegc_assets.retention.naive_active_commits import naive_active_commits
from lakegc_assets.retention.rules import Rules

from .graphs import NOW, History, active, commit, graph, histories

MICROSECOND = timedelta(microseconds=1)


def both_agree(history: History) -> None:
    args = (history.commits, history.heads, history.rules, NOW)
    found = active_commits(*args)
    assert found.active.keys() == naive_active_commits(*args)
    assert found.expired == history.commits.keys() - found.active.keys()
    assert set(history.heads.values()) <= found.active.keys()


@given(histories())
def test_both_implementations_agree(history: History) -> None:
    both_agree(history)


@pytest.mark.conformance
@given(histories())
@settings(max_examples=800)
def test_both_implementations_agree_on_many(history: History) -> None:
    both_agree(history)


@given(histories())
def test_each_commit_expires_when_its_reason_says(history: History) -> None:
    found = active_commits(history.commits, history.heads, history.rules, NOW)
    for commit_id, reason in found.active.items():
        if reason.until is None:
            assert history.heads[str(reason.branch)] == commit_id
            continue
        last, after = (
            naive_active_commits(history.commits, history.heads, history.rules, moment)
            for moment in (reason.until - MICROSECOND, reason.until)
        )
        assert commit_id in last
        assert commit_id not in after


@given(histories())
def test_names_of_commits_and_branches_do_not_matter(history: History) -> None:
    names = sorted(history.commits)
    renamed = dict(zip(names, reversed(names), strict=True))
    commits = {
        renamed[each.id]: Commit(
            renamed[each.id],
            tuple(renamed[parent] for parent in each.parents),
            each.creation_date,
            "",
            each.version,
        )
        for each in history.commits.values()
    }
    heads = {branch: renamed[head] for branch, head in reversed(list(history.heads.items()))}
    before = active_commits(history.commits, history.heads, history.rules, NOW).active
    after = active_commits(commits, heads, history.rules, NOW).active
    assert {renamed[commit_id] for commit_id in before} == after.keys()


@given(histories(), st.integers(0, 5))
def test_longer_rules_never_expire_more(history: History, more: int) -> None:
    longer = Rules(
        history.rules.default_retention_days + more,
        {branch: days + more for branch, days in history.rules.branches.items()},
    )
    short = active_commits(history.commits, history.heads, history.rules, NOW).active
    long = active_commits(history.commits, history.heads, longer, NOW).active
    assert short.keys() <= long.keys()


@pytest.mark.parametrize(("old", "new"), [("a", "z"), ("z", "a")])
def test_a_replaced_parent_survives_whatever_the_ids(old: str, new: str) -> None:
    """The history on which lakeFS's own walk depends on the order of ids."""
    commits = graph(commit("P", 45), commit(old, 35, "P"), commit(new, 1, "P"))
    heads = {"old": old, "new": new}
    assert active(commits, heads, Rules(10)) == {"P", old, new}


def test_created_strictly_after_the_threshold_is_inside() -> None:
    commits = graph(commit("root", 30), commit("parent", 7, "root"), commit("head", 1, "parent"))
    heads = {"main": "head"}
    assert active(commits, heads, Rules(7)) == {"parent", "head"}
    assert active(commits, heads, Rules(7), NOW - MICROSECOND) == {"root", "parent", "head"}


def test_a_zone_of_now_does_not_matter() -> None:
    commits = graph(commit("root", 30), commit("parent", 7, "root"), commit("head", 1, "parent"))
    elsewhere = NOW.astimezone(timezone(timedelta(hours=-9)))
    assert active(commits, {"main": "head"}, Rules(7), elsewhere) == {"parent", "head"}


def test_days_have_24_hours_where_clocks_change() -> None:
    """Seven days before are 168 hours before, though summer time began in between in Europe."""
    now = datetime(2022, 3, 31, 12, tzinfo=timezone(timedelta(hours=2)))
    same_wall_clock = datetime(2022, 3, 24, 12, tzinfo=timezone(timedelta(hours=1)))
    commits = {
        "root": Commit("root", (), 0),
        "head": Commit("head", ("root",), int(same_wall_clock.timestamp()) - 3599),
    }
    assert active(commits, {"main": "head"}, Rules(7), now) == {"root", "head"}


def test_a_young_commit_behind_old_ones_counts() -> None:
    commits = graph(
        commit("root", 90),
        commit("young", 1, "root"),
        commit("old", 60, "young"),
        commit("older", 80, "old"),
        commit("head", 70, "older"),
    )
    assert active(commits, {"main": "head"}, Rules(7)) == {"root", "young", "head"}
    young = active_commits(commits, {"main": "head"}, Rules(7), NOW).active["young"]
    assert young == Reason("main", "inside", NOW + timedelta(days=6), NOW - timedelta(days=1))


def test_a_head_without_retention_stays() -> None:
    commits = graph(commit("root", 90), commit("head", 80, "root"))
    assert active(commits, {"main": "head"}, Rules(0)) == {"head"}
    found = active_commits(commits, {"main": "head"}, Rules(0), NOW).active
    assert found["head"] == Reason("main", "head", None, NOW - timedelta(days=80))


def test_before_the_parent_switch_the_last_parent_is_main() -> None:
    def merged(version: int) -> dict[str, Commit]:
        return graph(
            commit("first", 20),
            commit("last", 20),
            commit("merge", 1, "first", "last", version=version),
        )

    # The other parent is dangling then, and outside.
    assert active(merged(1), {"main": "merge"}, Rules(7)) == {"merge", "first"}
    assert active(merged(0), {"main": "merge"}, Rules(7)) == {"merge", "last"}


def test_a_merged_branch_is_dangling_once_it_is_deleted() -> None:
    commits = graph(
        commit("root", 50),
        commit("f1", 9, "root"),
        commit("f2", 8, "f1"),
        commit("merge", 3, "root", "f2"),
    )
    assert dangling_commits(commits, {"main": "merge"}) == {"f2"}
    assert active(commits, {"main": "merge"}, Rules(5, {"main": 30})) == {"merge", "root"}
    assert active(commits, {"main": "merge"}, Rules(10)) == commits.keys()


def test_the_reason_is_the_one_that_holds_longest() -> None:
    commits = graph(
        commit("root", 60),
        commit("base", 12, "root"),
        commit("dev", 5, "base"),
        commit("main", 2, "base"),
    )
    heads = {"main": "main", "dev": "dev", "copy of main": "main"}
    reasons = active_commits(commits, heads, Rules(15, {"main": 20, "dev": 30}), NOW).active

    def ago(days: int) -> datetime:
        return NOW - timedelta(days=days)

    assert reasons == {
        "main": Reason("main", "head", None, ago(2)),
        "dev": Reason("dev", "head", None, ago(5)),
        # Replaced on dev 5 days ago for 30 days, not on main 2 days ago for 20.
        "base": Reason("dev", "replaced inside", ago(5) + timedelta(days=30), ago(5)),
        "root": Reason("dev", "replaced inside", ago(12) + timedelta(days=30), ago(12)),
    }


def test_rules_for_unknown_branches_change_nothing() -> None:
    commits = graph(commit("root", 30), commit("head", 9, "root"))
    assert active(commits, {"main": "head"}, Rules(7, {"no such": 999})) == {"head"}


def test_dates_out_of_any_range_do_not_break() -> None:
    commits = {
        "root": Commit("root", (), -(10**15)),
        "head": Commit("head", ("root",), 10**15),
    }
    assert active(commits, {"main": "head"}, Rules(2**31 - 1)) == {"root", "head"}
    root = active_commits(commits, {"main": "head"}, Rules(1), NOW).active["root"]
    assert root.until is not None
    assert root.until.year == 9999


def test_an_empty_repository_has_nothing() -> None:
    found = active_commits({}, {}, Rules(7), NOW)
    assert (found.active, found.expired) == ({}, frozenset())


Compute = Callable[..., object]
BOTH = pytest.mark.parametrize("compute", [active_commits, naive_active_commits])


@BOTH
@pytest.mark.parametrize(
    ("commits", "heads"),
    [
        (graph(commit("a", 1)), {"main": "gone"}),
        (graph(commit("a", 1, "gone")), {"main": "a"}),
        (graph(commit("a", 1, "gone")), {}),
    ],
    ids=["head", "parent", "parent of a dangling commit"],
)
def test_what_is_missing_stops(
    compute: Compute, commits: dict[str, Commit], heads: dict[str, str]
) -> None:
    with pytest.raises(IntegrityError, match=r"commit gone .* not among the commits read"):
        compute(commits, heads, Rules(7), NOW)


def test_the_other_parent_of_a_merge_may_be_missing() -> None:
    commits = graph(commit("root", 9), commit("merge", 1, "root", "not read"))
    assert active(commits, {"main": "merge"}, Rules(7)) == {"merge", "root"}


@BOTH
@pytest.mark.parametrize(
    ("commits", "heads"),
    [
        (graph(commit("a", 1, "a")), {"main": "a"}),
        (graph(commit("a", 1, "b"), commit("b", 2, "a")), {"main": "a"}),
        (graph(commit("a", 1, "b"), commit("b", 2, "c"), commit("c", 3, "b")), {"main": "a"}),
        (graph(commit("a", 1), commit("b", 2, "c"), commit("c", 3, "b")), {"main": "a"}),
    ],
    ids=["itself", "two", "behind the HEAD", "out of reach"],
)
def test_circles_stop(compute: Compute, commits: dict[str, Commit], heads: dict[str, str]) -> None:
    with pytest.raises(IntegrityError, match="circle"):
        compute(commits, heads, Rules(7), NOW)


def test_a_commit_under_a_wrong_id_stops() -> None:
    with pytest.raises(IntegrityError, match="commit a is filed under the id b"):
        active_commits({"b": commit("a", 1)}, {}, Rules(7), NOW)


@BOTH
def test_now_needs_a_zone(compute: Compute) -> None:
    with pytest.raises(ValueError, match="aware"):
        compute({}, {}, Rules(7), NOW.replace(tzinfo=None))


def test_the_second_opinion_imports_nothing_of_the_first() -> None:
    code = (
        "import sys, lakegc_assets.retention.naive_active_commits; "
        "print(*sorted(m for m in sys.modules if m.startswith('lakegc_assets.retention.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == [
        "lakegc_assets.retention.commits",
        "lakegc_assets.retention.naive_active_commits",
        "lakegc_assets.retention.rules",
    ]


def test_many_commits_and_branches_take_seconds_at_most() -> None:
    """A walk that was taken anew for each branch would take minutes."""
    size, n_branches = 30_000, 1_000
    commits = graph(
        commit("0", size), *(commit(str(n), size - n, str(n - 1)) for n in range(1, size))
    )
    heads = {f"b{n}": str(size - 1 - n) for n in range(n_branches)}
    rules = Rules(7, {branch: n % 400 for n, branch in enumerate(heads)})
    steps = 0

    class Counting(dict[str, Commit]):
        def get(self, key: str, default: Any = None) -> Any:
            nonlocal steps
            steps += 1
            return super().get(key, default)

    found = active_commits(Counting(commits), heads, rules, NOW)
    assert set(heads.values()) <= found.active.keys()
    assert steps <= size + 2 * n_branches
