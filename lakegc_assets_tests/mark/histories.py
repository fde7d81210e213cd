"""Histories of a repository, collected by clean and by optimized runs, and what these found."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from lakegc_assets.embedded.lake.layouts import Layout
from lakegc_assets.lakefs.errors import LakeFSError
from lakegc_assets.run.artifacts import ArtifactRoot
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.manifest import Manifest
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.lake import REPOSITORY, STAGES, SmallLake, running
from lakegc_assets_tests.sessions import Session

NO_AGE = {"min_age_hours": 0, "max_candidate_share": 1.0}


def mark(lake: SmallLake, spark: Session, run: str, **settings: object) -> RunContext:
    lake.calendar.days_ago = 0
    ctx = lake.context(spark, run, **{**NO_AGE, **settings})
    run_stages(ctx, STAGES)
    return ctx


def run_stages(ctx: RunContext, stages: Sequence[Callable[[RunContext], object]]) -> None:
    for stage in stages:
        stage(ctx)


def listing(ctx: RunContext) -> Manifest:
    return ctx.root.attempt(REPOSITORY, ctx.run).manifest("store_listing")


def candidates(ctx: RunContext) -> set[str]:
    found = ctx.root.attempt(REPOSITORY, ctx.run).read("deletion_candidates")
    return set(found["address"].to_pylist())


def why_clean(ctx: RunContext) -> str:
    facts = listing(ctx).facts
    assert (facts["mode"], facts["carried"]) == ("clean", 0)
    assert facts["clean_run"] == ctx.run
    return str(facts["because"])


@dataclass
class History:
    """Whatever happens to a repository, and two collectors of it that know nothing of each other.

    One makes clean runs only, and deletes nothing. The other makes optimized ones, and sweeps.
    """

    lake: SmallLake
    spark: Session
    chance: random.Random
    branches: list[str] = field(default_factory=lambda: ["main"])
    runs: int = 0
    optimized: int = 0

    def branch(self) -> str:
        return self.chance.choice(self.branches)

    def path(self) -> str:
        return f"p/{self.chance.randrange(12)}"

    def pass_time(self) -> None:
        """Half a day: longer than lakeFS writes to a slice, since marks are made at day 0."""
        if self.lake.calendar.days_ago:
            self.lake.calendar.days_ago -= 0.5

    def step(self) -> None:
        self.pass_time()
        kinds = [self.upload] * 6 + [self.remove] * 2 + [self.commit] * 3
        kinds += [self.make, self.drop, self.merge, self.reset, self.change_rules]
        try:
            self.chance.choice(kinds)()
        except LakeFSError:
            # A merge may conflict, and an object may not be there.
            return

    def upload(self) -> None:
        self.lake.upload(self.branch(), self.path(), f"content {self.chance.random()}")

    def remove(self) -> None:
        self.lake.client.delete_object(REPOSITORY, self.branch(), self.path())

    def commit(self) -> None:
        self.lake.commit(self.branch())

    def make(self) -> None:
        name = f"b{self.chance.randrange(10_000)}"
        self.lake.client.create_branch(REPOSITORY, name, self.branch())
        self.branches.append(name)

    def drop(self) -> None:
        name = self.branch()
        if name != "main":
            self.branches.remove(name)
            self.lake.client.delete_branch(REPOSITORY, name)

    def merge(self) -> None:
        self.lake.client.merge(REPOSITORY, self.branch(), "main")

    def reset(self) -> None:
        self.lake.client.reset_branch(REPOSITORY, self.branch())

    def change_rules(self) -> None:
        if self.chance.random() < 0.3:
            self.lake.rules(self.chance.choice([5, 20, 40]), main=self.chance.choice([3, 30]))

    def collect(self) -> None:
        day, self.lake.calendar.days_ago = self.lake.calendar.days_ago, 0
        self._collect()
        self.lake.calendar.days_ago = day

    def _collect(self) -> None:
        self.runs += 1
        clean = self.lake.context(self.spark, f"clean-{self.runs}", **NO_AGE, clean=True)
        clean = replace(clean, root=ArtifactRoot(f"{self.lake.folder}/clean", clean.root.stores))
        run_stages(clean, STAGES[:5])
        ctx = self.lake.context(self.spark, f"run-{self.runs}", **NO_AGE)
        if self.chance.random() < 0.15:
            run_stages(
                replace(ctx, run=f"killed-{self.runs}"), STAGES[: self.chance.randrange(1, 5)]
            )
        run_stages(ctx, STAGES)
        self.optimized += listing(ctx).facts["mode"] == "optimized"
        assert candidates(ctx) == candidates(clean)
        if self.chance.random() < 0.6:
            sweep(ctx)
            assert not self.lake.keys() & candidates(ctx)


def tell(
    folder: Path,
    spark: Session,
    seed: int,
    layout: Layout = Layout.SLICES,
    *,
    collections: int = 5,
) -> History:
    with running(folder, slice_max_objects=4, layout=layout) as lake:
        lake.client.create_repository(REPOSITORY, f"local://{REPOSITORY}")
        lake.rules(20, main=10)
        lake.calendar.days_ago = 90
        history = History(lake, spark, random.Random(seed))
        for _ in range(collections):
            for _ in range(history.chance.randrange(5, 25)):
                history.step()
            history.collect()
        return history
