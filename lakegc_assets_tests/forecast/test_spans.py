"""On any history, under any rules: what a forecast frees is what no active commit holds."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lakegc_assets.forecast.commits import (
    MarkedCommits,
    days_left,
    days_needed,
    days_of_previous,
    spans_of,
    spans_of_paths,
)
from lakegc_assets.retention.active_commits import Reason, active_commits
from lakegc_assets.retention.commits import instant
from lakegc_assets.retention.naive_active_commits import naive_active_commits
from lakegc_assets.retention.retain_rules import Retain, prefix_of
from lakegc_assets.retention.retained_commits import lengthen, raise_days, retained_commits
from lakegc_assets.retention.rules import Rules
from lakegc_assets.retention.union import Previous, still_inside
from lakegc_assets_tests.forecast import twins
from lakegc_assets_tests.retention.graphs import NOW, History, histories
from lakegc_assets_tests.retention.test_retained_commits import (
    path_twin,
    retains,
    tagged_histories,
    twin,
)

WRITTEN = datetime(2022, 1, 1, tzinfo=timezone.utc)
BRANCHES = ["main", "dev", "old", "new"]
days = st.integers(0, 16)
ruled = st.dictionaries(st.sampled_from([*BRANCHES, "no such"]), days)
#: Commits are dated in whole seconds; a run begins at any microsecond.
moments = st.sampled_from([NOW, NOW + timedelta(microseconds=1), NOW + timedelta(seconds=0.999999)])


@given(
    tagged_histories(),
    retains,
    ruled,
    days,
    days,
    st.sets(st.sampled_from(BRANCHES)),
    st.randoms(),
    st.booleans(),
)
def test_a_forecast_names_what_a_mark_would(
    drawn: tuple[History, dict[str, str]],
    retain: Retain,
    branches: dict[str, int],
    default: int,
    later: int,
    without: set[str],
    chance: Any,
    tags: bool,  # noqa: FBT001 - drawn
) -> None:
    history, named_tags = drawn
    commits, today = history.commits, history.rules
    # A mark's own record: what was active then, and what tags protected.
    active = retained_commits(commits, history.heads, named_tags, today, retain, NOW).active
    tagged = frozenset(chance.sample(sorted(commits), 1) if tags else ())
    knew = Previous({commit_id: [reason] for commit_id, reason in active.items()}, NOW)
    marked = MarkedCommits(commits, history.heads, active, tagged, knew, today, named_tags)
    gone = without & history.heads.keys()
    which = (today, branches, gone, NOW, retain, retain)
    spans, of_paths = spans_of(marked, *which), spans_of_paths(marked, *which)

    # Each commit has a range of its own, and objects are in any of them.
    held = {number: {one for one in commits if chance.random() < 0.3} for number in range(6)}
    folders = {number: chance.choice(["a/", "a/b/", "b/", ""]) for number in held}
    entries = [
        {"range_id": one, "hash": number, "folder": folders[number]}
        for number, ids in held.items()
        for one in ids
    ]
    below = [
        {"range_id": one, "prefix": prefix_of(pattern), "days": span.days, "left": span.left}
        for pattern, of_commits in of_paths.items()
        for one, span in of_commits.items()
    ]
    outlook = twins.outlook(
        [
            {
                "address": f"data/{number}",
                "hash": number,
                "size": 1,
                "last_modified": WRITTEN,
                "why": None,
            }
            for number in held
        ],
        entries,
        [{"range_id": one, "days": span.days, "left": span.left} for one, span in spans.items()],
        [],
        twins.held_below(entries, below),
    )

    def named(kept: set[str], kept_below: dict[str, set[str]]) -> set[str]:
        safe: set[int] = set()
        for pattern, of_pattern in kept_below.items():
            some = {n for n, of in folders.items() if of.startswith(prefix_of(pattern))}
            safe.update(n for n in some if held[n] & of_pattern)
        return {
            f"data/{number}"
            for number, ids in held.items()
            if not ids & (kept | tagged) and number not in safe
        }

    heads = {name: head for name, head in history.heads.items() if name not in gone}
    changed = replace(history, heads=heads, rules=Rules(default, branches))
    # A mark also keeps what the one before it knew, as long as the rules of then keep it.
    longest = lengthen(changed.rules, retain, heads)
    known = partial(still_inside, [knew], heads=heads, now=NOW)
    other = {*twin(changed, named_tags, retain, NOW), *known(rules=longest)}
    paths = path_twin(changed, named_tags, retain, NOW)
    for pattern, kept in paths.items():
        kept.update(known(rules=raise_days(longest, retain.paths[pattern])))
    assert {row["address"] for row in outlook if row["days"] > default} == named(other, paths)
    then = twin(history, named_tags, retain, NOW + timedelta(days=later))
    paths = path_twin(history, named_tags, retain, NOW + timedelta(days=later))
    assert {row["address"] for row in outlook if row["left"] <= later} == named(then, paths)


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
