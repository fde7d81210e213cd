"""Plans and execution of the command ``prune``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from lakegc_assets.cli.jobs import open_instance
from lakegc_assets.cli.queries import Site
from lakegc_assets.definitions import component
from lakegc_assets.defs.partitions import partition_key
from lakegc_assets.defs.prune import DagsterRecords, Outcome, left_alone, prune_one
from lakegc_assets.engine.spark import configured_by, start_session
from lakegc_assets.errors import ConfigurationError
from lakegc_assets.prune.prune import require_long
from lakegc_assets.run.context import RunContext


def prune_runs(
    repositories: Sequence[str], keep: timedelta, *, dry_run: bool
) -> tuple[list[Outcome], list[str]]:
    """Prune repositories, whatever becomes of one of them.

    Args:
        repositories: their names; none for all that the server has, but those that are read-only.
        keep: younger runs stay.
        dry_run: say what would go.

    Returns:
        What became of each; and what is to be known of others, in sentences.

    Raises:
        ConfigurationError: the server has none of such a name, or the time is too short.
        LakegcError: the server does not answer.
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
                _context(site, name),
                DagsterRecords(instance, site.root, name, component().names()),
                keep,
                dry_run=dry_run,
            )
            for name in names
        ]
    return outcomes, [] if repositories else left_alone(site.root, there)


def _context(site: Site, repository: str) -> RunContext:
    run = partition_key(repository, "prune").keys_by_dimension["run"]
    return RunContext(
        repository=repository,
        run=run,
        settings=site.settings_of(repository),
        lakefs=site.lakefs,
        root=site.root,
        session=start_session,
        spark_configured_by=configured_by(),
    )


def as_values(outcome: Outcome, *, dry_run: bool) -> dict[str, Any]:
    """The result of a repository as JSON values: ``kept`` is null where a run goes."""
    pruned = outcome.pruned
    return {
        "repository": outcome.repository,
        "problem": outcome.problem or None,
        "runs": [
            asdict(one) | {"kept": one.kept or None, "removed": not one.kept and not dry_run}
            for one in (pruned.runs if pruned else ())
        ],
        "left": list(pruned.left) if pruned else [],
        "only_in_dagster": list(outcome.forgotten),
        "cached": pruned.cached if pruned else 0,
        "cached_size": pruned.cached_size if pruned else 0,
        "notes": list(pruned.notes) if pruned else [],
    }
