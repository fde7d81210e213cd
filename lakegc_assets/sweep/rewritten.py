"""Marked objects that were written again since they were listed, by a listing of the present.

Also where deletes are conditional: the same content written again has the same etag. A listing that
the store ends early looks like a whole one, and would hide them: so whatever is marked and not
listed any more is asked for by itself. Usually that is nothing, or what a killed sweep deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from lakegc_assets.mark.listing import listed_objects
from lakegc_assets.mark.ranges import spread
from lakegc_assets.run.context import Connections, RunContext
from lakegc_assets.storage.errors import ObjectNotFoundError

_SAME: Final = ("size", "last_modified", "etag")
_WHY: Final = "it was written again since it was listed"
#: How many objects a task looks up, at least.
_LOOKUPS_EACH: Final = 100


def find_rewritten(
    ctx: RunContext,
    connections: Connections,
    remaining: DataFrame,
    keep: Callable[[DataFrame, str], DataFrame],
) -> DataFrame:
    """The objects that are not what was listed: ``address`` and ``why``.

    Args:
        ctx: the run.
        connections: how to reach the store.
        remaining: marked objects (address, size, last_modified, etag).
        keep: writes rows under a name and reads them back.
    """
    now = listed_objects(ctx, connections).select(
        "address", *(F.col(name).alias(f"{name}_now") for name in _SAME)
    )
    unlisted = F.col("etag_now").isNull()
    changed = unlisted
    for name in _SAME:
        changed |= F.col(name) != F.col(f"{name}_now")
    found = remaining.join(now, "address", "left").where(changed)
    found = keep(found.select("address", *_SAME, unlisted.alias("unlisted")), "not_as_listed")
    asked = found.where("unlisted").drop("unlisted")
    again = spread(asked, ctx.settings.sweep_num_partitions, _LOOKUPS_EACH).mapInArrow(
        partial(_changed, connections), "address string"
    )
    rewritten = found.where("not unlisted").select("address").unionByName(again)
    return rewritten.select("address", F.lit(_WHY).alias("why"))


def _changed(
    connections: Connections, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Of some objects, those that are there and have changed."""
    store = connections.store()
    for batch in batches:
        changed = []
        for row in batch.to_pylist():
            try:
                info = store.head(row["address"])
            except ObjectNotFoundError:
                continue
            # Some stores answer HEAD with whole seconds only.
            now, listed = (
                t.replace(microsecond=0) for t in (info.last_modified, row["last_modified"])
            )
            if now != listed or (info.size, info.etag) != (row["size"], row["etag"]):
                changed.append(row["address"])
        yield pa.RecordBatch.from_arrays([pa.array(changed, pa.string())], names=["address"])
