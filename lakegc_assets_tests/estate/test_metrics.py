"""Metrics are read from the artifacts, and counters never go back, whoever is killed when."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lakegc_assets.errors import IntegrityError
from lakegc_assets.estate import metrics as module
from lakegc_assets.estate.metrics import (
    RepositoryMetrics,
    estate_metrics,
    repository_metrics,
    text_of,
)
from lakegc_assets.estate.repository_state import OldRuns
from lakegc_assets.estate.run_state import Total
from lakegc_assets.prune.removal import end_removal, is_left, remove_run
from lakegc_assets.run.artifacts import ArtifactRoot, AttemptArtifacts
from lakegc_assets.run.manifest import Manifest
from lakegc_assets.sweep.totals import PrunedTotals, count_pruned, read_totals
from lakegc_assets_tests.kills import Killed, dying
from lakegc_assets_tests.left import BEGAN, begun, checked, deleted, finish, marked, root_at, swept

_NOW = BEGAN + timedelta(days=30)
Samples = dict[tuple[str, ...], float]


@pytest.fixture
def root(tmp_path: Path) -> ArtifactRoot:
    return root_at(tmp_path)


def look(root: ArtifactRoot, repository: str = "repo") -> RepositoryMetrics:
    return repository_metrics(root, repository, "approved", _NOW)


def samples(root: ArtifactRoot, *known: str, component: str = "") -> Samples:
    """Each sample of the text by its name and the values of its labels, in their order there."""
    found = estate_metrics(root, known, lambda _: "approved", {"known": 60.0}.get, _NOW, component)
    text = text_of(found).decode()
    return {
        (sample.name.removeprefix("lakegc_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_each_repository_has_its_samples_and_damage_of_one_hides_no_other(
    root: ArtifactRoot,
) -> None:
    swept(root, "good", "m1")
    listing = {"engine": "embedded (so says a test)", "requests_by_kind": {"store GET": 7}}
    finish(checked(root, "good", "m2", 7), "store_listing", 7, listing)
    finish(root.attempt("good", "m2"), "gc_report", 7, {"objects": 3, "bytes": 30, **listing})
    checked(root, "refused", "m1", refused="80 of 100 listed objects are candidates")
    marked(root, "spoilt", "m1").store().put("gc_report/manifest.json", b"{")
    found = samples(root, "known", "a b")
    assert found["repository_state", "good", "waiting for approval"] == 1
    assert found["repository_state", "good", "swept"] == 0
    for name in ("spoilt", "a b"):
        assert found["repository_state", name, "unreadable"] == 1
    assert found["repository_state", "known", "never run"] == 1
    assert found["repository_state", "refused", "refused"] == 1
    assert found["garbage_bytes", "good"] == found["awaiting_approval_bytes", "good"] == 30
    assert found["stored_bytes", "good"] == 10_000
    assert found["awaiting_approval_objects", "refused"] == 0
    assert (found["deleted_objects_total", "good"], found["deleted_bytes_total", "good"]) == (
        40,
        4000,
    )
    assert found["last_sweep_objects", "deleted", "good"] == 40
    assert found["last_sweep_bytes", "failed", "good"] == 0
    mark = BEGAN + timedelta(days=7, minutes=1)
    assert found["last_success_timestamp_seconds", "good", "mark"] == mark.timestamp()
    assert found["stage_duration_seconds", "good", "store_listing"] == 60
    assert found["stage_requests", "GET", "good", "store", "gc_report"] == 7
    assert found["engine_info", "embedded", "good"] == 1
    assert found["mark_max_age_seconds", "known"] == 60
    # The word for damage of one run is that nobody can tell the total.
    assert found["unreadable_runs", "spoilt"] == 1
    assert ("deleted_objects_total", "spoilt") not in found
    assert found["deleted_objects_total", "known"] == 0
    assert found["collection_problems",] > 0
    assert found["collection_timestamp_seconds",] == _NOW.timestamp()
    assert samples(root, component="eu")["on_hold", "eu", "good"] == 0


def test_what_a_killed_sweep_deleted_counts_and_what_is_put_back_stays_counted(
    root: ArtifactRoot,
) -> None:
    swept(root, "repo", "m1")
    attempt = marked(root, "repo", "m2", 7)
    deleted(attempt, "deleted", "deleted", "spared", "failed")
    assert look(root).deleted == Total(42, 4200)
    assert look(root).swept["spared"] == Total(1, 100)
    outcomes = {"put_back": {"objects": 1, "bytes": 100}, "deleted": {"objects": 2, "bytes": 200}}
    finish(attempt, "swept_set", 8, {"outcomes": outcomes})
    assert look(root).deleted == Total(43, 4300)


def test_a_ledger_that_cannot_be_read_makes_no_smaller_counter(root: ArtifactRoot) -> None:
    swept(root, "repo", "m1")
    attempt = marked(root, "repo", "m2", 7)
    deleted(attempt, "deleted")
    attempt.store().put("swept_set/ledger/sweep-0001-00000-000000.parquet", b"x")
    found = look(root)
    assert found.deleted is None
    assert "is damaged" in found.problems[0]


def test_of_many_runs_the_last_ones_are_read_each_time_and_old_ones_every_hour_or_two(
    root: ArtifactRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept(root, "repo", "m00")
    marked(root, "repo", "m01", 1)
    deleted(marked(root, "repo", "m02", 2), "deleted")
    for number in range(3, 9):
        swept(root, "repo", f"m{number:02}", number)
    marked(root, "repo", "m09", 9)
    read, known = list[str](), OldRuns()
    told = AttemptArtifacts.recorded_if_finished

    def recorded(attempt: AttemptArtifacts, asset: str) -> Manifest | None:
        if asset == "gc_report" and attempt.run not in read:
            read.append(attempt.run)
        return told(attempt, asset)

    monkeypatch.setattr(AttemptArtifacts, "recorded_if_finished", recorded)

    def again(minutes: float) -> tuple[RepositoryMetrics, list[str]]:
        read.clear()
        now = _NOW + timedelta(minutes=minutes)
        return repository_metrics(root, "repo", "approved", now, known), sorted(read)

    first, all_of_them = again(0)
    assert len(all_of_them) == 10
    # The sweep of m02 may go on any time.
    second, few = again(55)
    assert few == ["m02", "m07", "m08", "m09"]
    assert second == first
    assert second.deleted == Total(7 * 40 + 1, 7 * 4000 + 100)
    # Somebody sweeps an old mark by hand, another run comes, and an old one is pruned.
    finish(root.attempt("repo", "m01"), "swept_set", 30, {"outcomes": {}})
    swept(root, "repo", "m10", 10)
    prune(root, "m00")
    third, _ = again(56)
    assert third.deleted == Total(8 * 40 + 1, 8 * 4000 + 100)
    assert third.standing.last_sweep == BEGAN + timedelta(days=10, hours=1, minutes=1)
    last, read_again = again(55 + 121)
    assert read_again == [f"m{number:02}" for number in range(1, 11)]
    assert last.standing.last_sweep == BEGAN + timedelta(days=30, minutes=1)
    assert last.deleted == third.deleted
    assert len(again(55 + 122)[1]) < 10


def prune(root: ArtifactRoot, *runs: str) -> None:
    """As a prune does, and one that ends what another has left."""
    for run in root.runs("repo"):
        if is_left(root, "repo", run):
            end_removal(root, "repo", run, lambda: None)
    gone = [root.attempt("repo", run) for run in runs if run in root.runs("repo")]
    count_pruned(root, "repo", gone, _NOW)
    for one in gone:
        remove_run(root, "repo", one.run, one.attempt, lambda: None, lambda: None)


@pytest.mark.parametrize("before", [True, False])
def test_a_prune_takes_nothing_off_wherever_it_is_killed(
    root: ArtifactRoot, *, before: bool
) -> None:
    for number in range(4):
        swept(root, "repo", f"m{number}", number)
    total = Total(160, 16_000)
    assert look(root).deleted == total
    for after in range(1, 100):
        with pytest.MonkeyPatch.context() as patch:
            calls = dying(patch, after, before=before)
            try:
                prune(root, "m0", "m1")
            except Killed:
                pass
            else:
                break
        assert look(root).deleted == total, calls
    assert root.runs("repo") == ["m2", "m3"]
    assert look(root).deleted == total
    swept(root, "repo", "m4", 5)
    assert look(root).deleted == Total(200, 20_000)


def test_a_prune_while_the_runs_are_read_is_counted_once(
    root: ArtifactRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept(root, "repo", "m1")
    swept(root, "repo", "m2", 7)

    def pruned_meanwhile(given: ArtifactRoot, repository: str) -> PrunedTotals:
        prune(root, "m1")
        return read_totals(given, repository)

    monkeypatch.setattr(module, "read_totals", pruned_meanwhile)
    assert look(root).deleted == Total(80, 8000)


def test_attempts_are_named_only_while_somebody_may_read_them(root: ArtifactRoot) -> None:
    for number in range(3):
        swept(root, "repo", f"m{number}", number)
    prune(root, "m0")
    later = _NOW + timedelta(days=3)
    count_pruned(root, "repo", [root.attempt("repo", "m1")], later)
    assert [name.partition("/")[0] for name in read_totals(root, "repo").counted] == ["m1"]
    # It was killed here: the run is there still, whatever the time.
    count_pruned(root, "repo", [root.attempt("repo", "m1")], later + timedelta(days=90))
    assert look(root).deleted == Total(120, 12_000)


def test_damaged_totals_make_no_counter_and_stop_a_prune(root: ArtifactRoot) -> None:
    swept(root, "repo", "m1")
    root.open("repo").put("_totals.json", json.dumps({"objects": 1}).encode())
    found = look(root)
    assert found.deleted is None
    assert "_totals.json is damaged" in found.problems[0]
    assert found.standing.state == "swept"
    with pytest.raises(IntegrityError, match=r"_totals\.json is damaged"):
        prune(root, "m1")
    assert root.runs("repo") == ["m1"]


def test_a_run_that_has_only_begun_takes_no_counter_away(root: ArtifactRoot) -> None:
    swept(root, "repo", "m1")
    begun(root, "repo", "m2", 7)
    assert look(root).deleted == Total(40, 4000)
    assert look(root).unreadable == 0
