"""The commands of backups: ``backup`` makes one, ``backups`` lists them and removes old ones."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Final

import click

from lakegc_assets.cli.options import (
    dry_run_option,
    duration,
    json_option,
    run_id_option,
    setting_option,
    settings_of,
    task_options,
)
from lakegc_assets.cli.output import echo, echo_rows, figures, say
from lakegc_assets.errors import ConfigurationError, IntegrityError, LakegcError, RefusedError
from lakegc_assets.wording import counted, human_bytes

if TYPE_CHECKING:
    from lakegc_assets.cli.site import Site
    from lakegc_assets.recovery.backups import Backup, Damaged
    from lakegc_assets.run.context import RunContext

_URL_HELP: Final = "URL of the backups. Default: backup_url of the component, or LAKEGC_BACKUP_URL."
_AT = click.option("--url", help=_URL_HELP)
#: Message for a place without backups, which may be the wrong place.
_NOTHING: Final = "there are no backups here: check --url, backup_url or LAKEGC_BACKUP_URL"


@click.command()
@click.argument("repository")
@run_id_option
@setting_option("backup_url", "--url", help=_URL_HELP)
@setting_option("backup_num_partitions", "-m", "--max-maps")
@setting_option("backup_bandwidth", "--bandwidth")
@setting_option("backup_log", "--log")
@setting_option("backup_list_threads", "--num-liststatus-threads")
@setting_option("backup_distribution", "--strategy")
@task_options
def backup(repository: str, run_id: str, as_json: bool, **options: Any) -> None:  # noqa: ANN401 - settings
    """Copy the objects that a published mark of REPOSITORY names.

    Each copy is verified. After a kill, run the same command again.
    """
    from lakegc_assets.cli.jobs import run_job

    settings = settings_of(**options)
    url = settings.get("backup_url")
    place_of_backups(url)
    run_job("gc_backup", repository, run_id, settings)

    def lines(found: dict[str, Any]) -> Iterator[str]:
        yield f"backup of {repository}, mark {run_id}: {found['url']}"
        for outcome, total in found["outcomes"].items():
            yield figures(outcome, total["objects"], total["bytes"], width=12)
        for how, objects in found["verified"].items():
            yield f"  verified by {how}: {counted(objects, 'object')}"

    echo(_made(repository, run_id, url), as_json, lines)


def place_of_backups(url: str | None) -> tuple[Site, str]:
    """The site, and the root URL of its backups."""
    from lakegc_assets.cli.site import Site

    site = Site.defined({"backup_url": url} if url else {})
    place = site.settings.backup_url
    if place is None:
        raise ConfigurationError(
            "no place of backups is set: give --url, or set LAKEGC_BACKUP_URL, or backup_url of "
            "the collector resource"
        )
    return site, place


def _made(repository: str, run: str, url: str | None) -> dict[str, Any]:
    """The summary of a finished backup, as JSON values."""
    from lakegc_assets.recovery.backups import find_backup

    site, place = place_of_backups(url)
    found = find_backup(site.stores, place, repository, run)
    if found is None:
        raise IntegrityError(
            f"the backup of {repository!r}, mark {run!r}, was made and is not at {place} any more: "
            "find out what removed it, and run the same command again"
        )
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


@click.group(invoke_without_command=True)
@_AT
@json_option
@click.pass_context
def backups(ctx: click.Context, url: str | None, as_json: bool) -> None:
    """List backups: size, age, and the only copies that they hold."""
    if ctx.invoked_subcommand is not None:
        ctx.obj = url
        return
    from lakegc_assets.recovery.backups import backups_at

    site, place = place_of_backups(url)
    found = [_known(site, one) for one in backups_at(site.stores, place)]
    echo_rows(found, as_json, _line, _NOTHING)
    if wrong := [one["error"] for one in found if one["error"] is not None]:
        raise IntegrityError("; ".join(wrong))


def _known(site: Site, found: Backup | Damaged) -> dict[str, Any]:
    """A backup as JSON values; null for unknown values, and without an error."""
    from lakegc_assets.recovery.backups import Damaged

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
        "only_copies": _only_copies(site, found),
        "error": None,
    }


def _only_copies(site: Site, found: Backup) -> dict[str, int] | None:
    """Objects and bytes that the store does not hold any more; None if that is unknown."""
    import pyarrow.compute as pc

    from lakegc_assets.recovery.copies import only_copies, scratch_space

    subject = found.record.subject
    try:
        ctx = site.context(subject.repository, subject.run).connect()
        if ctx.connections.namespace_url != subject.namespace:
            return None
        with scratch_space(ctx) as space:
            only = only_copies(space, found)
            sizes = [pc.sum(rows["size"]) for rows in space.tables(only)]
    except LakegcError:
        return None
    return {"objects": only.rows, "bytes": sum(size.as_py() for size in sizes)}


def _line(one: dict[str, Any]) -> str:
    """A backup as one line of text."""
    name = f"{one['repository']}/{one['run']}"
    if one["error"] is not None:
        return f"{name}\t{one['state']}"
    state = one["state"] + (f", copied from {one['copy_of']}" if one["copy_of"] else "")
    size = ""
    if one["bytes"] is not None:
        size = f"{counted(one['objects'], 'object')}, {human_bytes(one['bytes'])}"
    only = "unknown whether the repository has them"
    if (own := one["only_copies"]) is not None:
        only = "the repository has all of them"
        if own["objects"]:
            gone = counted(own["objects"], "is gone from the repository",
                           "are gone from the repository")  # fmt: skip
            only = f"{gone}, {human_bytes(own['bytes'])}"
    return "\t".join((name, state, counted(one["age_days"], "day"), size, only))


@backups.command()
@_AT
@click.option("--older-than", type=duration, help="Only backups that are older, for example 30d.")
@click.option(
    "--backup",
    "names",
    multiple=True,
    metavar="REPOSITORY/RUN",
    help="Only this backup; it may be removed even if its mark was not swept. May be repeated.",
)
@dry_run_option
@json_option
@click.pass_obj
def prune(
    place: str | None,
    url: str | None,
    older_than: timedelta | None,
    names: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Remove whole backups, and expired trash and pins.

    Keeps a backup that holds the only copy of an object which a branch, an active commit, a tag, a
    staged write or a pin needs now. Restore that object first.
    """
    if older_than is None and not names:
        raise RefusedError("choose backups: give --older-than 30d, or --backup REPOSITORY/RUN")
    gone = "would be removed" if dry_run else "removed"
    echo_rows(
        _pruned(url or place, older_than, names, dry_run=dry_run),
        as_json,
        lambda one: f"{one['backup']}\t{(one['kept'] and 'kept: ' + one['kept']) or gone}",
        _NOTHING,
    )


