"""The journal of a backup in creation: the outcome of each object, batch by batch.

Each batch is one Parquet file below ``_lakegc/ledger/`` of the backup. A task writes it atomically
before its next batch begins. A killed backup reads the journal and continues. A copy that a task
could not record is made again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.session import Dataset
from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.recovery.backups import FOLDER, OUTCOMES
from lakegc_assets.recovery.workspace import Workspace
from lakegc_assets.run.records import read_whole, write_values
from lakegc_assets.storage.base import ObjectStore

_LEDGER: Final = f"{FOLDER}ledger/"
_THREADS: Final = 16


class Outcome(NamedTuple):
    """The outcome of one marked object, with the columns of ``OUTCOMES`` except the time.

    ``outcome`` is copied, changed (another object is there), missing or failed.
    """

    address: str
    size: int
    etag: str
    copy_etag: str | None
    verified_by: str | None
    outcome: str
    error_code: str | None = None
    detail: str | None = None


def record(backup: ObjectStore, name: str, outcomes: Sequence[Outcome]) -> None:
    """Write outcomes to the journal in one atomic step.

    ``name``: of the batch; no other batch has it.
    """
    now = datetime.now(timezone.utc)
    write_values(backup, f"{_LEDGER}{name}.parquet", [(*one, now) for one in outcomes], OUTCOMES)


def gather(space: Workspace, backup: ObjectStore, prefix: str = "") -> Dataset:
    """Copy the rows of a journal to a workspace (``OUTCOMES``).

    A damaged file of the journal counts as absent: its objects are copied again.

    ``prefix``: common prefix of the names of the batches.
    """
    return space.gather("journal", backup.url, f"{_LEDGER}{prefix}", OUTCOMES)


def spans(backup: ObjectStore) -> list[tuple[str, str, str]]:
    """Return each file of the journal that has rows, with its first and last address."""

    def span(file: str) -> tuple[str, str | None, str | None]:
        found = pc.min_max(read_file(backup, file)["address"]).as_py()
        return file, found["min"], found["max"]

    found = thread_map(span, [info.key for info in backup.infos(_LEDGER)], _THREADS)
    return [
        (file, first, last) for file, first, last in found if first is not None and last is not None
    ]


def read_file(backup: ObjectStore, key: str) -> pa.Table:
    """Read one file of the journal; no rows if it is damaged: its objects are copied again."""
    return read_whole(backup, key, OUTCOMES)


def write_log(log: ObjectStore, name: str, outcomes: Sequence[Outcome]) -> None:
    """Write a line of JSON for each outcome."""
    lines = (json.dumps(outcome._asdict(), ensure_ascii=False) for outcome in outcomes)
    log.put(f"{name}.log", "".join(f"{line}\n" for line in lines).encode())
