"""What each mode collects: committed and uncommitted together are unified, and neither is both."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from hashlib import md5
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lakegc_assets.checks.invariants import evaluate
from lakegc_assets.embedded.faults import Fault
from lakegc_assets.embedded.objects import objects
from lakegc_assets.errors import IntegrityError
from lakegc_assets.graveler.entry import Entry
from lakegc_assets.mark.comparison import compare
from lakegc_assets.mark.explanation import explain_object
from lakegc_assets.mark.signature_relations import SERVED, UNVERIFIED
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.settings import MODES, Mode
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.sweep.ledger import SWEPT
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests import recorded
from lakegc_assets_tests.lake import (
    REPOSITORY,
    STAGES,
    Marked,
    SmallLake,
    copy_lake,
    copy_of,
    running,
)
from lakegc_assets_tests.mark import foreign, histories
from lakegc_assets_tests.mark.histories import NO_AGE, candidates, listing
from lakegc_assets_tests.mark.test_publication import PLACES, lines_of, written
from lakegc_assets_tests.sessions import Session

COMMITTED = ("replaced", "second", "removed", "given up")


@pytest.fixture
def lake(told: Marked, tmp_path: Path) -> Iterator[SmallLake]:
    with running(copy_of(told, tmp_path)) as found:
        yield found


def mark(
    lake: SmallLake, spark: Session, mode: Mode, run: str = "", **changes: object
) -> RunContext:
    return histories.mark(lake, spark, run or mode, mode=mode, **changes)


@pytest.fixture(scope="module")
def made_and_marked(told: Marked, tmp_path_factory: pytest.TempPathFactory, spark: Session) -> Path:
    folder = copy_of(told, tmp_path_factory.mktemp("committed"))
    with running(folder) as found:
        mark(found, spark, "committed")
    return folder


@pytest.fixture
def committed(made_and_marked: Path, tmp_path: Path) -> Iterator[SmallLake]:
    """The lake with a mark ``committed`` of this mode."""
    with running(copy_lake(made_and_marked, tmp_path / "lake")) as found:
        yield found


def committed_mark(lake: SmallLake, spark: Session) -> RunContext:
    """The mark that a lake ``committed`` has."""
    return lake.context(spark, "committed", **NO_AGE, mode="committed")


def garbage(told: Marked) -> dict[Mode, frozenset[str]]:
    """What a mark of each mode is to name."""
    expired = frozenset().union(*(told.groups[name] for name in COMMITTED))
    orphans = told.groups["orphans"]
    return {"unified": expired | orphans, "committed": expired, "uncommitted": orphans}


# What each mode marks


@pytest.mark.parametrize("mode", MODES)
def test_a_mark_names_what_its_mode_is_for_where_lakefs_looks_for_its_kind_and_is_swept_so(
    mode: Mode, lake: SmallLake, told: Marked, spark: Session
) -> None:
    before = lake.keys()
    # What the fixture left of this run is of no attempt that goes on.
    ctx = mark(lake, spark, mode, "mark-1")
    assert candidates(ctx) == garbage(told)[mode]
    attempt = ctx.root.attempt(REPOSITORY, ctx.run)
    assert {attempt.manifest(name).mode for name in ("store_listing", "gc_report")} == {mode}
    lists, texts, summaries = PLACES[mode]
    files = written(lake)
    assert {key.rpartition("/")[0] + "/" for key in files} == lists | texts | summaries
    for folder in texts:
        found = [line for key in files if key.startswith(folder) for line in lines_of(files[key])]
        assert set(found) == garbage(told)[mode]
    # Whatever the sweep is told.
    other = MODES[MODES.index(mode) - 1]
    sweep(replace(ctx, settings=ctx.settings.changed(mode=other)))
    assert before - lake.keys() == garbage(told)[mode]
    rows = ctx.root.attempt(REPOSITORY, ctx.run).read("swept_set")
    assert rows.schema.names == SWEPT.names
    assert set(rows["outcome"].to_pylist()) == {"deleted"}


def test_a_committed_mark_lists_nothing(committed: SmallLake, told: Marked, spark: Session) -> None:
    ctx = committed_mark(committed, spark)
    found = listing(ctx)
    assert found.rows == found.facts["named"] == len(garbage(told)["committed"])
    needed = committed.keys() - garbage(told)["unified"] - {"dummy"}
    assert {explain_object(ctx, key).verdict for key in needed} == {"live"}
    never = explain_object(ctx, next(iter(garbage(told)["uncommitted"])))
    assert (never.verdict, "was not requested" in never.because) == ("unknown", True)
    uncommitted = mark(committed, spark, "uncommitted")
    orphan = explain_object(uncommitted, next(iter(told.groups["replaced"])))
    assert orphan.verdict == "live"
    assert "mode uncommitted" in orphan.because
    # Neither says more of what the other names than it knows.
    beside = compare(ctx, "committed", "uncommitted", 1)
    (kept,) = beside.only_run.kept
    assert kept == "a range below _lakefs/ holds it, and each counts as live"
    (kept,) = beside.only_other.kept
    assert kept == "it was not requested by name, or the store does not hold it"
    assert beside.only_other.kept[kept].bytes is None
    assert beside.only_other.total.bytes
    # Nothing is lost that a mark of this mode does not list.
    foreign.with_summary(committed.write, sorted(needed), "theirs")
    theirs = compare(ctx, "committed", "theirs", 99).only_other
    assert theirs.kept.keys() == {"an active commit holds it", "it is staged on a branch"}
    assert not any("listing" in one["kept"] for one in theirs.objects)


@pytest.mark.conformance
def test_objects_are_looked_at_on_spark(lake: SmallLake, told: Marked, spark: Session) -> None:
    ctx = lake.context(spark, "on-spark", **NO_AGE, mode="committed", engine="spark")
    for stage in STAGES[:5]:
        stage(ctx)
    assert candidates(ctx) == garbage(told)["committed"]


def test_what_was_swept_is_no_candidate_again(
    committed: SmallLake, told: Marked, spark: Session
) -> None:
    sweep(committed_mark(committed, spark))
    again = mark(committed, spark, "committed", "again")
    assert candidates(again) == set()
    assert listing(again).rows == 0
    assert listing(again).facts["named"] == len(garbage(told)["committed"])


def test_what_came_back_to_life_is_spared(
    committed: SmallLake, told: Marked, spark: Session
) -> None:
    ctx = committed_mark(committed, spark)
    committed.client.create_branch(REPOSITORY, "revived", told.commits["second"])
    sweep(ctx)
    needed = told.groups["second"] | told.groups["removed"]
    gone = garbage(told)["committed"] - needed
    assert needed <= committed.keys()
    assert not gone & committed.keys()
    rows = ctx.root.attempt(REPOSITORY, ctx.run).read("swept_set").to_pylist()
    assert {row["address"] for row in rows if row["outcome"] == "spared"} == needed


def test_what_is_staged_is_no_candidate(lake: SmallLake, told: Marked, spark: Session) -> None:
    linked, *others = sorted(told.groups["replaced"])
    lake.stage("dev", "linked", linked)
    found = candidates(mark(lake, spark, "committed"))
    assert linked not in found
    assert set(others) <= found


def test_what_lakefs_serves_and_lists_nowhere_is_spared(tmp_path: Path, spark: Session) -> None:
    with running(tmp_path / "lake", faults=frozenset({Fault.SHADOWED_UPLOADS})) as lake:
        lake.client.create_repository(REPOSITORY, f"local://{REPOSITORY}")
        lake.rules(20)
        same, served = "the content of a", {}
        for days_ago, name, content in ((90, "first", same), (80, "", "other"), (70, "", same)):
            lake.calendar.days_ago = days_ago
            served[name] = lake.upload("main", "a", content)
            lake.commit("main")
        lake.calendar.days_ago = 0
        entry = Entry(
            served["first"],
            size=len(same),
            e_tag=md5(same.encode()).hexdigest(),
            content_type=lake.client.stat(REPOSITORY, "main", "a").content_type or "",
        )
        assert served["first"] in candidates(mark(lake, spark, "committed", "before"))
        objects.stage_entry(lake.server.lake, REPOSITORY, "main", "a", entry)
        assert not list(lake.client.diff_branch(REPOSITORY, "main"))
        ctx = mark(lake, spark, "committed")
        assert served["first"] not in candidates(ctx)
        assert explain_object(ctx, served["first"]).because == SERVED


def test_a_cut_listing_of_ranges_stops_an_uncommitted_mark(
    lake: SmallLake, told: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What only an expired commit holds would look as if it had never been committed."""
    cut = lake.client.commit(REPOSITORY, told.commits["first"])

    whole = ObjectStore.list_to_the_end

    def all_but_one(store: ObjectStore, prefix: str = "") -> Iterator[pa.RecordBatch]:
        for page in whole(store, prefix):
            yield page.filter(pc.not_equal(page["key"], f"_lakefs/{cut.meta_range_id}"))

    monkeypatch.setattr(ObjectStore, "list_to_the_end", all_but_one)
    with pytest.raises(IntegrityError, match=f"{cut.meta_range_id}, the metarange of a commit"):
        mark(lake, spark, "uncommitted")


