"""Puts back what a sweep deleted and is needed after all, from what was kept or from the backup."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.recovery.bringing_back import bring_back
from lakegc_assets.recovery.proof import Proof
from lakegc_assets.run import strings
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.sweep import ledger
from lakegc_assets.sweep.delta import Candidates, Deltas
from lakegc_assets.sweep.holders import Holder
from lakegc_assets.sweep.ledger import GONE, PUT_BACK, Outcome
from lakegc_assets.sweep.lost import as_lost, copies_of, lost_objects, usable_backup

_BATCH: Final = 1000
_SHOWN: Final = 20


def put_back(
    ctx: RunContext,
    connections: Connections,
    deltas: Deltas,
    candidates: Candidates,
    missing: pa.Table,
) -> dict[str, str]:
    """Put objects back where nothing is now, and say which of them are still missing, and why.

    Whoever holds the lease by now: what is at a key is never touched, and what is needed is spared
    by whoever sweeps. What is needed is missing, too, where another object is at its key by now.

    Args:
        ctx: the run.
        connections: how to reach the store.
        deltas: of the sweep.
        candidates: what the mark names.
        missing: objects that are gone and needed (address, why).

    Returns:
        What kept each of them from being put back, by address: the store's own words.
    """
    backup, problem = usable_backup(ctx, deltas.chain)
    if problem:
        ctx.log.warning("%s", problem)
    wanted = strings.among(candidates.rows["address"], missing["address"])
    lost = lost_objects(deltas.attempt, candidates.rows.filter(wanted), backup)
    proof = None if backup is None else Proof(backup.store)
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
    deltas: Deltas, candidates: Candidates, back: pa.Table, holders: Mapping[str, Holder]
) -> None:
    """Make it durable that objects are back.

    Args:
        deltas: of the sweep.
        candidates: what the mark names.
        back: the objects (address, why).
        holders: who needs them, as far as that is known.
    """
    rows = candidates.rows
    at = strings.places(back["address"], rows["address"])
    sizes = rows["size"].take(at).to_pylist()
    outcomes = [
        Outcome(address, size, PUT_BACK, detail=_said(why, holders.get(address)))
        for address, why, size in zip(
            back["address"].to_pylist(), back["why"].to_pylist(), sizes, strict=True
        )
    ]
    ledger.record(deltas.attempt.store(), f"put-back-{secrets.token_hex(8)}", outcomes)


def _said(why: str, holder: Holder | None) -> str:
    return why if holder is None else f"{why}: {holder}"


def thought_gone(deltas: Deltas, there: pa.Table) -> pa.Table:
    """Of objects that are there those that the ledger calls gone.

    A sweep that was killed put them back and did not record it, or somebody else brought them.
    """
    if not there.num_rows:
        return there
    swept = ledger.read(deltas.attempt)
    gone = swept.filter(pc.is_in(swept["outcome"], pa.array(GONE)))["address"]
    return there.filter(strings.among(there["address"], gone))
