"""The stages of a mark as they are, where ranges and paths are read from the lake in memory.

The checks are left out, and the report counts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from lakegc_assets.errors import LakegcError
from lakegc_assets.mark import (
    candidates,
    commits,
    committed_addresses,
    listing,
    report,
    uncommitted_snapshot,
)
from lakegc_assets.mark.candidates import find_candidates
from lakegc_assets.mark.commits import find_active_commits
from lakegc_assets.mark.committed_addresses import read_committed_addresses
from lakegc_assets.mark.listing import list_store
from lakegc_assets.mark.uncommitted_snapshot import snapshot_uncommitted
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.manifest import MARK_ASSETS
from lakegc_assets_tests.simulation.collector import attempt
from lakegc_assets_tests.simulation.mark_world import MarkWorld

Patch = tuple[object, str, object]
STAGES: Final[Sequence[Callable[[RunContext], object]]] = (
    list_store,
    snapshot_uncommitted,
    find_active_commits,
    read_committed_addresses,
    find_candidates,
    report.report,
)

#: Where it is asked whether a mark is made with the server that it was begun with.
READING: Final = (listing, uncommitted_snapshot, commits, committed_addresses, candidates)


def mark(ctx: RunContext, world: MarkWorld, *, resume: bool) -> str:
    """Make a mark; how it ended: "" for well, else the error.

    ``resume``: go on behind the last stage that finished, as a retry from failure does.
    """

    def work() -> None:
        done = _finished(ctx) if resume else 0
        if not done:
            world.oracle.begins(ctx.run)
        for name, stage in zip(MARK_ASSETS[done:], STAGES[done:], strict=True):
            world.say(f"makes {name}")
            stage(ctx)

    return attempt(world, "mark", work)


def _finished(ctx: RunContext) -> int:
    """How many stages of the present attempt have finished."""
    try:
        attempt = ctx.root.attempt(ctx.repository, ctx.run)
        return [attempt.has(name) for name in MARK_ASSETS].index(False)
    except (LakegcError, ValueError):
        return 0


def make(ctx: RunContext) -> None:
    """Make a mark.

    Raises:
        LakegcError: as the stages do.
    """
    for stage in STAGES:
        stage(ctx)
