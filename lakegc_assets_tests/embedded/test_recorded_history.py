"""Recorded histories, made again commit by commit, get lakeFS's ids, heads and active commits."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from lakegc_assets.embedded import gc
from lakegc_assets.embedded.lake import Lake, catalog
from lakegc_assets.embedded.lake.catalog import Repository
from lakegc_assets.embedded.lake.settings import ServerSettings
from lakegc_assets.embedded.refs import history, staging
from lakegc_assets.embedded.refs.merging import differences
from lakegc_assets_tests.conformance.recorder import RECORDED, conforms
from lakegc_assets_tests.embedded.conftest import Clock
from lakegc_assets_tests.embedded.test_recorded_trees import (
    GOLDEN,
    bodies,
    in_order,
    recorded_commits,
    trees_of,
)

# The squash merge does not say what it merged; the recording of the calls does.
SQUASHED = {"squash sq": "Q1"}


def rebuild(lake: Lake, clock: Clock, repository: str) -> Repository:
    """Make every recorded commit again, each on a branch of its own at its first parent."""
    commits = recorded_commits(repository)
    names = {commit["message"]: commit["id"] for commit in commits.values()}
    recorded_trees = trees_of(repository)
    first, *others = in_order(repository)
    clock.now = first["creation_date"]
    new = Repository(repository, f"local://{repository}", "main", int(clock.now), False, None)
    repo = history.create_repository(lake, new)
    for commit in others:
        with lake.state.write() as db:
            catalog.insert_branch(db, repo, "work", commit["parents"][0], hidden=False)
        if ".lakefs.merge.strategy" in commit["metadata"]:
            source = SQUASHED.get(commit["message"])
            clock.now = commit["creation_date"]
            made = history.merge(
                lake,
                repository,
                names[source] if source else commit["parents"][1],
                "work",
                message=commit["message"],
                metadata={},
                strategy="",
                squash=source is not None,
                allow_empty=False,
            )
        else:
            before = commits[commit["parents"][0]]["meta_range_id"]
            with lake.state.write() as db:
                branch = catalog.branch(db, repo, "work")
                for found in differences(recorded_trees, before, commit["meta_range_id"]):
                    staging.stage(db, branch, (found.key, found.right))
            made = history.commit(
                lake,
                repository,
                "work",
                message=commit["message"],
                metadata=commit["metadata"],
                date=commit["creation_date"],
                allow_empty=False,
            )
        assert made.id == commit["id"], commit["message"]
        with lake.state.write() as db:
            catalog.delete_branch(db, catalog.branch(db, repo, "work"))
    return repo


def set_recorded_branches(lake: Lake, repo: Repository) -> None:
    (listed,) = bodies(repo.id, "branches_show_hidden")
    with lake.state.write() as db:
        catalog.delete_branch(db, catalog.branch(db, repo, "main"))
        for branch in listed["results"]:
            catalog.insert_branch(db, repo, branch["id"], branch["commit_id"], hidden=False)


@conforms(
    RECORDED,
    "Histories by their ids",
    client="recording",
    checked="made again from their own records, commits and merges get lakeFS's ids",
    differs="active commits follow the definition; lakeFS's walk loses some",
)
@pytest.mark.parametrize("repository", ["small", "retention", "orderhz", "norules"])
def test_a_recorded_history_is_made_again(tmp_path: Path, repository: str) -> None:
    clock = Clock()
    lake = Lake(ServerSettings(tmp_path, clock=clock))
    repo = rebuild(lake, clock, repository)
    set_recorded_branches(lake, repo)
    if repository != "norules":
        (rules,) = bodies(repository, "gc_rules_settings")
        listed = rules["branches"] or []
        days = {rule["branch_id"]: rule["retention_days"] for rule in listed}
        gc.set_rules(lake, repository, rules["default_retention_days"], days)
        recorded = prepared(repository)
        clock.now = recorded["sent_at"]
        location = gc.prepare_commits(lake, repository)["gc_commits_location"]
        path = lake.settings.objects_dir / location.removeprefix("local://")
        ours = active(path)
        theirs = active(GOLDEN / repository / "prepare" / "files" / recorded["file"])
        assert gc.rules(lake, repository) == {
            "default_retention_days": rules["default_retention_days"],
            "branches": rules["branches"] and [by_name(listed)[name] for name in days],
        }
        assert theirs.items() <= ours.items()
        assert ours.keys() - theirs.keys() == lost_by_lakefs(repository)
    lake.close()


def by_name(rules: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {rule["branch_id"]: rule for rule in rules}


def lost_by_lakefs(repository: str) -> set[str]:
    """Young commits behind old ones, and those that the order of ids makes its walk lose."""
    first = in_order(repository)[0]["id"]
    if repository == "retention":
        return set()
    if repository == "small":
        return {first}
    rows = json.loads((GOLDEN / repository / "manifest.json").read_text())["rows"]
    return {first, *(row["P"] for row in rows if not row["P_active_in_csv"])}


def prepared(repository: str) -> dict[str, Any]:
    answers = json.loads((GOLDEN / repository / "prepare" / "answers.json").read_text())
    (found,) = [answer for answer in answers if answer["name"] == "prepare_commits_sync"]
    namespace = f"s3://lab/{repository}/"
    return {**found, "file": found["body"]["gc_commits_location"].removeprefix(namespace)}


def active(path: Path) -> dict[str, str]:
    with path.open(newline="") as lines:
        return {row["commit_id"]: row["metarange_id"] for row in csv.DictReader(lines)}
