"""A mark of a version that spares something else is not swept; what it deleted comes back."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path

import pytest

from lakegc_assets.errors import RefusedError
from lakegc_assets.mark import listing
from lakegc_assets.mark.candidates import find_candidates
from lakegc_assets.mark.report import report
from lakegc_assets.recovery.backup_creation import make_backup
from lakegc_assets.recovery.restore.restored_set import restore
from lakegc_assets.recovery.restore.selection import Choice
from lakegc_assets.run import context, manifest
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.manifest import PROTECTION_VERSION
from lakegc_assets.sweep.approval import approve
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.lake import (
    REPOSITORY,
    STAGES,
    SmallLake,
    candidates,
    mark,
    running,
    tell_history,
)
from lakegc_assets_tests.sessions import Session


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[SmallLake]:
    with running(tmp_path) as found:
        tell_history(found)
        yield found


@contextmanager
def version(number: int) -> Iterator[None]:
    """Let what runs within be of a version that spares something else."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (context, listing, manifest):
            patch.setattr(module, "PROTECTION_VERSION", number)
        yield


def approve_it(ctx: RunContext) -> object:
    return approve(ctx, "somebody", timedelta(days=1))


@pytest.mark.parametrize(
    ("by", "other"),
    [(-1, "an earlier version .*: mark again"), (1, "a later version .*: update lakegc here")],
)
def test_a_mark_of_another_version_is_neither_approved_nor_backed_up_nor_swept(
    lake: SmallLake, spark: Session, by: int, other: str
) -> None:
    ctx = lake.context(spark, backup_url=str(lake.folder / "backup"))
    with version(PROTECTION_VERSION + by):
        mark(ctx)
    assert candidates(ctx)
    before = lake.keys()
    for action in (approve_it, make_backup, sweep):
        with pytest.raises(RefusedError, match=f"was made by {other}"):
            action(ctx)
    assert lake.keys() == before


@pytest.mark.parametrize("order", [["later", "mine"], ["mine", "later"]])
def test_nothing_is_swept_where_a_later_version_has_marked(
    lake: SmallLake, spark: Session, order: Sequence[str]
) -> None:
    """Somebody else of the team has updated: what that version spares, this one may not know."""
    for run in order:
        with version(PROTECTION_VERSION + 1) if run == "later" else nullcontext():
            mark(lake.context(spark, run))
    ctx, before = lake.context(spark, "mine"), lake.keys()
    assert candidates(ctx)
    with pytest.raises(RefusedError, match=r"a later version of lakegc has marked .*'later'"):
        sweep(ctx)
    assert lake.keys() == before
    shutil.rmtree(lake.folder / "artifacts" / REPOSITORY / "later")
    sweep(ctx)
    assert lake.keys() < before


@pytest.mark.parametrize(
    ("stage", "asset"), [(find_candidates, "deletion_candidates"), (report, "gc_report")]
)
def test_a_mark_that_another_version_has_begun_is_not_gone_on_with(
    lake: SmallLake, spark: Session, stage: Callable[[RunContext], object], asset: str
) -> None:
    ctx, begun = lake.context(spark), STAGES.index(stage)
    with version(PROTECTION_VERSION - 1):
        mark(ctx, STAGES[:begun])
    with pytest.raises(RefusedError, match="was made by an earlier version"):
        stage(ctx)
    assert not ctx.root.attempt(REPOSITORY, ctx.run).has(asset)


def test_what_another_version_has_swept_is_restored(lake: SmallLake, spark: Session) -> None:
    before = lake.contents(lake.keys())
    ctx = lake.context(spark)
    with version(PROTECTION_VERSION - 1):
        mark(ctx)
        sweep(ctx)
    assert lake.keys() < before.keys()
    restore(ctx, Choice(everything=True))
    assert lake.contents(before) == before


def test_nothing_is_carried_from_a_listing_of_another_version(
    lake: SmallLake, spark: Session
) -> None:
    with version(PROTECTION_VERSION - 1):
        mark(lake.context(spark, "first"))
    facts = listing.list_store(lake.context(spark, "second")).facts
    assert facts["mode"] == "clean"
    assert "a version that spares other objects" in facts["because"]
