"""On any history what is committed and what is not make up what is unified, and share nothing."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from lakegc_assets.errors import RefusedError
from lakegc_assets.lakefs.errors import LakeFSError
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.settings import MODES, Mode
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.lake import REPOSITORY, running
from lakegc_assets_tests.mark.histories import History, candidates, listing
from lakegc_assets_tests.mark.test_modes import mark
from lakegc_assets_tests.sessions import Session


@dataclass
class Modes(History):
    """A history of which three marks are made now and then, one of each mode.

    Attributes:
        named: candidates of the modes committed and uncommitted.
    """

    named: dict[Mode, int] = field(default_factory=lambda: dict.fromkeys(MODES, 0))

    def step(self) -> None:
        if self.chance.random() < 0.2:
            self.pass_time()
            with suppress(LakeFSError):
                self.chance.choice([self.tag, self.copy, self.overwrite, self.forget_rules])()
        super().step()

    def tag(self) -> None:
        self.lake.client.create_tag(REPOSITORY, f"t{self.chance.randrange(10**9)}", self.branch())

    def copy(self) -> None:
        """Stage what is there already, live or not, as today's lakeFS lets clients."""
        if found := sorted(self.lake.keys()):
            self.lake.stage(self.branch(), self.path(), self.chance.choice(found))

    def forget_rules(self) -> None:
        self.lake.client.delete_gc_rules(REPOSITORY)
        if self.chance.random() < 0.8:
            self.lake.rules(20, main=10)

    def overwrite(self) -> None:
        """Leave an upload behind that nothing names any more."""
        branch, path = self.branch(), self.path()
        for _ in range(2):
            self.lake.upload(branch, path, f"content {self.chance.random()}")

    def _collect(self) -> None:
        self.runs += 1
        marks: dict[Mode, RunContext] = {}
        tags = self.chance.random() < 0.5
        for mode in self.chance.sample(MODES, len(MODES)):
            clean = self.chance.random() < 0.3
            again = partial(mark, self.lake, self.spark, mode, protect_tags=tags)
            try:
                marks[mode] = again(f"{mode}-{self.runs}", clean=clean)
            except RefusedError as refused:
                # Where a HEAD names what was not seen when its slice was listed last.
                if clean or "Run again, with --clean" not in str(refused):
                    raise
                marks[mode] = again(f"{mode}-{self.runs}-clean", clean=True)
        found = {mode: candidates(ctx) for mode, ctx in marks.items()}
        assert found["committed"] | found["uncommitted"] == found["unified"]
        assert not found["committed"] & found["uncommitted"]
        for mode in MODES:
            self.named[mode] += len(found[mode])
        self.optimized += listing(marks["unified"]).facts["mode"] == "optimized"
        if self.chance.random() < 0.6:
            mode = self.chance.choice(MODES)
            before = self.lake.keys()
            sweep(marks[mode])
            assert before - self.lake.keys() == found[mode]


def tell(folder: Path, spark: Session, chance: random.Random) -> Modes:
    with running(folder, slice_max_objects=4) as lake:
        lake.client.create_repository(REPOSITORY, f"local://{REPOSITORY}")
        lake.rules(20, main=10)
        lake.calendar.days_ago = 90
        history = Modes(lake, spark, chance)
        for _ in range(chance.randrange(1, 4)):
            for _ in range(chance.randrange(5, 40)):
                history.step()
            history.collect()
        return history


@pytest.mark.conformance
@pytest.mark.long
def test_many_histories_are_the_same_in_parts(tmp_path: Path, spark: Session) -> None:
    seeds = [0, *random.SystemRandom().sample(range(2**32), 3)]
    print("seeds", seeds)  # noqa: T201 - shown where the test fails
    told = [tell(tmp_path / str(seed), spark, random.Random(seed)) for seed in seeds]
    # Some histories at random: some name hardly anything of a mode.
    assert min(sum(history.named[mode] for history in told) for mode in MODES) > 0
    assert told[0].optimized > 0
