"""The commands of restores: ``restore`` takes a sweep back, ``pins`` lists what stays for it."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from lakegc_assets.cli.main import FAILURE, exit_status, settings_of

_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")


@click.command()
@click.argument("repository")
@click.option("--run", "run_id", required=True, help="The mark id.")
@click.option("--all", "everything", is_flag=True, help="All that the mark names.")
@click.option(
    "--address", "addresses", multiple=True, help="An object. May be given several times."
)
@click.option("--branch", help="What a branch, tag or commit shows.")
@click.option("--path", help="Only what is at this path of the branch.")
@click.option("--prefix", help="Only what is below this prefix of the branch.")
@click.option("--dry-run", is_flag=True, help="Say what would come back, and do nothing.")
@click.option(
    "--set",
    "others",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting of the collector resource, pin_days=90 say. May be given several times.",
)
@_JSON
@exit_status
def restore(
    repository: str,
    run_id: str,
    everything: bool,  # noqa: FBT001 - an option
    addresses: tuple[str, ...],
    branch: str | None,
    path: str | None,
    prefix: str | None,
    dry_run: bool,  # noqa: FBT001 - an option
    others: tuple[str, ...],
    as_json: bool,  # noqa: FBT001 - an option
) -> None:
    """Bring back what a sweep of REPOSITORY deleted, and keep the next marks from it.

    From what the store kept, else from the backup. What is there is never overwritten. One that was
    killed is run again in the same way.
    """
    from lakegc_assets.cli.jobs import run_job  # noqa: PLC0415 - Dagster loads slowly
    from lakegc_assets.cli.restored import last_restore, planned  # noqa: PLC0415 - likewise
    from lakegc_assets.restore.choosing import Choice  # noqa: PLC0415 - likewise

    settings = settings_of(None, None, None, None, others)
    choice = Choice(everything, addresses, branch, path, prefix)
    if dry_run:
        _show_plan(planned(repository, run_id, choice, settings), as_json)
        return
    asked = choice.to_json()
    asked["branch"] = asked.pop("ref")
    given = {name: value for name, value in asked.items() if value is not None}
    run_job("gc_restore", repository, run_id, settings, {"restored_set": given})
    found = last_restore(repository, run_id)
    _show(found, as_json)
    if "not_kept" in found["outcomes"]:
        sys.exit(FAILURE)


def _show(found: dict[str, Any], as_json: bool) -> None:  # noqa: FBT001 - an option
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    click.echo(f"restore of {found['repository']}, mark {found['run']}")
    for name, total in found["outcomes"].items():
        click.echo(_line(name.replace("_", " "), total))
    for source, total in found["sources"].items():
        where = {"store": "  from what the store kept", "backup": "  from the backup"}[source]
        click.echo(_line(where, total))
    for one in found["sample"]:
        click.echo(
            f"  {one['path']} of commit {one['commit'][:12]}: was {one['before']}, {one['after']}"
        )
    if found["pinned_until"]:
        click.echo(f"  no mark takes them before {found['pinned_until'][:16]} UTC")
    for warning in found["warnings"]:
        click.echo(f"  warning: {warning}")


def _show_plan(found: dict[str, Any], as_json: bool) -> None:  # noqa: FBT001 - an option
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    click.echo(f"a restore of {found['repository']}, mark {found['run']}, would ask for")
    for name in ("chosen", "already_there", "gone", "gone_and_in_backup"):
        click.echo(_line(name.replace("_", " "), found[name]))
    click.echo(f"  {found['store']}")
    for warning in found["warnings"]:
        click.echo(f"  warning: {warning}")


def _line(name: str, total: dict[str, int]) -> str:
    from lakegc_assets.defs.metadata import human_bytes  # noqa: PLC0415 - Dagster loads slowly

    return f"  {name:<42} {total['objects']:>12,} objects {human_bytes(total['bytes']):>12}"


@click.command()
@click.argument("repository")
@click.option("--prune", is_flag=True, help="Remove those that have ended.")
@_JSON
@exit_status
def pins(repository: str, prune: bool, as_json: bool) -> None:  # noqa: FBT001 - options
    """What was restored in REPOSITORY and is left alone by marks, and until when."""
    from lakegc_assets.cli.restored import known_pins, pruned_pins  # noqa: PLC0415 - Dagster loads slowly

    found = pruned_pins(repository) if prune else known_pins(repository)
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    for one in found:
        until = f"until {one['until'][:16]} UTC ({one['state']})"
        click.echo(f"{one['pin']}\t{one['objects']:,} objects\t{until}\t{one['why']}")
