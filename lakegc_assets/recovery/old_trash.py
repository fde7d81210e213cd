"""Removes old trash of a local store, and never the only copy of something that is needed now."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.errors import RefusedError
from lakegc_assets.recovery.liveness import NEEDED, needed_now
from lakegc_assets.run import strings
from lakegc_assets.run.batch_stat import missing
from lakegc_assets.run.command_line import command_line
from lakegc_assets.run.context import RunContext
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.trash import addresses_in, old_trash, remove_trash
from lakegc_assets.wording import counted


class Pruned(NamedTuple):
    """The result of a prune of old trash.

    Attributes:
        removed: how many objects are gone.
        kept: why others stay, and what to do; empty where none does.
    """

    removed: int
    kept: str


def prune_trash(ctx: RunContext, namespace: str) -> Pruned:
    """Remove what is older than ``trash_days``, but what is needed and is nowhere else.

    Where ``trash_days`` is 0, so that sweeps have no trash, older trash stays where it is.
    A prune that was killed is run again.

    Args:
        ctx: of the repository.
        namespace: where the trash is.

    Raises:
        RefusedError: the repository is at another namespace now.
        LakegcError: nobody can tell what is needed, and nothing was removed; or something could not
            be removed.
    """
    if not ctx.settings.trash_lifetime:
        return Pruned(0, "")
    _, connections = ctx.connect()
    if connections.namespace_url != namespace:
        raise RefusedError(
            f"{ctx.repository!r} is at {connections.namespace_url} now: the trash of {namespace} "
            "stays. If nothing needs it any more, remove it by hand"
        )
    store = connections.store()
    folders = old_trash(store, ctx.settings.trash_lifetime, store.server_time())
    if not folders:
        return Pruned(0, "")
    found = _found(store, folders)
    only = missing(store, _objects(found), ctx.settings.backup_list_threads)
    lost = found.filter(strings.among(found["address"], only))
    needed = needed_now(ctx, namespace, lost) if lost.num_rows else NEEDED.empty_table()

    def stays(addresses: strings.Strings) -> strings.Strings:
        return strings.among(addresses, needed["address"])

    removed = sum(remove_trash(store, folder, stays) for folder in folders)
    return Pruned(removed, _kept(ctx, needed))


def _found(store: ObjectStore, folders: list[str]) -> pa.Table:
    """Address and size (bytes) of what is in the trash, which may be there in several sizes."""
    schema = pa.schema([("address", pa.string()), ("size", pa.int64())])
    tables = [schema.empty_table()]
    for folder in folders:
        for batch in store.list(folder):
            columns = [addresses_in(batch, folder), batch["size"]]
            tables.append(pa.table(columns, schema=schema))
    return pa.concat_tables(tables)


def _objects(found: pa.Table) -> pa.Table:
    """The same in the order of the addresses, each once.

    Of what is there several times nobody knows which one is needed: its size is -1, which no object
    of the store has.
    """
    sizes = found.group_by("address").aggregate([("size", "min"), ("size", "max")])
    sizes = strings.in_order(sizes, "address")
    same = pc.equal(sizes["size_min"], sizes["size_max"])
    size = pc.if_else(same, sizes["size_min"], -1)
    return pa.table([sizes["address"], size], schema=found.schema)


def _kept(ctx: RunContext, needed: pa.Table) -> str:
    if not needed.num_rows:
        return ""
    first = needed.slice(0, 1).to_pylist()[0]
    asked = ctx.repository, "--run", "RUN", "--address", first["address"]
    restoring = command_line("restore", *asked, settings=ctx.given_settings)
    objects = counted(needed.num_rows, "object of the trash is", "objects of the trash are")
    return (
        f"{objects} needed now and not in the store, and stay though older than trash_days: "
        f"{first['address']!r} for one ({first['why']}). "
        f"Restore them: `{restoring}`, with the run whose sweep deleted them"
    )
