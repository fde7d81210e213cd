"""The lease of a repository, held by whoever works on a run, as the settings of the run say."""

from __future__ import annotations

from contextlib import AbstractContextManager

from lakegc_assets.run.context import RunContext
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.sweep.lease import Lease, owner_of, repository_lease


def leased(
    ctx: RunContext, store: ObjectStore, *, doing: str | None = None, run: str | None = None
) -> AbstractContextManager[Lease]:
    """Hold the lease of the repository. See ``repository_lease`` for what it raises.

    Args:
        ctx: whose settings say for how long, and for how long to wait for others.
        store: rooted at the storage namespace.
        doing: what it is held for, for people who wait; None for a sweep.
        run: that it is about, for them, too.
    """
    return repository_lease(
        store,
        owner_of(doing=doing, repository=ctx.repository, run=run, started_by=ctx.started_by),
        duration=ctx.settings.lease_duration,
        wait=ctx.settings.lease_wait,
        log=ctx.log,
    )
