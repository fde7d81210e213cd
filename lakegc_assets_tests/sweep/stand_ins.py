"""Stand-ins for the slow parts of a sweep, where a test is about what comes between them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from lakegc_assets.artifacts import AttemptArtifacts
from lakegc_assets.mark.context import Connections, RunContext
from lakegc_assets.sweep import deletion
from lakegc_assets.sweep import sweep as sweeping
from lakegc_assets.sweep.delta import DeltaMark, fingerprint

Take = Callable[..., DeltaMark]


def stand_in(patch: pytest.MonkeyPatch, delta: Callable[[], Take]) -> None:
    """No invariants, deletes in this process, and delta marks as they are given, one by one."""

    def take(*args: Any) -> DeltaMark:
        return delta()(*args)

    patch.setattr(sweeping, "take_delta_mark", take)
    patch.setattr(sweeping, "evaluate", lambda _ctx, _survivors: [])
    patch.setattr(sweeping, "require_passed", lambda _results: None)
    patch.setattr(sweeping, "delete", in_this_process)


def in_this_process(
    ctx: RunContext,
    connections: Connections,
    attempt: AttemptArtifacts,
    survivors: DataFrame,
    delta: DeltaMark,
) -> deletion.Progress:
    """Delete as the tasks do, but here, where a kill can be placed."""
    orders = deletion.Orders(
        connections, ctx.repository, attempt.url, delta.fingerprint, delta.taken, False, 5
    )
    rows = sorted((row["address"], row["size"]) for row in survivors.collect())
    addresses, sizes = zip(*rows, strict=True)
    batch = pa.RecordBatch.from_pydict({"address": list(addresses), "size": list(sizes)})
    counts = list(deletion._delete_batches(orders, iter([batch])))
    return deletion.Progress(sum(c["objects"][0].as_py() for c in counts), 0, 0, "")


def spare(addresses: set[str], age: float = 0) -> Take:
    """A delta mark of some age that finds these alive, without reading any range."""

    def take(
        ctx: RunContext, _chain: object, _attempt: object, candidates: DataFrame, keep: Any
    ) -> DeltaMark:
        client, _ = ctx.connect()
        seen = fingerprint(client, ctx.repository, protect_tags=False)
        alive = [(address, "it is alive") for address in sorted(addresses)]
        frame = ctx.spark.createDataFrame(alive, "address string, why string")
        frame = frame.join(candidates, "address", "left_semi")
        return DeltaMark(seen, time.time() - age, keep(frame, "spared"))

    return take
