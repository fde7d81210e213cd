"""Sources of marked objects that are to be restored: kept versions, and copies in a backup."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.ddl import schema
from lakegc_assets.engine.session import Dataset
from lakegc_assets.errors import LakegcError
from lakegc_assets.recovery import relations
from lakegc_assets.recovery.backups import Backup, find_backup, folder_url, subject_of
from lakegc_assets.recovery.copies import COPIES, verified_copies
from lakegc_assets.recovery.journal import CopyVerifier
from lakegc_assets.recovery.undeletion import BackupCopies, Forecast, forecast
from lakegc_assets.recovery.workspace import Workspace
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.manifest import Manifest
from lakegc_assets.run.object_lookup import look_up
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.opening import open_store
from lakegc_assets.storage.values import Lost, ObjectInfo
from lakegc_assets.sweep import ledger
from lakegc_assets.sweep.ledger_state import LedgerState

#: A marked object; the version under which the store keeps it; the etag of its copy.
LOST: Final = schema("address string, size bigint, etag string, version string, copy_etag string")


def usable_copies(
    space: Workspace, chain: Mapping[str, Manifest]
) -> tuple[Backup | None, Dataset, str]:
    """Return the backup of a mark with its copies (``COPIES``), and the reason if it is missing.

    A damaged backup raises no error: the store may have kept the objects.
    """
    ctx, none = space.ctx, space.dataset((), COPIES)
    url = ctx.settings.backup_url
    try:
        # If a prune has removed a part of the backup, the rest of it is still needed.
        backup = find_backup(ctx.root.stores, url, ctx.repository, ctx.run, removing=True)
        if backup is None:
            reason = f"there is no finished backup of {ctx.run!r} below {url}"
            return None, none, "" if url is None else reason
        backup.require_of(subject_of(chain))
        return backup, verified_copies(space, backup, listed=False), ""
    except LakegcError as error:
        return None, none, f"the backup is not used: {error}"


def other_backup(ctx: RunContext, attempt: AttemptArtifacts) -> str:
    """Return a warning if the swept objects are in a backup at another URL than is set."""
    try:
        if not attempt.has(ledger.ASSET):
            return ""
        recorded = attempt.recorded(ledger.ASSET).facts["backup"]
        place = ctx.settings.backup_url
        if place is not None:
            place = open_store(folder_url(place, ctx.repository, ctx.run), ctx.root.stores).url
    except (LakegcError, KeyError):
        return ""
    if recorded is None or recorded == place:
        return ""
    return (
        f"the swept objects are in the backup {recorded}, and backup_url is "
        f"{ctx.settings.backup_url or 'not set'}: set it to the place of that backup"
    )


def find_lost(
    recorded: LedgerState, chain: Mapping[str, Manifest], addresses: pa.ChunkedArray
) -> tuple[pa.Table, CopyVerifier | None, str]:
    """Return a few marked objects with all sources from which they can be restored.

    Returns:
        Rows of ``LOST``; evidence of the copies in the backup of the mark, if there is a backup;
        and the reason if an expected backup is missing.

    Raises:
        LakegcError: the mark cannot be read.
    """
    space = recorded.space
    backup, copies, problem = usable_copies(space, chain)
    try:
        swept = recorded.outcomes_of(addresses)
    except (LakegcError, pa.ArrowException, ValueError, OSError):
        # The ledger only names kept versions; without it they are searched in the store.
        swept = ledger.SWEPT.empty_table()
    marked = recorded.marked_as(addresses)
    with space.frames() as frames:
        found = relations.lost_objects(
            frames.create(marked), frames.create(swept), frames.read(copies)
        )
        rows = frames.collect(found, LOST, "find versions and copies")
    return rows, None if backup is None else CopyVerifier(backup.store), problem


def as_lost(rows: pa.Table) -> list[Lost]:
    """Convert rows of ``LOST`` to the form that stores accept."""
    columns = (rows[name].to_pylist() for name in ("size", "etag", "version"))
    return [Lost(*row) for row in zip(rows["address"].to_pylist(), *columns, strict=True)]


def foresee(
    store: ObjectStore, rows: pa.Table, addresses: Sequence[str], proof: CopyVerifier | None
) -> tuple[Mapping[str, ObjectInfo | None], list[Forecast]]:
    """Look up addresses, and forecast the restore of the missing rows (``LOST``).

    Raises:
        StorageError: the store did not answer.
    """
    there = look_up(store, addresses)
    absent = pa.array([address for address, info in there.items() if info is None], pa.string())
    gone = rows.filter(pc.is_in(rows["address"], absent))
    return there, forecast(store, as_lost(gone), copies_of(gone, proof))


def copies_of(rows: pa.Table, proof: CopyVerifier | None) -> BackupCopies | None:
    """Return the copies of rows of ``LOST``, with evidence of all copies in their backup."""
    if proof is None:
        return None
    known = rows.filter(pc.is_valid(rows["copy_etag"]))
    etags = dict(zip(known["address"].to_pylist(), known["copy_etag"].to_pylist(), strict=True))
    return BackupCopies(etags, proof)
