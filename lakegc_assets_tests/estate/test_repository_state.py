"""How repositories stand is read from their artifacts, and what cannot be read is not hidden."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakegc_assets.engine.datasets import write_part
from lakegc_assets.estate.repository_state import STATES, Standing, estate, standing
from lakegc_assets.estate.tables import MARKS, marks_over_time
from lakegc_assets.run.artifacts import ArtifactRoot, AttemptArtifacts
from lakegc_assets.run.manifest import PROTECTION
from lakegc_assets.storage.errors import StoreUnavailableError
from lakegc_assets.storage.local import LocalStore
from lakegc_assets.sweep.alarm import MISSING
from lakegc_assets.sweep.approval import Approval
from lakegc_assets_tests.left import (
    BEGAN,
    begun,
    checked,
    finish,
    manifest_of,
    marked,
    root_at,
    swept,
)

_NOW = BEGAN + timedelta(days=30)


@pytest.fixture
def root(tmp_path: Path) -> ArtifactRoot:
    return root_at(tmp_path)


def look(root: ArtifactRoot, mode: str = "approved", repository: str = "repo") -> Standing:
    found = standing(root, repository, mode, _NOW)
    assert found.state in STATES
    assert found.because
    return found


def spoil(attempt: AttemptArtifacts, name: str) -> None:
    attempt.store().put(f"{name}/manifest.json", b"{")


def test_without_a_run_nothing_is_known(root: ArtifactRoot) -> None:
    assert look(root) == Standing("repo", "never run", "no run has left artifacts")
    # What was decoded outlives the runs.
    root.open("repo").put("_cache/abc/ranges", b"")
    assert look(root).state == "never run"


def test_what_has_begun_only_is_unfinished(root: ArtifactRoot) -> None:
    begun(root, "repo", "m1")
    assert (look(root).state, look(root).run) == ("unfinished", "m1")
    checked(root, "repo", "m2", 1)
    assert (look(root).state, look(root).run, look(root).last_mark) == ("unfinished", "m2", None)


def test_what_a_check_refused_says_its_sentence(root: ArtifactRoot) -> None:
    swept(root, "repo", "m1")
    checked(root, "repo", "m2", 7, refused="80 of 100 listed objects are candidates")
    found = look(root, "auto")
    assert (found.state, found.run) == ("refused", "m2")
    assert found.because == "mark m2: candidate_share: 80 of 100 listed objects are candidates"
    assert (found.size, found.garbage_size) == (10_000, 0)
    assert found.last_sweep == BEGAN + timedelta(minutes=61)


def test_a_mark_waits_unless_nobody_waits_for_it(root: ArtifactRoot) -> None:
    marked(root, "repo", "m1")
    found = look(root)
    assert found.state == "waiting for approval"
    assert "lakegc approve repo --run m1" in found.because
    assert (found.objects, found.size, found.garbage, found.garbage_size) == (100, 10_000, 40, 4000)
    assert (found.last_mark, found.last_sweep) == (BEGAN + timedelta(minutes=1), None)
    assert look(root, "auto").state == "waiting for approval"
    assert look(root, "never").state == "marked"
    marked(root, "repo", "m2", 7, objects=0)
    assert (look(root).state, look(root).garbage) == ("marked", 0)


def _of_40(attempt: AttemptArtifacts, asset: str, day: float, digest: str, **facts: Any) -> None:
    """A manifest of an asset that is about 40 objects."""
    manifest = manifest_of(attempt, asset, day, {"listed": 100, "listed_bytes": 10_000, **facts})
    attempt.finish(replace(manifest, rows=40, digest=digest))


@pytest.mark.parametrize(
    ("digest", "swept_on", "outcomes", "state", "garbage"),
    [
        ("40-ab", 2, {"deleted": 39, "already_missing": 1}, "swept", 0),
        # One object was spared, and is left to the mark that waits.
        ("40-ab", 2, {"deleted": 39, "spared": 1}, "waiting for approval", 40),
        ("40-cd", 2, {"deleted": 40}, "waiting for approval", 40),
        # What is listed after a sweep exists again.
        ("40-ab", 0.5, {"deleted": 40}, "waiting for approval", 40),
    ],
)
def test_a_mark_waits_no_more_if_another_sweep_has_deleted_its_objects(
    root: ArtifactRoot,
    digest: str,
    swept_on: float,
    outcomes: dict[str, int],
    state: str,
    garbage: int,
) -> None:
    for run, day in (("m1", 0), ("m2", 1)):
        attempt = begun(root, "repo", run, day)
        _of_40(attempt, "deletion_candidates", day, "40-ab", spared={})
        finish(attempt, "gc_report", day, {"objects": 40, "bytes": 4000})
    attempt = root.attempt("repo", "m1")
    told = {name: {"objects": n, "bytes": 100 * n} for name, n in outcomes.items()}
    _of_40(attempt, "swept_set", swept_on, digest, outcomes=told)
    found = look(root)
    assert (found.state, found.garbage) == (state, garbage)
    assert found.run == ("m1" if state == "swept" else "m2")


def test_the_sweep_of_another_mark_hides_no_mark_that_is_not_published(root: ArtifactRoot) -> None:
    """Else a mark whose checks did not pass would be shown as swept."""
    one = begun(root, "repo", "m1")
    _of_40(one, "deletion_candidates", 0, "40-ab", spared={})
    finish(one, "gc_report", 0, {"objects": 40, "bytes": 4000})
    other = begun(root, "repo", "m2", 1)
    part = write_part(other.store(), "deletion_candidates/data/", pa.table({"n": range(40)}))
    found = manifest_of(other, "deletion_candidates", 1, {"listed": 100, "listed_bytes": 10_000})
    other.finish(replace(found, rows=40, digest="40-ab", parts={"data": [part]}))
    outcomes = {"deleted": {"objects": 40, "bytes": 4000}}
    _of_40(one, "swept_set", 2, "40-ab", outcomes=outcomes)
    assert (look(root).state, look(root).run) == ("refused", "m2")


@pytest.mark.parametrize(
    ("version", "because"),
    [
        (0, "An earlier version of lakegc made it, and this version does not sweep it: mark again"),
        (99, "A later version of lakegc made it, and this version does not sweep it: update"),
    ],
)
def test_a_mark_of_another_version_waits_for_no_approval(
    root: ArtifactRoot, version: int, because: str
) -> None:
    attempt = checked(root, "repo", "m1")
    finish(attempt, "gc_report", 0, {"objects": 40, "bytes": 4000, PROTECTION: version})
    found = look(root)
    assert (found.state, found.run) == ("marked", "m1")
    assert because in found.because
    assert "lakegc approve" not in found.because


@pytest.mark.parametrize(("days", "state"), [(40, "approved"), (20, "waiting for approval")])
def test_an_approval_counts_while_it_holds(root: ArtifactRoot, days: int, state: str) -> None:
    attempt = marked(root, "repo", "m1")
    mark = attempt.recorded("gc_report").sha256
    ends = BEGAN + timedelta(days=days)
    given = Approval("repo", "m1", mark, "", "Ada", BEGAN, ends, 0.5)
    attempt.store().put("approvals/1.json", given.to_bytes())
    assert look(root).state == state
    assert ("by Ada until 2026-04-10" in look(root).because) == (state == "approved")
    # One of another mark is none.
    attempt.store().put("approvals/1.json", replace(given, mark="other").to_bytes())
    assert look(root).state == "waiting for approval"


def test_what_was_swept_is_no_garbage_and_is_counted_as_freed(root: ArtifactRoot) -> None:
    swept(root, "repo", "m1")
    swept(root, "repo", "m2", 7, size=0)
    swept(root, "repo", "m3", 14, size=1000)
    found = look(root)
    assert (found.state, found.run) == ("swept", "m3")
    assert (found.objects, found.size, found.garbage) == (60, 9000, 0)
    assert [(one.run, one.size) for one in found.freed] == [("m1", 4000), ("m2", 0), ("m3", 1000)]
    assert found.last_sweep == found.freed[-1].at


def test_what_another_mark_swept_since_the_last_listing_is_not_there(root: ArtifactRoot) -> None:
    first, last = marked(root, "repo", "m1"), marked(root, "repo", "m2", 7)
    assert (look(root).objects, look(root).size) == (100, 10_000)
    total = {"objects": 40, "bytes": 4000}
    finish(first, "swept_set", 14, {"outcomes": {"deleted": total}})
    assert (look(root).objects, look(root).size) == (60, 6000)
    # Both name the same, which is gone once.
    finish(last, "swept_set", 21, {"outcomes": {"already_missing": total}})
    assert (look(root).objects, look(root).size) == (60, 6000)
    # A listing after them lacks it.
    marked(root, "repo", "m3", 28)
    assert (look(root).objects, look(root).size) == (100, 10_000)


def test_a_listing_by_name_says_nothing_of_the_size(root: ArtifactRoot) -> None:
    marked(root, "repo", "m1")
    attempt = begun(root, "repo", "m2", 7)
    manifest = finish(attempt, "deletion_candidates", 7, {"listed": 1, "listed_bytes": 1})
    by_name = replace(manifest, settings={"mode": "committed"})
    attempt.store().put("deletion_candidates/manifest.json", by_name.to_bytes())
    assert look(root).size == 10_000


def raise_alarm(attempt: AttemptArtifacts) -> None:
    attempt.store().put(f"swept_set/20260301-aa/{MISSING}1.parquet", b"")


def test_an_alarm_holds_until_a_later_sweep_was_finished(root: ArtifactRoot) -> None:
    raise_alarm(marked(root, "repo", "m1"))
    assert (look(root).state, look(root).run) == ("on hold", "m1")
    # A later mark, or one that cannot be read, does not hide it.
    spoil(marked(root, "repo", "m2", 7), "gc_report")
    assert (look(root).state, look(root).run) == ("on hold", "m1")
    # The file was written now, and a sweep that began before it does not end the hold.
    swept(root, "repo", "m3", -400)
    assert look(root).state == "on hold"
    swept(root, "repo", "m4", 400_000)
    assert (look(root).state, look(root).run) == ("swept", "m4")


@pytest.mark.parametrize("asset", ["deletion_candidates", "gc_report", "swept_set"])
def test_the_last_run_that_cannot_be_read_is_the_state(root: ArtifactRoot, asset: str) -> None:
    swept(root, "repo", "m1")
    spoil(swept(root, "repo", "m2", 7), asset)
    found = look(root)
    assert (found.state, found.run) == ("unreadable", "m2")
    assert f"{asset}/manifest.json is damaged" in found.because
    # What is known stays known.
    assert found.last_sweep == BEGAN + timedelta(minutes=61)
    assert found.size == 6000


def test_an_earlier_run_that_cannot_be_read_is_told(root: ArtifactRoot) -> None:
    spoil(swept(root, "repo", "m1"), "swept_set")
    swept(root, "repo", "m2", 7)
    found = look(root)
    assert found.state == "swept"
    assert found.because.endswith("(1 earlier run cannot be read, for example m1)")


@pytest.mark.parametrize("damage", ["{", '{"attempt": "../../x"}', None])
def test_a_run_without_its_place_in_time_may_be_the_last(
    root: ArtifactRoot, damage: str | None
) -> None:
    swept(root, "repo", "m1")
    swept(root, "repo", "m2", -7)
    store = root.open("repo", "m2")
    if damage is None:
        (Path(root.url) / "repo/m2/attempt.json").unlink()
    else:
        store.put("attempt.json", damage.encode())
    found = look(root)
    assert (found.state, found.run) == ("unreadable", "m2")


def test_facts_that_are_missing_make_a_row_unreadable(root: ArtifactRoot) -> None:
    attempt = checked(root, "repo", "m1")
    finish(attempt, "gc_report", 0, {})
    found = look(root)
    assert found.state == "unreadable"
    assert "its artifacts cannot be read: KeyError" in found.because


def test_damaged_checks_and_approvals_make_a_row_unreadable(root: ArtifactRoot) -> None:
    attempt = checked(root, "repo", "m1")
    attempt.store().put("deletion_candidates/checks.json", b"{")
    assert look(root).state == "unreadable"
    approved = marked(root, "repo", "m2", 1)
    approved.store().put("approvals/1.json", json.dumps({"by": "Ada"}).encode())
    assert look(root).state == "unreadable"


@pytest.mark.parametrize("name", ["", "..", "../other", "a/b", "a|b", ".hidden", "x" * 200])
def test_a_name_that_is_none_is_looked_up_nowhere(root: ArtifactRoot, name: str) -> None:
    found = look(root, repository=name)
    assert (found.repository, found.state) == (name, "unreadable")
    assert "cannot be the name of a repository" in found.because


def test_every_repository_has_a_row_whatever_happens_to_another(
    root: ArtifactRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept(root, "good", "m1")
    swept(root, "broken", "m1")
    list_prefixes = LocalStore.list_prefixes

    def failing(store: LocalStore, prefix: str = "", max_objects: int | None = None) -> object:
        if "broken" in store.url:
            raise StoreUnavailableError("no answer")
        return list_prefixes(store, prefix, max_objects)

    monkeypatch.setattr(LocalStore, "list_prefixes", failing)
    rows, notes = estate(root, ["new", "good"], lambda _: "auto", _NOW)
    assert [(one.repository, one.state) for one in rows] == [
        ("broken", "unreadable"),
        ("good", "swept"),
        ("new", "never run"),
    ]
    assert "no answer" in rows[0].because
    assert notes == []


def test_a_root_that_cannot_be_listed_is_told_and_known_names_have_rows(
    root: ArtifactRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept(root, "known", "m1")
    swept(root, "unknown", "m1")
    list_prefixes = LocalStore.list_prefixes

    def failing(store: LocalStore, prefix: str = "", max_objects: int | None = None) -> object:
        if store.url.endswith("/artifacts"):
            raise StoreUnavailableError("no answer")
        return list_prefixes(store, prefix, max_objects)

    monkeypatch.setattr(LocalStore, "list_prefixes", failing)
    rows, notes = estate(root, ["known"], lambda _: "auto", _NOW)
    assert [(one.repository, one.state) for one in rows] == [("known", "swept")]
    assert "cannot be listed (no answer)" in notes[0]


def test_each_file_of_a_run_is_asked_for_once(
    root: ArtifactRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An estate has hundreds of repositories with a thousand runs each."""
    for day in range(3):
        swept(root, "repo", f"m{day}", day)
    asked = Counter[str]()
    for name in ("get", "head", "list_prefixes"):
        monkeypatch.setattr(LocalStore, name, counting(getattr(LocalStore, name), asked, root))
    look(root)
    assert {one: count for one, count in asked.items() if count >= 3} == {
        "get attempt.json": 3,
        "get deletion_candidates/manifest.json": 3,
        "get gc_report/manifest.json": 3,
        "get swept_set/manifest.json": 3,
        # What was restored.
        "list_prefixes restored_set/": 3,
    }
    assert [one for one in asked if one.startswith("head ")] == []


def test_the_last_marks_are_shown_and_no_sweep_of_others_is_read(
    root: ArtifactRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    for day in range(MARKS + 10):
        swept(root, "repo", f"m{day:03}", day, size=1000 + day)
    asked = Counter[str]()
    monkeypatch.setattr(LocalStore, "get", counting(LocalStore.get, asked, root))
    found = marks_over_time(root, "repo")
    assert [one.deleted for one in found] == [1000 + day for day in range(10, MARKS + 10)]
    assert asked["get swept_set/manifest.json"] == MARKS


def counting(
    method: Callable[..., Any], asked: Counter[str], root: ArtifactRoot
) -> Callable[..., Any]:
    """A method of a store that is counted where it is about the artifacts."""

    def counted(store: LocalStore, key: str = "") -> Any:
        asked[f"{method.__name__} {key}"] += root.url in store.url
        return method(store, key)

    return counted
