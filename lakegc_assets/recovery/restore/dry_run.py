"""What a restore would bring back, from where, and what is lost; nothing is changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.mark.published import read_marked
from lakegc_assets.recovery.copy_verification import Proof
from lakegc_assets.recovery.restore.restored_set import published, usable
from lakegc_assets.recovery.restore.selection import Choice, chosen
from lakegc_assets.recovery.restore.task import BATCH
from lakegc_assets.recovery.undeletion import SOURCES, Forecast, forecast, present
from lakegc_assets.run.context import RunContext
from lakegc_assets.sweep.lost_objects import as_lost, copies_of, lost_objects

#: Of what is lost so many are named.
_NAMED: Final = 100


def plan(ctx: RunContext, choice: Choice) -> dict[str, Any]:
    """What a restore would do, as JSON values; it changes nothing, and needs no lease.

    Raises:
        RefusedError: a restore would be refused.
        StorageError: the store does not say what is there.
    """
    client, connections = ctx.connect()
    attempt, chain = published(ctx, connections)
    marked = read_marked(attempt, chain["deletion_candidates"])
    rows = chosen(client, ctx.repository, connections.namespace(), marked, choice)
    backup, problems = usable(ctx, attempt, chain)
    wanted = lost_objects(attempt, rows, backup)
    store, found = connections.store(), list[Forecast]()
    proof = None if backup is None else Proof(backup.store)
    for at in range(0, wanted.num_rows, BATCH):
        batch = wanted.slice(at, BATCH)
        there = present(store, batch["address"].to_pylist())
        absent = pa.array([key for key, one in there.items() if one is None], pa.string())
        gone = batch.filter(pc.is_in(batch["address"], absent))
        found += forecast(store, as_lost(gone), copies_of(gone, proof))
    back = [one for one in found if one.verdict in SOURCES]
    return {
        "repository": ctx.repository,
        "run": ctx.run,
        "choice": choice.to_json(),
        "chosen": {"objects": wanted.num_rows, "bytes": pc.sum(wanted["size"]).as_py() or 0},
        "already_there": {
            "objects": wanted.num_rows - len(found),
            "bytes": (pc.sum(wanted["size"]).as_py() or 0) - sum(one.one.size for one in found),
        },
        "would_come_back": {**_total(back), "from": _by_source(back)},
        **{
            name: {**_total(some), "some": _named(some)}
            for name in ("lost", "not_known")
            for some in [[one for one in found if one.verdict == name]]
        },
        "store": store.recovery().notice,
        "warnings": problems,
    }


def _total(found: Sequence[Forecast]) -> dict[str, int]:
    return {"objects": len(found), "bytes": sum(one.one.size for one in found)}


def _by_source(found: Sequence[Forecast]) -> dict[str, int]:
    counts = Counter(one.verdict for one in found)
    return {source: counts[source] for source in SOURCES}


def _named(found: Sequence[Forecast]) -> list[dict[str, str]]:
    return [{"address": one.one.key, "why": one.why} for one in found[:_NAMED]]
