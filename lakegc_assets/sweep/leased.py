"""The lease of a repository, held by whoever works on a run, as the settings of the run say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from lakegc_assets.run.context import RunContext
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.sweep.hold import require_no_hold
from lakegc_assets.sweep.lease import Lease, LeaseLostError, repository_lease
from lakegc_assets.sweep.lease_owner import owner_of
from lakegc_assets.sweep.lease_record import lost


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
        clocks=ctx.clocks,
    )


@contextmanager
def leased_to_prune(ctx: RunContext) -> Iterator[Callable[[], None]]:
    """Keep sweeps and restores of a repository from beginning meanwhile, from wherever.

    Gives what raises LeaseLostError once it does not: this process may have been suspended, and not
    have noticed, so the store is asked.

    Args:
        ctx: of the repository.

    Raises:
        RefusedError: somebody is at work, or an alarm has not been looked at.
        LakegcError: nobody can tell.
    """
    _, connections = ctx.connect()
    store = connections.store()
    with leased(ctx, store, doing="prune") as lease:
        require_no_hold(ctx, store)

        def require() -> None:
            if why := lost(store, lease.token, lease.round, store.server_time()):
                raise LeaseLostError(
                    f"the lease on {store.url} was lost: {why}. What was not removed yet stays: "
                    "prune again"
                )

        yield require
