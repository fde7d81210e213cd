"""Brings a portion of what was chosen back in a task, batch by batch, each recorded at once."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.datasets import Part, read_part
from lakegc_assets.mark.marked_objects import Stretch, read_stretches
from lakegc_assets.recovery.circuit_breaker import Streak, hopeless_code
from lakegc_assets.recovery.copy_verification import Proof
from lakegc_assets.recovery.restore_record import record
from lakegc_assets.recovery.undeletion import Brought, bring_back, present
from lakegc_assets.run.connections import Connections
from lakegc_assets.sweep.lease import LeaseLostError
from lakegc_assets.sweep.lease_record import lost, sweep_of
from lakegc_assets.sweep.lost_objects import LOST, as_lost, copies_of

#: Objects in a batch at most, and bytes of those that may be copied from a backup.
BATCH: Final = 1000
_BATCH_BYTES: Final = 2**30
#: Work on one core, in seconds: to bring an object back, to copy it, and a byte of it.
_ROW_S: Final = 0.0005
_COPY_S: Final = 0.0005
_BYTE_S: Final = 1e-8


@dataclass(frozen=True)
class Orders:
    """The input of all tasks of a restore: picklable, and without secrets.

    Attributes:
        connections: how to reach the store.
        artifacts_url: of the attempt.
        ledger: folder of the ledger below it, with a slash at its end.
        backup_url: of the folder of the backup; None without one.
        lease: token of the lease under which all this is done.
    """

    connections: Connections
    artifacts_url: str
    ledger: str
    backup_url: str | None
    lease: str


def any_absent(connections: Connections, url: str, piece: Sequence[Stretch]) -> bool:
    """The task: tell whether the store lacks any of some objects of the attempt at ``url``."""
    store = connections.store()
    addresses = read_stretches(connections.open(url), piece, ["address"])["address"]
    return any(
        there is None
        for at in range(0, len(addresses), BATCH)
        for there in present(store, addresses.slice(at, BATCH).to_pylist()).values()
    )


def _costs(connections: Connections, url: str, part: Part) -> npt.NDArray[np.float64]:
    """Work for each object of a file, in seconds of one core."""
    rows = read_part(connections.open(url), part, ["size", "copy_etag"])
    copied = np.asarray(pc.is_valid(rows["copy_etag"]), dtype=np.float64)
    sizes = np.asarray(rows["size"], dtype=np.float64)
    return _ROW_S + copied * (_COPY_S + sizes * _BYTE_S)


def cost_of(connections: Connections, url: str, part: Part) -> float:
    """The task: work for the objects of a file (``LOST``), in seconds of one core."""
    return float(_costs(connections, url, part).sum())


def cut_portions(connections: Connections, url: str, share: tuple[Part, int]) -> list[Stretch]:
    """The task: cut a file into so many stretches of equal work at most."""
    part, most = share
    ends = np.cumsum(_costs(connections, url, part))
    total = float(ends[-1]) if len(ends) else 0.0
    limits = np.searchsorted(ends, np.linspace(0, total, most + 1)[1:-1], side="right")
    bounds = [0, *map(int, limits), part.rows]
    return [Stretch(part, low, high - low) for low, high in pairwise(bounds) if high > low]


def restore_portion(orders: Orders, portion: tuple[int, Stretch]) -> str:
    """The task: bring a portion back. Returns why it ended early; empty if it did not.

    Raises:
        LeaseLostError: somebody else may sweep or restore now.
        StorageError: a store did not answer, or outcomes could not be recorded.
    """
    number, stretch = portion
    to = orders.connections
    store, artifacts = to.store(), to.open(orders.artifacts_url)
    backup = None if orders.backup_url is None else Proof(to.open(orders.backup_url))
    rows = read_stretches(artifacts, [stretch], LOST.names)
    failed = Streak()
    for at, batch in enumerate(_batches(rows)):
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


def _hopeless(one: Brought) -> bool:
    return one.outcome == "failed" and hopeless_code(one.error_code or "")


def _batches(rows: pa.Table) -> Iterator[pa.Table]:
    """Rows in batches; what is copied takes long, so few bytes of it are in one."""
    copied = pc.if_else(pc.is_valid(rows["copy_etag"]), rows["size"], 0)
    ends = np.cumsum(np.asarray(copied, dtype=np.int64))
    at = 0
    while at < rows.num_rows:
        before = int(ends[at - 1]) if at else 0
        most = int(np.searchsorted(ends, before + _BATCH_BYTES, side="right")) - at
        count = max(1, min(BATCH, most))
        yield rows.slice(at, count)
        at += count
