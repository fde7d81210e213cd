"""Rules that lakeFS does not have only ever keep more, and keep what they say, on any history."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from functools import reduce
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lakegc_assets.checks import logged_commits as checked
from lakegc_assets.graveler.decode import FOLDER_DEPTH
from lakegc_assets.retention.active_commits import Reason, active_commits
from lakegc_assets.retention.commits import Commit
from lakegc_assets.retention.naive_active_commits import naive_active_commits
from lakegc_assets.retention.retain_rules import FOREVER, MOST_FOLDERS, OfBranches, Retain
from lakegc_assets.retention.retained_commits import kept_commits, path_commits, retained_commits
from lakegc_assets.retention.rules import Rules, RulesError
from lakegc_assets.retention.rules_file import parse_retain
from lakegc_assets.retention.union import Previous

from .graphs import NOW, History, commit, graph, histories

PATTERNS = ["*", "main", "d?v", "[no]*", "no such"]
MARKS = [(), (("hold", "yes"),), (("hold", "no"), ("by", "me"))]
numbers = st.none() | st.integers(1, 14)
of_branches = st.builds(OfBranches, numbers, numbers).filter(any)
retains = st.builds(
    Retain,
    st.lists(st.sampled_from(["v*", "v1", "*"]), max_size=2, unique=True).map(tuple),
    st.dictionaries(st.sampled_from(PATTERNS), of_branches, max_size=2),
    st.dictionaries(
        st.sampled_from(["hold", "by"]),
        st.sampled_from([("yes",), ("*",), ("x", "no")]),
        max_size=2,
    ),
    st.dictionaries(
        st.sampled_from(["a/**", "a/b/**", "**"]),
        st.integers(1, 16) | st.just(FOREVER),
        max_size=2,
    ),
)


@st.composite
def tagged_histories(draw: st.DrawFn) -> tuple[History, dict[str, str]]:
    """Histories whose commits have metadata, with the tags of them."""
    found = draw(histories())
    commits = {
        name: replace(one, metadata=draw(st.sampled_from(MARKS)))
        for name, one in found.commits.items()
    }
    names = st.sampled_from(sorted(commits))
    tags = draw(st.dictionaries(st.sampled_from(["v1", "v2", "other"]), names))
    return replace(found, commits=commits), tags


def twin(history: History, tags: dict[str, str], retain: Retain, now: datetime = NOW) -> set[str]:
    """The active commits, word for word."""
    commits, heads, rules = history.commits, history.heads, history.rules

    def of(branch: str) -> list[OfBranches]:
        return [
            kept for p, kept in retain.branches.items() if branch in fnmatch.filter([branch], p)
        ]

    days = {b: max(rules.days(b), *(kept.days or 0 for kept in of(b)), 0) for b in heads}
    longest = Rules(rules.default_retention_days, {**rules.branches, **days})
    found = naive_active_commits(commits, heads, longest, now)
    found |= {c for tag, c in tags.items() for p in retain.tags if fnmatch.filter([tag], p)}
    for branch, head in heads.items():
        count = max((kept.last_commits or 0 for kept in of(branch)), default=0)
        found |= set(islice(ancestry(commits, head), count))
    for one in commits.values():
        values = dict(one.metadata)
        if any(
            values.get(key) in (*some, "*" in some and values.get(key)) and key in values
            for key, some in retain.metadata.items()
        ):
            found.add(one.id)
    return found


def path_twin(
    history: History, tags: dict[str, str], retain: Retain, now: datetime = NOW
) -> dict[str, set[str]]:
    """What each pattern of paths keeps: as if every branch, and no branch, had these days."""
    found = {}
    for pattern, days in retain.paths.items():
        if days == FOREVER:
            found[pattern] = set(history.commits)
            continue
        every = retain.branches.get("*", OfBranches()) | OfBranches(days)
        longer = replace(retain, branches={**retain.branches, "*": every})
        rules = replace(
            history.rules,
            default_retention_days=max(history.rules.default_retention_days, days),
        )
        found[pattern] = twin(replace(history, rules=rules), tags, longer, now)
    return found


def ancestry(commits: dict[str, Commit], head: str) -> Iterator[str]:
    current: str | None = head
    while current is not None:
        yield current
        current = commits[current].main_parent


#: What is drawn may leave out the one that a rule is about.
AGED = History(
    graph(
        replace(commit("z", 50), metadata=(("hold", "no"),)),
        replace(commit("a", 40, "z"), metadata=(("hold", "yes"),)),
        commit("b", 30, "a"),
        commit("c", 20, "b"),
    ),
    {"main": "c"},
    Rules(1, {"main": 25}),
)
EACH = [
    Retain(branches={"m*": OfBranches(35)}),
    Retain(branches={"m*": OfBranches(3, 3), "main": OfBranches(2, 1), "dev": OfBranches(99, 9)}),
    Retain(metadata={"hold": ("*",)}),
    Retain(metadata={"hold": ("yes", "?")}),
]


def with_each(test: Callable[..., None]) -> Callable[..., None]:
    return reduce(lambda of, retain: example((AGED, {}), retain)(of), EACH, test)


@with_each
@given(tagged_histories(), retains)
def test_what_stays_is_what_the_rules_say_and_all_that_lakefs_rules_keep(
    tagged: tuple[History, dict[str, str]], retain: Retain
) -> None:
    history, tags = tagged
    commits, heads, rules = history.commits, history.heads, history.rules
    found = retained_commits(commits, heads, tags, rules, retain, NOW)
    assert found.active.keys() == twin(history, tags, retain)
    without = active_commits(commits, heads, rules, NOW)
    assert without.active.keys() <= found.active.keys()
    assert found.expired == commits.keys() - found.active.keys()
    # What only these rules keep names one of them, and the next mark counts from where it did.
    assert all(found.active[one].rule for one in found.active.keys() - without.active.keys())
    counted = {
        c: reason.counted_from for c, reason in without.active.items() if reason.counted_from
    }
    assert all(found.active[c].counted_from for c in counted)


@given(tagged_histories(), retains)
def test_below_paths_stays_what_longer_days_would_keep(
    tagged: tuple[History, dict[str, str]], retain: Retain
) -> None:
    history, tags = tagged
    commits, heads, rules = history.commits, history.heads, history.rules
    active = retained_commits(commits, heads, tags, rules, retain, NOW).active.keys()
    found = path_commits(commits, heads, rules, retain, NOW)
    kept = {pattern: of.keys() | active for pattern, of in found.items()}
    assert kept == path_twin(history, tags, retain)
    assert all(pattern in one.rule for pattern, of in found.items() for one in of.values())

    # The checks see what branches and tags lead to.
    client: Any = SimpleNamespace(log=lambda _, ref, **_first_parent: log(history, ref))
    reached = everything(history, [*heads.values(), *tags.values()])
    seen = {name: one for name, one in commits.items() if name in reached}
    checks = checked.path_commits(client, "any", heads, tags, rules, retain, NOW)
    expected = path_commits(seen, heads, rules, retain, NOW)
    assert {pattern: of.keys() for pattern, of in checks.items()} == {
        pattern: of.keys() for pattern, of in expected.items()
    }


@pytest.mark.parametrize(("marked", "stays"), [(9, True), (10, False)])
def test_below_paths_stays_what_an_earlier_mark_knew_for_the_days_of_the_path(
    marked: int, *, stays: bool
) -> None:
    """A reset drops the commit from each log."""
    was_head = Reason("main", "head", None, NOW - timedelta(days=300))
    earlier = Previous({"b": [was_head]}, NOW - timedelta(days=marked))
    heads, retain = {"main": "a"}, Retain(paths={"logs/**": 10})
    commits = graph(commit("a", 20))
    found = path_commits(commits, heads, Rules(1, {"main": 2}), retain, NOW, [earlier])
    assert found["logs/**"].keys() == ({"a", "b"} if stays else {"a"})


@with_each
@given(tagged_histories(), retains)
def test_the_checks_find_the_same_by_the_logs(
    tagged: tuple[History, dict[str, str]], retain: Retain
) -> None:
    """Of what branches and tags lead to: of the rest the server tells them nothing."""
    history, tags = tagged
    client: Any = SimpleNamespace(log=lambda _, ref, **_first_parent: log(history, ref))
    found = checked.kept_commits(client, "any", history.heads, tags, retain)
    reached = everything(history, [*history.heads.values(), *tags.values()])
    assert found == kept_commits(history.commits, history.heads, tags, retain).keys() & reached
    longest = checked.longest_rules(history.rules, retain, history.heads)
    active = naive_active_commits(history.commits, history.heads, longest, NOW)
    kept = kept_commits(history.commits, history.heads, tags, retain).keys()
    assert active | kept == twin(history, tags, retain)


def log(history: History, ref: str) -> Iterator[Any]:
    for name in ancestry(history.commits, ref):
        one = history.commits[name]
        yield SimpleNamespace(
            id=name,
            parents=one.parents,
            version=one.version,
            metadata=dict(one.metadata),
            creation_date=one.creation_date,
            meta_range_id=one.metarange_id,
        )


def everything(history: History, roots: list[str]) -> set[str]:
    found: set[str] = set()
    while roots:
        one = roots.pop()
        if one not in found:
            found.add(one)
            roots += history.commits[one].parents
    return found


@given(tagged_histories(), retains, retains)
def test_both_of_two_rules_hold(
    tagged: tuple[History, dict[str, str]], one: Retain, other: Retain
) -> None:
    """A sweep follows its mark's rules and its own."""
    history, tags = tagged
    kept = twin(history, tags, one) | twin(history, tags, other)
    assert kept == twin(history, tags, one | other)
    below = path_twin(history, tags, one | other)
    for each in (one, other):
        for pattern, ids in path_twin(history, tags, each).items():
            assert ids <= below[pattern]


