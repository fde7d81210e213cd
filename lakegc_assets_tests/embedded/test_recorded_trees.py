"""Trees built here are those that a real lakeFS built from the same changes, down to their ids."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from lakegc_assets.embedded.lake.catalog import Commit, Repository, insert_commit
from lakegc_assets.embedded.lake.state import State
from lakegc_assets.embedded.lake.trees import Breaks, Trees, commit_changes
from lakegc_assets.embedded.refs import refs
from lakegc_assets.embedded.refs.merging import differences, merge
from lakegc_assets.storage.opening import open_store
from lakegc_assets_tests.conformance.recorder import RECORDED, conforms

GOLDEN = Path(__file__).parents[1] / "golden"
REPOSITORIES = ("small", "retention", "orderhz", "norules", "identical")
BREAKS = Breaks(raggedness=50_000, max_bytes=20 * 1024 * 1024)


def bodies(repository: str, pattern: str) -> list[Any]:
    """The recorded answers whose files match."""
    found = sorted((GOLDEN / repository / "api").glob(f"{pattern}.json"))
    return [json.loads(path.read_text())["body"] for path in found]


def recorded_commits(repository: str) -> dict[str, dict[str, Any]]:
    return {commit["id"]: commit for commit in bodies(repository, "commit.*")}


def trees_of(repository: str) -> Trees:
    return Trees(open_store(str(GOLDEN / repository / "raw")), BREAKS)


def made_from(recorded: dict[str, Any], known: dict[str, Commit]) -> Commit:
    return Commit.new(
        committer=recorded["committer"],
        message=recorded["message"],
        metarange_id=recorded["meta_range_id"],
        creation_date=recorded["creation_date"],
        metadata=recorded["metadata"],
        parents=tuple(known[parent] for parent in recorded["parents"]),
    )


def in_order(repository: str) -> list[dict[str, Any]]:
    found = recorded_commits(repository)
    assert len(found) > 1
    return sorted(found.values(), key=lambda commit: commit["generation"])


@conforms(
    RECORDED,
    "Commit ids and generations",
    client="recording",
    checked="every recorded commit, made from its own fields, gets its own id and generation",
)
@pytest.mark.parametrize("repository", REPOSITORIES)
def test_commits_have_their_recorded_ids_and_generations(repository: str) -> None:
    known: dict[str, Commit] = {}
    for recorded in in_order(repository):
        made = made_from(recorded, known)
        assert made.id == recorded["id"]
        assert made.generation == recorded["generation"]
        known[made.id] = made


@conforms(
    RECORDED,
    "Trees of commits",
    client="recording",
    checked="each commit's own changes, committed again, write the recorded files byte by byte",
)
@pytest.mark.parametrize("repository", REPOSITORIES)
def test_committing_the_recorded_changes_gives_the_recorded_trees(
    repository: str, tmp_path: Path
) -> None:
    recorded_trees = trees_of(repository)
    commits = recorded_commits(repository)
    store = open_store(str(tmp_path))
    rebuilt = Trees(store, BREAKS)
    checked = 0
    for commit in in_order(repository):
        if len(commit["parents"]) != 1 or ".lakefs.merge.strategy" in commit["metadata"]:
            for info in recorded_trees.ranges(commit["meta_range_id"]):
                store.put(f"_lakefs/{info.id}", raw(repository, info.id))
            if commit["meta_range_id"]:
                name = commit["meta_range_id"]
                store.put(f"_lakefs/{name}", raw(repository, name))
            continue
        before = commits[commit["parents"][0]]["meta_range_id"]
        changes = [
            (found.key, found.right)
            for found in differences(recorded_trees, before, commit["meta_range_id"])
        ]
        assert commit_changes(rebuilt, before, changes) == (commit["meta_range_id"], True)
        checked += 1
    assert checked >= 1
    written = {path.name for path in (tmp_path / "_lakefs").iterdir()}
    for name in written:
        assert (tmp_path / "_lakefs" / name).read_bytes() == raw(repository, name)


def raw(repository: str, name: str) -> bytes:
    return (GOLDEN / repository / "raw" / "_lakefs" / name).read_bytes()


@conforms(
    RECORDED,
    "Trees of merges",
    client="recording",
    checked="a merge and a squash merge get the recorded metarange ids",
)
def test_merging_the_recorded_branches_gives_the_recorded_trees(tmp_path: Path) -> None:
    state = State(tmp_path / "state.db")
    repo = Repository("retention", "s3://lab/retention", "main", 0, read_only=False, rules=None)
    known: dict[str, Commit] = {}
    by_message = {}
    with state.write() as db:
        for recorded in in_order("retention"):
            known[recorded["id"]] = made_from(recorded, known)
            by_message[recorded["message"]] = known[recorded["id"]]
            insert_commit(db, repo, known[recorded["id"]])
    shutil.copytree(GOLDEN / "retention" / "raw", tmp_path / "raw")
    trees = Trees(open_store(str(tmp_path / "raw")), BREAKS)
    for source, dest, result in (("F2", "M6", "merge feat"), ("Q1", "merge feat", "squash sq")):
        with state.read() as db:
            base = refs.merge_base(db, repo, by_message[source], by_message[dest])
        merged = merge(
            trees,
            base=base.metarange_id,
            source=by_message[source].metarange_id,
            dest=by_message[dest].metarange_id,
        )
        assert merged == by_message[result].metarange_id
    state.close()


@conforms(
    RECORDED,
    "Order of logs",
    client="recording",
    checked="every recorded log, with all parents and with first parents",
)
@pytest.mark.parametrize("repository", REPOSITORIES)
def test_logs_have_the_recorded_order(repository: str, tmp_path: Path) -> None:
    state = State(tmp_path / "state.db")
    repo = Repository(repository, "s3://lab/x", "main", 0, read_only=False, rules=None)
    known: dict[str, Commit] = {}
    with state.write() as db:
        for recorded in in_order(repository):
            known[recorded["id"]] = made_from(recorded, known)
            insert_commit(db, repo, known[recorded["id"]])
    for first_parent, pattern in ((False, "log.*"), (True, "log_first_parent.*")):
        logs = bodies(repository, pattern)
        assert logs
        for log in logs:
            expected = [commit["id"] for commit in log["results"]]
            with state.read() as db:
                walked = refs.log(db, repo, known[expected[0]], first_parent=first_parent)
                assert [commit.id for commit in walked] == expected
    state.close()
