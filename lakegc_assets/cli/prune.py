"""The command ``prune``: removes old runs that nothing needs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from lakegc_assets.cli.options import (
    dry_run_option,
    duration,
    json_option,
    require_answer,
    yes_option,
)
from lakegc_assets.cli.output import FAILURE, echo_json, say
from lakegc_assets.wording import counted, human_bytes

if TYPE_CHECKING:
    from lakegc_assets.prune.prune import Pruned


@click.command()
@click.argument("repositories", nargs=-1, metavar="[REPOSITORY]...")
@click.option(
    "--keep-runs",
    type=duration,
    help="Keep younger runs; at least 2d. Default: keep_runs_days of the repository's policy, 30 "
    "days if the component does not set it.",
)
@dry_run_option
@yes_option
@json_option
def prune(
    repositories: tuple[str, ...],
    keep_runs: timedelta | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Remove old runs that nothing needs any more.

    Without REPOSITORY: runs of all repositories that lakeFS has.

    Removes their artifacts, partition keys, Dagster runs, and cached data that only they use. Keeps
    everything that the next mark, an undo, an approval or a backup needs, and the last three marks.
    Shows what would be removed, and asks before it removes anything.
    """
    removing = yes and not dry_run
    require_answer(as_json, yes or dry_run, "--dry-run or --yes")
    outcomes, notes = _pruned(repositories, keep_runs, dry_run=not removing)
    if not as_json:
        _show(outcomes, notes, dry_run=not removing)
    asks = not removing and not dry_run and any(one.anything for one in outcomes)
    if asks and click.confirm("Remove it?", err=True):
        outcomes, notes = _pruned(repositories, keep_runs, dry_run=False)
        _show(outcomes, notes, dry_run=False)
        removing = True
    if as_json:
        values = [one.to_json(dry_run=not removing) for one in outcomes]
        echo_json({"repositories": values, "notes": notes})
    if any(one.problem for one in outcomes):
        sys.exit(FAILURE)


def _pruned(
    repositories: Sequence[str], keep: timedelta | None, *, dry_run: bool
) -> tuple[list[Pruned], list[str]]:
    """Prune repositories (none given: all but read-only ones); an error stops no other one.

    ``keep``: age from which runs may be removed; None for that of each repository's policy.
    Returns the outcome of each repository, and sentences about other repositories.
    """
    from lakegc_assets.cli.jobs import open_instance
    from lakegc_assets.cli.site import Site
    from lakegc_assets.definitions import component
    from lakegc_assets.defs.prune import DagsterRecords
    from lakegc_assets.prune.prune import left_alone, prune_one, require_long
    from lakegc_assets.run.context import no_repository

    if keep is not None:
        require_long(keep)
    policies = component().policies()
    site = Site.defined()
    there = list(site.lakefs.connect().repositories())
    if unknown := sorted(set(repositories) - {one.id for one in there}):
        raise no_repository(site.root, unknown[0])
    names = list(dict.fromkeys(repositories)) or [one.id for one in there if not one.read_only]
    with open_instance() as instance:
        outcomes = [
            prune_one(
                site.context(name, "prune"),
                DagsterRecords(instance, site.root, name, component().names()),
                keep or timedelta(days=policies.of(name).keep_runs_days),
                dry_run=dry_run,
            )
            for name in names
        ]
    return outcomes, [] if repositories else left_alone(site.root, there)


def _show(outcomes: list[Pruned], notes: list[str], *, dry_run: bool) -> None:
    for line in [*(said for one in outcomes for said in one.sentences(dry_run=dry_run)), *notes]:
        say(line)
    click.echo(_total(outcomes, dry_run=dry_run))


def _total(outcomes: Sequence[Pruned], *, dry_run: bool) -> str:
    """The sentence about all that was removed, or would be."""
    runs = [run for one in outcomes for run in one.gone]
    rest = sum(len(one.left) + len(one.forgotten) for one in outcomes)
    counts = [
        (len(runs), "run", "runs"),
        (rest, "run without artifacts", "runs without artifacts"),
        (sum(one.cached for one in outcomes), "file of caches", "files of caches"),
    ]
    found = [counted(*each) for each in counts if each[0]]
    failed = sum(bool(one.problem) for one in outcomes)
    without = f" (without {counted(failed, 'repository', 'repositories')} with a problem)"
    end = without if failed else ""
    if not found:
        return f"nothing {'to remove' if dry_run else 'was removed'}{end}"
    size = human_bytes(sum(run.size for run in runs) + sum(one.cached_size for one in outcomes))
    return f"{'would be removed' if dry_run else 'removed'}: {', '.join(found)}, {size}{end}"