def test_of_two_rules_with_one_name_the_longer_holds() -> None:
    hold, held = {"hold": ("yes",)}, {"hold": ("no",)}
    one = Retain(("v*",), {"main": OfBranches(1, 5)}, hold, {"a/**": 1})
    other = Retain(("w",), {"main": OfBranches(9, 2), "dev": OfBranches(3)}, held, {"a/**": 7})
    for both in (one | other, other | one):
        assert sorted(both.tags) == ["v*", "w"]
        assert both.branches == {"main": OfBranches(9, 5), "dev": OfBranches(3)}
        assert {name: sorted(of) for name, of in both.metadata.items()} == {"hold": ["no", "yes"]}
        assert both.paths == {"a/**": 7}


@pytest.mark.parametrize(
    ("retain", "tags", "commits"),
    [
        (Retain(("v*",)), True, False),
        (Retain(branches={"main": OfBranches(9)}), False, False),
        (Retain(metadata={"hold": ("*",)}), True, True),
        (Retain(paths={"**": 9}), True, True),
    ],
)
def test_what_rules_may_find_is_read(retain: Retain, *, tags: bool, commits: bool) -> None:
    assert (retain.reads_tags, retain.reads_all_commits) == (tags, commits)


@given(retains)
def test_json_is_read_as_it_was(retain: Retain) -> None:
    assert Retain.parse(retain.to_json()) == retain
    assert bool(retain) == bool(retain.to_json())


