"""Restores, pins, backups, approvals and prunes, for the commands."""

from __future__ import annotations

import getpass
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow.compute as pc

from lakegc_assets.cli.jobs import configured, open_instance, run_job, say
from lakegc_assets.cli.site import Site, run_context
from lakegc_assets.definitions import component
from lakegc_assets.defs.prune import DagsterRecords
from lakegc_assets.engine.datasets import read_parts
from lakegc_assets.errors import ConfigurationError, IntegrityError, LakegcError
from lakegc_assets.estate.repository_state import APPROVED, PERSON, UNREADABLE, Standing, standings
from lakegc_assets.estate.run_state import ON_HOLD, REFUSED
from lakegc_assets.lakefs.client import utc_now
from lakegc_assets.prune.prune import Outcome, left_alone, prune_one, require_long
from lakegc_assets.recovery.backup_pruning import Pruning
from lakegc_assets.recovery.backups import Backup, Damaged, backups_at, find_backup
from lakegc_assets.recovery.copies import only_copies, scratch_space
from lakegc_assets.recovery.old_trash import prune_trash
from lakegc_assets.recovery.restore.dry_run import plan
from lakegc_assets.recovery.restore.selection import Choice
from lakegc_assets.recovery.restore_record import folder, restores
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.run.command_line import command_line
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.lock import repository_lock
from lakegc_assets.run.pins import prune_pins
from lakegc_assets.storage.opening import open_store
from lakegc_assets.sweep.approval import Approval, approval_of
from lakegc_assets.sweep.hold import require_no_hold
from lakegc_assets.sweep.lease import leased_to_prune


def planned(repository: str, run: str, choice: Choice, settings: dict[str, Any]) -> dict[str, Any]:
    """Plan a restore, as JSON values, without doing it."""
    ctx = run_context(repository, run)
    found = plan(replace(ctx, settings=configured(settings)), choice)
    warnings = [*found["warnings"], *_not_swept(ctx.root.attempt(repository, run))]
    return found | {"warnings": warnings}


def last_restore(repository: str, run: str) -> dict[str, Any]:
    """The result of the last restore of a run that ended, as JSON values."""
    attempt = Site.defined().attempt(repository, run)
    ended = [one for one in restores(attempt) if attempt.has(folder(one))]
    if not ended:
        raise IntegrityError(f"no restore of {run!r} ended")
    manifests = [attempt.manifest(folder(one)) for one in ended]
    last = max(manifests, key=lambda manifest: manifest.finished)
    return {
        "repository": repository,
        "run": run,
        **last.facts,
        "warnings": [*last.facts["warnings"], *_not_swept(attempt)],
        "artifacts": f"{attempt.url}/{last.asset}",
    }


def _not_swept(attempt: AttemptArtifacts) -> list[str]:
    """Warnings about the restore of objects that may never have been deleted."""
    if attempt.has("swept_set"):
        return []
    command = command_line("pins", attempt.repository)
    warning = (
        f"no sweep of {attempt.run!r} has ended here. What is asked for is pinned, even where it "
        f"was never gone, and a sweep then spares it: `{command}`"
    )
    return [warning]


def place_of_backups(url: str | None) -> tuple[Site, str]:
    """The site, and the place of its backups."""
    site = Site.defined(url)
    place = site.settings.backup_url
    if place is None:
        raise ConfigurationError(
            "no place of backups is set: give --url, or set LAKEGC_BACKUP_URL, or backup_url of "
            "the collector resource"
        )
    return site, place


def backup_made(repository: str, run: str, url: str | None) -> dict[str, Any]:
    """The summary of a finished backup, as JSON values."""
    site, place = place_of_backups(url)
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
    """The backups at a place, as JSON values; null where nobody can tell, or nothing is wrong."""
    site, place = place_of_backups(url)
    return [_backup(site, found) for found in backups_at(site.stores, place)]


def _backup(site: Site, found: Backup | Damaged) -> dict[str, Any]:
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


