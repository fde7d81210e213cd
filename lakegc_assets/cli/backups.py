"""The commands of backups: ``backup`` makes one, ``backups`` lists them and removes old ones."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

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
from lakegc_assets.cli.output import echo, echo_rows, figures
from lakegc_assets.errors import IntegrityError, RefusedError
from lakegc_assets.wording import counted, human_bytes

_AT = click.option("--url", help="Place of the backups. Default: LAKEGC_BACKUP_URL.")
#: An empty place may be the wrong one.
_NOTHING: Final = "there are no backups at this place"


@click.command()
@click.argument("repository")
@run_id_option
@setting_option("backup_url", "--url", help="Place of the backups. Default: LAKEGC_BACKUP_URL.")
@setting_option("backup_num_partitions", "-m", "--max-maps")
@setting_option("backup_bandwidth", "--bandwidth")
@setting_option("backup_log", "--log")
@setting_option("backup_list_threads", "--num-liststatus-threads")
@setting_option("backup_distribution", "--strategy")
@task_options
def backup(repository: str, run_id: str, as_json: bool, **options: Any) -> None:  # noqa: ANN401 - settings
    """Copy what a published mark of REPOSITORY names.

    Each copy is verified. A backup that was killed is run again in the same way.
    """
    from lakegc_assets.cli.jobs import run_job
    from lakegc_assets.cli.maintenance import backup_made, place_of_backups

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

    echo(backup_made(repository, run_id, url), as_json, lines)


@click.group(invoke_without_command=True)
@_AT
@json_option
@click.pass_context
def backups(ctx: click.Context, url: str | None, as_json: bool) -> None:
    """List backups: size, age, and what only they still hold."""
    if ctx.invoked_subcommand is not None:
        ctx.obj = url
        return
    from lakegc_assets.cli.maintenance import known_backups

    found = known_backups(url)
    echo_rows(found, as_json, _line, _NOTHING)
    if wrong := [one["error"] for one in found if one["error"] is not None]:
        raise IntegrityError("; ".join(wrong))


def _line(one: dict[str, Any]) -> str:
    """A backup in words."""
    name = f"{one['repository']}/{one['run']}"
    if one["error"] is not None:
        return f"{name}\t{one['state']}"
    state = one["state"] + (f", copied from {one['copy_of']}" if one["copy_of"] else "")
    size = ""
    if one["bytes"] is not None:
        size = f"{counted(one['objects'], 'object')}, {human_bytes(one['bytes'])}"
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
@click.option("--older-than", type=duration, help="Leave younger ones: 30d, say.")
@click.option(
    "--backup",
    "names",
    multiple=True,
    metavar="REPOSITORY/RUN",
    help="Look at this one only, and let it go even if its mark was not swept. May be repeated.",
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
    """Remove whole backups, with the trash and pins that ended.

    None that holds the only copy of what a branch, an active commit, a tag, a staged write or a pin
    needs now; restore that first.
    """
    if older_than is None and not names:
        raise RefusedError("say which: --older-than 30d, or --backup REPOSITORY/RUN")
    from lakegc_assets.cli.maintenance import prune_backups

    gone = "would be removed" if dry_run else "removed"
    echo_rows(
        prune_backups(url or place, older_than, names, dry_run=dry_run),
        as_json,
        lambda one: f"{one['backup']}\t{(one['kept'] and 'kept: ' + one['kept']) or gone}",
        _NOTHING,
    )
