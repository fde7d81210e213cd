"""Small commit graphs, by hand and at random, that the tests of retention share."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from hypothesis import strategies as st

from lakegc_assets.retention.active_commits import active_commits
from lakegc_assets.retention.commits import Commit
from lakegc_assets.retention.naive_active_commits import naive_active_commits
from lakegc_assets.retention.rules import Rules

NOW = datetime(2022, 3, 31, 12, tzinfo=timezone.utc)


def commit(commit_id: str, age_days: float, *parents: str, version: int = 1) -> Commit:
    created = NOW - timedelta(days=age_days)
    return Commit(commit_id, parents, int(created.timestamp()), f"mr-{commit_id}", version)


def graph(*commits: Commit) -> dict[str, Commit]:
    return {each.id: each for each in commits}


def active(
    commits: dict[str, Commit], heads: dict[str, str], rules: Rules, now: datetime = NOW
) -> set[str]:
    """Both implementations' answer; a test that asks sees any difference between them."""
    fast = set(active_commits(commits, heads, rules, now).active)
    slow = naive_active_commits(commits, heads, rules, now)
    assert fast == slow
    return fast


@dataclass(frozen=True)
class History:
    commits: dict[str, Commit]
    heads: dict[str, str]
    rules: Rules


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Merges, shared ancestry, dates out of order, old versions, tips that nothing names."""
    size = draw(st.integers(1, 14))
    names = draw(st.permutations([f"c{number:02}" for number in range(size)]))
    commits = {}
    for number, name in enumerate(names):
        parents = draw(st.lists(st.sampled_from(names[:number]), max_size=2)) if number else []
        # Whole days as well as odd seconds, so that dates meet thresholds exactly.
        age = draw(st.integers(-2, 14)) * 86_400 + draw(st.sampled_from([0, 0, -1, 1, 40_000]))
        commits[name] = Commit(
            name, tuple(parents), int(NOW.timestamp()) - age, "", draw(st.integers(0, 1))
        )
    branches = ["main", "dev", "old", "new"]
    heads = draw(st.dictionaries(st.sampled_from(branches), st.sampled_from(names)))
    rules = Rules(
        draw(st.integers(0, 10)),
        draw(st.dictionaries(st.sampled_from([*branches, "no such"]), st.integers(0, 10))),
    )
    return History(commits, heads, rules)