def _only(site: Site, found: Backup) -> dict[str, int] | None:
    """Objects and bytes that the store does not hold any more; None where nobody can tell."""
    subject = found.record.subject
    try:
        ctx = site.context(subject.repository, subject.run).connect()
        if ctx.connections.namespace_url != subject.namespace:
            return None
        with scratch_space(ctx) as space:
            parts = only_copies(space, found)
            sizes = [pc.sum(rows["size"]) for rows in read_parts(space.attempt.store(), parts)]
    except LakegcError:
        return None
    return {
        "objects": sum(part.rows for part in parts),
        "bytes": sum(size.as_py() for size in sizes),
    }


def prune_backups(
    url: str | None, older_than: timedelta | None, names: Collection[str], *, dry_run: bool
) -> list[dict[str, Any]]:
    """Remove backups; what became of each, as JSON values: ``kept`` is null where it goes.

    Trash and pins of their repositories whose time is over go with them.
    """
    site, place = place_of_backups(url)
    alone = not_held if dry_run else leased_to_prune
    pruning = Pruning(
        site.context, site.stores, place, older_than, names, dry_run=dry_run, alone=alone
    )
    judged = list(pruning.run())
    if not dry_run:
        subjects = [one.found.record.subject for one in judged]
        for repository, namespace in {(s.repository, s.namespace): None for s in subjects}:
            _prune_rest(site.context(repository, "any"), namespace)
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
def not_held(ctx: RunContext) -> Iterator[None]:
    """Refuse while an alarm has not been looked at: what it names is to be restored first.

    Not all that lakeFS serves is listed anywhere, so only the alarm may know that it is needed.
    """
    ctx = ctx.connect()
    require_no_hold(ctx, ctx.connections.store())
    yield


def _prune_rest(ctx: RunContext, namespace: str) -> None:
    """Remove the trash and the pins of a repository whose time is over, and say what stays."""
    try:
        with repository_lock(namespace), leased_to_prune(ctx) as require:
            if kept := prune_trash(ctx, namespace, require).kept:
                say(kept)
    except LakegcError as error:
        say(f"the trash of {namespace} stays: {error}")
    # A namespace that does not exist any more has no pins.
    with suppress(ConfigurationError):
        prune_pins(open_store(namespace, ctx.root.stores))


def approve(
    repository: str, run: str, by: str | None, share: float | None, settings: dict[str, Any]
) -> Approval:
    """Run the job ``gc_approve`` in this process."""
    config: dict[str, Any] = {"by": getpass.getuser() if by is None else by}
    if share is not None:
        config["max_candidate_share"] = share
    run_job("gc_approve", repository, run, settings, {"approve": config})
    approval = approval_of(Site.defined().attempt(repository, run), utc_now())
    if approval is None:
        raise LakegcError(f"the approval of mark {run!r} of {repository!r} was not recorded")
    return approval


def pending() -> list[dict[str, Any]]:
    """The conditions for which the last mark of each repository waits, as JSON values."""
    site = Site.defined()
    names = [r.id for r in site.lakefs.connect().repositories() if not r.read_only]
    found = standings(site.root, names, lambda _: "approved", utc_now(), checked=True)
    return [_waiting(one) for one in found if one.state in {*PERSON, APPROVED}]


def _waiting(one: Standing) -> dict[str, Any]:
    found: dict[str, Any] = {
        "repository": one.repository,
        "run": one.run,
        "state": one.state,
        "because": one.because,
    }
    if one.state not in {UNREADABLE, REFUSED, ON_HOLD}:
        found |= {"objects": one.garbage, "bytes": one.garbage_size}
    return found


def prune_runs(
    repositories: Sequence[str], keep: timedelta, *, dry_run: bool
) -> tuple[list[Outcome], list[str]]:
    """Prune repositories, none for all but read-only ones, whatever becomes of one of them.

    Returns the outcome of each; and sentences about others.
    """
    require_long(keep)
    site = Site.defined()
    there = list(site.lakefs.connect().repositories())
    if unknown := sorted(set(repositories) - {one.id for one in there}):
        raise ConfigurationError(
            f"there is no repository {unknown[0]!r}: `lakegc repositories` lists them"
        )
    names = list(dict.fromkeys(repositories)) or [one.id for one in there if not one.read_only]
    with open_instance() as instance:
        outcomes = [
            prune_one(
                site.context(name, "prune"),
                DagsterRecords(instance, site.root, name, component().names()),
                keep,
                dry_run=dry_run,
            )
            for name in names
        ]
    return outcomes, [] if repositories else left_alone(site.root, there)
