"""Marks from inventory reports: never more than a listing gives, as much if they are whole."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakegc_assets.checks.invariants import evaluate
from lakegc_assets.errors import ConfigurationError, IntegrityError, RefusedError
from lakegc_assets.mark import relations
from lakegc_assets.mark.candidates import find_candidates
from lakegc_assets.mark.inventory import LACKED
from lakegc_assets.mark.listing import list_store
from lakegc_assets.mark.relations import TWICE
from lakegc_assets.run.artifacts import LISTING
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import HASHES
from lakegc_assets.run.settings import Settings
from lakegc_assets.storage.opening import open_store
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.frames import Frames, same
from lakegc_assets_tests.inventories import Rows, S3Reports, listed, s3_row
from lakegc_assets_tests.lake import REPOSITORY, STAGES, Marked, SmallLake, copy_of, running
from lakegc_assets_tests.mark import twins
from lakegc_assets_tests.mark.histories import candidates, listing, why_clean
from lakegc_assets_tests.mark.test_relations import LIVE, NOW, STORE
from lakegc_assets_tests.sessions import Session

CHOSEN = {"min_age_hours": 0, "max_candidate_share": 1.0, "clean": True}
LISTED = STAGES[: STAGES.index(find_candidates) + 1]


@pytest.fixture
def lake(told: Marked, tmp_path: Path) -> Iterator[SmallLake]:
    with running(copy_of(told, tmp_path)) as found:
        yield found


@pytest.fixture
def reports(lake: SmallLake) -> S3Reports:
    return S3Reports(open_store(str(lake.folder / "reports")), REPOSITORY)


def objects(lake: SmallLake) -> list[dict[str, Any]]:
    """All that the store holds, as S3 would describe it."""
    store = open_store(f"local://{REPOSITORY}", lake.server.store_config)
    return [s3_row(REPOSITORY, "", one) for one in listed(store)]


def now() -> datetime:
    return datetime.now(timezone.utc)


def mark(
    lake: SmallLake, spark: Session, run: str, stages: Sequence[Any] = LISTED, **changes: Any
) -> RunContext:
    ctx = lake.context(spark, run, **{**CHOSEN, **changes})
    for stage in stages:
        stage(ctx)
    return ctx


def from_report(reports: S3Reports, **changes: Any) -> dict[str, Any]:
    return {"listing": "inventory", "inventory_place": reports.place, **changes}


@pytest.mark.parametrize(
    "encoding", [pytest.param("CSV", marks=pytest.mark.conformance), "Parquet"]
)
def test_a_whole_report_gives_what_a_listing_gives_and_is_swept(
    encoding: str, lake: SmallLake, reports: S3Reports, told: Marked, spark: Session
) -> None:
    reports.write(now(), objects(lake), encoding)
    ctx = mark(lake, spark, "inventory", STAGES, **from_report(reports))
    assert candidates(ctx) == told.candidates
    found = listing(ctx)
    assert found.facts["mode"] == "inventory"
    assert found.facts["named_twice"] == 0
    assert found.rows == len(lake.keys())
    before = lake.keys()
    gone, rewritten = sorted(told.candidates)[:2]
    (lake.objects / gone).unlink()
    (lake.objects / rewritten).unlink()
    (lake.objects / rewritten).write_bytes(b"written again")
    swept = sweep(ctx)
    outcomes = {name: of["objects"] for name, of in swept.facts["outcomes"].items()}
    assert outcomes == {
        "deleted": len(told.candidates) - 2,
        "already_missing": 1,
        "spared": 1,
    }
    assert lake.keys() == before - told.candidates | {rewritten}


def test_a_report_never_gives_more_than_a_listing(
    lake: SmallLake, reports: S3Reports, told: Marked, spark: Session
) -> None:
    rows = objects(lake)
    runs = iter(range(1000))

    @settings(max_examples=6, deadline=None)
    @given(st.randoms(use_true_random=False), st.integers(1, 3))
    def check(chance: random.Random, parts: int) -> None:
        kept = [row for row in rows if chance.random() < 0.7] or rows[:1]
        stale = [{**row, "ETag": "0" * 32} for row in kept if chance.random() < 0.3]
        unknown = [{**rows[0], "Key": f"_lakefs/{chance.random()}"}]
        reports.write(now(), [*kept, *stale, *unknown], parts=parts)
        ctx = mark(lake, spark, f"run-{next(runs)}", **from_report(reports))
        twice = {row["Key"] for row in stale}
        named = {row["Key"] for row in kept}
        assert candidates(ctx) == told.candidates & named - twice
        spared = ctx.root.attempt(REPOSITORY, ctx.run).read("deletion_candidates", "spared")
        why = dict(zip(spared["address"].to_pylist(), spared["why"].to_pylist(), strict=True))
        assert why == dict.fromkeys(told.candidates & twice, TWICE)

    check()


def test_age_is_counted_from_the_beginning_of_the_report(
    lake: SmallLake, reports: S3Reports, told: Marked, spark: Session
) -> None:
    began = now() - timedelta(hours=3)
    young, *old = sorted(told.candidates)
    for address in sorted(lake.keys()):
        at = (began + timedelta(minutes=10 if address == young else -10)).timestamp()
        os.utime(lake.objects / address, (at, at))
    reports.write(began, objects(lake))
    ctx = mark(lake, spark, "inventory", **from_report(reports))
    assert candidates(ctx) == set(old)
    assert listing(ctx).cutoff <= began
    assert candidates(mark(lake, spark, "listing")) == told.candidates


def test_heads_are_asked_for_where_the_report_lacks_them(
    lake: SmallLake, reports: S3Reports, told: Marked, spark: Session
) -> None:
    reports.write(now(), [row for row in objects(lake) if row["Key"] in told.candidates])
    ctx = mark(lake, spark, "inventory", **from_report(reports))
    assert candidates(ctx) == told.candidates
    (result,) = (one for one in evaluate(ctx) if one.name == "listing_holds_heads")
    assert result.passed
    assert "what it lacks stays" in result.summary
    assert result.facts["lacked"] > 0
    for address in lake.keys() - told.candidates:
        (lake.objects / address).unlink()
    (result,) = (one for one in evaluate(ctx) if one.name == "listing_holds_heads")
    assert not result.passed
    assert "neither in the listing nor in the store" in result.summary


def test_a_listing_after_a_report_is_a_clean_one(
    lake: SmallLake, reports: S3Reports, spark: Session
) -> None:
    reports.write(now(), objects(lake))
    mark(lake, spark, "inventory", STAGES, **from_report(reports))
    later = mark(lake, spark, "later", (list_store,), clean=False)
    assert "may lack objects" in why_clean(later)


@pytest.mark.parametrize(
    ("age", "error", "message"),
    [
        (timedelta(days=3, minutes=1), RefusedError, "more than 3 days before"),
        (timedelta(minutes=-10), IntegrityError, "one of the two clocks is wrong"),
    ],
)
def test_a_report_of_another_time_is_refused(
    age: timedelta,
    error: type[Exception],
    message: str,
    lake: SmallLake,
    reports: S3Reports,
    spark: Session,
) -> None:
    reports.write(now() - age, objects(lake))
    with pytest.raises(error, match=message):
        list_store(lake.context(spark, "inventory", **CHOSEN, **from_report(reports)))
    with pytest.raises(RefusedError, match="there is no mark"):
        lake.root.attempt(REPOSITORY, "inventory")


def test_a_report_without_the_namespace_is_refused(
    lake: SmallLake, reports: S3Reports, spark: Session
) -> None:
    reports.write(now(), [{**row, "Key": f"_lakefs/{row['Key']}"} for row in objects(lake)])
    with pytest.raises(IntegrityError, match="names no object below local://repo"):
        list_store(lake.context(spark, "inventory", **CHOSEN, **from_report(reports)))


def test_a_listing_is_held_against_a_report(
    lake: SmallLake,
    reports: S3Reports,
    told: Marked,
    spark: Session,
    caplog: pytest.LogCaptureFixture,
) -> None:
    lacked, gone, *_ = sorted(told.candidates)
    an_hour_ago = (now() - timedelta(hours=1)).timestamp()
    for address in sorted(lake.keys()):
        os.utime(lake.objects / address, (an_hour_ago, an_hour_ago))
    rows = [row for row in objects(lake) if row["Key"] != lacked]
    reports.write(now(), rows)
    (lake.objects / gone).unlink()
    chosen = {"listing_check": "inventory", "inventory_place": reports.place}
    with caplog.at_level(logging.WARNING, "lakegc"):
        ctx = mark(lake, spark, "listing", LISTED, **chosen)
    assert candidates(ctx) == told.candidates - {gone}
    check = listing(ctx).facts["inventory_check"]
    assert (check["listing_lacks"]["objects"], check["listing_lacks"]["example"]) == (1, gone)
    assert (check["inventory_lacks"]["objects"], check["inventory_lacks"]["example"]) == (1, lacked)
    assert f"example {gone}" in caplog.text
    assert f"example {lacked}" in caplog.text


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"listing": "inventory"}, "set inventory_place to the URL"),
        ({"listing_check": "inventory"}, "set inventory_place to the URL"),
        ({"listing": "all"}, "'store' or 'inventory'"),
        ({"inventory_max_age_days": 0}, "inventory_max_age_days is .*more than 0"),
        (
            {"listing": "inventory", "listing_check": "inventory", "inventory_place": "x"},
            "both inventory",
        ),
    ],
)
def test_settings_that_make_no_sense_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Settings(**values)


# Relations


def test_what_is_named_twice(frames: Frames) -> None:
    @settings(max_examples=frames.examples)
    @given(LIVE)
    def check(rows: Rows) -> None:
        found = frames.rows(relations.named_twice(frames.of(rows, HASHES)), HASHES)
        assert same(found, twins.named_twice(rows))

    check()


def test_what_others_lack(frames: Frames) -> None:
    @settings(max_examples=frames.examples)
    @given(STORE, STORE)
    def check(store: Rows, others: Rows) -> None:
        found = relations.lacked(frames.of(store, LISTING), frames.of(others, LISTING), NOW)
        assert same(frames.rows(found, LACKED), twins.lacked(store, others, NOW))

    check()
