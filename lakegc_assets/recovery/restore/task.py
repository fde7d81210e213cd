"""Brings a portion of what was chosen back in a task, batch by batch, each recorded at once."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.tasks import interrupted
from lakegc_assets.mark.marked_objects import Stretch, read_stretches
from lakegc_assets.recovery.copy_verification import CopyVerifier
from lakegc_assets.recovery.portions import CircuitBreaker, Cost, Portion, batches, hopeless_code
from lakegc_assets.recovery.restore_record import record
from lakegc_assets.recovery.undeletion import RestoreOutcome, bring_back
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.object_lookup import look_up
from lakegc_assets.sweep.lease import LeaseLostError
from lakegc_assets.sweep.lease_record import lost, sweep_of
from lakegc_assets.sweep.lost_objects import LOST, as_lost, copies_of

#: Objects in a batch at most, and bytes of those that may be copied from a backup.
BATCH: Final = 1000
BATCH_BYTES: Final = 2**30
#: Work on one core, in seconds: to bring an object back, to copy it, and a byte of it.
_ROW_S: Final = 0.0005
_COPY_S: Final = 0.0005
_BYTE_S: Final = 1e-8


@dataclass(frozen=True)
class Orders:
    """The input of all tasks of a restore: picklable, and without secrets."""

    connections: Connections
    artifacts_url: str
    #: Folder below the attempt, with a slash at its end.
    ledger: str
    backup_url: str | None
    lease: str


def any_absent(connections: Connections, url: str, piece: Sequence[Stretch]) -> bool:
    """The task: find out whether the store lacks any of some objects of the attempt at ``url``."""
    store = connections.store()
    addresses = read_stretches(connections.open(url), piece, ["address"])["address"]
    return any(
        there is None
        for at in range(0, len(addresses), BATCH)
        for there in look_up(store, addresses.slice(at, BATCH).to_pylist()).values()
    )


def _costs(rows: pa.Table) -> npt.NDArray[np.float64]:
    copied = np.asarray(pc.is_valid(rows["copy_etag"]), dtype=np.float64)
    sizes = np.asarray(rows["size"], dtype=np.float64)
    return _ROW_S + copied * (_COPY_S + sizes * _BYTE_S)


#: Of objects of ``LOST``.
COST: Final = Cost(["size", "copy_etag"], _costs)


def restore_portion(orders: Orders, portion: Portion) -> str:
    """The task: bring a portion back. Returns why it ended early; empty if it did not.

    Raises:
        LeaseLostError: somebody else may sweep or restore now.
        StorageError: a store did not answer, or outcomes could not be recorded.
    """
    number, stretch = portion
    to = orders.connections
    store, artifacts = to.store(), to.open(orders.artifacts_url)
    backup = None if orders.backup_url is None else CopyVerifier(to.open(orders.backup_url))
    rows = read_stretches(artifacts, [stretch], LOST.names)
    failed = CircuitBreaker()
    # What is copied takes long, so few bytes of it are in one batch.
    copied = pc.if_else(pc.is_valid(rows["copy_etag"]), rows["size"], 0).to_numpy()
    for at, batch in enumerate(batches(rows, copied, BATCH, BATCH_BYTES)):
        if interrupted():
            return "the restore was interrupted"
        if why := lost(store, orders.lease, 0, store.server_time()):
            raise LeaseLostError(
                f"the lease on {store.url} was lost: {why}. What was restored is recorded and "
                "pinned: restore again"
            )
        found = bring_back(store, as_lost(batch), copies_of(batch, backup))
        # A task that Spark runs twice finds what it did itself: neither record replaces the other.
        name = f"{sweep_of(orders.lease)}-{number:05d}-{at:06d}-{secrets.token_hex(4)}"
        record(artifacts, orders.ledger, name, batch["size"].to_pylist(), found)
        # A copy that is gone or another keeps none of the others from coming back.
        if not all(map(_hopeless, found)):
            failed.end()
        elif failed.met(len(found)):
            return f"{found[0].error_code}: {found[0].detail}"
    return ""


def _hopeless(one: RestoreOutcome) -> bool:
    return one.outcome == "failed" and hopeless_code(one.error_code or "")
