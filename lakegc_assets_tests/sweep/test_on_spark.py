"""A whole collection whose every task runs on Spark: one job for a stage, however much there is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.lake import (
    Marked,
    SmallLake,
    copy_of,
    mark,
    running,
)
from lakegc_assets_tests.sessions import Session

#: The most Spark jobs of a mark, and of a sweep of one round, on a cluster.
MARK_JOBS, SWEEP_JOBS = 45, 30
#: The most of a mark if Spark is on this machine: files of few rows are written without a job.
MARK_JOBS_HERE = 38


def jobs_of(spark: Session, work: Callable[[], object]) -> int:
    """The number of Spark jobs of a call."""
    tracker = spark().sparkContext.statusTracker()
    # Spark forgets the oldest of a thousand: the numbers of the new ones are counted.
    before = {*tracker.getJobIdsForGroup()}
    work()
    return len({*tracker.getJobIdsForGroup()} - before)


@pytest.mark.parametrize(
    "more",
    [
        pytest.param(0, id="few objects"),
        pytest.param(120, id="many objects", marks=pytest.mark.conformance),
    ],
)
def test_a_stage_is_one_job_of_spark(
    more: int, marked: Marked, spark: Session, tmp_path: Path
) -> None:
    with running(copy_of(marked, tmp_path), slice_max_objects=20) as lake:
        many = {"listing_num_partitions": 4, "sweep_num_partitions": 4, "sweep_batch": 10}
        dead = set(marked.candidates) | _lost(lake, more)
        live = lake.keys() - dead
        settings = {
            **many,
            "engine": "spark",
            "max_candidate_share": 1.0,
            "min_age_hours": 0,
        }
        ctx = lake.context(spark, "on-spark", **settings)
        found = jobs_of(spark, lambda: mark(ctx)), jobs_of(spark, lambda: sweep(ctx))
        assert 7 <= found[0] <= MARK_JOBS_HERE, found
        assert 1 <= found[1] <= SWEEP_JOBS, found
        assert lake.keys() == live


def _lost(lake: SmallLake, count: int) -> set[str]:
    """Objects that were staged and deleted again; their addresses."""
    found = {lake.upload("dev", f"lost/{n}", f"lost object {n}") for n in range(count)}
    for n in range(count):
        lake.client.delete_object("repo", "dev", f"lost/{n}")
    return found
