"""Makes a backup while nobody else sweeps, restores, prunes or backs up the repository."""

from __future__ import annotations

from lakegc_assets.recovery.backup_creation import make_backup
from lakegc_assets.recovery.backups import Record
from lakegc_assets.run.context import RunContext
from lakegc_assets.sweep.leased import leased


def back_up(ctx: RunContext) -> Record | None:
    """As ``make_backup``, under the lease of the repository, for which it waits as a sweep does.

    Raises:
        RefusedError: somebody else holds the lease; or as ``make_backup``.
        LakegcError: as ``make_backup`` and ``repository_lease``.
    """
    if ctx.settings.backup_url is None:
        return None
    _, connections = ctx.connect()
    with leased(ctx, connections.store(), doing="backup", run=ctx.run):
        return make_backup(ctx)
