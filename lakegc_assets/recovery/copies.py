"""The copies that a backup holds, as datasets in the artifacts of the mark: found by tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.datasets import ROWS_EACH, Part, write_tables
from lakegc_assets.errors import IntegrityError
from lakegc_assets.mark.marked_objects import Stretch, read_stretches, stretches
from lakegc_assets.recovery.backups import COPIED, OUTCOMES, Backup, damaged
from lakegc_assets.recovery.workspace import Workspace
from lakegc_assets.run import strings
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import KeyDigest, key_digest
from lakegc_assets.storage.base import ObjectStore

R = TypeVar("R")

#: What a listing of a backup shows of a copy.
SHOWN: Final = pa.schema([OUTCOMES.field(name) for name in ("address", "size", "copy_etag")])
#: A copy that was verified.
COPIES: Final = pa.schema([OUTCOMES.field(name) for name in COPIED])
#: Objects that are listed together at least, and work for one, in seconds of one core.
_PIECE: Final = 1000
_ROW_S: Final = 2e-6


@dataclass(frozen=True)
class _Order:
    """The backup in which copies are found, and the folder for the results; picklable."""

    connections: Connections
    backup_url: str
    artifacts_url: str
    #: Below the attempt, with a slash at its end.
    folder: str

    def backup(self) -> ObjectStore:
        """The store rooted at the backup."""
        return self.connections.open(self.backup_url)

    def artifacts(self) -> ObjectStore:
        """The store rooted at the attempt."""
        return self.connections.open(self.artifacts_url)

    def write(self, tables: Sequence[pa.Table], schema: pa.Schema) -> list[Part]:
        """Write rows to new files, none of which is empty."""
        return write_tables(self.artifacts(), self.folder, schema, tables)


def shown_copies(space: Workspace, backup: ObjectStore, objects: Sequence[Part]) -> list[Part]:
    """List the copies of some objects, whether they were recorded or not.

    ``objects``: files below the attempt, in the order of the addresses.

    Returns:
        Files of ``SHOWN``.

    Raises:
        IntegrityError: a file is missing or changed.
    """
    task = partial(_shown_copies, _order(space, backup, "shown"))
    found = _in_pieces(space.ctx, "list the copies", task, objects)
    return [part for parts in found for part in parts]


def verified_copies(space: Workspace, backup: Backup, *, listed: bool) -> list[Part]:
    """The copies of a finished backup, as its manifest says.

    ``listed``: only those count that a listing shows now as they were made.

    Returns:
        Files of ``COPIES``.

    Raises:
        IntegrityError: something changed or removed the record of which they are.
    """
    order = _order(space, backup.store, "copies")
    task = partial(_verified_copies, order, listed=listed)
    found = _in_pieces(space.ctx, "read what the backup holds", task, backup.record.parts)
    backup.require_digest(sum((digest for _, digest in found), KeyDigest()))
    return [part for parts, _ in found for part in parts]


def _order(space: Workspace, backup: ObjectStore, name: str) -> _Order:
    folder = f"{space.folder}{name}/"
    return _Order(space.connections, backup.url, space.attempt.url, folder)


def _in_pieces(
    ctx: RunContext, what: str, task: Callable[[Sequence[Stretch]], R], parts: Sequence[Part]
) -> list[R]:
    threads = ctx.settings.backup_list_threads
    seconds = sum(part.rows for part in parts) * _ROW_S
    return ctx.tasks.run_or_call(what, task, pieces_of(parts, threads), seconds, threads)


def pieces_of(parts: Sequence[Part], threads: int) -> list[list[Stretch]]:
    """Cut the rows of files into pieces: some for each thread, none too large for a task."""
    rows = sum(part.rows for part in parts)
    return stretches(parts, max(_PIECE, min(ROWS_EACH, -(-rows // threads))))


def _shown_copies(order: _Order, piece: Sequence[Stretch]) -> list[Part]:
    addresses = read_stretches(order.artifacts(), piece, ["address"])["address"]
    return order.write(_listed(order.backup(), addresses), SHOWN)


def _verified_copies(
    order: _Order, piece: Sequence[Stretch], *, listed: bool
) -> tuple[list[Part], KeyDigest]:
    store = order.backup()
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
    return order.write([copied], COPIES), digest


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
