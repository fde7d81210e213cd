"""Beside lakeFS's own marks: what they would have destroyed is named, and who needs it."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lakegc_assets.attribution.usage import usage
from lakegc_assets.errors import RefusedError
from lakegc_assets.mark.comparison import Comparison, Difference, compare, compare_with_newest
from lakegc_assets.mark.explanation import explain_object
from lakegc_assets_tests import recorded
from lakegc_assets_tests.mark import foreign
from lakegc_assets_tests.mark.conftest import Goldens
from lakegc_assets_tests.mark.test_candidates import plant_ranges
from lakegc_assets_tests.mark.test_recorded import ORPHAN
from lakegc_assets_tests.replay import GOLDEN, ReplayServer
from lakegc_assets_tests.sessions import Session

ALL = 10_000


def named(difference: Difference) -> dict[str, str]:
    """What only one names, with why the other keeps it."""
    assert difference.total.objects == len(difference.objects)
    assert sum(total.objects for total in difference.kept.values()) in {0, len(difference.objects)}
    return {one["address"]: one["kept"] for one in difference.objects}


def put(key: str, body: bytes) -> None:
    """Plant a file of a mark in the repository that most tests use."""
    recorded.plant("small", key, body)


def sizes(repository: str) -> dict[str, int]:
    """The objects that the store held."""
    with (GOLDEN / repository / "listing_before.tsv").open(newline="") as lines:
        rows = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        return {row["key"].removeprefix(f"{repository}/"): int(row["size"]) for row in rows}


@contextmanager
def beside_recorded(golden: Goldens, repository: str) -> Iterator[Comparison]:
    """Our mark beside the one that lakeFS's collector made of the same repository."""
    ctx = golden(repository).marked.ctx
    with recorded.preserved(repository):
        mark = foreign.load_recorded(repository)
        yield compare(ctx, "run1", mark, ALL)


def beside_made(golden: Goldens, addresses: Sequence[str]) -> Comparison:
    """Our mark of ``small`` beside a made one."""
    ctx = golden("small").marked.ctx
    with recorded.preserved("small"):
        foreign.with_summary(put, addresses, "made")
        return compare(ctx, "run1", "made", ALL)


# The four ways to lose data


def test_the_order_of_commit_ids(golden: Goldens) -> None:
    rows = json.loads((GOLDEN / "orderhz" / "manifest.json").read_text())["rows"]
    lost = {row["object_of_P"]: row["P"] for row in rows if not row["P_active_in_csv"]}
    assert len(lost) == 4
    with beside_recorded(golden, "orderhz") as found:
        assert set(named(found.only_other)) == set(lost)
        for address, why in named(found.only_other).items():
            assert f"the active commit {lost[address]}" in why
            assert why.endswith(" holds it")
        assert found.only_other.kept.keys() == {"an active commit holds it"}
        held = sizes("orderhz")
        assert found.only_other.total.bytes == sum(held[address] for address in lost) > 0
        assert (found.both.objects, found.only_run.total.objects) == (0, 0)


def test_shadow_mode_shows_what_a_mark_of_lakefs_itself_would_have_destroyed(
    golden: Goldens,
) -> None:
    ctx = golden("identical").marked.ctx
    watching = replace(ctx, settings=ctx.settings.changed(compare_with="unified"))
    with beside_recorded(golden, "identical") as found:
        shown = compare_with_newest(watching)
        assert shown["other"]["id"] == found.other["id"]
        for side in ("both", "only_run", "only_other"):
            assert shown[side] == found.to_json()[side]
        assert shown["only_other"]["total"]["objects"] > 0
    assert compare_with_newest(ctx) == {}


def test_uploads_equal_to_head(golden: Goldens) -> None:
    told = json.loads((GOLDEN / "identical" / "manifest.json").read_text())
    with beside_recorded(golden, "identical") as found:
        assert named(found.only_other) == dict.fromkeys(
            told["live_but_not_listed_by_prepare_uncommited"], "lakeFS serves it"
        )
        assert found.both.objects == len(told["expected_deleted"])
        assert found.only_run.total.objects == 0


def test_a_last_page_without_location(spark: Session, s3_server: str, tmp_path: Path) -> None:
    """The collector of lakeFS takes every staged object for garbage: its mark names them all."""
    recorded.load("paged", "prepare_interval_9ms")
    recorded.plant("paged", ORPHAN)
    branches = json.loads((GOLDEN / "paged" / "staged.json").read_text())
    staged = {address: branch for branch, some in branches.items() for address in some}

    def put_there(key: str, body: bytes) -> None:
        recorded.plant("paged", key, body)

    with ReplayServer("paged", prepare="prepare_interval_9ms") as server:
        ctx = recorded.context(server, s3_server, tmp_path, spark)
        recorded.mark(ctx)
        foreign.with_summary(put_there, [*staged, ORPHAN], "theirs")
        found = compare(ctx, "run1", "theirs", ALL)
    kept = named(found.only_other)
    assert kept.keys() == staged.keys()
    assert found.only_other.kept.keys() == {"it is staged on a branch"}
    for address, why in kept.items():
        assert f"it is staged on branch {staged[address]!r} at " in why
    assert found.both.objects == 1


