"""A whole collection whose every task runs on Spark: one job for a stage, however much there is."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from lakegc_assets.recovery.backup_creation import make_backup
from lakegc_assets.recovery.backup_pruning import why_needed
from lakegc_assets.recovery.backups import find_backup
from lakegc_assets.recovery.old_trash import prune_trash
from lakegc_assets.storage.trash import TRASH, trash_folder
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.lake import (
    REPOSITORY,
    RUN,
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
#: The most to find what is needed of a backup, or of old trash.
PRUNE_JOBS = 22


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


def test_a_prune_looks_for_what_is_needed_in_few_jobs_of_spark(
    marked: Marked, spark: Session, tmp_path: Path
) -> None:
    with running(copy_of(marked, tmp_path)) as lake:
        url, address = str(tmp_path / "backups"), max(marked.candidates)
        ctx = lake.context(spark, engine="spark", backup_url=url)
        make_backup(ctx)
        sweep(ctx)
        (made,) = (lake.objects / TRASH).iterdir()
        ended = datetime.now(timezone.utc) - timedelta(days=8)
        made.rename(lake.objects / trash_folder("a", ended))
        lake.stage("main", "late/link", address)
        backup = find_backup(ctx.root.stores, url, REPOSITORY, RUN)
        assert backup is not None
        namespace, found = ctx.connect().connections.namespace_url, list[str]()
        looks: list[Callable[[], object]] = [
            lambda: found.append(why_needed(ctx, backup)),
            lambda: found.append(prune_trash(ctx, namespace, lambda: None).kept),
        ]
        jobs = [jobs_of(spark, look) for look in looks]
        assert all(f"{address!r} (it is staged on a branch)" in kept for kept in found), found
        assert all(1 <= count <= PRUNE_JOBS for count in jobs), jobs


def _lost(lake: SmallLake, count: int) -> set[str]:
    """Objects that were staged and deleted again; their addresses."""
    found = {lake.upload("dev", f"lost/{n}", f"lost object {n}") for n in range(count)}
    for n in range(count):
        lake.client.delete_object("repo", "dev", f"lost/{n}")
    return found
