"""What a run is known to have finished, in whichever of its attempts."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest

from lakegc_assets.lakefs.config import LakeFSConfig
from lakegc_assets.prune.decisions import judge
from lakegc_assets.prune.run_inventory import look
from lakegc_assets.run.artifacts import ArtifactRoot
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.manifest import MARK_ASSETS
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets_tests.files import age
from lakegc_assets_tests.lake import REPOSITORY
from lakegc_assets_tests.prune.past import DAY, long_ago

UNREAD = "the next mark reads its active_commits, which no later one has read"
NOW = datetime.now(timezone.utc)


@pytest.fixture
def root(tmp_path: Path) -> ArtifactRoot:
    return ArtifactRoot(str(tmp_path), StoreConfig())


def kept(root: ArtifactRoot) -> dict[str, str]:
    found = look(root, REPOSITORY, set(), NOW)
    assert {one.namespace for one in found} == {f"local://{REPOSITORY}"}
    return judge(found, 10 * DAY, NOW)


def begin_anew(root: ArtifactRoot, run: str, days: float) -> None:
    root.new_attempt(REPOSITORY, run, NOW - days * DAY)
    age(Path(root.url, REPOSITORY, run), days)


def test_the_latest_commits_stay_though_their_run_was_begun_anew(root: ArtifactRoot) -> None:
    for days in (97, 98, 99):
        long_ago(root, f"success-{days}", days)
    long_ago(root, "again", 90, assets=MARK_ASSETS[:3])
    begin_anew(root, "again", 80)
    # A success whose commits were read before those, by its manifest.
    commits = MARK_ASSETS[2]
    success = long_ago(root, "late", 70)
    assert kept(root)["again"] == ""
    success.store().delete_many([f"{commits}/manifest.json"])
    assert kept(root)["again"] == UNREAD


@pytest.mark.parametrize("known", [True, False], ids=["by name", "by time"])
def test_commits_that_no_later_mark_has_read_stay(
    root: ArtifactRoot,
    known: bool,  # noqa: FBT001 - a parameter
) -> None:
    """Two marks overlapped: the one that ended later had begun before the other ended."""
    commits = MARK_ASSETS[2]
    for run, days in (("first", 99), ("second", 98), ("third", 97), ("fourth", 96), ("last", 95)):
        attempt = long_ago(root, run, days, assets=MARK_ASSETS)
        key, manifest = f"{commits}/manifest.json", attempt.recorded(commits)
        if known:
            read = {"last": ["fourth", "third", "second"]}.get(run, [])
            names = [f"{one}/{root.attempt(REPOSITORY, one).attempt}" for one in read]
            manifest = replace(manifest, facts={**manifest.facts, "handed_on": names})
        elif run != "first":
            first = root.attempt(REPOSITORY, "first").recorded(commits)
            manifest = replace(manifest, started=first.finished)
        attempt.store().put(key, manifest.to_bytes())
    age(Path(root.url, REPOSITORY), 95)
    assert kept(root)["first"] == UNREAD
    later = long_ago(root, "later", 80, assets=MARK_ASSETS)
    if known:
        names = [f"{one}/{root.attempt(REPOSITORY, one).attempt}" for one in ("first", "last")]
        manifest = later.recorded(commits)
        manifest = replace(manifest, facts={**manifest.facts, "handed_on": names})
        later.store().put(f"{commits}/manifest.json", manifest.to_bytes())
    assert kept(root)["first"] == ""


@pytest.mark.parametrize("made", [1, 2, 3])
def test_commits_that_only_another_repository_of_the_name_has_read_stay(
    root: ArtifactRoot, made: int
) -> None:
    """It has handed on only those that it had."""
    commits = MARK_ASSETS[2]
    names: list[str] = []
    for run, days, of in (("first", 99, 1), ("second", 98, 2)):
        attempt = long_ago(root, run, days, assets=MARK_ASSETS)
        manifest = attempt.recorded(commits)
        facts = {**manifest.facts, "handed_on": names, "repository_made": of}
        manifest = replace(manifest, facts=facts)
        attempt.store().put(f"{commits}/manifest.json", manifest.to_bytes())
        names = [f"{run}/{attempt.attempt}"]
    namespace = f"local://{REPOSITORY}"
    present = Connections(LakeFSConfig(), root.stores, namespace, f"{root.url}/cache", made)
    found = {one.id: one.needed for one in look(root, REPOSITORY, set(), NOW, present)}
    assert found == {"first": "" if made == 2 else UNREAD, "second": UNREAD}
    # The latest of them was made by the repository that a place has had last, as far as known.
    found = {one.id: one.needed for one in look(root, REPOSITORY, set(), NOW)}
    assert found == {"first": "", "second": UNREAD}


def test_commits_of_an_earlier_attempt_that_nobody_can_read_keep_their_run(
    root: ArtifactRoot,
) -> None:
    attempt = long_ago(root, "again", 90, assets=MARK_ASSETS[:3])
    begin_anew(root, "again", 80)
    long_ago(root, "late", 70)
    attempt.store().put("active_commits/manifest.json", b"{")
    found = {one.id: one.needed for one in look(root, REPOSITORY, set(), NOW)}
    assert found["again"].startswith("it is not known whether it is needed (")
