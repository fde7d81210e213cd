"""Sources of marked objects that are to come back: kept versions, and copies in a backup."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.datasets import Part
from lakegc_assets.errors import LakegcError
from lakegc_assets.recovery import relations
from lakegc_assets.recovery.backups import Backup, find_backup, folder_url, subject_of
from lakegc_assets.recovery.copies import COPIES, verified_copies
from lakegc_assets.recovery.copy_verification import Proof
from lakegc_assets.recovery.undeletion import Copies
from lakegc_assets.recovery.workspace import Workspace
from lakegc_assets.run.artifacts import AttemptArtifacts, Manifest
from lakegc_assets.run.context import RunContext
from lakegc_assets.storage.opening import open_store
from lakegc_assets.storage.values import Lost
from lakegc_assets.sweep import ledger
from lakegc_assets.sweep.ledger_state import Recorded

#: An object as it was marked; what the store told when it was deleted; and the etag of its copy.
LOST: Final = pa.schema(
    [
        ("address", pa.string()),
        ("size", pa.int64()),
        ("etag", pa.string()),
        ("version", pa.string()),
        ("copy_etag", pa.string()),
    ]
)


def usable_backup(
    ctx: RunContext,
    chain: Mapping[str, Manifest],
    read: Callable[[Backup], None],
) -> tuple[Backup | None, str]:
    """The backup of a mark, if there is one; and why there is none, where one was expected.

    What is wrong with it is no error: the store may have kept the objects.

    Args:
        ctx: the run.
        chain: the manifests of the mark.
        read: reads which copies it has; raises LakegcError where it is damaged.
    """
    url = ctx.settings.backup_url
    try:
        # What a prune has left is what somebody needs.
        backup = find_backup(ctx.root.stores, url, ctx.repository, ctx.run, removing=True)
        if backup is not None:
            backup.require_of(subject_of(chain))
            read(backup)
    except LakegcError as error:
        return None, f"the backup is not used: {error}"
    if url is not None and backup is None:
        return None, f"there is no finished backup of {ctx.run!r} below {url}"
    return backup, ""


def other_backup(ctx: RunContext, attempt: AttemptArtifacts) -> str:
    """That what was swept is in a backup at another place than is set, in a sentence; else empty.

    Args:
        ctx: the run.
        attempt: the artifacts of the mark, and of its sweep.
    """
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
        f"what was swept is in the backup {recorded}, and backup_url is "
        f"{ctx.settings.backup_url or 'not set'}: set it to where that was made"
    )


def find_lost(
    recorded: Recorded, chain: Mapping[str, Manifest], addresses: pa.ChunkedArray, folder: str
) -> tuple[pa.Table, Proof | None, str]:
    """A few marked objects with all that is known for bringing them back.

    Args:
        recorded: what the sweep has recorded, and all that the mark names.
        chain: the manifests of the mark.
        addresses: of the objects.
        folder: for files, below the attempt, with a slash at its end.

    Returns:
        Rows of ``LOST``; what tells of copies in the backup of the mark, if there is one; and why
        there is none, where one was expected.

    Raises:
        LakegcError: the mark cannot be read.
    """
    space = Workspace(recorded.ctx, recorded.connections, recorded.attempt, folder)
    copies: list[Part] = []

    def read(backup: Backup) -> None:
        finding = space.finding("copies", backup.store.url)
        copies.extend(verified_copies(space.ctx, finding, backup, listed=False))

    backup, problem = usable_backup(space.ctx, chain, read)
    try:
        swept = recorded.outcomes_of(addresses)
    except (LakegcError, pa.ArrowException, ValueError, OSError):
        # It only says under which ids the store may have kept them: they are looked for.
        swept = ledger.SWEPT.empty_table()
    marked = recorded.marked_as(addresses)
    with space.frames() as frames:
        found = relations.lost_objects(
            frames.create(marked), frames.create(swept), space.read(frames, copies, COPIES)
        )
        rows = frames.collect(found, LOST, "find versions and copies")
    return rows, None if backup is None else Proof(backup.store), problem


def as_lost(rows: pa.Table) -> list[Lost]:
    """Rows of ``LOST`` as stores take them."""
    columns = (rows[name].to_pylist() for name in Lost._fields if name != "key")
    return [Lost(*row) for row in zip(rows["address"].to_pylist(), *columns, strict=True)]


def copies_of(rows: pa.Table, proof: Proof | None) -> Copies | None:
    """The copies of rows of ``LOST``, with what tells of all copies in their backup."""
    if proof is None:
        return None
    known = rows.filter(pc.is_valid(rows["copy_etag"]))
    etags = dict(zip(known["address"].to_pylist(), known["copy_etag"].to_pylist(), strict=True))
    return Copies(proof.store, etags, proof)
