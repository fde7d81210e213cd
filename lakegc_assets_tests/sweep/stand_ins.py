"""Stand-ins for the slow parts of a sweep, where a test is about what comes between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import repeat
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakegc_assets.engine.datasets import read_part, read_parts, write_part
from lakegc_assets.engine.ddl import schema
from lakegc_assets.engine.session import Dataset
from lakegc_assets.mark.live_sets import CAME_BACK, LiveSets
from lakegc_assets.mark.served_candidates import SPARED
from lakegc_assets.run.clocks import Moment
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import ObjectNotFoundError
from lakegc_assets.sweep import rounds
from lakegc_assets.sweep.batch_guard import seen_now
from lakegc_assets.sweep.deletion import DeletingTask, TaskClients
from lakegc_assets.sweep.delta import DeltaMark, DeltaMarks
from lakegc_assets.sweep.lease import Lease
from lakegc_assets.sweep.rate_limit import Limits
from lakegc_assets.sweep.store_comparison import Marked
from lakegc_assets.sweep.task_orders import Orders, Portion, TaskResult, summed
from lakegc_assets_tests.lake import REPOSITORY

Take = Callable[[DeltaMarks, Dataset], DeltaMark]
OBJECTS = schema("address string, size bigint, last_modified timestamp, etag string")
FAST = Limits(keys=1e9, requests=1e9)
LONG_AGO = datetime.fromisoformat("2026-01-01T00:00:00+00:00")


def stand_in(patch: pytest.MonkeyPatch, *takes: Take) -> None:
    """No invariants, deletes in this process, and delta marks as they are given.

    One for all, which by default finds nothing alive; or several, one after the other.
    """
    deltas = iter(takes) if len(takes) > 1 else repeat(takes[0] if takes else spare(set()))

    def take(
        deltas_of: DeltaMarks, candidates: Dataset, _name: str, _unread: list[str] | None = None
    ) -> DeltaMark:
        return next(deltas)(deltas_of, candidates)

    patch.setattr(DeltaMarks, "take", take)
    patch.setattr(rounds, "evaluate", lambda _ctx, _survivors: [])
    patch.setattr(rounds, "require_passed", lambda _results: None)
    patch.setattr(rounds, "delete", in_this_thread)


def in_this_thread(_ctx: RunContext, orders: Orders, portions: list[Portion]) -> list[TaskResult]:
    """Delete as the tasks do, in small batches, where a kill can be placed."""
    small = replace(orders, batch=5)
    reach = TaskClients.of(small)
    return summed(
        told
        for portion in portions
        for told in DeletingTask(small, portion.number, reach).run(
            read_part(reach.artifacts, part).slice(begin, rows)
            for part, begin, rows in portion.stretches
        )
    )


def orders_of(connections: Connections, artifacts: Path, lease: Lease, **more: Any) -> Orders:
    """Orders of a task that deletes two objects a batch, with a delta mark of this moment."""
    given: dict[str, Any] = {
        "connections": connections,
        "repository": REPOSITORY,
        "artifacts_url": str(artifacts),
        "delta": seen_now(connections.client(), REPOSITORY, protect_tags=False)[1],
        "taken": Moment.now(connections.store()),
        "protect_tags": False,
        "lease": lease.token,
        "number": lease.round,
        "condition": "none",
        "batch": 2,
        "limits": FAST,
    }
    return Orders(**given | more)


def earlier(moment: Moment, seconds: float) -> Moment:
    """A moment so long before."""
    before = moment.store_time - timedelta(seconds=seconds)
    return replace(moment, elapsed=moment.elapsed - seconds, store_time=before)


def spare(addresses: set[str], age: float = 0) -> Take:
    """A delta mark of some age that finds these alive, without reading any range."""

    def take(deltas: DeltaMarks, candidates: Dataset) -> DeltaMark:
        ctx = deltas.ctx.connect()
        seen = seen_now(ctx.client, ctx.repository, protect_tags=False)[1]
        artifacts = deltas.attempt.store()
        tables = read_parts(artifacts, candidates.parts, ["address", "size"])
        rows = [row for table in tables for row in table.to_pylist() if row["address"] in addresses]
        back = [{**row, "why": "it is alive", "certain": True} for row in rows]
        table = pa.Table.from_pylist(back, CAME_BACK)
        parts = [write_part(artifacts, f"{deltas.folder}spared/", table)] if back else []
        spared = Dataset(deltas.attempt.url, parts, CAME_BACK)
        alive = LiveSets(ctx, spared.url, {}, set(), [table.select(SPARED.names)])
        return DeltaMark(seen, earlier(Moment.now(ctx.connections.store()), age), spared, alive)

    return take


def as_listed(
    store: ObjectStore, addresses: Iterable[str], etags: Mapping[str, str] | None = None
) -> pa.Table:
    """Objects as a listing of the store shows them; some with other etags, or not there any more.

    Args:
        store: rooted at the storage namespace.
        addresses: of the objects.
        etags: of those that were others when they were listed.
    """
    rows = []
    for address in sorted(addresses):
        try:
            info = store.head(address)
            row = Marked(address, info.size, info.last_modified, info.etag)
        except ObjectNotFoundError:
            row = Marked(address, 7, LONG_AGO, "gone")
        rows.append(row._replace(etag=(etags or {}).get(address, row.etag)))
    return table_of(rows)


def table_of(rows: Iterable[Marked]) -> pa.Table:
    """Rows as a deleting task gets them."""
    columns: list[Any] = list(zip(*(row[:4] for row in rows), strict=True)) or [()] * len(OBJECTS)
    arrays = [pa.array(c, f.type) for c, f in zip(columns, OBJECTS, strict=True)]
    return pa.Table.from_arrays(arrays, schema=OBJECTS)
