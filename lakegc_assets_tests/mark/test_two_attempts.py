"""Two processes that start a run of the same id at once do not mix their attempts.

On one machine a lock keeps them apart; on two machines nothing does until a stage has ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lakegc_assets.errors import RefusedError
from lakegc_assets.mark.candidates import find_candidates
from lakegc_assets.mark.listing import list_store
from lakegc_assets.mark.uncommitted_snapshot import snapshot_uncommitted
from lakegc_assets.run.artifacts import Manifest
from lakegc_assets.run.context import RunContext
from lakegc_assets_tests.lake import REPOSITORY, STAGES, Marked, SmallLake, candidates, mark
from lakegc_assets_tests.marked import lake
from lakegc_assets_tests.sessions import Session

__all__ = ["lake"]


class Overtaken(RunContext):
    """A run that another process starts again right before a stage writes its manifest."""

    def finish(self, *stage: Any, **more: Any) -> Manifest:
        list_store(RunContext(**vars(self)))
        return super().finish(*stage, **more)


@pytest.mark.parametrize("stage", [snapshot_uncommitted, find_candidates])
def test_a_stage_of_an_attempt_that_was_replaced_records_nothing(
    lake: SmallLake, marked: Marked, spark: Session, stage: Callable[[RunContext], object]
) -> None:
    ctx = lake.context(spark, "twice")
    mark(ctx, STAGES[: STAGES.index(stage)])
    first = lake.root.attempt(REPOSITORY, "twice")
    with pytest.raises(RefusedError, match="was started again by another process"):
        stage(Overtaken(**vars(ctx)))
    # The other process goes on by itself, whatever the first one has left.
    assert lake.root.attempt(REPOSITORY, "twice").attempt != first.attempt
    mark(ctx, STAGES[1:])
    assert candidates(ctx) == marked.candidates
