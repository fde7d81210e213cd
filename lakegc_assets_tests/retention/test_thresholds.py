"""One number for each commit tells what every default keeps, and one what every later day does."""

from __future__ import annotations

from datetime import datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from lakegc_assets.retention.active_commits import Reason, active_commits
from lakegc_assets.retention.commits import instant
from lakegc_assets.retention.naive_active_commits import naive_active_commits
from lakegc_assets.retention.rules import Rules
from lakegc_assets.retention.thresholds import days_left, days_needed, days_of_previous
from lakegc_assets.retention.union import Previous, still_inside
from lakegc_assets_tests.retention.graphs import NOW, History, histories

#: Commits are dated in whole seconds; a run begins at any microsecond.
moments = st.sampled_from([NOW, NOW + timedelta(microseconds=1), NOW + timedelta(seconds=0.999999)])


@given(histories(), moments, st.integers(0, 17))
def test_a_commit_is_active_from_its_default_on(
    history: History, now: datetime, default: int
) -> None:
    branches = history.rules.branches
    needed = days_needed(history.commits, history.heads, branches, now)
    active = naive_active_commits(history.commits, history.heads, Rules(default, branches), now)
    assert {one for one, days in needed.items() if days <= default} == active


@given(histories(), moments, st.integers(0, 17))
def test_a_commit_stays_active_for_its_days(history: History, now: datetime, days: int) -> None:
    of_history = (history.commits, history.heads, history.rules)
    left = days_left(active_commits(*of_history, now).active, now)
    later = naive_active_commits(*of_history, now + timedelta(days=days))
    assert {one for one, until in left.items() if until > days} == later


_reasons = st.builds(
    Reason,
    st.sampled_from(["main", "dev", "gone", None]),
    st.sampled_from(["head", "inside", "server"]),
    st.none(),
    st.none() | st.integers(-3, 14 * 86_400).map(lambda age: instant(NOW.timestamp() - age)),
)


@given(
    st.dictionaries(st.sampled_from(["c1", "c2"]), st.lists(_reasons, max_size=3)),
    st.dictionaries(st.sampled_from(["main", "dev"]), st.just("c1")),
    st.dictionaries(st.sampled_from(["main", "dev", "gone"]), st.integers(0, 15)),
    moments,
    moments,
    st.integers(0, 15),
)
def test_what_an_earlier_mark_knew_is_kept_from_its_default_on(
    reasons: dict[str, list[Reason]],
    heads: dict[str, str],
    branches: dict[str, int],
    marked_at: datetime,
    now: datetime,
    default: int,
) -> None:
    previous = Previous(reasons, marked_at)
    days = days_of_previous(previous, heads, branches, now)
    kept = still_inside([previous], heads=heads, rules=Rules(default, branches), now=now)
    assert {one for one, needed in days.items() if needed <= default} == kept.keys()