# What a mark of one mode is to those of the others


def test_a_run_carries_from_an_uncommitted_one_and_not_from_what_was_looked_at_by_name(
    lake: SmallLake, told: Marked, spark: Session
) -> None:
    first = mark(lake, spark, "uncommitted", "first", clean=True)
    mark(lake, spark, "committed", "second")
    third = mark(lake, spark, "unified", "third")
    assert listing(third).facts["because"] == "the listing of run 'first' is carried forward"
    assert candidates(first) == garbage(told)["uncommitted"]
    assert candidates(third) == garbage(told)["unified"]


def test_a_run_knows_what_an_older_mark_deleted_after_the_clean_run(
    lake: SmallLake, told: Marked, spark: Session
) -> None:
    older = mark(lake, spark, "committed")
    mark(lake, spark, "unified", "first", clean=True)
    sweep(older)
    later = mark(lake, spark, "unified", "later")
    facts = listing(later).facts
    gone = len(garbage(told)["committed"])
    assert (facts["mode"], facts["carried_and_gone"]) == ("optimized", gone)
    assert candidates(later) == garbage(told)["uncommitted"]
    Path(older.root.attempt(REPOSITORY, "committed").url, "swept_set/manifest.json").unlink()
    again = lake.context(spark, "again", **NO_AGE)
    STAGES[0](again)
    assert listing(again).facts["because"] == "the sweep of 'committed' did not finish"


