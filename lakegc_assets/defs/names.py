"""The names of the definitions of a component, and the keys of its partitions.

Names let several components fit into one Dagster. One without a name has the plain names. One that
is called ``eu`` has the assets ``eu/...`` and the jobs, schedules, sensors, resources and
partitions ``eu_...``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import dagster as dg

from lakegc_assets.errors import ConfigurationError
from lakegc_assets.run.artifacts import MARK_ASSETS, validate_run_id
from lakegc_assets.run.command_line import Source

#: Dimensions of the partitions, and the tags by which Dagster says them of a run.
REPOSITORY: Final = "repository"
RUN: Final = "run"
#: What can be approved: the partitions of ``gc_approve``.
WAITING: Final = "waiting"
REPOSITORY_TAG: Final = "dagster/partition/repository"
RUN_TAG: Final = "dagster/partition/run"
#: Assets of one repository and one run, in the order of the graph.
RUN_ASSETS: Final = (
    *MARK_ASSETS,
    *("storage_attribution", "backup", "swept_set", "restored_set", "policy_forecast"),
)
ASSETS: Final = (*RUN_ASSETS, "repositories", "estate", "estate_leftovers")
#: Jobs of one repository and one run, and the others.
RUN_JOBS: Final = (
    "gc",
    "gc_mark",
    "gc_backup",
    "gc_sweep",
    "gc_restore",
    "gc_approve",
    "gc_forecast",
)
OTHER_JOBS: Final = ("gc_prune", "gc_estate", "gc_leftovers", "gc_accept_hold")


def partition_of(run: dg.DagsterRun) -> tuple[str | None, str | None]:
    """Repository and id of the run that a run of Dagster is on; None for one that is on none."""
    if REPOSITORY_TAG in run.tags:
        return run.tags[REPOSITORY_TAG], run.tags.get(RUN_TAG)
    # Runs of gc_approve are on a mark that waits, by the key that it has elsewhere.
    repository, bar, name = run.tags.get("dagster/partition", "").partition("|")
    return (repository, name) if bar else (None, None)


def location_of(origin: Any) -> str | None:  # noqa: ANN401 - Dagster has no public name for it
    """The name of the code location that a tick or a run is of; None where nobody knows."""
    found: str | None = None if origin is None else origin.location_name
    return found


@dataclass(frozen=True)
class Names:
    """The names of one component.

    Attributes:
        name: of the component; empty for one that has none.
        keys: of assets that a translation has changed, by their plain names.
        source: what commands that messages print take beside their options.
    """

    name: str = ""
    keys: Mapping[str, dg.AssetKey] = field(default_factory=dict)
    source: Source = field(default_factory=Source, compare=False)

    def of(self, plain: str) -> str:
        """The name of a job, schedule, sensor, resource, group, op or partitions definition."""
        return f"{self.name}_{plain}" if self.name else plain

    def key(self, asset: str) -> dg.AssetKey:
        """The key of an asset."""
        plain = dg.AssetKey([self.name, asset] if self.name else [asset])
        return self.keys.get(asset, plain)

    def selection(self, *assets: str) -> dg.AssetSelection:
        """The selection of assets."""
        return dg.AssetSelection.assets(*map(self.key, assets))

    def resources(self, *plain: str) -> set[str]:
        """The keys of resources."""
        return {self.of(one) for one in plain}

    def plain_job(self, run: dg.DagsterRun) -> str | None:
        """The plain name of the job of a run; None for a job of somebody else."""
        plain = {self.of(job): job for job in (*RUN_JOBS, *OTHER_JOBS)}
        return plain.get(run.job_name)

    def owns(self, run: dg.DagsterRun) -> bool:
        """True for a run of a job of this component, or of nothing but assets of its graph."""
        return self.plain_job(run) is not None or self.is_of_assets(run)

    def owns_at(self, run: dg.DagsterRun, location: str | None) -> bool:
        """The same of a run in this code location: another may have a component of this name."""
        origin = location_of(run.remote_job_origin)
        return (None in {location, origin} or origin == location) and self.owns(run)

    def is_of_assets(self, run: dg.DagsterRun) -> bool:
        """True for a run of a selection of assets, all of them of this component."""
        chosen: Iterable[dg.AssetKey] = run.asset_selection or ()
        ours = {self.key(asset) for asset in ASSETS}
        return run.job_name.startswith("__ASSET_JOB") and bool(chosen) and ours.issuperset(chosen)

    @property
    def repositories(self) -> dg.DynamicPartitionsDefinition:
        """The partitions of repositories, added as they come."""
        return dg.DynamicPartitionsDefinition(name=self.of(REPOSITORY))

    @property
    def runs(self) -> dg.DynamicPartitionsDefinition:
        """The partitions of runs, added as they come."""
        return dg.DynamicPartitionsDefinition(name=self.of(RUN))

    @property
    def waiting(self) -> dg.DynamicPartitionsDefinition:
        """The partitions of marks that wait for a person, by their keys in ``repository_run``."""
        return dg.DynamicPartitionsDefinition(name=self.of(WAITING))

    @property
    def repository_run(self) -> dg.MultiPartitionsDefinition:
        """The partitions of every asset of the graph: repository x run."""
        return dg.MultiPartitionsDefinition({REPOSITORY: self.repositories, RUN: self.runs})


#: Of a component that has no name.
PLAIN: Final = Names()


#: Looser than lakeFS, but nothing that Dagster would drop or that would leave the artifact root.
_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def partition_key(repository: str, run: str) -> dg.MultiPartitionKey:
    """The key of a run on a repository.

    Raises:
        ConfigurationError: a key holds what Dagster or an object store would not take.
    """
    if not _REPOSITORY.fullmatch(repository):
        raise ConfigurationError(
            f"{repository!r} cannot be the name of a repository: use letters, digits and '-'",
        )
    return dg.MultiPartitionKey({REPOSITORY: repository, RUN: validate_run_id(run)})


def multi_key(key: str) -> dg.MultiPartitionKey:
    """The key of a run on a repository, of its text; raises as ``partition_key``."""
    if isinstance(key, dg.MultiPartitionKey):
        return key
    repository, _, run = key.partition("|")
    return partition_key(repository, run)


def add_partition(
    instance: dg.DagsterInstance, repository: str, run: str, names: Names = PLAIN
) -> dg.MultiPartitionKey:
    """Add a repository and a run to the partitions, and give their key, as ``partition_key``."""
    key = partition_key(repository, run)
    instance.add_dynamic_partitions(names.of(REPOSITORY), [repository])
    instance.add_dynamic_partitions(names.of(RUN), [run])
    return key
