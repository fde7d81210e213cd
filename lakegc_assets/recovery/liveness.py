"""Which of some objects are needed now, by branches, commits or pins, whatever a mark said."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.errors import RefusedError
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.mark.commits import find_liveness
from lakegc_assets.mark.live import live_ranges, read_live
from lakegc_assets.mark.references import read_references
from lakegc_assets.mark.served import last_parts
from lakegc_assets.mark.uncommitted import prepare_uncommitted, read_staged
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import address_hashes
from lakegc_assets.run.pins import pinned
from lakegc_assets.run.sets import members
from lakegc_assets.storage.base import ObjectStore

NEEDED: Final = pa.schema([("address", pa.string()), ("why", pa.string())])
#: Where hashes are kept while this is found out; no run is named so.
_SCRATCH: Final = "_needed"


def needed_now(ctx: RunContext, namespace: str, addresses: pa.ChunkedArray) -> pa.Table:
    """Which of some objects must not be lost (``NEEDED``), each once.

    Staged objects are read before the commits, so that what is committed meanwhile is seen. Tagged
    commits count, whatever the settings say, and so does what cannot be told.

    Args:
        ctx: of the repository.
        namespace: that the addresses are relative to.
        addresses: of the objects.

    Raises:
        RefusedError: the repository is at another namespace now.
        LakegcError: lakeFS or the store do not tell.
    """
    ctx = replace(ctx, settings=replace(ctx.settings, protect_tags=True))
    client, connections = ctx.connect()
    if connections.namespace_url != namespace:
        raise RefusedError(
            f"{ctx.repository!r} is at {connections.namespace_url} now, and not at {namespace}"
        )
    scratch = ctx.root.open(ctx.repository, f"{_SCRATCH}/{secrets.token_hex(8)}")
    try:
        reasons = _reasons(ctx, client, connections, scratch, addresses)
    finally:
        keys = [key for page in scratch.list() for key in page["key"].to_pylist()]
        scratch.delete_many(keys)
    needed = NEEDED.empty_table()
    for which, why in reasons:
        found = addresses.filter(pa.array(which, pa.bool_()))
        found = found.filter(pc.invert(pc.is_in(found, needed["address"].combine_chunks())))
        more = pa.table([found, pa.repeat(pa.scalar(why), len(found))], schema=NEEDED)
        needed = pa.concat_tables([needed, more])
    return needed


def _reasons(
    ctx: RunContext,
    client: LakeFSClient,
    connections: Connections,
    scratch: ObjectStore,
    addresses: pa.ChunkedArray,
) -> list[tuple[npt.NDArray[np.bool_], str]]:
    """For each reason to need an object, which of the objects are needed for it."""
    store = connections.store()
    now = ctx.check_clocks(client, store)
    files = prepare_uncommitted(ctx, client, connections)
    staged = read_staged(ctx, connections, scratch, "staged/", files.keys)
    liveness = find_liveness(ctx, client, connections, now)
    ids = {liveness.commits[commit].metarange_id for commit in liveness.active.active}
    ranges = live_ranges(ctx, connections, ids, every=liveness.rules is None).ranges
    live = read_live(ctx, connections, ranges, scratch, "live/")
    others = read_references(ctx, client, connections, scratch, "", now)
    hashes = address_hashes(addresses)
    unclear = pa.array(
        sorted({*live.unresolved, *staged.unresolved, *others.unresolved}), pa.string()
    )
    pins = pinned(store)["address"].combine_chunks()
    return [
        (members(scratch, live.runs, hashes), "an active commit holds it"),
        (members(scratch, staged.hashes, hashes), "it is staged on a branch"),
        (members(scratch, others.hashes, hashes), "another repository names it"),
        (np.asarray(pc.is_in(addresses, pins)), "it is pinned"),
        (
            np.asarray(pc.is_in(last_parts(addresses), unclear)),
            "a full address that cannot be resolved ends like it",
        ),
    ]
