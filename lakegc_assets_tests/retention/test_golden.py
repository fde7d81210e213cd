"""Histories that a real lakeFS server kept: what must stay, and what its own list lacks."""

from __future__ import annotations

import csv
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from lakegc_assets.retention.active_commits import active_commits
from lakegc_assets.retention.commits import Commit, instant
from lakegc_assets.retention.naive_active_commits import naive_active_commits
from lakegc_assets.retention.rules import Rules
from lakegc_assets.retention.union import missing_heads, unite

GOLDEN = Path(__file__).parent.parent / "golden"


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def manifest(repository: str) -> Any:
    return read_json(GOLDEN / repository / "manifest.json")


def recorded_commits(repository: str) -> dict[str, Commit]:
    bodies = [read_json(path)["body"] for path in (GOLDEN / repository / "api").glob("commit.*")]
    return {
        body["id"]: Commit(
            body["id"],
            tuple(body["parents"]),
            body["creation_date"],
            body["meta_range_id"],
            body["version"],
        )
        for body in bodies
    }


def recorded_heads(repository: str) -> dict[str, str]:
    body = read_json(GOLDEN / repository / "api" / "branches_show_hidden.json")["body"]
    return {branch["id"]: branch["commit_id"] for branch in body["results"]}


def recorded_rules(repository: str) -> Rules:
    return Rules.parse(read_json(GOLDEN / repository / "api" / "gc_rules_settings.json")["body"])


def mark_time(repository: str) -> datetime:
    """When lakeFS's own mark ran."""
    (summary,) = (GOLDEN / repository / "peer_mark").rglob("summary.json")
    start: str = read_json(summary)["start_time"]
    return datetime.fromisoformat(f"{start[:26]}+00:00")


def server_lists(repository: str) -> list[set[str]]:
    """The lists of active commits, of the synchronous and the asynchronous call."""
    files = sorted((GOLDEN / repository / "prepare").rglob("commits.csv"))
    assert len(files) == 2
    lists = []
    for path in files:
        with path.open(newline="") as lines:
            lists.append({row["commit_id"] for row in csv.DictReader(lines)})
    return lists


def compute(repository: str, commits: dict[str, Commit], now: datetime) -> set[str]:
    args = (commits, recorded_heads(repository), recorded_rules(repository), now)
    found = active_commits(*args)
    assert found.active.keys() == naive_active_commits(*args)
    assert found.expired == commits.keys() - found.active.keys()
    assert missing_heads(found.active, recorded_heads(repository)) == {}
    return set(found.active)


def first_commit(commits: dict[str, Commit]) -> str:
    """The commit that creating the repository made.

    It has no metarange, so no object depends on it. Its date is that of the recording, while the
    commits after it were given dates in the past: created inside, though the server, which asks
    only when it was replaced, does not list it.
    """
    (first,) = (each for each in commits.values() if not each.parents)
    assert first.metarange_id == ""
    return first.id


@pytest.mark.parametrize("moment", ["manifest", "mark"])
def test_retention(moment: str) -> None:
    truth = manifest("retention")
    commits = recorded_commits("retention")
    now = instant(truth["now"]) if moment == "manifest" else mark_time("retention")
    found = compute("retention", commits, now)
    names = {each["id"]: name for name, each in truth["commits"].items()}
    assert commits.keys() == names.keys()
    by_expectation: dict[str, set[str]] = {"active": set(), "expired": set()}
    for each in truth["commits"].values():
        by_expectation[each["expected"]].add(each["id"])
    assert found == by_expectation["active"]
    assert commits.keys() - found == by_expectation["expired"]
    assert {names[commit_id] for commit_id in commits.keys() - found} == {
        *("D1", "F1", "F2", "H1", "H2", "M2")
    }


def test_retention_reasons_are_the_recorded_ones() -> None:
    truth = manifest("retention")
    ids = {name: each["id"] for name, each in truth["commits"].items()}
    reasons = active_commits(
        recorded_commits("retention"),
        recorded_heads("retention"),
        recorded_rules("retention"),
        instant(truth["now"]),
    ).active
    told = {
        name: (reasons[ids[name]].branch, reasons[ids[name]].kind)
        for name in ids
        if ids[name] in reasons
    }
    assert told["M3"] == ("fromold", "head")
    assert told["M4"] == ("main", "replaced inside")
    assert told["D2"] == ("dev", "replaced inside")
    assert told["S1"] == ("long", "replaced inside")
    assert told["G3"] == (None, "dangling")
    assert told["G1"] == (None, "replaced inside")


@pytest.mark.parametrize("moment", ["manifest", "mark"])
def test_small(moment: str) -> None:
    truth = manifest("small")
    now = instant(truth["now"]) if moment == "manifest" else mark_time("small")
    # The manifest has the commits of the deleted branch, too; the API's logs cannot reach them.
    commits = {
        commit_id: Commit(
            commit_id, tuple(each["parents"]), each["date"], each.get("meta_range_id", "")
        )
        for commit_id, each in truth["commit_meta"].items()
    }
    assert {commit_id: commits[commit_id] for commit_id in recorded_commits("small")} == (
        recorded_commits("small")
    )
    found = compute("small", commits, now)
    first = first_commit(commits)
    assert found == {*truth["active_commits"], first}
    assert commits.keys() - found == set(truth["expired_commits"]) - {first}
    assert compute("small", recorded_commits("small"), now) == found


def test_the_union_says_what_lakefs_forgot_in_orderhz() -> None:
    commits = recorded_commits("orderhz")
    rows = manifest("orderhz")["rows"]
    own = active_commits(
        commits, recorded_heads("orderhz"), recorded_rules("orderhz"), mark_time("orderhz")
    )
    assert compute("orderhz", commits, mark_time("orderhz")) == commits.keys()
    assert {row["P"] for row in rows} <= commits.keys()
    forgotten = {row["P"] for row in rows if row["O"] < row["N"]}
    assert len(forgotten) == 4
    for server in server_lists("orderhz"):
        assert missing_heads(server, recorded_heads("orderhz")) == {}
        united = unite(server, own)
        assert united.active.keys() == commits.keys()
        assert united.only_server == frozenset()
        assert united.only_own == forgotten | {first_commit(commits)}


@pytest.mark.parametrize("repository", ["small", "retention"])
def test_elsewhere_lakefs_agrees(repository: str) -> None:
    commits = recorded_commits(repository)
    own = active_commits(
        commits, recorded_heads(repository), recorded_rules(repository), mark_time(repository)
    )
    for server in server_lists(repository):
        united = unite(server, own)
        assert united.only_server == frozenset()
        assert united.only_own <= {first_commit(commits)}
