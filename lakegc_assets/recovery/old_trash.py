"""Removes old trash of a local store, but never the only copy of an object needed now."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.session import Dataset
from lakegc_assets.errors import RefusedError
from lakegc_assets.mark.live_sets import CAME_BACK
from lakegc_assets.recovery import relations
from lakegc_assets.recovery.copies import (
    OBJECTS,
    missing_objects,
    require_none_left_out,
    scratch_space,
)
from lakegc_assets.recovery.liveness import needed_now
from lakegc_assets.recovery.workspace import Workspace
from lakegc_assets.run import strings
from lakegc_assets.run.command_line import command_line
from lakegc_assets.run.context import RunContext
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.trash import addresses_in, old_trash, remove_trash
from lakegc_assets.wording import counted


class Pruned(NamedTuple):
    """The result of a prune of old trash."""

    removed: int
    #: Reason why objects stay, with advice; empty if none does.
    kept: str


def prune_trash(
    ctx: RunContext, namespace: str, require: Callable[[], None], own: str | None = None
) -> Pruned:
    """Remove trash older than ``trash_days``, except the only copies of needed objects.

    Where ``trash_days`` is 0, so that sweeps have no trash, older trash stays.
    ``own``: the folder of a sweep that ends now, which stays: a sweep may last for days, and an
    undo must be possible after it.
    A killed prune is run again. ``require`` raises an error once the lease is lost; it asks the
    store before each removal.

    Raises:
        RefusedError: the repository is at another namespace now.
        LakegcError: the needed objects are unknown, and nothing was removed; or a removal failed.
    """
    if not ctx.settings.trash_lifetime:
        return Pruned(0, "")
    ctx = ctx.connect()
    if ctx.connections.namespace_url != namespace:
        raise RefusedError(
            f"{ctx.repository!r} is at {ctx.connections.namespace_url} now: the trash of "
            f"{namespace} stays. If nothing needs it any more, remove it by hand"
        )
    store = ctx.connections.store()
    old = old_trash(store, ctx.settings.trash_lifetime, store.server_time())
    folders = [folder for folder in old if folder != own]
    if not folders:
        return Pruned(0, "")
    with scratch_space(ctx) as space:
        found = space.write_tables("trash", OBJECTS, _found(store, folders))
        needed = _needed(space, namespace, found)

        def stays(addresses: strings.Strings) -> strings.Strings:
            among = [strings.among(addresses, rows["address"]) for rows in space.tables(needed)]
            return reduce(pc.or_, among, pa.repeat(pa.scalar(False), len(addresses)))

        removed = sum(remove_trash(store, folder, stays, require) for folder in folders)
        return Pruned(removed, _kept(space, needed))


def _found(store: ObjectStore, folders: Sequence[str]) -> Iterator[pa.Table]:
    """Yield address and size of all trash: an object missing here would not be protected."""
    for folder in folders:
        for batch in store.list_to_the_end(folder):
            yield pa.table([addresses_in(batch, folder), batch["size"]], schema=OBJECTS)


def _needed(space: Workspace, namespace: str, trash: Dataset) -> Dataset:
    """Return the objects of the trash that are needed and not in the store (``CAME_BACK``)."""
    once = space.derive("once", OBJECTS, "put the trash in order", relations.each_once, trash)
    require_none_left_out(space, once, trash)
    missing, what = missing_objects(space, once), "find what only the trash holds"
    if not missing.rows:
        return space.dataset((), CAME_BACK)
    lost = space.derive("lost", OBJECTS, what, relations.chosen, trash, missing)
    require_none_left_out(space, lost, missing)
    return needed_now(space, namespace, lost)


def _kept(space: Workspace, needed: Dataset) -> str:
    if not needed.rows:
        return ""
    ctx, first = space.ctx, next(space.tables(needed)).sort_by("address").slice(0, 1).to_pylist()[0]
    asked = ctx.repository, "--run", "RUN", "--address", first["address"]
    restoring = command_line("restore", *asked, settings=ctx.given_settings)
    objects = counted(needed.rows, "object of the trash is", "objects of the trash are")
    return (
        f"{objects} needed now and not in the store, and stay though older than trash_days, for "
        f"example {first['address']!r} ({first['why']}). "
        f"Restore them: `{restoring}`, with the run whose sweep deleted them"
    )
