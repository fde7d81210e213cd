"""Restores a portion of the chosen objects in a task, and records each batch at once."""

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
from lakegc_assets.recovery.journal import CopyVerifier
from lakegc_assets.recovery.portions import CircuitBreaker, Cost, Portion, batches, hopeless_code
from lakegc_assets.recovery.restore_record import record
from lakegc_assets.recovery.undeletion import RestoreOutcome, bring_back
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.object_lookup import look_up
from lakegc_assets.sweep.lease import LeaseLostError
from lakegc_assets.sweep.lease_record import lost, sweep_of
from lakegc_assets.sweep.lost_objects import LOST, as_lost, copies_of

#: Most objects in a batch, and most bytes that a batch may copy from a backup.
BATCH: Final = 1000
BATCH_BYTES: Final = 2**30
#: Seconds of one core to restore an object; more for a copy, and for each byte of it.
_ROW_S: Final = 0.0005
_COPY_S: Final = 0.0005
_BYTE_S: Final = 1e-8


@dataclass(frozen=True)
class Orders:
    """The input of all tasks of a restore: picklable, and without secrets."""

    connections: Connections
    artifacts_url: str
    #: Folder of the ledger below the attempt, with a slash at its end.
    ledger: str
    backup_url: str | None
    lease: str


def any_absent(connections: Connections, url: str, piece: Sequence[Stretch]) -> bool:
    """The task: return True if the store lacks any of some objects of the attempt at ``url``."""
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


#: Cost of the objects of ``LOST``.
COST: Final = Cost(["size", "copy_etag"], _costs)


def restore_portion(orders: Orders, portion: Portion) -> str:
    """The task: restore a portion. Returns why it ended early; empty if it did not.

    Raises:
        LeaseLostError: another process may sweep or restore now.
        StorageError: a store did not answer, or outcomes could not be recorded.
    """
    number, stretch = portion
    to = orders.connections
    store, artifacts = to.store(), to.open(orders.artifacts_url)
    backup = None if orders.backup_url is None else CopyVerifier(to.open(orders.backup_url))
    rows = read_stretches(artifacts, [stretch], LOST.names)
    failed = CircuitBreaker()
    # Copies take long, so a batch has few bytes of them.
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
        # If Spark runs a task twice, one run finds the objects that the other restored. Neither
        # record may replace the other, so names are random.
        name = f"{sweep_of(orders.lease)}-{number:05d}-{at:06d}-{secrets.token_hex(4)}"
        record(artifacts, orders.ledger, name, batch["size"].to_pylist(), found)
        # A missing or changed copy does not prevent the restore of other objects.
        if not all(map(_hopeless, found)):
            failed.end()
        elif failed.met(len(found)):
            return f"{found[0].error_code}: {found[0].detail}"
    return ""


def _hopeless(one: RestoreOutcome) -> bool:
    return one.outcome == "failed" and hopeless_code(one.error_code or "")
