"""The commands of backups: ``backup`` makes one, ``backups`` lists them and removes old ones."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import click

from lakegc_assets.cli.exits import exit_status
from lakegc_assets.cli.options import (
    Duration,
    json_option,
    run_id_option,
    settings_of,
    task_options,
)
from lakegc_assets.defs.units import human_bytes
from lakegc_assets.errors import ConfigurationError, IntegrityError, RefusedError
from lakegc_assets.wording import aligned, counted

#: Our settings by the options of the job that these replace.
_SETTINGS = {
    "url": "backup_url",
    "maps": "backup_num_partitions",
    "bandwidth": "backup_bandwidth",
    "log": "backup_log",
    "list_threads": "backup_list_threads",
    "strategy": "backup_distribution",
}
_AT = click.option("--url", help="Place of the backups. Default: LAKEGC_BACKUP_URL.")


@click.command()
@click.argument("repository")
@run_id_option
@_AT
@click.option("-m", "--max-maps", "maps", type=int, help="The most tasks that copy. Default 20.")
@click.option("--bandwidth", type=float, help="MB/s of all tasks together. Default: no limit.")
@click.option("--log", help="Folder or URL of logs with one line for each object.")
@click.option("--num-liststatus-threads", "list_threads", type=int, help="1 to 40. Default 8.")
@click.option(
    "--strategy",
    type=click.Choice(["dynamic", "uniform"]),
    help="Let tasks take portions as they go, which is the default, or give each one.",
)
@task_options
@exit_status
def backup(
    repository: str,
    run_id: str,
    as_json: bool,
    **options: Any,  # noqa: ANN401 - settings by their options
) -> None:
    """Copy what a published mark of REPOSITORY names.

    Each copy is verified. A backup that was killed is run again in the same way.
    """
    from lakegc_assets.cli.jobs import run_job
    from lakegc_assets.cli.maintenance import backup_made, require_place

    own = {setting: options.pop(name) for name, setting in _SETTINGS.items()}
    settings = settings_of(**options)
    for setting, value in own.items():
        if value is not None:
            if setting in settings:
                raise ConfigurationError(f"--set {setting}: it is given twice")
            settings[setting] = value
    require_place(settings.get("backup_url"))
    run_job("gc_backup", repository, run_id, settings)
    found = backup_made(repository, run_id, settings.get("backup_url"))
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    click.echo(f"backup of {repository}, mark {run_id}: {found['url']}")
    for outcome, total in found["outcomes"].items():
        click.echo(f"  {outcome:<10} {aligned(total['objects'])} {human_bytes(total['bytes']):>12}")
    for how, objects in found["verified"].items():
        click.echo(f"  verified by {how}: {counted(objects, 'object')}")


@click.group(invoke_without_command=True)
@_AT
@json_option
@click.pass_context
@exit_status
def backups(ctx: click.Context, url: str | None, as_json: bool) -> None:
    """List backups: size, age, and what only they still hold."""
    if ctx.invoked_subcommand is not None:
        ctx.obj = url
        return
    from lakegc_assets.cli.maintenance import known_backups

    found = known_backups(url)
    if as_json:
        click.echo(json.dumps(found, indent=1))
    else:
        _say_none(found)
        for one in found:
            click.echo(_line(one))
    if wrong := [one["error"] for one in found if one["error"] is not None]:
        raise IntegrityError("; ".join(wrong))


def _line(one: dict[str, Any]) -> str:
    """A backup in words."""
    name = f"{one['repository']}/{one['run']}"
    if one["error"] is not None:
        return f"{name}\t{one['state']}"
    state = one["state"] + (f", copied from {one['copy_of']}" if one["copy_of"] else "")
    size = (
        ""
        if one["bytes"] is None
        else f"{counted(one['objects'], 'object')}, {human_bytes(one['bytes'])}"
    )
    only = "nobody can tell what else holds them"
    if (own := one["only_copies"]) is not None:
        only = "the repository has all of them"
        if own["objects"]:
            gone = counted(own["objects"], "is gone from the repository",
                           "are gone from the repository")  # fmt: skip
            only = f"{gone}, {human_bytes(own['bytes'])}"
    return "\t".join((name, state, counted(one["age_days"], "day"), size, only))


@backups.command()
@_AT
@click.option("--older-than", type=Duration(), help="Leave younger ones: 30d, say.")
@click.option(
    "--backup",
    "names",
    multiple=True,
    metavar="REPOSITORY/RUN",
    help="Look at this one only, and let it go even if its mark was not swept. May be repeated.",
)
@click.option("--dry-run", is_flag=True, help="Say what would go, and remove nothing.")
@json_option
@click.pass_obj
@exit_status
def prune(
    place: str | None,
    url: str | None,
    older_than: timedelta | None,
    names: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Remove whole backups, with the trash and pins that ended.

    None that holds the only copy of what a branch, an active commit, a tag, a staged write or a pin
    needs now; restore that first.
    """
    if older_than is None and not names:
        raise RefusedError("say which: --older-than 30d, or --backup REPOSITORY/RUN")
    from lakegc_assets.cli.maintenance import prune_backups

    found = prune_backups(url or place, older_than, names, dry_run=dry_run)
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    _say_none(found)
    gone = "would be removed" if dry_run else "removed"
    for one in found:
        click.echo(f"{one['backup']}\t{(one['kept'] and 'kept: ' + one['kept']) or gone}")


def _say_none(found: list[dict[str, Any]]) -> None:
    """Warn that an empty place may be the wrong one."""
    if not found:
        click.echo("there are no backups at this place", err=True)
