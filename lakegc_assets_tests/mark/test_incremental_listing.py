"""Optimized runs collect what clean runs would, and fall back to one where they might not."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from lakegc_assets.checks.invariants import evaluate
from lakegc_assets.embedded.lake.layouts import Layout, set_layout
from lakegc_assets.graveler.namespace import new_slice_name
from lakegc_assets.mark import etags
from lakegc_assets.mark.explanation import explain_object
from lakegc_assets.mark.incremental_listing import settled, settled_before, sweeps_since
from lakegc_assets.run.clocks import Clocks
from lakegc_assets.run.context import RunContext
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import AccessDeniedError
from lakegc_assets.storage.local import LocalStore
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.lake import REPOSITORY, STAGES, SmallLake, copy_lake, running
from lakegc_assets_tests.mark.histories import (
    NO_AGE,
    candidates,
    listing,
    mark,
    run_stages,
    tell,
    why_clean,
)
from lakegc_assets_tests.sessions import Session


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten objects on main, in slices of three, and one that was overwritten; to be copied."""
    folder = tmp_path_factory.mktemp("made") / "lake"
    with running(folder, slice_max_objects=3) as found:
        found.client.create_repository(REPOSITORY, f"local://{REPOSITORY}")
        found.rules(20)
        found.calendar.days_ago = 90
        for number in range(10):
            found.upload("main", f"a/{number}", f"object {number}")
        found.commit("main")
        found.calendar.days_ago = 60
        found.upload("main", "a/0", "another object 0")
        found.commit("main")
    return folder


@pytest.fixture(scope="module")
def made_and_marked(made: Path, tmp_path_factory: pytest.TempPathFactory, spark: Session) -> Path:
    """The same with a mark ``first``."""
    folder = copy_lake(made, tmp_path_factory.mktemp("marked") / "lake")
    with running(folder, slice_max_objects=3) as found:
        mark(found, spark, "first")
    return folder


@pytest.fixture
def lake(made: Path, tmp_path: Path) -> Iterator[SmallLake]:
    with running(copy_lake(made, tmp_path / "lake"), slice_max_objects=3) as found:
        found.calendar.days_ago = 60
        yield found


@pytest.fixture
def marked(made_and_marked: Path, tmp_path: Path) -> Iterator[SmallLake]:
    with running(copy_lake(made_and_marked, tmp_path / "lake"), slice_max_objects=3) as found:
        yield found


def first_mark(lake: SmallLake, spark: Session) -> RunContext:
    """The mark that a lake ``marked`` has."""
    return lake.context(spark, "first", **NO_AGE)


def because(lake: SmallLake, spark: Session, **changes: object) -> str:
    """Why a next mark would list what it would: its first stage tells, and leaves nothing."""
    ctx = lake.context(spark, "next", **{**NO_AGE, **changes})
    STAGES[0](ctx)
    told = str(listing(ctx).facts["because"])
    shutil.rmtree(Path(ctx.root.url, REPOSITORY, "next"))
    return told


def listed(ctx: RunContext) -> tuple[int, int]:
    """Objects and bytes that a mark says it has listed."""
    facts = ctx.root.attempt(REPOSITORY, ctx.run).manifest("deletion_candidates").facts
    return facts["listed"], facts["listed_bytes"]


# What is carried


def test_what_is_settled_is_not_listed_again(marked: SmallLake, spark: Session) -> None:
    first = first_mark(marked, spark)
    assert why_clean(first) == "there is no earlier run"
    marked.calendar.days_ago = 0
    new = marked.upload("main", "b/new", "an object of today")
    second = mark(marked, spark, "second", skip_new_slices=False)
    facts = listing(second).facts
    assert facts["mode"] == "optimized"
    assert facts["clean_run"] == "first"
    # Nobody writes to the slices of the others any more.
    assert (facts["carried"], facts["listed"]) == (11, 1)
    attempt = second.root.attempt(REPOSITORY, "second")
    rows = attempt.read("store_listing")["address"].to_pylist()
    assert set(rows) == marked.keys()
    assert len(rows) == len(set(rows)) == listing(second).rows
    assert new in rows
    assert candidates(second) == candidates(first)