def test_a_404_of_an_older_server(golden: Goldens) -> None:
    """The collector of lakeFS takes every commit for unreferenced, so it marks what they hold."""
    marked = golden("small").marked
    staged = marked.addresses("uncommitted_snapshot")
    objects = {key for key in sizes("small") if key.startswith("data/")}
    committed = objects - staged - recorded.expected("small")
    assert len(committed) > 50
    assert marked.commits_hold(committed)
    found = beside_made(golden, sorted(objects - staged))
    kept = named(found.only_other)
    assert set(kept) == committed
    assert all(" holds it" in why and "the active commit " in why for why in kept.values())
    assert found.both.objects == len(recorded.expected("small"))
    assert found.both.bytes == sum(sizes("small")[a] for a in recorded.expected("small"))


# What else a comparison says


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.conformance) for seed in (1, 2, 3))]
)
def test_whatever_a_mark_names_the_sets_add_up(seed: int, golden: Goldens, tmp_path: Path) -> None:
    """And a run that adopts it deletes what both name, and nothing else."""
    choose = random.Random(seed)
    ours, held = recorded.expected("small"), set(sizes("small"))
    names = {a for a in held if choose.random() < 0.5} | {f"data/none/{n}" for n in range(seed)}
    copy = recorded.rewind(golden("small").marked, tmp_path, "gc_report").ctx
    with recorded.preserved("small"):
        foreign.with_summary(put, sorted(names), "made", files=1 + seed)
        found = compare(copy, "run1", "made", ALL)
        settings = copy.settings.changed(adopt="made")
        adopted = recorded.mark(replace(copy, run="adopted", settings=settings))
    assert set(named(found.only_other)) == names - ours
    assert {one["address"] for one in found.only_run.objects} == ours - names
    assert found.both.objects == len(names & ours)
    assert found.both.bytes == sum(sizes("small")[address] for address in names & ours)
    assert adopted.candidates == names & ours
    spared = {address for address in adopted.spared if address in names}
    assert spared == names - ours


def test_what_is_needed_and_lost_is_named_with_who_needs_it(
    golden: Goldens, tmp_path: Path
) -> None:
    """As after lakeFS's job has swept its mark."""
    marked = golden("small").marked
    staged = min(marked.addresses("uncommitted_snapshot"))
    held = min(a for a in sizes("small") if a.startswith("data/") and marked.commits_hold({a}))
    copy = recorded.rewind(marked, tmp_path).ctx
    with recorded.preserved("small"):
        foreign.with_summary(put, [staged, held], "made")
        for address in (staged, held):
            recorded.remove("small", address)
        recorded.mark(replace(copy, run="after", settings=copy.settings.changed(clean=True)))
        only = compare(copy, "after", "made", ALL).only_other
    kept = named(only)
    assert {total.bytes for total in only.kept.values()} == {only.total.bytes} == {None}
    assert kept[held].endswith(" holds it, and it is not in the run's listing of the store")
    assert kept[staged].startswith("it is staged on branch ")


def test_without_rules_any_range_is_holder_enough(
    spark: Session, s3_server: str, tmp_path: Path
) -> None:
    recorded.load("norules")
    live = recorded.plant("norules", plant_ranges())

    def put_there(key: str, body: bytes) -> None:
        recorded.plant("norules", key, body)

    with ReplayServer("norules") as server:
        ctx = recorded.context(server, s3_server, tmp_path, spark)
        recorded.mark(ctx)
        foreign.with_summary(put_there, [live], "theirs")
        found = compare(ctx, "run1", "theirs", ALL)
    assert named(found.only_other) == {
        live: "a range below _lakefs/ holds it, and each counts as live"
    }


def test_equal_marks_differ_in_nothing(golden: Goldens) -> None:
    with beside_recorded(golden, "small") as found:
        assert (found.only_run.total.objects, found.only_other.total.objects) == (0, 0)
        assert (found.both.objects, found.run["objects"], found.other["objects"]) == (84, 84, 84)


def test_what_only_ours_names_has_the_reason_of_our_mark(golden: Goldens) -> None:
    with beside_recorded(golden, "retention") as found:
        (ours,) = found.only_run.objects
        assert ours["address"] == "data/legacy-flat-object"
        assert ours["marked"] == "unreferenced"
        assert ours["kept"] is None
        assert ours["size"] == sizes("retention")["data/legacy-flat-object"]
        assert found.only_run.marked.keys() == {"unreferenced"}
        (theirs,) = found.only_other.objects
        assert theirs["address"] == "data/legacy-flat-object/legacy-flat-object"
        assert theirs["kept"] == "the store does not hold it"
        assert theirs["size"] is None
        assert found.only_other.total.bytes == 0


