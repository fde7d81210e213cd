"""With backups, a sweep deletes only objects with a verified copy in the backup of its mark."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from lakegc_assets.engine.ddl import schema
from lakegc_assets.engine.session import Dataset
from lakegc_assets.errors import RefusedError
from lakegc_assets.recovery.backups import Backup, find_backup, folder_url, subject_of
from lakegc_assets.recovery.copies import verified_copies
from lakegc_assets.recovery.relations import chosen
from lakegc_assets.recovery.workspace import Workspace
from lakegc_assets.run.command_line import command_line
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.json_record import DAMAGE
from lakegc_assets.run.manifest import Manifest
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import ObjectNotFoundError
from lakegc_assets.sweep import ledger, relations
from lakegc_assets.sweep.ledger_state import LedgerState, totals_of
from lakegc_assets.wording import counted

#: Record of a sweep that relies on a backup, written before its first delete.
_BEGUN: Final = f"{ledger.ASSET}/backup.json"
#: Columns of the outcomes of a backup that say why it lacks a copy.
_REASONS: Final = ("address", "outcome", "error_code")
LACKING: Final = schema("address string, size bigint, why string")
_COUNT: Final = pa.schema([("objects", pa.int64())])


@dataclass(frozen=True)
class BackupGuard:
    """The backup on which a sweep relies.

    Attributes:
        url: its URL; None if ``settings.backup_url`` is not set.
        copies: its verified copies that are there now (address, size, etag); None without a backup.
        gone: number of objects without a copy that an earlier try has deleted, perhaps without a
            backup.
    """

    url: str | None = None
    copies: Dataset | None = None
    gone: int = 0

    def require_copies(self, space: Workspace, objects: Dataset) -> None:
        """Verify that each object (``LISTING``) has a copy, before it is deleted.

        The copies are counted by another join than the one that has found what they lack: an engine
        that loses rows in either finds too few.

        Raises:
            IntegrityError: the engine has lost rows.
        """
        if self.copies is None:
            return
        with space.frames() as frames:
            copied = relations.backed_up(frames.read(objects), frames.read(self.copies))
            label = "count the copies of what is to be deleted"
            (found,) = frames.collect_rows(copied, _COUNT, label)
        if found["objects"] != objects.rows:
            raise space.ctx.lost_rows(
                f"{objects.rows} objects should have a copy in {self.url}, and {found['objects']} "
                "have one"
            )


def spare_what_is_not_backed_up(
    recorded: LedgerState, chain: Mapping[str, Manifest], sweep: str
) -> BackupGuard:
    """Record as spared the objects without a verified copy in the backup of their mark.

    ``sweep``: short name of the sweep.

    Raises:
        RefusedError: there is no finished backup of this very mark; or an earlier sweep of it,
            which did not end, relied on a backup, and now none is set.
        IntegrityError: the backup is damaged.
        StorageError: the store of the backup did not answer.
    """
    ctx, artifacts = recorded.ctx, recorded.space.attempt.store()
    url = ctx.settings.backup_url
    if url is None:
        _require_no_backup(ctx, artifacts)
        return BackupGuard()
    backup = find_backup(ctx.root.stores, url, ctx.repository, ctx.run)
    if backup is None:
        of_run = ctx.repository, "--run", ctx.run
        raise RefusedError(
            f"{folder_url(url, ctx.repository, ctx.run)} holds no finished backup of mark "
            f"{ctx.run!r}, and backup_url is set: run "
            f"`{command_line('backup', *of_run, settings=ctx.given_settings)}` first, or sweep "
            "without backup_url"
        )
    backup.require_of(subject_of(chain))
    held = verified_copies(recorded.space, backup, listed=True).select("address", "size", "etag")
    spared, gone = _lacking(recorded, backup, held)
    for number, rows in enumerate(recorded.space.tables(spared)):
        name = f"{sweep}-0000-backup-{number:05d}"
        ledger.record_spared(artifacts, name, rows, ctx.clocks)
    artifacts.put(_BEGUN, json.dumps({"backup": backup.store.url}).encode())
    if count := spared.rows:
        ctx.log.warning("%s spared: not in the backup", counted(count, "object is", "objects are"))
    return BackupGuard(backup.store.url, held, gone)


def _lacking(recorded: LedgerState, backup: Backup, held: Dataset) -> tuple[Dataset, int]:
    """Find objects to spare since a backup lacks them (``LACKING``); count those already gone."""
    space = recorded.space
    lacking = space.derive(
        "lacking",
        LACKING,
        "compare the mark with its backup",
        relations.not_backed_up,
        recorded.marked,
        held,
        backup.outcomes.select(*_REASONS),
    )
    recorded.read()
    if not lacking.rows or not recorded.outcomes.rows:
        return lacking, 0
    with space.frames() as frames:
        frame, done = frames.read(lacking), frames.read(recorded.outcomes)
        label = "leave out what is done"
        spared = space.write(frames, relations.remaining(frame, done), "lacking", LACKING, label)
        found = totals_of(frames, relations.outcomes(chosen(done, frame)))
    return spared, sum(total.objects for total in found if total.outcome == "deleted")


def _require_no_backup(ctx: RunContext, artifacts: ObjectStore) -> None:
    """Refuse to continue without a backup by mistake, if an unfinished sweep relied on one.

    Raises:
        RefusedError: an unfinished sweep relied on a backup.
    """
    if not (place := relied_on(artifacts)):
        return
    begun = f"an unfinished sweep of mark {ctx.run!r} relies on the backup at {place}"
    if ctx.settings.without_backup:
        # The record stays, for a later restore from that backup.
        ctx.log.warning("%s: it continues without a backup, since without_backup is set", begun)
        return
    settings = {**ctx.given_settings, "without_backup": True}
    without = command_line("sweep", ctx.repository, "--run", ctx.run, settings=settings)
    raise RefusedError(
        f"{begun}, and backup_url is not set: set backup_url as before, then sweep again. To "
        f"continue without a backup of the remaining objects: `{without}`"
    )


def relied_on(artifacts: ObjectStore) -> str:
    """Return the backup on which an unfinished sweep relies; empty if there is none.

    Raises:
        StorageError: the store could not be read.
    """
    try:
        record = artifacts.get(_BEGUN)
    except ObjectNotFoundError:
        return ""
    try:
        return str(json.loads(record)["backup"])
    except DAMAGE:
        return f"a place that is not known, since {artifacts.url}/{_BEGUN} is damaged"
