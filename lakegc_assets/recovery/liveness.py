"""Finds the objects that branches, commits or pins need now, whatever a mark said."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.datasets import write_part
from lakegc_assets.errors import RefusedError
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.mark.addresses import last_parts
from lakegc_assets.mark.commits import Liveness, find_liveness
from lakegc_assets.mark.etags import EtagFiles
from lakegc_assets.mark.listing_pages import listing_rows
from lakegc_assets.mark.live_ranges import live_ranges, read_live
from lakegc_assets.mark.path_ranges import path_ranges, read_path_ranges
from lakegc_assets.mark.references import read_references
from lakegc_assets.mark.served import served_candidates
from lakegc_assets.mark.uncommitted import prepare_uncommitted, read_staged
from lakegc_assets.run import strings
from lakegc_assets.run.artifacts import LISTING
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import address_hashes
from lakegc_assets.run.pins import pinned
from lakegc_assets.run.sets import members
from lakegc_assets.storage.base import ObjectStore

NEEDED: Final = pa.schema([("address", pa.string()), ("why", pa.string())])
#: Where hashes are kept while this is found out; no run is named so.
_SCRATCH: Final = "_needed"
#: Seconds for which lakeFS may be asked which addresses it serves.
_ASKING_S: Final = 600.0


def needed_now(ctx: RunContext, namespace: str, objects: pa.Table) -> pa.Table:
    """The objects among some that must not be lost (``NEEDED``), each once.

    Staged objects are read before the commits, so that what is committed meanwhile is seen. Tagged
    commits count, whatever the settings say, and so does what is not known.

    Args:
        ctx: of the repository.
        namespace: that the addresses are relative to.
        objects: address and size (bytes); an address may be there with several sizes.

    Raises:
        RefusedError: the repository is at another namespace now.
        LakegcError: lakeFS or the store do not tell.
    """
    ctx = replace(ctx, settings=ctx.settings.changed(protect_tags=True))
    client, connections = ctx.connect()
    if connections.namespace_url != namespace:
        raise RefusedError(
            f"{ctx.repository!r} is at {connections.namespace_url} now, and not at {namespace}"
        )
    scratch = ctx.root.open(ctx.repository, f"{_SCRATCH}/{secrets.token_hex(8)}")
    try:
        reasons = _reasons(ctx, client, connections, scratch, objects)
    finally:
        keys = [info.key for info in scratch.infos()]
        scratch.delete_many(keys)
    needed = NEEDED.empty_table()
    for found, why in reasons:
        unseen = pc.invert(strings.among(found, needed["address"]))
        new = pc.unique(found.filter(unseen))
        more = pa.table([new, pa.repeat(pa.scalar(why), len(new))], schema=NEEDED)
        needed = pa.concat_tables([needed, more])
    return needed


def _reasons(
    ctx: RunContext,
    client: LakeFSClient,
    connections: Connections,
    scratch: ObjectStore,
    objects: pa.Table,
) -> list[tuple[pa.ChunkedArray, str]]:
    """For each reason to need an object, which of the objects are needed for it."""
    addresses = objects["address"]

    def chosen(which: npt.NDArray[np.bool_]) -> pa.ChunkedArray:
        return addresses.filter(pa.array(which, pa.bool_()))

    store = connections.store()
    now = ctx.check_clocks(client, store)
    files = prepare_uncommitted(ctx, client, connections)
    staged = read_staged(ctx, connections, scratch, "staged/", files.keys)
    liveness = find_liveness(ctx, client, connections, now)
    ids = {liveness.commits[commit].metarange_id for commit in liveness.active.active}
    ranges = live_ranges(ctx, connections, ids, every=liveness.rules is None).ranges
    live = read_live(ctx, connections, ranges, scratch, "live/")
    below = path_ranges(ctx, connections, liveness.path_metaranges())
    of_paths = read_path_ranges(ctx, connections, below, scratch, "below/")
    others = read_references(ctx, client, connections, scratch, "", now)
    served = _served(ctx, connections, liveness, scratch, objects)
    hashes = address_hashes(addresses)
    unclear = pa.array(
        sorted({*live.unresolved, *of_paths.unresolved, *staged.unresolved, *others.unresolved}),
        pa.string(),
    )
    pins = pinned(store)["address"]
    reasons = pc.unique(served["why"]).to_pylist()
    return [
        (chosen(members(scratch, live.runs, hashes)), "an active commit holds it"),
        (chosen(members(scratch, of_paths.runs, hashes)), "a rule of `paths` keeps it"),
        (chosen(members(scratch, staged.hashes, hashes)), "it is staged on a branch"),
        (chosen(members(scratch, others.hashes, hashes)), "another repository names it"),
        (chosen(np.asarray(strings.among(addresses, pins))), "it is pinned"),
        *((served.filter(pc.equal(served["why"], why))["address"], why) for why in reasons),
        (
            chosen(np.asarray(pc.is_in(last_parts(addresses), unclear))),
            "a full address that cannot be resolved ends like it",
        ),
    ]


def _served(
    ctx: RunContext,
    connections: Connections,
    liveness: Liveness,
    scratch: ObjectStore,
    objects: pa.Table,
) -> pa.Table:
    """Objects that lakeFS serves, or may serve, although nothing lists them (address, why).

    By size alone: no listing shows here whether etags can be compared.
    """
    columns = {
        "address": objects["address"],
        "size": objects["size"],
        "last_modified": pa.repeat(
            pa.scalar(0, LISTING.field("last_modified").type), objects.num_rows
        ),
        "etag": pa.repeat(pa.scalar(""), objects.num_rows),
    }
    rows = pa.Table.from_batches([listing_rows(pa.table(columns))])
    part = [write_part(scratch, "objects/", rows)]
    heads = liveness.heads_table()
    served = served_candidates(
        ctx, connections, heads, scratch, "served/", part, EtagFiles(), _ASKING_S
    )
    return served.spared