# The checks


def share(ctx: RunContext) -> dict[str, float]:
    facts = next(one for one in evaluate(ctx) if one.name == "candidate_share").facts
    return {name: facts[name] for name in ("candidates", "listed", "share")}


def test_the_share_is_of_what_heads_hold_too(
    committed: SmallLake, told: Marked, spark: Session
) -> None:
    dead = len(garbage(told)["committed"])
    found = share(committed_mark(committed, spark))
    # At the HEADs of all branches are three that were kept and four that were replaced twice.
    assert found == {"candidates": dead, "listed": dead + 7, "share": dead / (dead + 7)}


def test_what_heads_hold_counts_however_young_it_is(
    lake: SmallLake, told: Marked, spark: Session
) -> None:
    """A repository that is younger than the clock skew: none of its objects would be listed."""
    dead = len(garbage(told)["committed"])
    ctx = mark(lake, spark, "committed", clock_skew_seconds=365 * 86_400)
    assert share(ctx) == {"candidates": dead, "listed": dead + 7, "share": dead / (dead + 7)}


def test_a_store_that_lacks_what_heads_hold_stops_the_run(
    committed: SmallLake, told: Marked, spark: Session
) -> None:
    live = committed.keys() - garbage(told)["unified"]
    ctx = committed_mark(committed, spark)
    (committed.objects / min(live & held(ctx))).unlink()
    failed = [one for one in evaluate(ctx) if not one.passed]
    assert [one.name for one in failed] == ["listing_holds_heads"]
    assert "1 object that branch HEADs name is neither" in failed[0].summary


