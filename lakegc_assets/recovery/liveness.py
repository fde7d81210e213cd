"""Finds the objects that branches, commits or pins need now, independent of any mark."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import pyarrow as pa

from lakegc_assets.engine.datasets import Part, read_part, write_part
from lakegc_assets.engine.session import Dataset
from lakegc_assets.errors import RefusedError
from lakegc_assets.mark import relations as mark_relations
from lakegc_assets.mark.commits import Liveness, Refs, find_liveness, refs_of
from lakegc_assets.mark.earlier_marks import latest_marks
from lakegc_assets.mark.etags import EtagFiles
from lakegc_assets.mark.installation import require_no_other_server
from lakegc_assets.mark.listing_pages import listing_rows
from lakegc_assets.mark.live_ranges import live_ranges, read_live, read_path_ranges
from lakegc_assets.mark.live_sets import LiveSets
from lakegc_assets.mark.lookups import Inquiry
from lakegc_assets.mark.metaranges import path_ranges
from lakegc_assets.mark.references import read_references
from lakegc_assets.mark.served_candidates import served_candidates
from lakegc_assets.mark.uncommitted_snapshot import listed_once, prepare_uncommitted, read_staged
from lakegc_assets.recovery.workspace import Workspace
from lakegc_assets.run.artifacts import LISTING
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.manifest import Manifest
from lakegc_assets.run.pins import pinned
from lakegc_assets.run.scratch import Folder
from lakegc_assets.run.settings import recorded_retain

#: Seconds in which lakeFS may be asked for the addresses that it serves.
_ASKING_S: Final = 600.0
#: Seconds of one core to hash an address.
_ROW_S: Final = 1e-6


def needed_now(space: Workspace, namespace: str, objects: Dataset) -> Dataset:
    """Return the given objects that must not be lost (``CAME_BACK``), each address once.

    Staged objects are read before the commits, so an object that is committed meanwhile is seen.
    Tagged commits count, whatever the settings say, and so do the rules of ``retain`` of the latest
    marks. Anything unknown counts as needed.

    ``objects``: address and size, relative to the namespace; an address may occur with several
    sizes.

    Raises:
        RefusedError: the repository is at another namespace now, or another repository or server
            collects the namespace.
        IntegrityError: the engine has lost rows.
        LakegcError: lakeFS or the store did not answer, or a list of branches or tags is cut.
    """
    settings = space.ctx.settings.changed(protect_tags=True)
    ctx = replace(space.ctx, settings=settings).connect()
    if ctx.connections.namespace_url != namespace:
        raise RefusedError(
            f"{ctx.repository!r} was made anew meanwhile, at {ctx.connections.namespace_url} and "
            f"not at {namespace}: run this command again"
        )
    store, files, folder = ctx.connections.store(), space.attempt.store(), space.folder
    # A copy of a server, or a repository made anew, may lack the commits that need these objects.
    require_no_other_server(ctx.client, ctx.repository, store)
    now = ctx.check_clocks(ctx.client, store)
    lists = prepare_uncommitted(ctx)
    staged = read_staged(ctx, files, f"{folder}staged/", lists.keys)
    # Without a run id: marks of this run count like marks of other runs.
    manifests: dict[str, Manifest] = {}
    marks = latest_marks(replace(ctx, run=""), manifests).marks
    # A mark may have got its rules by an option, which a prune does not have.
    retain = settings.retained | recorded_retain(one.manifest.facts for one in marks)
    ctx = replace(ctx, settings=settings.changed(retain=retain.to_json()))
    # A list of branches or tags that lacks one of these is cut.
    known = refs_of(ctx, *marks[0]) if marks else Refs()
    liveness = find_liveness(replace(ctx, run=""), now, known, manifests=manifests)
    ids = liveness.active_metaranges()
    ranges = live_ranges(ctx, ids, every=liveness.rules is None).ranges
    live = read_live(ctx, ranges, files, f"{folder}live/")
    below = path_ranges(ctx, liveness.path_metaranges())
    of_paths = read_path_ranges(ctx, below, files, f"{folder}below/")
    others = read_references(ctx, files, folder, now)
    rows = _as_listed(space, objects)
    listed = listed_once(staged.listed, lists.tries)
    alive = LiveSets(
        ctx,
        rows.url,
        {
            "an active commit holds it": live.runs,
            "a rule of `paths` keeps it": of_paths.runs,
            "it is staged on a branch": staged.hashes,
            mark_relations.SAME_HASH: others.hashes,
        },
        live.unresolved | of_paths.unresolved | staged.unresolved | others.unresolved,
        [_served(ctx, space, liveness, rows.parts, listed), pinned(store)],
        others.parts,
    )
    with space.frames() as frames:
        needed = alive.came_back(frames, rows, f"{folder}needed/")
        alive.require_dead(frames, rows, needed)
    return needed


def _as_listed(space: Workspace, objects: Dataset) -> Dataset:
    """Return rows of ``LISTING`` for address and size, with unknown etags."""
    task, seconds = partial(_rows_of, space.below("objects")), objects.rows * _ROW_S
    parts = space.ctx.tasks.run_or_call("hash addresses", task, objects.parts, seconds)
    return space.dataset(parts, LISTING)


def _rows_of(folder: Folder, part: Part) -> Part:
    rows = read_part(folder.store(), part, ["address", "size"])
    never = pa.repeat(pa.scalar(0, LISTING.field("last_modified").type), rows.num_rows)
    unknown = pa.repeat(pa.scalar(""), rows.num_rows)
    columns = [rows["address"], rows["size"], never, unknown]
    table = pa.table(columns, names=["address", "size", "last_modified", "etag"])
    listed = pa.Table.from_batches([listing_rows(table)])
    return write_part(folder.store(), folder.name, listed)


def _served(
    ctx: RunContext, space: Workspace, liveness: Liveness, objects: Sequence[Part], staged: int
) -> pa.Table:
    """Return address and reason of each object that lakeFS serves or may serve, though unlisted.

    Objects are compared by size alone: without a listing of the store it is unknown whether etags
    can be compared, and whether sizes are true.

    ``objects``: files of ``LISTING``.

    ``staged``: the field of ``Inquiry``.
    """
    url, folder = space.attempt.store().url, f"{space.folder}served/"
    inquiry = Inquiry(url, folder, time.time() + _ASKING_S, staged)
    heads = liveness.heads_table()
    return served_candidates(ctx, inquiry, heads, objects, EtagFiles())[0]
