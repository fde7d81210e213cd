"""Where backups are made, a sweep deletes only what the backup of its mark holds, verified."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.errors import RefusedError
from lakegc_assets.recovery.backups import Backup, find_backup, folder_url, subject_of
from lakegc_assets.recovery.making import whole
from lakegc_assets.run import strings
from lakegc_assets.run.artifacts import AttemptArtifacts, Manifest
from lakegc_assets.run.command_line import command_line
from lakegc_assets.run.context import RunContext
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import ObjectNotFoundError
from lakegc_assets.sweep import ledger
from lakegc_assets.wording import counted

#: Written before the first delete of a sweep that relies on a backup.
_BEGUN: Final = f"{ledger.ASSET}/backup.json"


def spare_what_is_not_backed_up(
    ctx: RunContext,
    attempt: AttemptArtifacts,
    chain: Mapping[str, Manifest],
    marked: pa.Table,
    name: str,
) -> tuple[str | None, int]:
    """Record as spared what the backup of a mark does not hold as it was copied.

    Args:
        ctx: the run.
        attempt: the artifacts of the mark, and of its sweep.
        chain: the manifests of the mark.
        marked: what the mark names (address, size, etag).
        name: of the record, which no other has.

    Returns:
        Where the backup is, None where ``settings.backup_url`` is not set; and how many objects it
        does not hold that an earlier try has deleted, which may have had no backup.

    Raises:
        RefusedError: there is no finished backup of this very mark; or an earlier sweep of it,
            which did not end, relied on one, and now none is set.
        IntegrityError: the backup is damaged.
        StorageError: the store of the backup does not tell.
    """
    url = ctx.settings.backup_url
    if url is None:
        _require_no_backup(ctx, attempt.store())
        return None, 0
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
    lacking = _not_held(ctx, backup, marked)
    swept = ledger.read(attempt)
    done = ledger.done(swept)["address"]
    spared = lacking.filter(pc.invert(strings.among(lacking["address"], done)))
    ledger.record_spared(attempt.store(), name, spared)
    deleted = swept.filter(pc.equal(swept["outcome"], "deleted"))["address"]
    gone = lacking.filter(strings.among(lacking["address"], deleted)).num_rows
    attempt.store().put(_BEGUN, json.dumps({"backup": backup.store.url}).encode())
    if spared.num_rows:
        ctx.log.warning(
            "%s spared: not in the backup", counted(spared.num_rows, "object is", "objects are")
        )
    return backup.store.url, gone


def _require_no_backup(ctx: RunContext, artifacts: ObjectStore) -> None:
    """Let nobody go on without a backup by mistake, where a sweep that did not end relied on one.

    Raises:
        RefusedError: one did.
    """
    if not (place := relied_on(artifacts)):
        return
    begun = f"a sweep of mark {ctx.run!r} was begun with its backup ({place}), and did not end"
    if ctx.settings.without_backup:
        # What it had backed up stays known, for whoever brings something back.
        ctx.log.warning("%s: it goes on without, as without_backup says", begun)
        return
    settings = {**ctx.given_settings, "without_backup": True}
    without = command_line("sweep", ctx.repository, "--run", ctx.run, settings=settings)
    raise RefusedError(f"{begun}: set backup_url as then to go on. `{without}` goes on without")


def relied_on(artifacts: ObjectStore) -> str:
    """The backup on which a sweep relies that was begun; empty for none.

    Args:
        artifacts: the store rooted at the attempt.

    Raises:
        StorageError: nobody can tell.
    """
    try:
        told = artifacts.get(_BEGUN)
    except ObjectNotFoundError:
        return ""
    try:
        return str(json.loads(told)["backup"])
    except (ValueError, KeyError, TypeError):
        return "a backup that cannot be read any more"


def _not_held(ctx: RunContext, backup: Backup, marked: pa.Table) -> pa.Table:
    """What of a mark is not in a backup (address, size, why)."""
    held = whole(backup, ctx.settings.backup_list_threads)
    keys = ["address", "size", "etag"]
    lacking = marked.select(keys).join(held, keys, join_type="left anti")
    told = backup.outcomes.select(["address", "outcome", "error_code"])
    rows = lacking.join(told, "address", join_type="left outer")
    copied = pc.equal(pc.fill_null(rows["outcome"], ""), "copied")
    outcome = pc.if_else(copied, "the copy is gone or another", pc.fill_null(rows["outcome"], "?"))
    code = pc.fill_null(rows["error_code"], "")
    why = pc.binary_join_element_wise("not in the backup:", outcome, code, " ")
    return pa.table([rows["address"], rows["size"], pc.utf8_trim_whitespace(why)],
                    names=["address", "size", "why"])  # fmt: skip
