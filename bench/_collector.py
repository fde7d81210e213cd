"""A collection in this process: its stages one by one, with the cost of each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench._memory import CpuTime
from bench._run import Session, measured
from lakegc_assets.attribution.attribution import attribute
from lakegc_assets.checks.invariants import check_candidates, require_passed
from lakegc_assets.lakefs.config import LakeFSConfig
from lakegc_assets.mark.candidates import find_candidates
from lakegc_assets.mark.commits import find_active_commits
from lakegc_assets.mark.committed_addresses import read_committed_addresses
from lakegc_assets.mark.listing import list_store
from lakegc_assets.mark.report import report
from lakegc_assets.mark.uncommitted_snapshot import snapshot_uncommitted
from lakegc_assets.run.artifacts import ArtifactRoot
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.manifest import Manifest
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


@dataclass(frozen=True)
class Collector:
    """The collector of a repository.

    Attributes:
        session: of all its runs.
        ctx: of the current run.
        cpu: CPU time of this process and of processes started since.
    """

    session: Session
    ctx: RunContext
    cpu: CpuTime = field(default_factory=CpuTime)

    @classmethod
    def new(
        cls, folder: Path, repository: str, *, local_root: Path | None = None, **settings: object
    ) -> Collector:
        """A collector without artifacts and caches.

        Args:
            folder: of artifacts and caches.
            repository: lakeFS repository.
            local_root: directory of ``local://`` namespaces.
            settings: fields of ``Settings`` that differ from the defaults.
        """
        session = Session()
        stores = StoreConfig(local_root=str(local_root) if local_root else None)
        root = ArtifactRoot(f"{folder}/artifacts", stores)
        chosen = Settings(**{"longest_commit_seconds": 0, **settings})  # type: ignore[arg-type]
        ctx = RunContext(repository, "run", chosen, LakeFSConfig(), root, session)
        return cls(session, ctx)

    def mark(
        self, run: str, *, clean: bool = False, attributed: bool = True
    ) -> tuple[Collector, float]:
        """Mark; the collector of that run, and seconds.

        Args:
            run: its id.
            clean: list the whole store, without data of earlier runs.
            attributed: also make the ``storage_attribution``.
        """
        ctx = replace(self.ctx, run=run, settings=self.ctx.settings.changed(clean=clean))
        jobs, tasks = self.session.work()
        cpu = self.cpu.seconds()
        total = math.fsum(
            self._measured(f"  {stage.__name__}", lambda stage=stage: stage(ctx))  # type: ignore[misc]
            for stage in _STAGES
        )
        total += self._measured("  checks", lambda: require_passed(check_candidates(ctx)))
        total += self._measured("  report", lambda: report(ctx))
        without, took = self.cpu.seconds() - cpu, total
        if attributed:
            total += self._measured("  attribution", lambda: attribute(ctx))
        cpu = self.cpu.seconds() - cpu
        after = self.session.work()
        print(
            f"mark {run:<23} {total:8.1f} s {after[0] - jobs:5} jobs {after[1] - tasks:6} tasks",
            flush=True,
        )
        if attributed:
            print(
                f"  attribution: true {total:.1f} s and {cpu:.1f} s of CPU, false {took:.1f} s and "
                f"{without:.1f} s: {100 * (total / took - 1):.1f} % and "
                f"{100 * (cpu / without - 1):.1f} % more",
                flush=True,
            )
        attempt = ctx.root.attempt(ctx.repository, run)
        listing, read = (
            attempt.manifest(asset).facts for asset in ("store_listing", "committed_addresses")
        )
        print(
            f"  {listing['mode']}: {listing['listed']:,} keys listed, {listing['carried']:,} "
            f"carried forward; {read['entries']:,} entries; ranges decoded "
            f"{read['ranges_decoded']}, from the cache {read['ranges_from_cache']}",
            flush=True,
        )
        return replace(self, ctx=ctx), total

    def candidates(self, wanted: int) -> int:
        """The number of candidates of the mark; a number other than ``wanted`` is an error."""
        attempt = self.ctx.root.attempt(self.ctx.repository, self.ctx.run)
        found = attempt.manifest("deletion_candidates").rows
        if found != wanted:
            raise SystemExit(f"{found:,} candidates were found, of {wanted:,}")
        return found

    def sweep(self) -> float:
        """Sweep the mark; seconds."""
        seconds = self._measured("sweep", lambda: sweep(self.ctx))
        manifest = self.ctx.root.attempt(self.ctx.repository, self.ctx.run).manifest("swept_set")
        print(f"sweep: {manifest.rows:,} objects, {manifest.rows / seconds:,.0f} objects/s")
        return seconds

    def _measured(self, name: str, work: Callable[[], object]) -> float:
        return measured(self.session, name, work, self.cpu.seconds)
