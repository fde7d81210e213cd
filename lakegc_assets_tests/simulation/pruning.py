"""Somebody prunes: trash, pins and backups, as ``lakegc backups prune`` does, under the lease."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from lakegc_assets.recovery.backup_pruning import Pruning
from lakegc_assets.recovery.old_trash import prune_trash
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.pins import prune_pins
from lakegc_assets.storage.trash import TRASH
from lakegc_assets_tests.simulation.client import NAMESPACE
from lakegc_assets_tests.simulation.oracle import LossError

if TYPE_CHECKING:
    from lakegc_assets_tests.simulation.world import World

#: What no prune needs to see: an address that may yet be linked.
_SEEN: Final = frozenset({"branch", "tagged", "dangling", "staged", "pinned"})


def prune(world: World, ctx: RunContext, backup_url: str | None = None) -> None:
    """Remove backups, trash and pins whose time is over."""
    if backup_url is not None:
        _prune_backups(world, ctx, backup_url)
    with world.alone(ctx):
        prune_trash(ctx, NAMESPACE, lambda: None)
    ctx = ctx.connect()
    store = ctx.connections.store()
    prune_pins(store, min(ctx.clocks.readings(ctx.client, store)))


def _prune_backups(world: World, ctx: RunContext, backup_url: str) -> None:
    named = [f"{ctx.repository}/{ctx.run}"] if world.choices.pick(2) else []

    def context(repository: str, run: str) -> RunContext:
        return replace(ctx, repository=repository, run=run)

    stores = ctx.root.stores
    # None of this name is there any more where another prune was first.
    pruning = Pruning(context, stores, backup_url, timedelta(0), named, alone=world.alone)
    for judged in pruning.run():
        what = "backup kept" if judged.kept else "backup removed"
        world.covered["prune", what] += 1
        world.say(f"{what}: {judged.kept}")


def _was_needed(world: World, address: str) -> str:
    """By which ways an object was alive before the present actor looked at what is needed."""
    actor = world.scheduler.current
    assert actor is not None
    looked: Any = actor.facts.get("needed", -1)
    ways, seen = world.oracle.live.get(address, {}), _SEEN
    if world.oracle.unlisted.get(address, -1) >= looked:
        # A stale list lacked its pin, which no store does that keeps what is asked of it.
        seen -= {"pinned"}
    return ", ".join(way for way in sorted(ways.keys() & seen) if ways[way].step < looked)


def require_another_copy(world: World, address: str, where: str) -> None:
    """What trash or a backup had of an object is removed: that is not the last of what is needed.

    Raises:
        LossError: it is.
    """
    if not address.startswith("data/"):
        return
    world.covered["prune", f"removed from the {where}"] += 1
    world.say(f"  {address} is removed from the {where}")
    bucket = world.buckets["lake"]
    moved = bucket.between(f"repo/{TRASH}", None, None)
    if f"repo/{address}" in bucket or any(key.endswith(f"/{address}") for key in moved):
        return
    if ways := _was_needed(world, address):
        raise LossError(f"the last copy of {address} is pruned, and it is needed ({ways})")
