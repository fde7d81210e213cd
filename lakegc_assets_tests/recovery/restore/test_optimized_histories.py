"""Optimized runs collect what clean ones would, also where something that was swept came back."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random, SystemRandom

import pytest

from lakegc_assets.recovery.restore.restored_set import restore
from lakegc_assets.recovery.restore.selection import Choice
from lakegc_assets.run.artifacts import ArtifactRoot
from lakegc_assets.run.context import RunContext
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.lake import REPOSITORY, STAGES, mark, running
from lakegc_assets_tests.mark.histories import NO_AGE, History, candidates, listing
from lakegc_assets_tests.sessions import Session

#: Seeds of two histories in which all of it happens.
_TELLING = (0, 1)


@dataclass
class Undone(History):
    """A history whose sweeps are taken back now and then, and put back what they should.

    Attributes:
        seen: how often what happened.
    """

    seen: Counter[str] = field(default_factory=Counter)

    def _collect(self) -> None:
        self.runs += 1
        clean = self.context(f"clean-{self.runs}", clean=True)
        clean = replace(clean, root=ArtifactRoot(f"{self.lake.folder}/clean", clean.root.stores))
        mark(clean, STAGES[:5])
        ctx = self.context(f"run-{self.runs}", sweep_batch=2)
        mark(ctx)
        self.seen[listing(ctx).facts["mode"]] += 1
        assert candidates(ctx) == candidates(clean), listing(ctx).facts
        if self.chance.random() < 0.3:
            # What a run of another mode sweeps is known, too.
            ctx = self.context(f"committed-{self.runs}", mode="committed", sweep_batch=2)
            mark(ctx)
            self.seen["committed"] += 1
        if self.chance.random() < 0.15:
            mark(replace(ctx, run=f"killed-{self.runs}"), STAGES[: self.chance.randrange(1, 5)])
        if self.chance.random() < 0.2:
            return
        self.sweep(ctx)
        if candidates(ctx) and self.chance.random() < 0.4:
            some = [a for a in sorted(candidates(ctx)) if self.chance.random() < 0.5]
            pinned = self.chance.choice([0, 30])
            if some:
                back = replace(ctx, settings=ctx.settings.changed(pin_days=pinned))
                restore(back, Choice(addresses=tuple(some)))
                assert set(some) <= self.lake.keys()
                self.seen[f"restored, pinned for {pinned} days"] += 1

    def context(self, run: str, **settings: object) -> RunContext:
        return self.lake.context(self.spark, run, **{**NO_AGE, **settings})

    def sweep(self, ctx: RunContext) -> None:
        """Sweep; something may come back to life as soon as it is gone."""
        named, revived = candidates(ctx), list[str]()

        def revive(_method: str, _path: str) -> None:
            if not revived and (gone := named - self.lake.keys()):
                revived.append(min(gone))
                # At a path of its own: what looks like what is there already changes nothing.
                self.lake.stage("main", f"revived/{ctx.run}", revived[0])
                self.lake.commit("main")

        if self.chance.random() < 0.5:
            self.lake.on_request = revive
        found = sweep(ctx).facts["outcomes"]
        self.lake.on_request = lambda _method, _path: None
        assert isinstance(found, dict)
        self.seen["put back"] += "put_back" in found
        assert set(revived) <= self.lake.keys()
        left = self.lake.keys() & named
        spared = sum(found[name]["objects"] for name in ("spared", "put_back") if name in found)
        assert len(left) == spared


def tell(folder: Path, spark: Session, seed: int) -> Undone:
    with running(folder, slice_max_objects=4) as lake:
        lake.client.create_repository(REPOSITORY, f"local://{REPOSITORY}")
        lake.rules(20, main=10)
        lake.calendar.days_ago = 90
        history = Undone(lake, spark, Random(seed))
        for _ in range(5):
            for _ in range(history.chance.randrange(5, 25)):
                history.step()
            history.collect()
        return history


@pytest.mark.conformance
@pytest.mark.long
def test_whatever_came_back_in_many_histories(tmp_path: Path, spark: Session) -> None:
    seeds = [*_TELLING, *SystemRandom().sample(range(2**32), 2)]
    print("seeds", seeds)  # noqa: T201 - shown where the test fails
    told = [tell(tmp_path / str(seed), spark, seed) for seed in seeds]
    assert [history.runs for history in told] == [5] * len(seeds)
    seen = sum((history.seen for history in told), Counter[str]())
    assert seen["optimized"] >= 4, seen
    assert seen.keys() >= {
        "committed",
        "put back",
        "restored, pinned for 0 days",
        "restored, pinned for 30 days",
    }, seen
