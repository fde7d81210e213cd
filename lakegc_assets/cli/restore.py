"""The commands of restores: ``restore`` undoes a sweep, ``pins`` lists the protected objects."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from lakegc_assets.cli.options import json_option, run_id_option, settings_of, task_options
from lakegc_assets.cli.output import FAILURE, echo, echo_rows, figures, printable
from lakegc_assets.errors import IntegrityError
from lakegc_assets.run.command_line import command_line
from lakegc_assets.wording import counted, minute

if TYPE_CHECKING:
    from lakegc_assets.recovery.restore.selection import Choice
    from lakegc_assets.run.artifacts import AttemptArtifacts

#: Most sampled objects that are named although they can be read.
_SHOWN = 3
#: Most lost objects that are named.
_LOST_SHOWN = 10
#: Objects that a restore would not bring back, or about which nothing is known.
_GAPS = ("lost", "not_known")
#: Sources that a dry run names even if no object comes from them.
_ALWAYS = ("versions", "trash", "backup")


@click.command()
@click.argument("repository")
@run_id_option
@click.option("--all", "everything", is_flag=True, help="All objects that the mark names.")
@click.option(
    "--address",
    "addresses",
    multiple=True,
    help="The object at this address. May be repeated.",
)
@click.option("--branch", help="The objects that this branch, tag or commit shows.")
@click.option("--path", help="With --branch: only the object at this path.")
@click.option("--prefix", help="With --branch: only the objects below this prefix.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Only show what would come back; status 1 if an object is lost or not known.",
)
@task_options
def restore(
    repository: str,
    run_id: str,
    everything: bool,
    addresses: tuple[str, ...],
    branch: str | None,
    path: str | None,
    prefix: str | None,
    dry_run: bool,
    engine: str | None,
    others: tuple[str, ...],
    as_json: bool,
) -> None:
    """Bring back objects that a sweep of REPOSITORY deleted.

    They come from copies that the store kept, else from the backup. Existing objects are never
    overwritten, and the next marks spare restored objects for pin_days. After a kill, run the same
    command again. Choose the objects by --all, --address, or --branch, also with --path or
    --prefix.

    --dry-run first shows how many objects would come back, from where, and how many are lost. If
    any is lost or not known, it ends with status 1. If a sweep has deleted too much, docs/undo.md
    explains each step.
    """
    from lakegc_assets.cli.jobs import run_job
    from lakegc_assets.recovery.restore.selection import Choice

    settings = settings_of(others, engine=engine)
    choice = Choice(everything, addresses, branch, path, prefix)
    if dry_run:
        plan = _planned(repository, run_id, choice, settings)
        echo(plan, as_json, _plan)
        if any(plan[gap]["objects"] for gap in _GAPS):
            sys.exit(FAILURE)
        return
    asked = choice.to_json()
    asked["branch"] = asked.pop("ref")
    given = {name: value for name, value in asked.items() if value is not None}
    run_job("gc_restore", repository, run_id, settings, {"restored_set": given})
    found = last_restore(repository, run_id)
    echo(found, as_json, _restored)
    if "not_kept" in found["outcomes"]:
        sys.exit(FAILURE)


def _planned(repository: str, run: str, choice: Choice, settings: dict[str, Any]) -> dict[str, Any]:
    """Plan a restore, as JSON values, without doing it."""
    from lakegc_assets.cli.jobs import checked
    from lakegc_assets.cli.site import run_context
    from lakegc_assets.recovery.restore.dry_run import plan

    ctx = run_context(repository, run, checked(settings))
    found = plan(ctx, choice)
    return found | {
        "warnings": [*found["warnings"], *_not_swept(ctx.root.attempt(repository, run))]
    }


def last_restore(repository: str, run: str) -> dict[str, Any]:
    """The result of the last restore of a run that ended, as JSON values."""
    from lakegc_assets.cli.site import Site
    from lakegc_assets.recovery.restore_record import folder, restores

    attempt = Site.defined().attempt(repository, run)
    ended = [one for one in restores(attempt) if attempt.has(folder(one))]
    if not ended:
        raise IntegrityError(
            f"no finished restore of {run!r} is recorded in {attempt.url}: run the same restore "
            "again, which overwrites no object"
        )
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
        f"no sweep of {attempt.run!r} has ended here. All chosen objects are pinned, even if they "
        f"were never deleted, and sweeps spare pinned objects: `{command}`"
    )
    return [warning]


def _restored(found: dict[str, Any]) -> Iterator[str]:
    yield f"restore of {found['repository']}, mark {found['run']}"
    for name, total in found["outcomes"].items():
        yield figures(name.replace("_", " "), total["objects"], total["bytes"])
    for source, total in found["sources"].items():
        where = {"store": "from what the store kept", "backup": "from the backup"}[source]
        yield figures(where, total["objects"], total["bytes"], indent=4)
    yield from _sample(found["sample"])
    yield f"  engine     {found.get('engine', 'unknown')}"
    if found["pinned_until"]:
        yield f"  marks spare them until {minute(found['pinned_until'])}"
    for warning in found["warnings"]:
        yield f"  warning: {warning}"


def _sample(sample: list[dict[str, str]]) -> Iterator[str]:
    """Reads of restored objects through lakeFS: all failed ones, and some of the others."""
    reads = [one for one in sample if one["after"] == "reads"]
    for one in [*(one for one in sample if one not in reads), *reads[:_SHOWN]]:
        path, commit = printable(one["path"]), one["commit"][:12]
        yield f"  {path} of commit {commit}: was {one['before']}, {one['after']}"
    if len(reads) > _SHOWN:
        yield f"  and {len(reads) - _SHOWN} more of the sample read through lakeFS"


def _plan(found: dict[str, Any]) -> Iterator[str]:
    yield _answer(found)
    for name in ("chosen", "already_there", "would_come_back", *_GAPS):
        total = found[name]
        yield figures(name.replace("_", " "), total["objects"], total["bytes"])
        for one in total.get("some", ())[:_LOST_SHOWN]:
            yield f"    {one['address']}{': ' if one['why'] else ''}{one['why']}"
    yield f"  {found['store']}"
    for warning in found["warnings"]:
        yield f"  warning: {warning}"


def _answer(found: dict[str, Any]) -> str:
    """The first sentence of a dry run: numbers of recoverable, lost and unknown objects."""
    back = found["would_come_back"]
    sources = ", ".join(
        f"{source.replace('_', ' ')} {count:,}"
        for source, count in back["from"].items()
        if count or source in _ALWAYS
    )
    answer = f"would come back {back['objects']:,} ({sources}), lost {found['lost']['objects']:,}"
    unknown = found["not_known"]["objects"]
    return f"{answer}, not known {unknown:,}" if unknown else answer


@click.command()
@click.argument("repository")
@click.option("--prune", is_flag=True, help="Remove the pins that have ended.")
@json_option
def pins(repository: str, prune: bool, as_json: bool) -> None:
    """Show until when marks spare restored objects."""
    from lakegc_assets.cli.site import Site
    from lakegc_assets.run.clocks import SYSTEM_CLOCKS
    from lakegc_assets.run.pins import prune_pins, read_pins

    site = Site.defined()
    store = site.store(repository)
    if prune:
        times = SYSTEM_CLOCKS.readings(site.lakefs.connect(), store)
        known = [(pin, "removed") for pin in prune_pins(store, min(times))]
    else:
        now = store.server_time()
        known = [(pin, "lasting" if pin.until > now else "ended") for pin, _ in read_pins(store)]
    found = [
        {
            "pin": pin.id,
            "until": pin.until.isoformat(),
            "run": pin.run,
            "why": pin.why,
            "objects": pin.objects,
            "state": state,
        }
        for pin, state in known
    ]

    def line(one: dict[str, Any]) -> str:
        until = f"until {minute(one['until'])} ({one['state']})"
        return f"{one['pin']}\t{counted(one['objects'], 'object')}\t{until}\t{one['why']}"

    what = "pins that have ended" if prune else "pins"
    echo_rows(found, as_json, line, f"there are no {what} in {repository!r}")
