"""The journal of a backup that is being made: what became of each object, batch by batch.

Every batch is one parquet file below ``_lakegc/ledger/`` of the backup, written atomically before
the next batch of its task begins. A killed backup reads it and goes on where it was. What a task
copied and could not record any more is copied once more.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import Final, NamedTuple, TypeVar

import pyarrow as pa

from lakegc_assets.engine.session import Dataset
from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.recovery.backups import FOLDER, OUTCOMES
from lakegc_assets.recovery.workspace import Workspace
from lakegc_assets.run.records import read_whole, write_values
from lakegc_assets.storage.base import ObjectStore

R = TypeVar("R")

_LEDGER: Final = f"{FOLDER}ledger/"
_THREADS: Final = 16


class Outcome(NamedTuple):
    """The outcome of one marked object; the fields are those of ``OUTCOMES`` but for the time.

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
    """Make outcomes durable: they are all in the journal when this returns, or none is.

    No other batch has this name.
    """
    now = datetime.now(timezone.utc)
    write_values(backup, f"{_LEDGER}{name}.parquet", [(*one, now) for one in outcomes], OUTCOMES)


def gather(space: Workspace, backup: ObjectStore, prefix: str = "") -> Dataset:
    """The rows of a journal, copied to a workspace (``OUTCOMES``).

    A damaged file of the journal counts as absent: what it says is copied again.

    ``prefix``: of the names of the batches.
    """
    return space.gather("journal", backup.url, f"{_LEDGER}{prefix}", OUTCOMES)


def for_each(backup: ObjectStore, function: Callable[[str, pa.Table], R]) -> list[R]:
    """Call a function with each file of the journal and its rows (``OUTCOMES``)."""
    files = [info.key for info in backup.infos(_LEDGER)]
    return thread_map(lambda file: function(file, read_file(backup, file)), files, _THREADS)


def read_file(backup: ObjectStore, key: str) -> pa.Table:
    """The rows of one file of the journal; none where it is damaged: that is copied again."""
    return read_whole(backup, key, OUTCOMES)


def write_log(log: ObjectStore, name: str, outcomes: Sequence[Outcome]) -> None:
    """Write a line of JSON for each outcome."""
    lines = (json.dumps(outcome._asdict(), ensure_ascii=False) for outcome in outcomes)
    log.put(f"{name}.log", "".join(f"{line}\n" for line in lines).encode())
