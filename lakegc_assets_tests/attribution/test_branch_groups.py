"""Which branches keep a commit: what retention says of each branch alone."""

from __future__ import annotations

from datetime import datetime, timezone

from hypothesis import given
from hypothesis import strategies as st

from lakegc_assets.attribution.branch_groups import NO_BRANCH, Ancestor, group, keepers
from lakegc_assets.retention.active_commits import active_commits
from lakegc_assets.retention.commits import Commit
from lakegc_assets.retention.rules import Rules

_DAY = 86_400
NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Commit], dict[str, str], Rules]:
    """Commits in any order of dates, each with one earlier than it as its parent, and branches."""
    commits: list[Commit] = []
    for number in range(draw(st.integers(1, 8))):
        parent = draw(st.sampled_from([None, *range(number)]))
        days = draw(st.integers(-1, 6))
        parents = () if parent is None else (f"c{parent}",)
        commits.append(Commit(f"c{number}", parents, int(NOW.timestamp()) - days * _DAY))
    ids = [commit.id for commit in commits]
    heads = draw(st.dictionaries(st.sampled_from("abc"), st.sampled_from(ids), min_size=1))
    branches = draw(st.dictionaries(st.sampled_from("abc"), st.integers(0, 6)))
    return commits, heads, Rules(3, branches)


def _ancestry(head: str, commits: dict[str, Commit]) -> dict[str, Commit]:
    found: dict[str, Commit] = {}
    current: str | None = head
    while current is not None:
        found[current] = commits[current]
        current = commits[current].main_parent
    return found


@given(histories())
def test_a_branch_keeps_what_is_active_where_there_is_no_other(
    history: tuple[list[Commit], dict[str, str], Rules],
) -> None:
    commits, heads, rules = history
    by_id = {commit.id: commit for commit in commits}
    known = {c.id: Ancestor(c.creation_date, c.main_parent) for c in commits}
    found = keepers(heads, known, rules, NOW)
    expected: dict[str, int] = {}
    for number, branch in enumerate(sorted(heads)):
        alone = _ancestry(heads[branch], by_id)
        for commit in active_commits(alone, {branch: heads[branch]}, rules, NOW).active:
            expected[commit] = expected.get(commit, 0) | 2 << number
    assert found == expected


def test_without_rules_a_branch_keeps_all_that_is_behind_it() -> None:
    known = {"c0": Ancestor(0, None), "c1": Ancestor(1, "c0"), "c2": Ancestor(2, "c0")}
    assert keepers({"a": "c1", "b": "c2"}, known, None, NOW) == {"c0": 6, "c1": 2, "c2": 4}


def test_metaranges_are_grouped_by_the_branches_that_keep_their_commits() -> None:
    active = [("c0", "m0"), ("c1", "m1"), ("c2", "m1"), ("c3", "m3"), ("c4", ""), ("c5", "m5")]
    kept_by = {"c0": 2, "c1": 2, "c2": 4, "c3": 6}
    groups = group(active, kept_by, {"c0"}, ["b", "a"])
    assert {m: groups.sets[n] for m, n in groups.of_metarange.items()} == {
        "m0": 2 | NO_BRANCH,
        "m1": 6,
        "m3": 6,
        "m5": NO_BRANCH,
    }
    assert groups.sets[0] == NO_BRANCH
    assert len(groups.sets) == len(set(groups.sets))
    assert groups.names(6) == ["a", "b"]
    words = sum(1 << n for n in {groups.of_metarange["m0"], groups.of_metarange["m1"]})
    assert groups.united(str(words)) == 7