def test_expired_objects_name_the_commit_that_held_them_last(golden: Goldens) -> None:
    found = beside_made(golden, [])
    rows = golden("small").marked.attempt.read("deletion_candidates").to_pylist()
    expired = {row["address"]: row for row in rows if row["reason"] == "expired"}
    assert expired
    for one in found.only_run.objects:
        row = expired.get(one["address"])
        assert row is None or f"the commit {row['commit_id']}" in one["marked"]
    totals = found.only_run.marked
    assert sum(total.objects for total in totals.values()) == len(rows)
    assert any(reason.startswith("expired: last held on branch") for reason in totals)
    assert [one["size"] for one in found.only_run.objects] == sorted(
        (row["size"] for row in rows), reverse=True
    )


def test_two_runs_of_ours_name_the_reasons_of_both(golden: Goldens, tmp_path: Path) -> None:
    copy = recorded.rewind(golden("retention").marked, tmp_path).ctx
    young = copy.settings.changed(min_age_hours=24, skip_new_slices=False)
    recorded.mark(replace(copy, run="young", settings=young))
    found = compare(copy, "run1", "young", ALL)
    assert found.only_run.kept.keys() == {"it was written after the cutoff"}
    assert set(named(found.only_run)) == recorded.expected("retention")
    assert all(one["marked"] for one in found.only_run.objects)
    assert found.only_run.total.bytes == sum(
        total.bytes or 0 for total in found.only_run.kept.values()
    )
    assert found.notes == []
    turned = compare(copy, "young", "run1", ALL)
    assert turned.only_other == found.only_run


def test_two_foreign_marks_are_compared_without_reasons(golden: Goldens) -> None:
    ctx = golden("small").marked.ctx
    with recorded.preserved("small"):
        foreign.with_summary(put, ["data/a", "data/b", "s3://else/x"], "one")
        foreign.with_summary(put, ["data/b", "data/c"], "two", "uncommitted")
        found = compare(ctx, "one", "two", ALL)
    assert {one["address"] for one in found.only_run.objects} == {"data/a", "s3://else/x"}
    assert {one["address"] for one in found.only_other.objects} == {"data/c"}
    assert (found.both.objects, found.both.bytes) == (1, None)
    assert found.only_run.total.bytes is None
    assert (found.only_run.kept, found.only_run.marked, found.notes) == ({}, {}, [])


def test_an_order_in_time_is_explained(golden: Goldens) -> None:
    ctx = golden("small").marked.ctx

    def notes(**told: Any) -> list[str]:
        with recorded.preserved("small"):
            foreign.with_summary(put, [], "timed")
            put(f"{foreign.GC}unified/timed/summary.json", foreign.summary("timed", 0, **told))
            return list(compare(ctx, "run1", "timed", 0).notes)

    (older,) = notes(start_time="2026-12-01T00:00:00.123456789Z")
    assert "run 'run1' (2026-11-21 04:41:04 UTC) is older than mark 'timed' (2026-12-01" in older
    assert "only mark 'timed' can name" in older
    assert "mark again and compare the new run" in older
    (younger,) = notes(start_time="2026-11-20T00:00:00Z")
    assert "is younger than mark 'timed'" in younger


def test_the_largest_are_named_and_all_are_counted(golden: Goldens) -> None:
    committed = sorted(
        key
        for key in sizes("small")
        if key.startswith("data/") and key not in recorded.expected("small")
    )
    ctx = golden("small").marked.ctx
    with recorded.preserved("small"):
        foreign.with_summary(put, committed, "made")
        found = compare(ctx, "run1", "made", 3)
    shown = [one["size"] for one in found.only_other.objects]
    assert shown == sorted((sizes("small")[key] for key in committed), reverse=True)[:3]
    assert found.only_other.total.objects == len(committed)
    assert sum(t.objects for t in found.only_other.kept.values()) == len(committed)


def test_nothing_is_left_of_a_comparison(golden: Goldens) -> None:
    marked = golden("small").marked
    before = {path for path in Path(marked.ctx.root.url).rglob("*") if path.is_file()}
    beside_made(golden, ["data/x"])
    after = {path for path in Path(marked.ctx.root.url).rglob("*") if path.is_file()}
    assert after == before
    assert marked.ctx.root.runs("small") == ["run1"]


def test_what_is_neither_a_run_nor_a_mark_is_refused(golden: Goldens) -> None:
    ctx = golden("small").marked.ctx
    with pytest.raises(
        RefusedError, match=r"there is no mark 'nowhere' of repository 'small'.*and "
    ):
        compare(ctx, "run1", "nowhere", 1)


def test_a_run_that_did_not_come_to_its_candidates_is_refused(
    golden: Goldens, tmp_path: Path
) -> None:
    marked = recorded.rewind(golden("small").marked, tmp_path, "deletion_candidates")
    for ask in (
        lambda ctx: compare(ctx, "run1", "run1", 1),
        lambda ctx: explain_object(ctx, "data/x"),
        lambda ctx: usage(ctx, "branch", 1),
    ):
        with pytest.raises(RefusedError, match="'run1' of 'small' did not finish: mark again"):
            ask(marked.ctx)
