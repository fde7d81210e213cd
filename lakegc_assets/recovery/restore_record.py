"""The records of a restore: the request, and the outcome of each object.

Below ``restored_set/<restore id>/``: ``begin.json``, written first; ``ledger/``, one file for each
batch, written before the next batch begins; and the manifest, last. A restore without a manifest
was killed or is incomplete. It continues under its id when the same request is made again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any, Final

import pyarrow as pa

from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.errors import LakegcError
from lakegc_assets.recovery.undeletion import RestoreOutcome
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.run.json_record import JsonRecord, Moment
from lakegc_assets.run.records import read_whole, write_values
from lakegc_assets.storage.base import ObjectStore

ASSET: Final = "restored_set"
RESTORED: Final = pa.schema(
    [
        ("address", pa.string()),
        ("size", pa.int64()),
        ("outcome", pa.string()),
        ("source", pa.string()),
        ("error_code", pa.string()),
        ("detail", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
    ]
)
_THREADS: Final = 16


@dataclass(frozen=True)
class RestoreRequest(JsonRecord, damaged="a restore begins anew"):
    """The request of a restore, as JSON values, and the time of its begin by the store's clock.

    ``objects`` is the ``KeyDigest`` of the addresses of the chosen objects, as text.
    """

    choice: dict[str, Any]
    objects: str
    at: Moment


def folder(restore_id: str) -> str:
    """Return the folder of a restore below the attempt, without a slash at its end."""
    return f"{ASSET}/{restore_id}"


def restores(attempt: AttemptArtifacts) -> list[str]:
    """Return the ids of the restores of a run, finished or not, ordered by their begin."""
    prefixes = attempt.store().list_prefixes(f"{ASSET}/").prefixes
    return sorted(prefix.removeprefix(f"{ASSET}/").rstrip("/") for prefix in prefixes)


def begin(attempt: AttemptArtifacts, begun: RestoreRequest, name: str, patience: timedelta) -> str:
    """Return the id of an unfinished restore with the same request, else begin a new restore.

    ``name``: end of a new id. A restore that began longer ago than ``patience`` is not continued,
    since its pin may end soon.
    """
    store = attempt.store()
    for restore_id in reversed(restores(attempt)):
        if attempt.has(folder(restore_id)):
            continue
        try:
            stored = store.get(f"{folder(restore_id)}/begin.json")
            found = RestoreRequest.from_bytes(stored, restore_id)
        except LakegcError:
            continue
        if begun == replace(found, at=begun.at) and begun.at - found.at <= patience:
            return restore_id
    restore_id = f"{begun.at.astimezone(timezone.utc):%Y%m%dT%H%M%S}Z-{name}"
    store.create(f"{folder(restore_id)}/begin.json", begun.to_bytes())
    return restore_id


def record(
    artifacts: ObjectStore,
    ledger: str,
    name: str,
    sizes: Sequence[int],
    found: Sequence[RestoreOutcome],
) -> None:
    """Write the outcomes of a batch to the ledger in one atomic step.

    ``ledger``: folder below the attempt, with a slash at its end. ``name``: no other batch has it.
    """
    now = datetime.now(timezone.utc)
    rows = [
        (one.key, size, one.outcome, one.source, one.error_code, one.detail, now)
        for one, size in zip(found, sizes, strict=True)
    ]
    write_values(artifacts, f"{ledger}{name}.parquet", rows, RESTORED)


def ledger(restore_id: str) -> str:
    """Return the folder of a restore's ledger below the attempt, with a slash at its end."""
    return f"{folder(restore_id)}/ledger/"


def recorded(attempt: AttemptArtifacts, restore_id: str) -> pa.Table:
    """Return all records of a restore (``RESTORED``); an address may occur more than once.

    This table is for people, who ask for it seldom. A restore itself reads a dataset.
    """
    store, below = attempt.store(), ledger(restore_id)
    keys = sorted(key for key in attempt.files(folder(restore_id)) if key.startswith(below))
    # A damaged file counts as absent: a restore tries its objects again.
    tables = thread_map(lambda key: read_whole(store, key, RESTORED), keys, _THREADS)
    return pa.concat_tables([RESTORED.empty_table(), *tables])
