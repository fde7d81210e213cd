"""The namespace of a deleted repository, its plan, and its removal as it is now."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from lakegc_assets.leftovers.namespace_removal import plan_namespace, remove_namespace
from lakegc_assets.leftovers.removal import Choices
from lakegc_assets.leftovers.server import Server

URL = "local://team/old"
XID = "c0" * 10
SLICE = "g0" * 10


def choices(server: Server, backup: Path | None = None, *, without: bool = False) -> Choices:
    plan = plan_namespace(server, URL, unclaimed=True)
    return Choices("somebody", plan.id, str(backup) if backup else None, without)


def remove(server: Server, backup: Path | None = None, *, without: bool = False) -> Counter[str]:
    """Remove the namespace as it is now."""
    return remove_namespace(server, URL, choices(server, backup, without=without), unclaimed=True)