def held(ctx: RunContext) -> set[str]:
    """What the HEAD of main holds, by lakeFS."""
    ctx = ctx.connect()
    found = ctx.client.objects(REPOSITORY, "main")
    return {one.physical_address.removeprefix(f"local://{REPOSITORY}/") for one in found}


# Where committed and uncommitted are not unified: docs/operations.md names these, too


def test_an_old_slice_that_somebody_writes_to(
    lake: SmallLake, told: Marked, spark: Session
) -> None:
    """An optimized listing does not see what was put there; a look by name does."""
    moved = min(told.groups["replaced"])
    lake.objects.joinpath(moved).rename(lake.folder / "moved")
    mark(lake, spark, "unified", "before", clean=True)
    (lake.folder / "moved").rename(lake.objects / moved)
    found = {mode: candidates(mark(lake, spark, mode)) for mode in MODES}
    assert found["committed"] | found["uncommitted"] == found["unified"] | {moved}
    assert moved not in found["unified"]
    clean = candidates(mark(lake, spark, "unified", "clean", clean=True))
    assert found["committed"] | found["uncommitted"] == clean == garbage(told)["unified"]


def test_an_object_that_is_older_than_its_slice(tmp_path: Path, spark: Session) -> None:
    """A listing skips slices that are too new by their names; a look by name stops the run."""
    with running(tmp_path / "lake") as lake:
        lake.client.create_repository(REPOSITORY, f"local://{REPOSITORY}")
        lake.rules(20)
        lake.calendar.days_ago = 0.01
        long_ago, first = int(time.time()) - 90 * 86_400, lake.upload("main", "a", "content")
        for content in ("another", "and another"):
            lake.client.commit_branch(REPOSITORY, "main", "old", date=long_ago)
            lake.upload("main", "a", content)
        lake.client.commit_branch(REPOSITORY, "main", "old", date=long_ago)
        lake.calendar.days_ago = 0
        os.utime(lake.objects / first, (1_600_000_000, 1_600_000_000))
        assert candidates(mark(lake, spark, "unified", min_age_hours=1)) == set()
        with pytest.raises(IntegrityError, match="holds an object of 2020"):
            mark(lake, spark, "committed", min_age_hours=1)


def test_what_may_not_be_asked_about_is_spared_by_its_size_alone(
    s3_server: str, s3_bucket: str, tmp_path: Path, spark: Session
) -> None:
    """No listing says whether etags are checksums, so a look by name compares none."""
    where: dict[str, Any] = {
        "store": f"s3://{s3_bucket}",
        "store_config": StoreConfig(endpoint_url=s3_server),
    }
    with running(tmp_path, **where) as lake:
        lake.client.create_repository(REPOSITORY, f"s3://{s3_bucket}/{REPOSITORY}")
        lake.rules(20)
        for days_ago in (90, 80, 70):
            lake.calendar.days_ago = days_ago
            for number in range(3):
                lake.upload("main", f"a/{number}", f"object {number} of {days_ago}")
            lake.commit("main")
        lake.calendar.days_ago = 0
        for stored in recorded.backend().buckets[s3_bucket].keys.values():
            stored.last_modified = datetime.now(timezone.utc) - timedelta(minutes=1)
        marks = {m: mark(lake, spark, m, max_served_lookups=0) for m in ("unified", "committed")}
        assert len(candidates(marks["unified"])) == 6
        assert candidates(marks["committed"]) == set()
        rows = marks["committed"].root.attempt(REPOSITORY, "committed")
        spared = rows.read("deletion_candidates", "spared").to_pylist()
        assert {row["address"] for row in spared} == candidates(marks["unified"])
        assert {row["why"] for row in spared} == {UNVERIFIED}