def test_what_is_carried_is_read_and_written_where_the_store_may_not_copy(
    marked: SmallLake, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[str] = []

    def refuse(_self: LocalStore, _source: ObjectStore, key: str, *_: str, **__: object) -> None:
        refused.append(key)
        raise AccessDeniedError("the service may not read what it is to copy")

    monkeypatch.setattr(LocalStore, "copy_from", refuse)
    second = marked.context(spark, "second", **NO_AGE)
    STAGES[0](second)
    assert listing(second).facts["mode"] == "optimized"
    assert refused
    attempt = second.root.attempt(REPOSITORY, "second")
    assert set(attempt.read("store_listing")["address"].to_pylist()) == marked.keys()


def test_etags_are_compared_once(
    lake: SmallLake, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what is listed by the mark, not by its sweep, and with what is new by the next run."""
    compared: list[int] = []
    told = etags.compare_ranges

    def counted(*args: Any) -> Any:
        compared.extend(part.rows for parts in args[-1].values() for part in parts)
        return told(*args)

    monkeypatch.setattr(etags, "compare_ranges", counted)
    first = mark(lake, spark, "first")
    assert (sum(compared), len(candidates(first))) == (11, 1)
    compared.clear()
    sweep(first)
    assert sum(compared) == 0
    # Etags tell nothing where no candidate has the size of an entry.
    alike = lake.objects / "data" / "alike"
    alike.write_text("object X")
    os.utime(alike, (time.time() - 60, time.time() - 60))
    lake.upload("main", "b/new", "an object of today")
    second = mark(lake, spark, "second", skip_new_slices=False)
    assert listing(second).facts["mode"] == "optimized"
    assert sum(compared) == 2
    compared.clear()
    lake.commit("main")
    mark(lake, spark, "third", skip_new_slices=False)
    # A new range with all, what was swept among it; the others with what is not settled.
    assert sum(compared) == 13 + 2


def test_what_was_swept_is_not_marked_again(marked: SmallLake, spark: Session) -> None:
    first = first_mark(marked, spark)
    dead = candidates(first)
    assert len(dead) == 1
    sweep(first)
    second = mark(marked, spark, "second")
    facts = listing(second).facts
    assert (facts["mode"], facts["carried_and_gone"]) == ("optimized", 1)
    assert candidates(second) == set()
    sweep(second)
    third = mark(marked, spark, "third")
    assert (listing(third).facts["mode"], candidates(third)) == ("optimized", set())
    # One dataset of all sweeps: a query of hundreds takes minutes to be planned.
    assert {run for run, _ in listing(third).facts["swept_since"]} == {"first", "second"}
    (outcomes,) = sweeps_since(third, listing(third))
    assert outcomes.rows == 1
    clean = mark(marked, spark, "clean", clean=True)
    assert candidates(clean) == set()
    assert listing(clean).rows == listing(third).rows - 1
    (one,) = dead
    for ctx in (second, third):
        told = explain_object(ctx, one)
        said = "the sweep of run 'first' deleted it, before this mark was made"
        assert (told.verdict, told.because) == ("swept", said)
    assert explain_object(clean, one).because == "the store did not hold it when it was listed"
    # What a mark says that it has listed and keeps is what the store has.
    assert listed(second) == listed(third) == listed(clean)


def test_what_a_new_branch_needs_of_what_was_swept_is_not_said_to_be_there(
    marked: SmallLake, spark: Session
) -> None:
    """What was listed before is carried forward, and the store has it no more."""
    first = first_mark(marked, spark)
    (dead,) = candidates(first)
    sweep(first)
    marked.client.create_branch(REPOSITORY, "old", "main~1")
    second = mark(marked, spark, "second")
    assert listing(second).facts["mode"] == "optimized"
    held = next(one for one in evaluate(second) if one.name == "listing_holds_heads")
    assert held.passed
    assert held.facts["deleted_before"] == 1
    assert f"was deleted by earlier runs, for example {dead!r} (run first)" in held.summary
    told = explain_object(second, dead)
    assert told.verdict == "live"
    assert told.because.endswith(
        "; but the sweep of run 'first' deleted it, before this mark was made: it is gone"
    )


def test_a_slice_that_a_sweep_has_emptied_is_no_reason_for_a_clean_run(
    lake: SmallLake, spark: Session
) -> None:
    lake.calendar.days_ago = 50
    for number in range(3):
        lake.upload("main", f"lost/{number}", f"never committed {number}")
    for number in range(3):
        lake.client.delete_object(REPOSITORY, "main", f"lost/{number}")
    first = mark(lake, spark, "first")
    folders = {path.name for path in (lake.objects / "data").iterdir()}
    sweep(first)
    assert {path.name for path in (lake.objects / "data").iterdir()} < folders
    assert because(lake, spark) == "the listing of run 'first' is carried forward"


def test_a_run_stands_for_itself(marked: SmallLake, spark: Session) -> None:
    second = mark(marked, spark, "second")
    shutil.rmtree(Path(second.root.url) / REPOSITORY / "first")
    attempt = second.root.attempt(REPOSITORY, "second")
    assert set(attempt.read("store_listing")["address"].to_pylist()) == marked.keys()
    sweep(second)
    assert not marked.keys() & candidates(second)


def test_the_share_of_candidates_is_that_of_what_is_there(lake: SmallLake, spark: Session) -> None:
    def litter(name: str, count: int) -> None:
        for number in range(count):
            path = lake.objects / "data" / f"{name}-{number}"
            path.write_bytes(b"in no slice")
            os.utime(path, (1_600_000_000, 1_600_000_000))

    litter("early", 30)
    sweep(mark(lake, spark, "first"))
    litter("late", 12)
    second = mark(lake, spark, "second")
    facts = listing(second).facts
    assert (facts["mode"], facts["listed"], facts["carried"]) == ("optimized", 12, 11)
    # The first sweep deleted more than was carried forward.
    assert facts["carried_and_gone"] == 31
    share = next(one for one in evaluate(second) if one.name == "candidate_share")
    assert (share.facts["candidates"], share.facts["listed"]) == (12, 12)


def test_of_the_share_what_several_sweeps_found_gone_is_gone_once(
    lake: SmallLake, spark: Session
) -> None:
    for number in range(6):
        lake.upload("main", f"b/{number}", f"given up, {number} of 6")
    lake.client.reset_branch(REPOSITORY, "main")
    half = {"max_candidate_share": 0.5}
    for ctx in [mark(lake, spark, run, **half) for run in ("first", "second")]:
        sweep(ctx)
    for number in range(4):
        lake.write(f"data/late-{number}", b"in no slice")
        os.utime(lake.objects / f"data/late-{number}", (1_600_000_000, 1_600_000_000))
    third = mark(lake, spark, "third", **half)
    facts = listing(third).facts
    assert (facts["carried"], facts["carried_and_gone"], facts["listed"]) == (17, 14, 4)
    share = next(one for one in evaluate(third) if one.name == "candidate_share")
    assert (share.facts["candidates"], share.facts["listed"]) == (4, 14)


def test_slices_are_settled_a_day_and_more_after_they_were_made() -> None:
    start = datetime(2026, 11, 21, tzinfo=timezone.utc)
    before = settled_before(timedelta(minutes=5), timedelta(hours=1), start)
    assert before == start - timedelta(hours=27, minutes=10)
    longer = settled_before(timedelta(minutes=5), timedelta(hours=48), start)
    assert longer == start - timedelta(hours=51, minutes=10)
    second = timedelta(seconds=1)
    names = [new_slice_name(moment, b"abc", 1, 1) for moment in (before - second, before)]
    assert settled([*names, "", "x" * 20, "data"], before) == names[:1]


# Where a clean run is made all the same


Change = Callable[[SmallLake, RunContext], object]


def _part(ctx: RunContext, name: str) -> Path:
    attempt = ctx.root.attempt(REPOSITORY, ctx.run)
    return Path(attempt.url) / attempt.manifest("store_listing").parts[name][0].key


def _edit(ctx: RunContext, **facts: object) -> None:
    attempt = ctx.root.attempt(REPOSITORY, ctx.run)
    manifest = attempt.manifest("store_listing")
    changed = replace(manifest, facts={**manifest.facts, **facts})
    attempt.store().put("store_listing/manifest.json", changed.to_bytes())


def _empty_a_slice(lake: SmallLake, _: RunContext) -> None:
    shutil.rmtree(min((lake.objects / "data").iterdir()))


FALLBACKS: dict[str, tuple[Change, str]] = {
    "rules": (lambda lake, _: lake.rules(21), "the retention rules have changed"),
    "no rules": (
        lambda lake, _: lake.client.delete_gc_rules(REPOSITORY),
        "the retention rules have changed",
    ),
    "missing": (lambda _, ctx: _part(ctx, "settled").unlink(), "cannot be read"),
    "no slices": (lambda _, ctx: _part(ctx, "slices").write_bytes(b"x"), "cannot be read"),
    "unfinished": (
        lambda _, ctx: STAGES[0](replace(ctx, run="unfinished")),
        "the last run, 'unfinished', did not finish its mark",
    ),
    "not the same": (lambda _, ctx: _edit(ctx, x=1), "cannot be read: the manifest of"),
    "emptied": (_empty_a_slice, "that no sweep has emptied"),
}


@pytest.mark.parametrize("name", FALLBACKS)
def test_what_cannot_be_relied_on_is_listed_again(
    name: str, marked: SmallLake, spark: Session
) -> None:
    change, reason = FALLBACKS[name]
    change(marked, marked.context(spark, "first", **NO_AGE))
    ctx = marked.context(spark, "second", **NO_AGE)
    STAGES[0](ctx)
    assert reason in why_clean(ctx)
    rows = ctx.root.attempt(REPOSITORY, "second").read("store_listing")["address"].to_pylist()
    assert set(rows) == marked.keys()


def test_other_rules_of_what_stays_are_other_rules(marked: SmallLake, spark: Session) -> None:
    first, rules = first_mark(marked, spark), {"tags": ["v*"]}
    more = mark(marked, spark, "more", retain=rules)
    assert "the retention rules have changed" in why_clean(more)
    assert because(marked, spark, retain=rules) == "the listing of run 'more' is carried forward"
    assert "the retention rules have changed" in because(marked, spark)
    assert candidates(first)


def test_clean_runs_are_made_on_demand_and_every_week(marked: SmallLake, spark: Session) -> None:
    assert because(marked, spark, clean=True) == "a clean run was asked for"
    weekly = because(marked, spark, clean_every_hours=0)
    assert weekly.startswith("the last clean run, 'first', was at ")


def test_a_sweep_that_did_not_finish_leads_to_a_clean_run(
    marked: SmallLake, spark: Session
) -> None:
    first = first_mark(marked, spark)
    sweep(first)
    manifest = first.root.attempt(REPOSITORY, "first").url + "/swept_set/manifest.json"
    Path(manifest).unlink()
    assert because(marked, spark) == "the sweep of the last run, 'first', did not finish"


def test_a_sweep_that_ends_early_behind_a_later_clean_run_leads_to_another(
    marked: SmallLake, spark: Session
) -> None:
    """What it deletes is in the listing of that run still, whenever its own mark was made."""
    first = first_mark(marked, spark)
    mark(marked, spark, "second", clean=True)
    sweep(first)
    Path(first.root.attempt(REPOSITORY, "first").url, "swept_set/manifest.json").unlink()
    third = mark(marked, spark, "third")
    assert why_clean(third) == "the sweep of 'first' did not finish"
    # It is over by now.
    assert because(marked, spark) == "the listing of run 'third' is carried forward"


@dataclass(frozen=True)
class Ahead(Clocks):
    """All clocks, some days ahead."""

    days: float

    def now(self) -> datetime:
        return super().now() + timedelta(days=self.days)


def mark_ahead(
    lake: SmallLake, spark: Session, run: str, days: float, stages: Any = STAGES
) -> RunContext:
    """A mark, or its first stages, while lakeFS, the store and this machine are days ahead."""
    lake.calendar.days_ago = -days
    server_time = LocalStore.server_time
    ctx = replace(lake.context(spark, run, **NO_AGE), clocks=Ahead(days))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            LocalStore, "server_time", lambda store: server_time(store) + timedelta(days=days)
        )
        run_stages(ctx, stages)
    return ctx


def test_nothing_is_carried_from_a_run_for_which_a_clock_was_ahead(
    marked: SmallLake, spark: Session
) -> None:
    marked.calendar.days_ago = 0
    marked.upload("main", "b/0", "in a slice that is written to")
    marked.commit("main")
    ahead = mark_ahead(marked, spark, "ahead", 3)
    assert listing(ahead).facts["clean_run"] == "first"
    # The clock is set back; what is written now is in a slice that looked settled.
    marked.calendar.days_ago = 0
    marked.upload("main", "b/1", "in the same slice, later")
    marked.commit("main")
    second = mark(marked, spark, "second")
    assert listing(second).facts["because"].startswith("the listing of run 'first'")
    # By then it cannot be seen any more which clock was ahead.
    third = mark_ahead(marked, spark, "third", 4, STAGES[:1])
    assert listing(third).facts["because"].startswith("the listing of run 'second'")
    name = f"ahead/{ahead.root.attempt(REPOSITORY, 'ahead').attempt}"
    assert [listing(ctx).facts["clock_ahead"] for ctx in (ahead, second, third)] == [
        [],
        [name],
        [name],
    ]


def test_a_store_that_was_restored_is_listed_again(marked: SmallLake, spark: Session) -> None:
    backup = shutil.copytree(marked.objects / "data", marked.folder / "backup")
    sweep(first_mark(marked, spark))
    mark(marked, spark, "second")
    shutil.copytree(
        backup,
        marked.objects / "data",
        dirs_exist_ok=True,
        copy_function=lambda one, to: Path(to).exists() or shutil.copy2(one, to),
    )
    third = mark(marked, spark, "third")
    assert "the store was restored" in why_clean(third)
    assert len(candidates(third)) == 1


# Histories


def test_optimized_runs_collect_what_clean_ones_would(tmp_path: Path, spark: Session) -> None:
    assert tell(tmp_path, spark, 0, collections=2).optimized >= 1


@pytest.mark.conformance
def test_of_a_sharded_repository_every_run_collects_all(tmp_path: Path, spark: Session) -> None:
    """No name tells when something was written, so that nothing is skipped or carried forward."""
    history = tell(tmp_path, spark, 1, Layout.SHARDED, collections=3)
    assert history.optimized == 0
    kept = history.lake.keys()
    assert any(key.startswith("data/!") for key in kept)
    runs = [history.lake.context(spark, f"run-{n + 1}") for n in range(history.runs)]
    assert any(
        "other names do not show when an object was written" in why_clean(run) for run in runs
    )


def test_an_optimized_run_lists_what_is_in_shards_and_carries_what_is_in_slices(
    marked: SmallLake, spark: Session
) -> None:
    """As of a repository that is sharded since its server was upgraded."""
    first = first_mark(marked, spark)
    with marked.server.lake.state.write() as db:
        set_layout(db, REPOSITORY, Layout.SHARDED)
    marked.calendar.days_ago = 50
    sharded = [marked.upload("main", f"s/{number}", f"in a shard {number}") for number in range(3)]
    marked.commit("main")
    marked.client.delete_object(REPOSITORY, "main", "s/0")
    marked.calendar.days_ago = 40
    marked.commit("main")
    for run in ("second", "third"):
        found = mark(marked, spark, run)
        facts = listing(found).facts
        assert (facts["mode"], facts["carried"], facts["listed"]) == ("optimized", 11, 3)
        assert "3 objects were listed again" in facts["because"]
        assert candidates(found) == candidates(first) | {sharded[0]}
    sweep(found)
    assert marked.keys() & (candidates(first) | set(sharded)) == set(sharded[1:])


@pytest.mark.conformance
def test_of_any_sharded_repository_every_run_collects_all(tmp_path: Path, spark: Session) -> None:
    """Those of slices, in which something comes back, too, are in test_optimized_histories.py."""
    seed = random.SystemRandom().randrange(2**32)
    print("seed", seed)  # noqa: T201 - shown where the test fails
    tell(tmp_path, spark, seed, Layout.SHARDED)
