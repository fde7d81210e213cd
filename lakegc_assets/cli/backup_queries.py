"""Queries of backups, and their removal, for the commands."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow.compute as pc

from lakegc_assets.cli.progress import say
from lakegc_assets.cli.queries import Site
from lakegc_assets.defs.partitions import partition_key
from lakegc_assets.engine.spark import configured_by, start_session
from lakegc_assets.errors import ConfigurationError, IntegrityError, LakegcError
from lakegc_assets.recovery.backup_pruning import Pruning
from lakegc_assets.recovery.backups import find_backup
from lakegc_assets.recovery.old_trash import prune_trash
from lakegc_assets.recovery.overview import Damaged, Found, backups_at, only_copies
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.lock import repository_lock
from lakegc_assets.run.pins import prune_pins
from lakegc_assets.storage.opening import open_store
from lakegc_assets.sweep.hold import require_no_hold
from lakegc_assets.sweep.leased import leased_to_prune


def _site(url: str | None) -> tuple[Site, str]:
    """The site, and the place of its backups.

    Raises:
        ConfigurationError: none is set.
    """
    site = Site.defined(url)
    place = site.settings.backup_url
    if place is None:
        raise ConfigurationError(
            "no place of backups is set: give --url, or set LAKEGC_BACKUP_URL, or backup_url of "
            "the collector resource"
        )
    return site, place


def require_place(url: str | None) -> None:
    """Refuse to go on where no place of backups is set.

    Raises:
        ConfigurationError: none is.
    """
    _site(url)


def backup_made(repository: str, run: str, url: str | None) -> dict[str, Any]:
    """The summary of a finished backup, as JSON values.

    Raises:
        IntegrityError: it is not there, or is damaged.
    """
    site, place = _site(url)
    found = find_backup(site.stores, place, repository, run)
    if found is None:
        raise IntegrityError(f"the backup of {repository!r}, mark {run!r}, is not there any more")
    record = found.record
    return {
        "repository": repository,
        "run": run,
        "url": found.store.url,
        "objects": record.objects,
        "bytes": record.size,
        "outcomes": record.outcomes,
        "verified": record.verified,
        "begun": record.begun.isoformat(),
        "finished": record.since.isoformat(),
    }


def known_backups(url: str | None) -> list[dict[str, Any]]:
    """The backups at a place, as JSON values; null where nobody can tell, or nothing is wrong.

    Raises:
        ConfigurationError: no place is set.
    """
    site, place = _site(url)
    return [_told(site, found) for found in backups_at(site.stores, place)]


def _told(site: Site, found: Found | Damaged) -> dict[str, Any]:
    if isinstance(found, Damaged):
        known = {"repository": found.repository, "run": found.run, "url": found.url}
        unknown = ("copy_of", "begun", "finished", "age_days", "objects", "bytes", "only_copies")
        return {**known, "state": "damaged", **dict.fromkeys(unknown), "error": str(found.error)}
    record, (repository, run) = found.record, found.name.split("/")
    finished = record.finished is not None
    return {
        "repository": repository,
        "run": run,
        "copy_of": found.copy_of or None,
        "url": found.store.url,
        "state": found.state,
        "begun": record.begun.isoformat(),
        "finished": record.finished and record.finished.isoformat(),
        "age_days": (datetime.now(timezone.utc) - record.since).days,
        "objects": record.objects if finished else None,
        "bytes": record.size if finished else None,
        "only_copies": _only(site, found),
        "error": None,
    }


def _only(site: Site, found: Found) -> dict[str, int] | None:
    """Objects and bytes that the store does not hold any more; None where nobody can tell."""
    subject = found.record.subject
    try:
        _, connections = _context(site, subject.repository, subject.run).connect()
        if connections.namespace_url != subject.namespace:
            return None
        rows = only_copies(found, connections.store(), site.settings.backup_list_threads)
    except LakegcError:
        return None
    return {"objects": rows.num_rows, "bytes": pc.sum(rows["size"]).as_py() or 0}


def prune_backups(
    url: str | None, older_than: timedelta | None, names: Collection[str], *, dry_run: bool
) -> list[dict[str, Any]]:
    """Remove backups; what became of each, as JSON values: ``kept`` is null where it goes.

    Trash and pins of their repositories whose time is over go with them.

    Raises:
        RefusedError: there is no backup of a name.
        StorageError: the store refused something.
    """
    site, place = _site(url)

    def context(repository: str, run: str) -> RunContext:
        return _context(site, repository, run)

    alone = _not_held if dry_run else leased_to_prune
    pruning = Pruning(context, site.stores, place, older_than, names, dry_run=dry_run, alone=alone)
    judged = list(pruning.run())
    if not dry_run:
        subjects = [one.found.record.subject for one in judged]
        for repository, namespace in {(s.repository, s.namespace): None for s in subjects}:
            _prune_rest(_context(site, repository, "any"), namespace)
    return [
        {
            "backup": one.found.name,
            "url": one.found.store.url,
            "objects": one.found.record.objects,
            "bytes": one.found.record.size,
            "removed": not one.kept and not dry_run,
            "kept": one.kept or None,
        }
        for one in judged
    ]


@contextmanager
def _not_held(ctx: RunContext) -> Iterator[None]:
    """Refuse while an alarm has not been looked at: what it names is to be restored first.

    Not all that lakeFS serves is listed anywhere, so only the alarm may know that it is needed.
    """
    _, connections = ctx.connect()
    require_no_hold(ctx, connections.store())
    yield


def _prune_rest(ctx: RunContext, namespace: str) -> None:
    """Remove the trash and the pins of a repository whose time is over, and say what stays."""
    try:
        with repository_lock(namespace), leased_to_prune(ctx):
            if kept := prune_trash(ctx, namespace).kept:
                say(kept)
    except LakegcError as error:
        say(f"the trash of {namespace} stays: {error}")
    # A namespace that does not exist any more has no pins.
    with suppress(ConfigurationError):
        prune_pins(open_store(namespace, ctx.root.stores))


def _context(site: Site, repository: str, run: str) -> RunContext:
    partition_key(repository, run)
    return RunContext(
        repository=repository,
        run=run,
        settings=site.settings_of(repository),
        lakefs=site.lakefs,
        root=site.root,
        session=start_session,
        spark_configured_by=configured_by(),
    )
