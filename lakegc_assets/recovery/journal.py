"""The journal of a backup: the outcome of each object, batch by batch, and the proof of a copy.

Each batch is one Parquet file below ``_lakegc/ledger/`` of the backup. A task writes it atomically
before its next batch begins. A killed backup reads the journal and continues. A copy that a task
could not record is made again.

A copy whose etag is not the recorded one may be the verified one all the same. The etag of a local
file identifies the file, so all etags of a backup change when it moves to another disk. Also, a
process that was suspended during a backup may replace a copy that another process has verified
since, even in a backup that is finished.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from datetime import datetime, timezone
from functools import cached_property, lru_cache, partial
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.session import Dataset
from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.recovery.backups import FOLDER, OUTCOMES
from lakegc_assets.recovery.workspace import Workspace
from lakegc_assets.run.records import read_whole, write_values
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.files import may_be_moved
from lakegc_assets.storage.values import Lost

_LEDGER: Final = f"{FOLDER}ledger/"
_THREADS: Final = 16
#: Files of the journal in memory.
_FILES: Final = 8
#: Etags that may be an MD5 in hex.
MD5: Final = re.compile(r"[0-9a-f]{32}")


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


class CopyVerifier:
    """Evidence on the copies in a backup."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        # Objects come in order, so the objects of one journal file come together.
        self._read = lru_cache(_FILES)(partial(read_file, store))

    def etag(self, lost: Lost, recorded: str) -> str | None:
        """Return the etag of a copy now; None if nothing proves that it is a copy of the object.

        ``recorded``: the etag of the copy when it was verified.

        Raises:
            ObjectNotFoundError: there is no such copy.
        """
        now = self.store.head(lost.key)
        if now.size != lost.size:
            return None
        proven = (
            may_be_moved(recorded, now.etag)
            or self._was_verified(lost, now.etag)
            or self._has_md5(lost, now.etag)
        )
        return now.etag if proven else None

    def _was_verified(self, lost: Lost, etag: str) -> bool:
        """Return True if the journal has a copy of this object with this etag, by any process."""
        wanted = (
            (pc.field("address") == lost.key)
            & (pc.field("size") == lost.size)
            & (pc.field("etag") == lost.etag)
            & (pc.field("copy_etag") == etag)
            & (pc.field("outcome") == "copied")
        )
        return any(
            self._read(file).filter(wanted).num_rows
            for file, first, last in self._files
            if first <= lost.key <= last
        )

    @cached_property
    def _files(self) -> list[tuple[str, str, str]]:
        return spans(self.store)

    def _has_md5(self, lost: Lost, etag: str) -> bool:
        """Return True if the object's etag is the MD5 of the copy, from the store or computed."""
        if not MD5.fullmatch(lost.etag):
            return False
        named = self.store.checksums(lost.key).get("md5")
        return (named or self.computed_md5(lost.key, etag)) == lost.etag

    def computed_md5(self, key: str, etag: str) -> str:
        """Return the MD5, in hex, of the content of a copy, which is read.

        Raises:
            ObjectNotFoundError: there is no such copy.
            ChangedError: it has another etag.
        """
        digest = hashlib.md5(usedforsecurity=False)
        with self.store.stream(key, etag) as pieces:
            for piece in pieces:
                digest.update(piece)
        return digest.hexdigest()
