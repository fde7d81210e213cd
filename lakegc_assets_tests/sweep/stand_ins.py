"""Stand-ins for the slow parts of a sweep, where a test is about what comes between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from lakegc_assets.run.context import RunContext
from lakegc_assets.sweep import alarm, deletion, rounds
from lakegc_assets.sweep.delta import DeltaMark, fingerprint
from lakegc_assets.sweep.moment import Moment

Take = Callable[..., DeltaMark]


def stand_in(patch: pytest.MonkeyPatch, delta: Callable[[], Take]) -> None:
    """No invariants, deletes in this process, and delta marks as they are given, one by one."""

    def take(*args: Any) -> DeltaMark:
        return delta()(*args)

    patch.setattr(rounds, "take_delta_mark", take)
    patch.setattr(alarm, "take_delta_mark", take)
    patch.setattr(rounds, "evaluate", lambda _ctx, _survivors: [])
    patch.setattr(rounds, "require_passed", lambda _results: None)
    patch.setattr(rounds, "delete", in_this_process)


def in_this_process(
    _ctx: RunContext, orders: deletion.Orders, survivors: DataFrame
) -> deletion.Progress:
    """Delete as the tasks do, but here, where a kill can be placed."""
    rows = sorted(survivors.select("address", "size", "etag").collect())
    batch = pa.RecordBatch.from_pylist([row.asDict() for row in rows])
    counts = deletion._delete_batches(replace(orders, batch=5), iter([batch]))
    return deletion.progress_of([row for found in counts for row in found.to_pylist()])


def earlier(moment: Moment, seconds: float) -> Moment:
    """A moment so long before."""
    before = moment.store_time - timedelta(seconds=seconds)
    return replace(moment, elapsed=moment.elapsed - seconds, store_time=before)


def spare(addresses: set[str], age: float = 0) -> Take:
    """A delta mark of some age that finds these alive, without reading any range."""

    def take(
        ctx: RunContext, _chain: object, _attempt: object, candidates: DataFrame, keep: Any
    ) -> DeltaMark:
        client, connections = ctx.connect()
        seen = fingerprint(client, ctx.repository, protect_tags=False)
        alive = [(address, "it is alive") for address in sorted(addresses)]
        frame = ctx.spark.createDataFrame(alive, "address string, why string")
        frame = frame.join(candidates, "address", "left_semi")
        taken = earlier(Moment.now(connections.store()), age)
        return DeltaMark(seen, taken, keep(frame, "spared"))

    return take
