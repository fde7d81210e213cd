"""Plans and execution of the command ``leftovers remove``."""

from __future__ import annotations

import getpass
from collections.abc import Mapping

from lakegc_assets.cli.servers import server_of
from lakegc_assets.leftovers.namespace_removal import plan_namespace, remove_namespace
from lakegc_assets.leftovers.removal import Choices, Plan
from lakegc_assets.leftovers.upload_removal import abort_uploads, plan_uploads


def plan(kind: str, where: str, *, unclaimed: bool) -> Plan:
    """Plan the removal.

    Args:
        kind: ``namespace`` or ``uploads``.
        where: repository, or URL of a namespace.
        unclaimed: no other server uses the namespace.

    Raises:
        RefusedError: it stays, and why.
        LakegcError: nobody can tell.
    """
    server = server_of(())
    if kind == "namespace":
        return plan_namespace(server, where, unclaimed=unclaimed)
    return plan_uploads(server, where)


def removed(
    found: Plan,
    by: str | None,
    *,
    unclaimed: bool,
    backup_url: str | None,
    without_backup: bool,
) -> Mapping[str, int]:
    """Remove what a plan says; the number of objects by what became of them.

    Args:
        found: the plan, which somebody has confirmed.
        by: who removes it; None for the name of this user.
        unclaimed: as in ``plan``.
        backup_url: place of copies; None for none.
        without_backup: remove also where nothing keeps it.

    Raises:
        RefusedError: it is another plan by now, or it stays.
        LakegcError: something could not be read, recorded or removed; remove it again.
    """
    server = server_of(())
    choices = Choices(by or getpass.getuser(), found.id, backup_url, without_backup)
    if found.kind == "namespace":
        return remove_namespace(server, found.where, choices, unclaimed=unclaimed)
    return abort_uploads(server, found.where, choices)
