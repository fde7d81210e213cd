"""A commit that nothing leads to any more is still the reason of what an earlier mark saw in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lakegc_assets.mark.candidates import find_candidates
from lakegc_assets.mark.commits import find_active_commits
from lakegc_assets.mark.explanation import explain_object
from lakegc_assets.run.context import RunContext
from lakegc_assets_tests.lake import REPOSITORY, STAGES, SmallLake, running
from lakegc_assets_tests.sessions import Session


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[SmallLake]:
    with running(tmp_path / "lake") as found:
        found.client.create_repository(REPOSITORY, f"local://{REPOSITORY}")
        yield found


def mark(lake: SmallLake, spark: Session, run: str, last: object = find_candidates) -> RunContext:
    ctx = lake.context(spark, run, max_candidate_share=1.0)
    for stage in STAGES[: STAGES.index(last) + 1]:
        stage(ctx)
    return ctx


def reasons(ctx: RunContext) -> dict[str, tuple[str, str | None]]:
    rows = ctx.root.attempt(REPOSITORY, ctx.run).read("deletion_candidates").to_pylist()
    return {row["address"]: (row["reason"], row["commit_id"]) for row in rows}


def given_up(lake: SmallLake) -> tuple[str, str, set[Path]]:
    """An object of a branch that is deleted, its commit, and the tables that only that has."""
    tables = lake.objects / "_lakefs"
    lake.rules(1000)
    lake.calendar.days_ago = 100
    lake.client.create_branch(REPOSITORY, "dev", "main")
    address = lake.upload("dev", "x", "given up")
    before = set(tables.iterdir())
    commit = lake.commit("dev")
    own = set(tables.iterdir()) - before
    lake.client.delete_branch(REPOSITORY, "dev")
    lake.calendar.days_ago = 0
    return address, commit, own


def test_it_is_the_reason_for_as_long_as_there_are_marks(lake: SmallLake, spark: Session) -> None:
    address, commit, _ = given_up(lake)
    mark(lake, spark, "first", find_active_commits)
    lake.rules(20)
    for run in ("second", "third"):
        ctx = mark(lake, spark, run)
        assert reasons(ctx) == {address: ("expired", commit)}
    said = explain_object(ctx, address).because
    assert said.startswith(f"commit {commit} held it last, as an earlier mark recorded; lakeFS")


def test_without_an_earlier_mark_it_is_not_known(lake: SmallLake, spark: Session) -> None:
    address, _, _ = given_up(lake)
    lake.rules(20)
    assert reasons(mark(lake, spark, "first")) == {address: ("unreferenced", None)}


def test_one_whose_tables_are_gone_stops_no_mark(lake: SmallLake, spark: Session) -> None:
    address, _, own = given_up(lake)
    mark(lake, spark, "first", find_active_commits)
    lake.rules(20)
    assert own
    for path in own:
        path.unlink()
    assert reasons(mark(lake, spark, "second")) == {address: ("unreferenced", None)}
