"""The copies that a backup holds, as datasets in the artifacts of the mark: found by tasks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.datasets import Part
from lakegc_assets.errors import IntegrityError
from lakegc_assets.mark.marked_objects import Stretch, read_stretches
from lakegc_assets.recovery.backups import COPIED, OUTCOMES, Backup, damaged
from lakegc_assets.recovery.workspace import Folder, Workspace
from lakegc_assets.run import strings
from lakegc_assets.run.hashing import KeyDigest, key_digest
from lakegc_assets.storage.base import ObjectStore

#: What a listing of a backup shows of a copy.
SHOWN: Final = pa.schema([OUTCOMES.field(name) for name in ("address", "size", "copy_etag")])
#: A copy that was verified.
COPIES: Final = pa.schema([OUTCOMES.field(name) for name in COPIED])
#: Work for one, in seconds of one core.
_ROW_S: Final = 2e-6


def shown_copies(space: Workspace, backup: ObjectStore, objects: Sequence[Part]) -> list[Part]:
    """List the copies of some objects, whether they were recorded or not.

    ``objects``: files below the attempt, in the order of the addresses.

    Returns:
        Files of ``SHOWN``.

    Raises:
        IntegrityError: a file is missing or changed.
    """
    task = partial(_shown_copies, space.below("shown"), backup.url)
    return list(chain(*space.in_pieces("list the copies", task, objects, _ROW_S)))


def _shown_copies(folder: Folder, backup_url: str, piece: Sequence[Stretch]) -> list[Part]:
    addresses = read_stretches(folder.store(), piece, ["address"])["address"]
    return folder.write(SHOWN, _listed(folder.connections.open(backup_url), addresses))


def verified_copies(space: Workspace, backup: Backup, *, listed: bool) -> list[Part]:
    """The copies of a finished backup, as its manifest says.

    ``listed``: only those count that a listing shows now as they were made.

    Returns:
        Files of ``COPIES``.

    Raises:
        IntegrityError: something changed or removed the record of which they are.
    """
    task = partial(_verified_copies, space.below("copies"), backup.store.url, listed=listed)
    found = space.in_pieces("read what the backup holds", task, backup.record.parts, _ROW_S)
    backup.require_digest(sum((digest for _, digest in found), KeyDigest()))
    return list(chain(*(parts for parts, _ in found)))


def _verified_copies(
    folder: Folder, backup_url: str, piece: Sequence[Stretch], *, listed: bool
) -> tuple[list[Part], KeyDigest]:
    store = folder.connections.open(backup_url)
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
    return folder.write(COPIES, [copied]), digest


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
