"""What a run is known to have finished, in whichever of its attempts."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import pytest

from lakegc_assets.prune.decisions import judge
from lakegc_assets.prune.run_inventory import look
from lakegc_assets.run.artifacts import MARK_ASSETS, ArtifactRoot
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets_tests.files import age
from lakegc_assets_tests.lake import REPOSITORY
from lakegc_assets_tests.prune.past import DAY, long_ago

NOW = datetime.now(timezone.utc)


@pytest.fixture
def root(tmp_path: Path) -> ArtifactRoot:
    return ArtifactRoot(str(tmp_path), StoreConfig())


def kept(root: ArtifactRoot) -> dict[str, str]:
    found = look(root, REPOSITORY, set())
    assert {one.namespace for one in found} == {f"local://{REPOSITORY}"}
    return judge([one.run for one in found], 10 * DAY, NOW)


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
    assert kept(root)["again"] == f"its {commits} is the latest"


def test_commits_of_an_earlier_attempt_that_nobody_can_read_keep_their_run(
    root: ArtifactRoot,
) -> None:
    attempt = long_ago(root, "again", 90, assets=MARK_ASSETS[:3])
    begin_anew(root, "again", 80)
    long_ago(root, "late", 70)
    attempt.store().put("active_commits/manifest.json", b"{")
    found = {one.run.id: one.run.needed for one in look(root, REPOSITORY, set())}
    assert found["again"].startswith("nobody can tell what of it is needed: ")
