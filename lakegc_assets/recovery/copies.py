"""The copies that a backup holds, as datasets in the artifacts of the mark: found by tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.datasets import ROWS_EACH, Part, PartWriter
from lakegc_assets.errors import IntegrityError
from lakegc_assets.mark.marked_objects import Stretch, read_stretches, stretches
from lakegc_assets.recovery.backups import COPIED, OUTCOMES, Backup, damaged
from lakegc_assets.run import strings
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import KeyDigest, key_digest
from lakegc_assets.storage.base import ObjectStore

#: What a listing of a backup shows of a copy.
SHOWN: Final = pa.schema([OUTCOMES.field(name) for name in ("address", "size", "copy_etag")])
#: A copy that was verified.
COPIES: Final = pa.schema([OUTCOMES.field(name) for name in COPIED])
#: Objects that are listed together at least, and work for one, in seconds of one core.
_PIECE: Final = 1000
_ROW_S: Final = 2e-6


@dataclass(frozen=True)
class Finding:
    """The backup in which copies are found, and the folder for the results; picklable, no secrets.

    Attributes:
        connections: how tasks reach the stores.
        backup_url: folder of the backup.
        artifacts_url: of the attempt.
        folder: for the files, below the attempt, with a slash at its end.
    """

    connections: Connections
    backup_url: str
    artifacts_url: str
    folder: str

    def backup(self) -> ObjectStore:
        """The store rooted at the backup."""
        return self.connections.open(self.backup_url)

    def artifacts(self) -> ObjectStore:
        """The store rooted at the attempt."""
        return self.connections.open(self.artifacts_url)

    def write(self, tables: Sequence[pa.Table], schema: pa.Schema) -> list[Part]:
        """Write rows to new files, none of which is empty."""
        writer = PartWriter(self.artifacts(), self.folder, schema)
        for table in tables:
            writer.add(table)
        return [part for part in writer.finish() if part.rows] if writer.rows else []


def shown_copies(ctx: RunContext, finding: Finding, objects: Sequence[Part]) -> list[Part]:
    """List the copies of some objects, whether they were recorded or not.

    Args:
        ctx: the run.
        finding: where to look, and where to write.
        objects: files below the attempt, in the order of the addresses.

    Returns:
        Files of ``SHOWN``.

    Raises:
        IntegrityError: a file is missing or changed.
        StorageError: a store did not answer.
    """
    threads = ctx.settings.backup_list_threads
    pieces = pieces_of(objects, threads)
    seconds = sum(part.rows for part in objects) * _ROW_S
    task = partial(_shown_copies, finding)
    found = ctx.tasks.run_or_call("list the copies", task, pieces, seconds, threads)
    return [part for parts in found for part in parts]


def verified_copies(
    ctx: RunContext, finding: Finding, backup: Backup, *, listed: bool
) -> list[Part]:
    """The copies of a finished backup, as its manifest says.

    Args:
        ctx: the run.
        finding: where to look, and where to write.
        backup: the backup.
        listed: whether only those count that a listing shows now as they were made.

    Returns:
        Files of ``COPIES``.

    Raises:
        IntegrityError: something changed or removed what tells which they are.
        StorageError: a store did not answer.
    """
    threads = ctx.settings.backup_list_threads
    pieces = pieces_of(backup.record.parts, threads)
    seconds = sum(part.rows for part in backup.record.parts) * _ROW_S
    task = partial(_verified_copies, finding, listed=listed)
    found = ctx.tasks.run_or_call("read what the backup holds", task, pieces, seconds, threads)
    backup.require_digest(sum((digest for _, digest in found), KeyDigest()))
    return [part for parts, _ in found for part in parts]


def pieces_of(parts: Sequence[Part], threads: int) -> list[list[Stretch]]:
    """Cut the rows of files into pieces: some for each thread, none too large for a task."""
    rows = sum(part.rows for part in parts)
    return stretches(parts, max(_PIECE, min(ROWS_EACH, -(-rows // threads))))


def _shown_copies(finding: Finding, piece: Sequence[Stretch]) -> list[Part]:
    addresses = read_stretches(finding.artifacts(), piece, ["address"])["address"]
    return finding.write(_listed(finding.backup(), addresses), SHOWN)


def _verified_copies(
    finding: Finding, piece: Sequence[Stretch], *, listed: bool
) -> tuple[list[Part], KeyDigest]:
    store = finding.backup()
    try:
        rows = read_stretches(store, piece, [*COPIED, "outcome"])
    except IntegrityError as error:
        raise damaged(store.url) from error
    copied = rows.filter(pc.equal(rows["outcome"], "copied")).select(list(COPIED))
    digest = key_digest(copied["address"])
    if listed and copied.num_rows:
        there = pa.concat_tables(_listed(store, copied["address"]))
        keys = ["address", "size", "copy_etag"]
        copied = copied.join(there, keys, join_type="left semi").select(list(COPIED))
    return finding.write([copied], COPIES), digest


def _listed(store: ObjectStore, addresses: pa.ChunkedArray) -> list[pa.Table]:
    """List the stretch of some addresses, and return the rows of these (``SHOWN``)."""
    ordered = strings.in_order(pa.table([addresses], names=["address"]), "address")["address"]
    first, last = ordered[0].as_py(), ordered[-1].as_py()
    tables = [SHOWN.empty_table()]
    # All keys in between begin like the first one.
    for page in store.list(start_after=first[:-1] or None, end_before=f"{last}\0"):
        rows = page.filter(strings.among(page["key"], addresses))
        tables.append(pa.table([rows["key"], rows["size"], rows["etag"]], schema=SHOWN))
    return tables
