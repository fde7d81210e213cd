"""The stages of a mark as they are, where ranges and paths are read from the lake in memory.

The checks are left out, and the report counts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

import pyarrow as pa

from lakegc_assets.engine.datasets import Part, read_part, write_part
from lakegc_assets.errors import LakegcError
from lakegc_assets.graveler import namespace
from lakegc_assets.mark import (
    candidates,
    commits,
    committed,
    expired,
    key_ranges,
    listing,
    report,
    uncommitted,
)
from lakegc_assets.mark.candidates import find_candidates
from lakegc_assets.mark.commits import find_active_commits
from lakegc_assets.mark.committed import read_committed_addresses
from lakegc_assets.mark.installation import require_one_server
from lakegc_assets.mark.listing import list_store
from lakegc_assets.mark.lookalikes import NOTHING_COMPARED
from lakegc_assets.mark.served import SERVED, SPARED, Served
from lakegc_assets.mark.uncommitted import snapshot_uncommitted
from lakegc_assets.run.artifacts import MARK_ASSETS
from lakegc_assets.run.context import RunContext
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets_tests.simulation.executors import JobError
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
READING: Final = (listing, uncommitted, commits, committed, candidates)


def mark(ctx: RunContext, world: MarkWorld, *, resume: bool) -> str:
    """Make a mark; how it ended: "" for well, else the error.

    Args:
        ctx: of the run.
        world: in which it is made.
        resume: go on behind the last stage that finished, as a retry from failure does.
    """
    try:
        done = _finished(ctx) if resume else 0
        if not done:
            world.oracle.begins(ctx.run)
        for name, stage in zip(MARK_ASSETS[done:], STAGES[done:], strict=True):
            world.say(f"makes {name}")
            stage(ctx)
    except (LakegcError, JobError) as error:
        world.say(f"the mark ends with {type(error).__name__}: {error}")
        return f"{type(error).__name__}: {error}"
    world.covered["ended well", "mark"] += 1
    return ""


def _finished(ctx: RunContext) -> int:
    """How many stages of the present attempt have finished."""
    try:
        attempt = ctx.root.attempt(ctx.repository, ctx.run)
        return [attempt.has(name) for name in MARK_ASSETS].index(False)
    except (LakegcError, ValueError):
        return 0


# What is replaced


def replaced(
    served: Callable[..., set[str]], pool: object, ranges: tuple[object, object]
) -> list[tuple[object, str, object]]:
    """What is replaced where.

    Args:
        served: which of some objects lakeFS serves.
        pool: in place of one of threads.
        ranges: which are live, and how they are read.
    """

    def asked(
        _ctx: Any, connections: Any, heads: pa.Table, store: ObjectStore, _folder: str,
        wanted: Sequence[Part], _etags: object, _seconds: float, _staged: int,
    ) -> Served:  # fmt: skip
        rows = [row for part in wanted for row in read_part(store, part).to_pylist()]
        names = heads["branch"].to_pylist()
        read = dict(zip(names, heads["metarange_id"].to_pylist(), strict=True))
        found = sorted(served(connections.client(), names, rows, read))
        table = pa.table([found, [SERVED] * len(found)], schema=SPARED)
        return Served(table, NOTHING_COMPARED)

    return [
        *((module, "require_one_server", one_server) for module in READING),
        (expired, "live_ranges", ranges[0]),
        (expired, "_named_by_none", _named_by_none),
        (key_ranges, "ThreadPoolExecutor", pool),
        (candidates, "served_candidates", asked),
        (candidates, "last_holders", _no_holders),
        (report, "read_results", lambda *_: []),
        (report, "require_passed", lambda _: None),
        (report, "_dimensions", lambda *_: {}),
        (namespace, "try_decode_xid", _decoded),
    ]


def one_server(client: Any, repository: str, store: ObjectStore) -> str:
    """As ``require_one_server``, where there may be another."""
    if client._world.unlike != "servers":
        return ""
    return require_one_server(client, repository, store)


def _named_by_none(
    _ctx: Any, _links: Any, attempt: Any, others: pa.Table, active: pa.Table
) -> tuple[list[Part], dict[str, Exception]]:
    """What ranges, which are values, name that no live one does."""
    of_b, of_a = (
        {one.split("|")[1] for one in ranges["range_id"].to_pylist()} for ranges in (others, active)
    )
    if not of_b - of_a:
        return [], {}
    rows = pa.table({"address": pa.array(sorted(of_b - of_a), pa.string())})
    return [write_part(attempt.store(), "store_listing/expired/named/", rows)], {}


#: What names mean is asked again and again.
_decoded: Final = cache(namespace.try_decode_xid)


def _no_holders(*_: Any) -> list[dict[str, Any]]:
    """Nobody held anything: it is only what the report says."""
    return []
