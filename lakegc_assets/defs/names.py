"""The names of the definitions of a component, the keys of its partitions, and the tags of runs.

Names let several components fit into one Dagster. One without a name has the plain names. One that
is called ``eu`` has the assets ``eu/...`` and the jobs, schedules, sensors, resources and
partitions ``eu_...``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import dagster as dg

from lakegc_assets.errors import ConfigurationError, RefusedError
from lakegc_assets.run.artifacts import MARK_ASSETS, is_name, validate_run_id
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
#: With runs of which ``gc_resume`` goes on, and how often where their processes were killed.
RESUMED_JOBS: Final = ("gc", "gc_mark", "gc_sweep")
_RESUMES: Final = 3
OTHER_JOBS: Final = ("gc_prune", "gc_estate", "gc_leftovers", "gc_accept_hold")


def partition_of(run: dg.DagsterRun) -> tuple[str | None, str | None]:
    """The repository and run id in the partition of a Dagster run; None without a partition."""
    if REPOSITORY_TAG in run.tags:
        return run.tags[REPOSITORY_TAG], run.tags.get(RUN_TAG)
    # Runs of gc_approve are on a mark that waits, by the key that it has elsewhere.
    repository, bar, name = run.tags.get("dagster/partition", "").partition("|")
    return (repository, name) if bar else (None, None)


def location_of(origin: Any) -> str | None:  # noqa: ANN401 - Dagster has no public name for it
    """The name of the code location of a tick or a run; None if it is unknown."""
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

    def all_of(self, *plain: str) -> set[str]:
        """The names of several definitions, as ``of`` returns them."""
        return {self.of(one) for one in plain}

    def plain_job(self, run: dg.DagsterRun) -> str | None:
        """The plain name of the job of a run; None for a job outside this component."""
        plain = {self.of(job): job for job in (*RUN_JOBS, *OTHER_JOBS)}
        return plain.get(run.job_name)

    def owns(self, run: dg.DagsterRun) -> bool:
        """True for a run of a job of this component, or of nothing but assets of its graph."""
        return self.plain_job(run) is not None or self.is_of_assets(run)

    def owns_at(self, run: dg.DagsterRun, location: str | None) -> bool:
        """True as ``owns``, of a run in this code location: another may have the same names."""
        origin = location_of(run.remote_job_origin)
        return (None in {location, origin} or origin == location) and self.owns(run)

    def is_of_assets(self, run: dg.DagsterRun) -> bool:
        """True for a run of a selection of assets, all of them of this component."""
        chosen: Iterable[dg.AssetKey] = run.asset_selection or ()
        ours = {self.key(asset) for asset in ASSETS}
        return run.job_name.startswith("__ASSET_JOB") and bool(chosen) and ours.issuperset(chosen)

    def is_resumed(self, run: dg.DagsterRun, *, transient: bool | None) -> bool:
        """True for a failed run of ours with which ``gc_resume`` goes on, where it is on.

        ``transient`` is as ``failed_for_a_while`` returns it; a run that no step failed in was cut
        off.
        """
        if self.plain_job(run) not in RESUMED_JOBS and not self.is_of_assets(run):
            return False
        if RUN_TAG not in run.tags or transient is False:
            return False
        return RETRIED_TAG not in run.tags if transient else resumed_before(run) < _RESUMES

    @property
    def repositories(self) -> dg.DynamicPartitionsDefinition:
        """The dynamic partitions of repositories."""
        return dg.DynamicPartitionsDefinition(name=self.of(REPOSITORY))

    @property
    def runs(self) -> dg.DynamicPartitionsDefinition:
        """The dynamic partitions of runs."""
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


def partition_key(repository: str, run: str) -> dg.MultiPartitionKey:
    """The key of a run on a repository.

    Raises:
        ConfigurationError: a key holds what Dagster or an object store would not take.
    """
    if not is_name(repository):
        raise ConfigurationError(
            f"{repository!r} cannot be the name of a repository: use letters, digits and '-'",
        )
    return dg.MultiPartitionKey({REPOSITORY: repository, RUN: validate_run_id(run)})


def parsed_key(key: str) -> tuple[str, str]:
    """The repository and the id of the run of a key, which is checked as ``partition_key`` does."""
    repository, _, run = key.partition("|")
    partition_key(repository, run)
    return repository, run


def add_partition(
    instance: dg.DagsterInstance, repository: str, run: str, names: Names = PLAIN
) -> dg.MultiPartitionKey:
    """Add a repository and a run to the partitions, and give their key, as ``partition_key``."""
    key = partition_key(repository, run)
    instance.add_dynamic_partitions(names.of(REPOSITORY), [repository])
    instance.add_dynamic_partitions(names.of(RUN), [run])
    return key


# Tags of runs that are started without a person, and how a run knows what it is

#: The repository of a run, also where that has no partition of it.
OWN_REPOSITORY_TAG: Final = "lakegc/repository"
WAVE_TAG: Final = "lakegc/wave"
MODE_TAG: Final = "lakegc/mode"
#: How often a run that was cut off was started again.
RESUMED_TAG: Final = "lakegc/resumed"
#: It is the second try of a run that failed for a reason that may pass.
RETRIED_TAG: Final = "lakegc/retried"
#: A person asked for the run that this one goes on with.
ASKED_TAG: Final = "lakegc/asked"
#: What a run that ended with its mark waits for, in a sentence.
WAITS_TAG: Final = "lakegc/waits"

#: Characters of a tag, at most.
_TAG: Final = 600

#: Of runs that Dagster itself is about to start again.
_WILL_RETRY_TAG: Final = "dagster/will_retry"
#: Jobs of one step, which begins where it was: Dagster may start them again as they are where their
#: process died. What has failed by itself would fail again, and Dagster's own default is to try.
RETRIES: Final = {
    "dagster/max_retries": "3",
    "dagster/retry_strategy": "ALL_STEPS",
    "dagster/retry_on_asset_or_op_failure": "false",
}
#: All others. A mark is begun anew until it is published, and then left as it is: gc_resume knows
#: which. What a person decides is asked for by a person.
NO_RETRIES: Final = {"dagster/max_retries": "0"}

#: Runs of which nothing goes on.
ENDED: Final = (
    dg.DagsterRunStatus.SUCCESS,
    dg.DagsterRunStatus.FAILURE,
    dg.DagsterRunStatus.CANCELED,
)

#: Dagster puts one of these on every run that no person has launched by itself.
_UNATTENDED: Final = (
    "dagster/backfill",
    "dagster/schedule_name",
    "dagster/sensor_name",
    "dagster/auto_materialize",
    "dagster/from_automation_condition",
    WAVE_TAG,
)


def is_unattended(tags: Mapping[str, str]) -> bool:
    """True if a run was started by a schedule, a sensor or a backfill, by its tags."""
    return ASKED_TAG not in tags and any(tag in tags for tag in _UNATTENDED)


def first_tags(instance: dg.DagsterInstance, run: dg.DagsterRun) -> Mapping[str, str]:
    """The tags that name the origin of a run, or of the earlier run that it repeats.

    Who executes a run again, Dagster's own retries (``run_retries``) too, has asked for no more
    than was asked for at first. Dagster keeps the tags of schedules and sensors, and that of a
    backfill only until it has ended: then it would look as if a person had asked for a sweep. Where
    an earlier run is not known any more, nobody has.
    """
    while run.parent_run_id is not None and not is_unattended(run.tags):
        before = instance.get_run_by_id(run.parent_run_id)
        if before is None:
            return {**run.tags, _UNATTENDED[0]: "not known"}
        run = before
    return run.tags


def is_dagster_plus(instance: dg.DagsterInstance) -> bool:
    """True of Dagster+, which alone knows its settings, and lets no run remove another."""
    return type(instance).__module__.partition(".")[0] == "dagster_cloud"


def is_retried(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """True if Dagster itself starts a failed run again, by ``run_retries`` of the instance."""
    enabled = is_dagster_plus(instance) or instance.run_retries_enabled
    return enabled and run.tags.get(_WILL_RETRY_TAG) == "true"


def resumed_before(run: dg.DagsterRun) -> int:
    """The number of times that a run was cut off and started again; 0 if its tag is damaged."""
    said = run.tags.get(RESUMED_TAG, "")
    return int(said) if said.isdecimal() else 0


def tag_value(said: str) -> str:
    """A text as a tag of a run: the index of tags in PostgreSQL takes 2,704 bytes at most."""
    return said if len(said) <= _TAG else f"{said[: _TAG - 1]}…"


def asking_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """The tags of a run that name its origin."""
    return {tag: tags[tag] for tag in (*_UNATTENDED, ASKED_TAG) if tag in tags}


def require_own_config(instance: dg.DagsterInstance, run: dg.DagsterRun) -> None:
    """Refuse a run that did not get what was typed into the dialog of its backfill.

    A job gives each partition a configuration of its own; Dagster then forgets the backfill's.
    """
    backfill_id = run.tags.get(_UNATTENDED[0])
    # Dagster+ fails where it is asked for a backfill that it does not have.
    backfill = instance.get_backfill(backfill_id) if backfill_id else None
    typed = backfill.run_config if backfill is not None else None
    if typed and typed != run.run_config:
        raise RefusedError(
            "the configuration that was typed for this backfill does not reach its runs: launch "
            "each of them by itself, or write what should hold into the component's file"
        )