def test_yaml_as_it_is_documented() -> None:
    text = """\
tags: ["v*"]
branches:
  release-*: {days: 365}
  main: {last_commits: 10, days: 90}
metadata:
  legal-hold: "true"
  keep: ["yes", "*"]
paths: {"legal/**": forever, "logs/app/**": 90, "**": 7}
"""
    assert parse_retain(text, "f") == Retain(
        ("v*",),
        {"release-*": OfBranches(365), "main": OfBranches(90, 10)},
        {"legal-hold": ("true",), "keep": ("yes", "*")},
        {"legal/**": FOREVER, "logs/app/**": 90, "**": 7},
    )
    assert MOST_FOLDERS == FOLDER_DEPTH
    assert parse_retain("{}", "f") == Retain()


BROKEN = {
    "": "f is empty: write {} where",
    "[v1]": "f, line 1: retain must have keys with values",
    "tags: v*": "f, line 1: tags must be a list of patterns, not 'v*'",
    "tags:\n- a\n- 7": "f, line 3: a pattern of tags must be text, in quotes, and is 7",
    "tags: []\nfolders: {legal/: forever}": "f, line 2: retain: unknown key 'folders'; expected",
    "branches:\n  main: 7": "f, line 2: branches: 'main' must have keys with values, and is 7",
    "branches:\n  main: {}": "f, line 2: branches: 'main' keeps nothing: give days, last_commits",
    "branches:\n  main:\n    day: 7": "f, line 3: branches: 'main': unknown key 'day'",
    "branches:\n  main:\n    days: -1": "f, line 3: branches: 'main': days must be a whole number",
    "branches:\n  main:\n    days: true": "f, line 3: branches: 'main': days must be a whole",
    "branches:\n  main:\n    last_commits: 0": "f, line 3: branches: 'main': last_commits must be",
    "branches:\n  '': {days: 1}": "f, line 2: a pattern of branches must be text",
    "metadata:\n  hold: true": "f, line 2: metadata: 'hold' must be text, in quotes, a list",
    "metadata:\n  hold: []": "f, line 2: metadata: 'hold' names no value",
    "tags: [a]\ntags: [b]": "f, line 2: tags is given twice",
    "paths: [a]": "f, line 1: paths must have keys with values",
    "paths:\n  '': 7": "f, line 2: a pattern of paths must be text, in quotes, and is ''",
    "paths:\n  a/**: 7\n  b/*: 7": "f, line 3: paths: 'b/*' must be '**', for all paths, or end in",
    "paths:\n  legal: 7": "f, line 2: paths: 'legal' must be '**', for all paths, or end in '/**'",
    "paths:\n  a**: 7": "f, line 2: paths: 'a**' must be '**', for all paths, or end in '/**'",
    "paths:\n  a/**/b/**: 7": "f, line 2: paths: 'a/**/b/**' has a pattern in the middle",
    "paths:\n  a?/**: 7": "f, line 2: paths: 'a?/**' has a pattern in the middle",
    "paths:\n  /**: 7": "f, line 2: paths: '/**' has a folder without a name",
    "paths:\n  a//b/**: 7": "f, line 2: paths: 'a//b/**' has a folder without a name",
    "paths:\n  a/b/c/d/e/**: 7": "f, line 2: paths: 'a/b/c/d/e/**' names 5 folders, and 4 are",
    "paths:\n  a/**: -7": "f, line 2: paths: 'a/**' must be a whole number from 1 to",
    "paths:\n  a/**: 0": "f, line 2: paths: 'a/**' must be a whole number from 1 to",
    "paths:\n  a/**: true": "f, line 2: paths: 'a/**' must be a whole number from 1 to",
    "paths:\n  a/**: always": "f, line 2: paths: 'a/**' must be a number of days, or forever, not",
    "paths:\n  a/**: {days: 7}": "f, line 2: paths: 'a/**' must be a number of days, or forever",
}


@pytest.mark.parametrize("text", BROKEN, ids=range(len(BROKEN)))
def test_what_nobody_can_parse_names_line_and_key(text: str) -> None:
    with pytest.raises(RulesError) as found:
        parse_retain(text, "f")
    assert str(found.value).startswith(BROKEN[text])
