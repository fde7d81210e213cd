"""A whole collection of a synthetic repository: cold mark, warm mark, sweep; seconds and memory.

Some of the objects (a quarter) were overwritten long ago and expired; the rest is live on main.
Objects are local files (``--store local``), or keys of versitygw, a real S3 server on this machine,
which needs Go; or they exist in ready-made pages of its listings only (``pages``), so that millions
of them cost nothing else, and are marked once. Memory is that of the collector: the servers are
other processes.

    python -m bench.collection --objects 1000000 --store versitygw
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

from lakegc_assets.checks.evaluation import check_candidates, require_passed

from bench._lake import REPOSITORY, Plan, planted
from bench._memory import Memory
from bench._pages import KEYS_EACH
from bench._run import real_s3, session, timed
from lakegc_assets.lakefs.config import LakeFSConfig
from lakegc_assets.mark.candidates import find_candidates
from lakegc_assets.mark.commits import find_active_commits
from lakegc_assets.mark.committed import read_committed_addresses
from lakegc_assets.mark.listing import list_store
from lakegc_assets.mark.report import report
from lakegc_assets.mark.uncommitted import snapshot_uncommitted
from lakegc_assets.run.artifacts import ArtifactRoot, Manifest
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.settings import Settings
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.sweep.sweep import sweep

_STAGES: tuple[Callable[[RunContext], Manifest], ...] = (
    list_store,
    snapshot_uncommitted,
    find_active_commits,
    read_committed_addresses,
    find_candidates,
)


def _mark(ctx: RunContext) -> float:
    total = 0.0
    for stage in _STAGES:
        total += timed(f"  {stage.__name__}", lambda stage=stage: stage(ctx))  # type: ignore[misc]
    total += timed("  checks", lambda: require_passed(check_candidates(ctx)))
    total += timed("  report", lambda: report(ctx))
    print(f"mark {ctx.run:<23} {total:8.1f} s", flush=True)
    facts = ctx.root.attempt(ctx.repository, ctx.run).manifest("committed_addresses").facts
    print(
        f"  ranges decoded {facts['ranges_decoded']}, from the cache {facts['ranges_from_cache']}"
    )
    return total


def _warm_and_sweep(ctx: RunContext, cold: float, expired: int) -> None:
    warm = dataclasses.replace(ctx, run="warm")
    print(f"warm / cold {_mark(warm) / cold:.2f}")
    seconds = timed("sweep", lambda: sweep(warm))
    print(f"sweep: {expired / seconds:,.0f} objects/s")


def _collect(folder: Path, local_root: Path, *, expired: int, cold_only: bool) -> None:
    """Mark twice and sweep."""
    memory = Memory()
    memory.start()
    spark = session()
    root = ArtifactRoot(f"{folder}/artifacts", StoreConfig(local_root=str(local_root)))
    settings = Settings(clock_skew=timedelta(minutes=5))
    ctx = RunContext(REPOSITORY, "cold", settings, LakeFSConfig(), root, spark)
    cold = _mark(ctx)
    if not cold_only:
        _warm_and_sweep(ctx, cold, expired)
    memory.show()
    spark.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, default=100_000, help="(%(default)s)")
    parser.add_argument("--store", choices=("local", "versitygw", "pages"), default="local")
    parser.add_argument("--expired", type=int, help="how many of them; a quarter by default")
    parser.add_argument("--cold-only", action="store_true", help="no warm mark and no sweep")
    arguments = parser.parse_args()
    objects, expired, pages = arguments.objects, arguments.expired, None
    if arguments.store == "pages":
        pages = max(1, objects // KEYS_EACH)
        objects = pages * KEYS_EACH
    if expired is None:
        expired = objects // 4
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        address, files = None, None
        if arguments.store != "local":
            s3 = stack.enter_context(real_s3(folder / "versitygw"))
            address, files = s3.server.address, s3.files
        plan = Plan(folder / "lakefs", address, files, pages, objects, expired)
        local_root = stack.enter_context(planted(plan))
        cold_only = arguments.cold_only or pages is not None
        _collect(folder, local_root, expired=expired, cold_only=cold_only)


if __name__ == "__main__":
    main()
