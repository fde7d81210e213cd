"""Removes whole backups, but never the only copy of an object that is needed now.

A prune first copies the manifest to ``pruning.json`` and deletes the manifest, so that no process
takes the rest for a backup. It then deletes the copies, and last all other files. A killed prune is
run again: it judges a backup that is being removed once more, by its remaining copies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from lakegc_assets.engine.ddl import schema
from lakegc_assets.engine.session import Dataset
from lakegc_assets.errors import LakegcError, RefusedError
from lakegc_assets.recovery import relations
from lakegc_assets.recovery.backup_location import repository_at
from lakegc_assets.recovery.backups import (
    BEGIN,
    FOLDER,
    MANIFEST,
    PRUNING,
    Backup,
    all_backups,
    backup_at,
)
from lakegc_assets.recovery.copies import (
    COPIES,
    held_objects,
    missing_objects,
    recorded_copies,
    scratch_space,
)
from lakegc_assets.recovery.liveness import needed_now
from lakegc_assets.recovery.workspace import Workspace
from lakegc_assets.run.command_line import command_line
from lakegc_assets.run.context import RunContext, placed
from lakegc_assets.run.lock import repository_lock
from lakegc_assets.run.object_lookup import look_up
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.removal import remove_listed, remove_objects
from lakegc_assets.storage.values import ObjectInfo
from lakegc_assets.wording import counted

_SWEPT = "swept_set"
#: Copies in one look-up.
_BATCH = 1000
_RECORDED = schema("address string, why string, recorded bigint")
Context = Callable[[str, str], RunContext]
#: Raises if other processes may be at work by now.
Require = Callable[[], object]


@dataclass(frozen=True)
class BackupVerdict:
    """The verdict on a backup."""

    found: Backup
    #: Reason why the backup stays; empty if it is removed.
    kept: str = ""


@dataclass(frozen=True)
class Pruning:
    """The request to remove backups."""

    #: Returns the context of a repository and a run id.
    context: Context
    stores: StoreConfig
    backup_url: str
    #: Younger backups stay, and backups whose mark was swept later; None for any age.
    older_than: timedelta | None
    #: Names (``repository/run``) of the backups to prune; empty for all. A named backup is pruned
    #: even if it was not finished, or if its mark was not swept.
    names: Collection[str] = ()
    #: Remove nothing, and take no lease.
    dry_run: bool = False
    #: Prevents sweeps and restores of a repository, since a sweep may rely on the backup and a
    #: restore may read it. Raises LakegcError if one is at work, or on a hold. Gives a function
    #: that raises once the prevention has ended, or None.
    alone: Callable[[RunContext], AbstractContextManager[Require | None]] = lambda _: nullcontext()

    def run(self) -> Iterator[BackupVerdict]:
        """Remove backups one after the other, and yield the verdict on each.

        Raises:
            RefusedError: no backup has one of the names; or other processes may have been at work
                since the look at needed objects: the rest of the backup stays.
            IntegrityError: the record of a backup is damaged.
            StorageError: the store refused a request; run the prune again.
        """
        backups = list(all_backups(self.stores, self.backup_url))
        if unknown := sorted(set(self.names) - {found.name for found in backups}):
            listing = command_line("backups", "--url", self.backup_url)
            raise RefusedError(
                f"{self.backup_url} holds no backup {unknown[0]}: `{listing}` lists its backups"
            )
        for found in backups:
            if not self.names or found.name in self.names:
                yield self._prune(found)

    def _prune(self, found: Backup) -> BackupVerdict:
        subject = found.record.subject
        ctx = self.context(subject.repository, subject.run)
        if kept := self._stays(ctx, found):
            return BackupVerdict(found, kept)
        with ExitStack() as stack:
            try:
                # Also for an empty backup: a suspended process may wake up to another backup.
                if not self.dry_run:
                    stack.enter_context(repository_lock(subject.namespace))
                require = stack.enter_context(self.alone(ctx))
                _require_unchanged(found)
                # The process that held the lease before may have swept the mark.
                kept = self._stays(ctx, found) or why_needed(ctx, found)
            except LakegcError as error:
                kept = f"it is not known whether an object of it is needed: {error}"
            if kept or self.dry_run:
                return BackupVerdict(found, kept)
            remove(found, require or (lambda: None))
            return BackupVerdict(found)

    def _stays(self, ctx: RunContext, found: Backup) -> str:
        """Return why a backup stays, before any look at needed objects; empty if it may go."""
        if found.state == "being removed":
            return ""
        swept = _swept(ctx, found)
        if young := self._young(found.record.since, swept, ctx.clocks.now()):
            return young
        return "" if found.name in self.names else _unclear(found, swept)

    def _young(self, since: datetime, swept: datetime | None, now: datetime) -> str:
        """Return why a backup is too young; empty if it is not."""
        if self.older_than is None:
            return ""
        if now - since < self.older_than:
            return f"it is {counted((now - since).days, 'day')} old"
        # Until the sweep the store held these objects, too.
        if swept is not None and now - swept < self.older_than:
            return f"its mark was swept {counted((now - swept).days, 'day')} ago"
        return ""


def _unclear(found: Backup, swept: datetime | None) -> str:
    """Return why a backup must be named to be removed; empty if it need not be."""
    by_name = f"to remove it nevertheless, name it: --backup {found.name}"
    if found.copy_of:
        return f"it is a copy of the backup {found.copy_of}; {by_name}"
    if found.state == "unfinished":
        return f"it was not finished; {by_name}"
    if swept is None:
        return f"the artifacts show no finished sweep of its mark; {by_name}"
    return ""


def _require_unchanged(found: Backup) -> None:
    """Refuse a backup that has changed since it was found: it was finished, or made anew.

    Meanwhile this process judged other backups and waited for the lease.

    Raises:
        RefusedError: the backup has changed.
    """
    now = backup_at(found.store)
    if now is None or (now.state, now.record) != (found.state, found.record):
        raise RefusedError(f"{found.store.url} has changed meanwhile: prune again")


def _swept(ctx: RunContext, found: Backup) -> datetime | None:
    """Return when the sweep of its mark ended; None if it did not end, or is unknown."""
    try:
        attempt = ctx.root.attempt(ctx.repository, ctx.run)
        if attempt.attempt != found.record.subject.attempt or not attempt.has(_SWEPT):
            return None
        return attempt.recorded(_SWEPT).finished
    except LakegcError:
        return None


def why_needed(ctx: RunContext, found: Backup) -> str:
    """Return why data is lost if a backup is removed; empty if none is."""
    subject = found.record.subject
    ctx = ctx.connect()
    if ctx.connections.namespace_url != subject.namespace:
        raise RefusedError(
            f"{subject.repository!r} is at {ctx.connections.namespace_url} now, and the backup is "
            f"of {subject.namespace}. If nothing needs it any more, remove {found.store.url} by "
            "hand"
        )
    place = placed(found.store.url, ctx.connections.stores)
    if there := repository_at(ctx.client.repositories(), ctx.connections.stores, place):
        return (
            f"{found.store.url} is in the storage namespace of repository {there.id!r} "
            f"({there.storage_namespace}), or around it: move it to a place outside, or remove it "
            "by hand if nothing needs it"
        )
    with scratch_space(ctx) as space:
        only = missing_objects(space, held_objects(space, found))
        needed = needed_now(space, subject.namespace, only) if only.rows else only
        return _advice(space, found, needed) if needed.rows else ""


def _advice(space: Workspace, found: Backup, needed: Dataset) -> str:
    """Return advice for recovering needed objects (``CAME_BACK``) from the copies of a backup."""
    restorable = found.record.finished is not None and not found.copy_of
    # A restore reads finished backups only.
    copied = recorded_copies(space, found) if restorable else space.dataset((), COPIES)
    inputs, what = (needed, copied.select("address", "size")), "find the copies of what is needed"
    wanted = space.derive("advice", _RECORDED, what, relations.with_recorded, *inputs)
    counts: Counter[str] = Counter()
    first: dict[str, Mapping[str, Any]] = {}
    for row, there in _with_copies(space, found.store, wanted):
        readable = there is not None and there.size == row["recorded"]
        state = "readable" if readable else "absent" if there is None else "by hand"
        for name in ("needed", state):
            counts[name] += 1
            first.setdefault(name, row)

    def some(what: str) -> str:
        return f"{counted(counts[what], 'object')}, for example {first[what]['address']!r}"

    subject, given = found.record.subject, space.ctx.given_settings
    of_run = subject.repository, "--run", subject.run
    restoring = command_line("restore", *of_run, "--all", settings=given)
    advice = [f"restore them first: `{restoring}`"] if counts["readable"] else []
    if counts["by hand"]:
        advice.append(
            f"a restore does not read the copies of {some('by hand')}: check whether they are "
            f"complete, and copy them by hand, from {found.store.url}/ to {subject.namespace}/, "
            "each to its own address"
        )
    if counts["absent"]:
        advice.append(
            f"the copies of {some('absent')}, are missing. If they are lost, remove "
            f"{found.store.url} by hand once all others are restored"
        )
    objects = counted(counts["needed"], "object that is", "objects that are")
    return (
        f"it holds the only copy of {objects} needed now, for example "
        f"{first['needed']['address']!r} ({first['needed']['why']}): {'; '.join(advice)}"
    )


def _with_copies(
    space: Workspace, backup: ObjectStore, wanted: Dataset
) -> Iterator[tuple[Mapping[str, Any], ObjectInfo | None]]:
    """Yield the rows of a dataset, each with the copy at its address in the backup, or None."""
    for table in space.tables(wanted):
        for at in range(0, table.num_rows, _BATCH):
            rows = table.slice(at, _BATCH).to_pylist()
            there = look_up(backup, [row["address"] for row in rows])
            yield from ((row, there[row["address"]]) for row in rows)


def remove(found: Backup, require: Require) -> None:
    """Remove a backup of which no object is needed; may be run again after a kill.

    ``require`` raises if other processes may be at work by now.

    Raises:
        RefusedError: other processes may be at work; the rest of the backup stays.
        StorageError: the store refused a request.
    """
    store = found.store
    require()
    store.put(PRUNING, found.record.to_bytes())
    # A sweep that begins from here on does not rely on it; an earlier sweep has the lease.
    require()
    remove_objects(store, [MANIFEST])
    # A restore may read the files of ``FOLDER``, so they are removed after the copies.
    remove_listed(store, "", lambda key: not key.startswith(FOLDER), require)
    remove_listed(store, "", lambda key: key not in {BEGIN, PRUNING}, require)
    require()
    remove_objects(store, [BEGIN])
    remove_objects(store, [PRUNING])
