"""A mark that was made while all clocks were ahead, after they were set right again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lakegc_assets.errors import RefusedError
from lakegc_assets.mark.candidates import find_candidates
from lakegc_assets.prune.run_inventory import look
from lakegc_assets.run.clocks import Clocks
from lakegc_assets.run.context import RunContext
from lakegc_assets.storage.local import LocalStore
from lakegc_assets.sweep.approval import approve
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.lake import REPOSITORY, STAGES, SmallLake, candidates, mark, running
from lakegc_assets_tests.mark.test_earlier_marks import Past
from lakegc_assets_tests.sessions import Session

#: The age that objects must have, as in a real run.
SAFE: dict[str, Any] = {
    "min_age_hours": 24,
    "allow_unsafe_min_age": False,
    "longest_commit_seconds": 0,
}


@dataclass(frozen=True)
class Ahead(Clocks):
    """This machine's clock, some days ahead."""

    days: float

    def now(self) -> datetime:
        return super().now() + timedelta(days=self.days)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[SmallLake]:
    with running(tmp_path / "lake") as found:
        yield found


def mark_ahead(
    ctx: RunContext, lake: SmallLake, days: float, stages: Sequence[Any] = STAGES
) -> None:
    """Mark while the clocks of lakeFS, the store and this machine are so many days ahead."""
    lake.calendar.days_ago = -days
    server_time = LocalStore.server_time
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            LocalStore, "server_time", lambda store: server_time(store) + timedelta(days=days)
        )
        mark(replace(ctx, clocks=Ahead(days)), stages)
    lake.calendar.days_ago = 0


def test_no_sweep_deletes_the_young_objects_that_it_took_for_old(
    lake: SmallLake, spark: Session
) -> None:
    lake.client.create_repository(REPOSITORY, f"local://{REPOSITORY}")
    for number in range(6):
        lake.upload("main", f"keep/{number}", f"kept {number}")
    lake.commit("main")
    written_now = lake.upload("main", "x", "a client links it in a moment")
    lake.client.reset_branch(REPOSITORY, "main")
    ctx = lake.context(spark, **SAFE)
    mark_ahead(ctx, lake, days=3)
    assert candidates(ctx) == {written_now}
    for action in (partial(approve, by="Ada", lifetime=timedelta(days=7)), sweep):
        with pytest.raises(RefusedError, match=r"later than .*: the clocks were ahead when it was"):
            action(ctx)
    assert lake.keys() >= {written_now}


def test_the_dates_that_it_took_for_over_still_count(lake: SmallLake, spark: Session) -> None:
    past = Past(lake, spark)
    lake.rules(5, main=30)
    past.mark("first")
    past.reset()
    stages = STAGES[: STAGES.index(find_candidates) + 1]
    mark_ahead(lake.context(spark, "ahead"), lake, 90, stages)
    now = datetime.now(timezone.utc)
    needed = [run.needed for run in look(lake.root, REPOSITORY, set(), now)]
    assert [why.startswith("the next mark reads its active_c") for why in needed] == [True, True]
    assert not past.is_candidate("second")
    runs = {run.id: run.needed for run in look(lake.root, REPOSITORY, set(), now)}
    # By its clock nothing is later than the mark that was made ahead.
    assert {name for name, why in runs.items() if why} == {"ahead", "second"}
    assert not past.is_candidate("third")
    lake.rules(5, main=0)
    assert past.is_candidate("shorter")
