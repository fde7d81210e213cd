"""Puts back what a sweep deleted and is needed after all, from what was kept or from the backup."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from lakegc_assets.recovery.undeletion import bring_back
from lakegc_assets.run.artifacts import Manifest
from lakegc_assets.run.clocks import Clocks
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.sweep import ledger
from lakegc_assets.sweep.holders import Holder
from lakegc_assets.sweep.ledger import PUT_BACK, Outcome
from lakegc_assets.sweep.ledger_state import Recorded
from lakegc_assets.sweep.lost_objects import as_lost, copies_of, find_lost

_BATCH: Final = 1000
_SHOWN: Final = 20


def put_back(
    ctx: RunContext,
    connections: Connections,
    chain: Mapping[str, Manifest],
    recorded: Recorded,
    missing: pa.ChunkedArray,
    folder: str,
) -> dict[str, str]:
    """Put objects back where nothing is now, and say which of them are still missing, and why.

    Whoever holds the lease by now: what is at a key is never touched, and what is needed is spared
    by whoever sweeps. What is needed is missing, too, where another object is at its key by now.

    Args:
        ctx: the run.
        connections: how to reach the store.
        chain: the manifests of the mark.
        recorded: what was done, and all that the mark names.
        missing: addresses of objects that are gone and needed.
        folder: of the sweep, below the attempt, with a slash at its end.

    Returns:
        What kept each of them from being put back, by address: the store's own words.
    """
    lost, proof, problem = find_lost(recorded, chain, missing, f"{folder}after/lost/")
    if problem:
        ctx.log.warning("%s", problem)
    store, still = connections.store(), dict[str, str]()
    for at in range(0, lost.num_rows, _BATCH):
        rows = lost.slice(at, _BATCH)
        for one in bring_back(store, as_lost(rows), copies_of(rows, proof)):
            if one.outcome in {"restored", "already_there"} and not one.detail:
                continue
            still[one.key] = one.detail or one.error_code or one.outcome
            if len(still) <= _SHOWN:
                ctx.log.warning("%s could not be put back: %s", one.key, still[one.key])
    return still


def record_put_back(
    artifacts: ObjectStore, back: pa.Table, holders: Mapping[str, Holder], clocks: Clocks
) -> None:
    """Make it durable that objects are back.

    Args:
        artifacts: the store rooted at the attempt.
        back: the objects (address, size, why).
        holders: who needs them, as far as that is known.
        clocks: of the run.
    """
    outcomes = [
        Outcome(
            row["address"],
            row["size"],
            PUT_BACK,
            detail=_said(row["why"], holders.get(row["address"])),
        )
        for row in back.to_pylist()
    ]
    ledger.record(artifacts, f"put-back-{secrets.token_hex(8)}", outcomes, clocks)


def _said(why: str, holder: Holder | None) -> str:
    return why if holder is None else f"{why}: {holder}"
