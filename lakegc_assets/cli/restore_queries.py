"""Queries of restores and pins, for the commands."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lakegc_assets.cli.jobs import checked
from lakegc_assets.cli.queries import Site, local_context, namespace_of
from lakegc_assets.defs.resources import CollectorResource
from lakegc_assets.errors import IntegrityError
from lakegc_assets.recovery.restore.dry_run import plan
from lakegc_assets.recovery.restore.selection import Choice
from lakegc_assets.recovery.restore_record import folder, restores
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.run.command_line import command_line
from lakegc_assets.run.pins import Pin, prune_pins, read_pins
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.opening import open_store


def planned(repository: str, run: str, choice: Choice, settings: dict[str, Any]) -> dict[str, Any]:
    """Plan a restore, as JSON values, without doing it.

    Raises:
        RefusedError: as a restore would be.
    """
    with local_context(repository, run) as ctx:
        given = CollectorResource(**checked(settings)).settings()
        found = plan(replace(ctx, settings=given), choice)
        return found | {
            "warnings": [*found["warnings"], *_not_swept(ctx.root.attempt(repository, run))]
        }


def last_restore(repository: str, run: str) -> dict[str, Any]:
    """The result of the last restore of a run, as JSON values.

    Raises:
        RefusedError: there is no such run.
        IntegrityError: there is no restore of it that ended.
    """
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
    told = (
        f"no sweep of {attempt.run!r} has ended here. What is asked for is pinned, even where it "
        f"was never gone, and a sweep then spares it: `{command_line('pins', attempt.repository)}`"
    )
    return [told]


def _store(repository: str) -> ObjectStore:
    site = Site.defined()
    return open_store(namespace_of(site, repository), site.stores)


def _told(pin: Pin, state: str) -> dict[str, Any]:
    return {
        "pin": pin.id,
        "until": pin.until.isoformat(),
        "run": pin.run,
        "why": pin.why,
        "objects": pin.objects,
        "state": state,
    }


def known_pins(repository: str) -> list[dict[str, Any]]:
    """The pins of a repository, as JSON values.

    Raises:
        IntegrityError: one cannot be read.
    """
    store = _store(repository)
    now = store.server_time()
    return [_told(pin, "lasting" if pin.until > now else "ended") for pin, _ in read_pins(store)]


def pruned_pins(repository: str) -> list[dict[str, Any]]:
    """Remove the pins of a repository that have ended; which these were, as JSON values."""
    return [_told(pin, "removed") for pin in prune_pins(_store(repository))]