def _pruned(
    url: str | None, older_than: timedelta | None, names: Collection[str], *, dry_run: bool
) -> list[dict[str, Any]]:
    """Remove backups, and return the outcome of each as JSON values; ``kept`` is null if removed.

    Also removes trash and pins of their repositories whose time is over.
    """
    from lakegc_assets.recovery.backup_pruning import Pruning
    from lakegc_assets.sweep.lease import leased_to_prune

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
    """Refuse while an alarm is open: the objects that it names must be restored first.

    No list has all objects that lakeFS serves, so only the alarm may show that one is needed.
    """
    from lakegc_assets.sweep.hold import require_no_hold

    ctx = ctx.connect()
    require_no_hold(ctx, ctx.connections.store())
    yield


def _prune_rest(ctx: RunContext, namespace: str) -> None:
    """Remove the trash and pins of a repository whose time is over, and print what stays."""
    from lakegc_assets.recovery.old_trash import prune_trash
    from lakegc_assets.run.lock import repository_lock
    from lakegc_assets.run.pins import prune_pins
    from lakegc_assets.storage.opening import open_store
    from lakegc_assets.sweep.lease import leased_to_prune

    try:
        with repository_lock(namespace), leased_to_prune(ctx) as require:
            if kept := prune_trash(ctx, namespace, require).kept:
                say(kept, err=True)
    except LakegcError as error:
        say(f"the trash of {namespace} stays: {error}", err=True)
    # A namespace that does not exist any more has no pins.
    with suppress(ConfigurationError):
        store = open_store(namespace, ctx.root.stores)
        prune_pins(store, min(ctx.clocks.readings(ctx.lakefs.connect(), store)))
