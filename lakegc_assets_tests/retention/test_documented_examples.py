"""The examples of lakeFS issue 1932 and of lakeFS's docs.

Their pictures are not text, so dates and ages that the text leaves open are chosen to fit it.
"""

from __future__ import annotations

from datetime import datetime, timezone

from lakegc_assets.retention.active_commits import active_commits
from lakegc_assets.retention.commits import Commit
from lakegc_assets.retention.rules import Rules

from .graphs import NOW, active, commit, graph


def surviving(contents: dict[str, set[str]], active_ids: set[str]) -> set[str]:
    return set().union(*(contents[commit_id] for commit_id in active_ids))


def test_issue_cleanup_on_main() -> None:
    """7 days ago the HEAD was B."""
    commits = graph(commit("A", 20), commit("B", 9, "A"), commit("C", 5, "B"), commit("D", 1, "C"))
    contents = {
        "A": {"example1", "example2", "example3"},
        "B": {"example1", "example2"},
        "C": {"example1"},
        "D": set[str](),
    }
    found = active(commits, {"main": "D"}, Rules(7))
    assert found == {"B", "C", "D"}
    assert surviving(contents, found) == {"example1", "example2"}


TWO_BRANCHES = graph(
    commit("A", 20),
    commit("B", 10, "A"),
    commit("C", 9, "A"),
    commit("D", 5, "C"),
    commit("E", 2, "B"),
)


def test_issue_cleanup_on_two_branches() -> None:
    """7 days ago the HEAD of main was B, and 3 days ago that of feature1 was D."""
    contents = {
        "A": {"example1"},
        "B": {"example2"},
        "C": {"example1", "example3"},
        "D": {"example1"},
        "E": set[str](),
    }
    rules = Rules(30, {"main": 7, "feature1": 3})
    found = active(TWO_BRANCHES, {"main": "E", "feature1": "D"}, rules)
    assert found == {"B", "D", "E"}
    assert surviving(contents, found) == {"example1", "example2"}


def test_issue_dangling_commits_inside_the_default() -> None:
    """7 days ago the hypothetical HEAD pointed at C, so D and C are active."""
    found = active(TWO_BRANCHES, {"main": "E"}, Rules(7))
    assert found == {"B", "C", "D", "E"}
    reasons = active_commits(TWO_BRANCHES, {"main": "E"}, Rules(7), NOW).active
    assert (reasons["D"].branch, reasons["D"].kind) == (None, "dangling")
    assert (reasons["C"].branch, reasons["C"].kind) == (None, "replaced inside")


def test_issue_dangling_commits_outside_the_default() -> None:
    """3 days ago the hypothetical HEAD pointed at the dummy, so neither D nor C is active."""
    assert active(TWO_BRANCHES, {"main": "E"}, Rules(3, {"main": 7})) == {"B", "E"}


def day(date: str) -> int:
    return int(datetime.fromisoformat(f"{date}T00:00:00+00:00").timestamp())


MAIN = ["2022-02-27", "2022-03-01", "2022-03-09", "2022-03-12", "2022-03-28"]
DEV = ["2022-03-14", "2022-03-20", "2022-03-23", "2022-03-29"]


def docs_history() -> dict[str, Commit]:
    """Branch ``main``, and ``dev`` from its commit of 2022-03-12; names as in the docs."""
    commits = {}
    previous: tuple[str, ...] = ()
    for date in MAIN:
        commits[date] = Commit(date, previous, day(date))
        previous = (date,)
    previous = ("2022-03-12",)
    for date in DEV:
        commits[f"d: {date}"] = Commit(f"d: {date}", previous, day(date))
        previous = (f"d: {date}",)
    return commits


def test_docs_main_21_days_dev_7_on_2022_03_31() -> None:
    rules = Rules(14, {"main": 21, "dev": 7})
    heads = {"main": MAIN[-1], "dev": f"d: {DEV[-1]}"}
    today = datetime(2022, 3, 31, tzinfo=timezone.utc)
    found = active(docs_history(), heads, rules, today)
    assert found == {
        "2022-03-09",
        "2022-03-12",
        "2022-03-28",
        "d: 2022-03-23",
        "d: 2022-03-29",
    }


def test_docs_the_last_commit_of_dev_may_be_its_head() -> None:
    commits = {name: each for name, each in docs_history().items() if name != "d: 2022-03-29"}
    rules = Rules(14, {"main": 21, "dev": 7})
    today = datetime(2022, 3, 31, tzinfo=timezone.utc)
    heads = {"main": MAIN[-1], "dev": "d: 2022-03-23"}
    assert {name for name in active(commits, heads, rules, today) if name.startswith("d")} == {
        "d: 2022-03-23"
    }


def test_docs_the_largest_number_of_days_wins() -> None:
    """Rules 14, main 21, dev 7: what several branches reach follows the longest."""
    commits = graph(
        commit("root", 60),
        commit("shared", 20, "root"),
        commit("dev only", 10, "shared"),
        commit("dev head", 9, "dev only"),
        commit("main head", 2, "shared"),
    )
    rules = Rules(14, {"main": 21, "dev": 7})
    heads = {"main": "main head", "dev": "dev head"}
    assert active(commits, heads, rules) == {"root", "shared", "main head", "dev head"}
    # Without a rule of its own the branch follows the default.
    other = {"main": "main head", "other": "dev head"}
    assert active(commits, other, rules) == commits.keys()
    found = active_commits(commits, heads, rules, NOW).active
    assert found["root"].branch == "main"
