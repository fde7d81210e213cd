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
from lakegc_assets.run.artifacts import is_name, validate_run_id
from lakegc_assets.run.command_line import Source
from lakegc_assets.run.manifest import MARK_ASSETS

#: Dimensions of the partitions. Dagster's tags for them are ``REPOSITORY_TAG`` and ``RUN_TAG``.
REPOSITORY: Final = "repository"
RUN: Final = "run"
#: Marks that can be approved: the partitions of ``gc_approve``.
WAITING: Final = "waiting"
REPOSITORY_TAG: Final = "dagster/partition/repository"
RUN_TAG: Final = "dagster/partition/run"
#: Assets of one repository and one run, in the order of the graph.
RUN_ASSETS: Final = (
    *MARK_ASSETS,
    *("storage_attribution", "backup", "swept_set", "restored_set", "policy_forecast"),
)
ASSETS: Final = (*RUN_ASSETS, "repositories", "estate", "estate_leftovers")
#: Jobs of one repository and one run; ``OTHER_JOBS`` are all others.
RUN_JOBS: Final = (
    "gc",
    "gc_mark",
    "gc_backup",
    "gc_sweep",
    "gc_restore",
    "gc_approve",
    "gc_forecast",
)
#: Jobs whose runs ``gc_resume`` continues; and how often it continues interrupted runs.
RESUMED_JOBS: Final = ("gc", "gc_mark", "gc_sweep")
_RESUMES: Final = 3
OTHER_JOBS: Final = ("gc_prune", "gc_estate", "gc_leftovers", "gc_accept_hold")


def partition_of(run: dg.DagsterRun) -> tuple[str | None, str | None]:
    """The repository and run id in the partition of a Dagster run; None without a partition."""
    if REPOSITORY_TAG in run.tags:
        return run.tags[REPOSITORY_TAG], run.tags.get(RUN_TAG)
    # A run of gc_approve has a waiting mark as partition, with its key in ``repository_run``.
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
        name: of the component; empty if it has none.
        keys: keys of assets that a translation has changed, by plain names.
        source: the component, as commands in messages name it.
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
        """True for a run of a job of this component, or of assets of its graph only."""
        return self.plain_job(run) is not None or self.is_of_assets(run)

    def owns_at(self, run: dg.DagsterRun, location: str | None) -> bool:
        """True if ``owns`` holds for a run of this code location; others may use the same names."""
        origin = location_of(run.remote_job_origin)
        return (None in {location, origin} or origin == location) and self.owns(run)

    def is_of_assets(self, run: dg.DagsterRun) -> bool:
        """True for a run of selected assets that all belong to this component."""
        chosen: Iterable[dg.AssetKey] = run.asset_selection or ()
        ours = {self.key(asset) for asset in ASSETS}
        return run.job_name.startswith("__ASSET_JOB") and bool(chosen) and ours.issuperset(chosen)

    def is_forecast(self, run: dg.DagsterRun) -> bool:
        """True for a run that only makes a forecast: it reads a mark, and ends nothing."""
        only = run.asset_selection == {self.key("policy_forecast")}
        return self.plain_job(run) == "gc_forecast" or (only and self.is_of_assets(run))

    def is_resumed(self, run: dg.DagsterRun, *, transient: bool | None) -> bool:
        """True for a failed run of ours that ``gc_resume`` continues, if that is on.

        ``transient``: the result of ``failed_for_a_while``; None for an interrupted run.
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
        """The dynamic partitions of marks that wait for a person; keys as in ``repository_run``."""
        return dg.DynamicPartitionsDefinition(name=self.of(WAITING))

    @property
    def repository_run(self) -> dg.MultiPartitionsDefinition:
        """The partitions of every asset of the graph: repository x run."""
        return dg.MultiPartitionsDefinition({REPOSITORY: self.repositories, RUN: self.runs})


#: Names of a component without a name.
PLAIN: Final = Names()


def partition_key(repository: str, run: str) -> dg.MultiPartitionKey:
    """The key of a run on a repository.

    Raises:
        ConfigurationError: Dagster or an object store would not accept a key.
    """
    if not is_name(repository):
        raise ConfigurationError(
            f"{repository!r} cannot be the name of a repository: use letters, digits and '-'",
        )
    return dg.MultiPartitionKey({REPOSITORY: repository, RUN: validate_run_id(run)})


def parsed_key(key: str) -> tuple[str, str]:
    """The repository and the run id in a key; raises as ``partition_key`` does."""
    repository, _, run = key.partition("|")
    partition_key(repository, run)
    return repository, run


def add_partition(
    instance: dg.DagsterInstance, repository: str, run: str, names: Names = PLAIN
) -> dg.MultiPartitionKey:
    """Add a repository and a run to the partitions; return their key as ``partition_key`` does."""
    key = partition_key(repository, run)
    instance.add_dynamic_partitions(names.of(REPOSITORY), [repository])
    instance.add_dynamic_partitions(names.of(RUN), [run])
    return key


# Tags by which a run knows its origin and its earlier tries

#: The repository of a run, also of a run without a partition of it.
OWN_REPOSITORY_TAG: Final = "lakegc/repository"
WAVE_TAG: Final = "lakegc/wave"
MODE_TAG: Final = "lakegc/mode"
#: Number of times that an interrupted run was started again.
RESUMED_TAG: Final = "lakegc/resumed"
#: Tag of the second try of a run that failed for a transient reason.
RETRIED_TAG: Final = "lakegc/retried"
#: Tag of a run that continues a run of a person.
ASKED_TAG: Final = "lakegc/asked"
#: Reason why a run ended after its mark without a sweep, as a sentence.
WAITS_TAG: Final = "lakegc/waits"
#: Limits that the mark of such a run exceeds; not set by older versions, nor for other reasons.
EXCEEDS_TAG: Final = "lakegc/exceeds"

#: Most characters of a tag.
_TAG: Final = 600

#: Dagster's tag of a run that it is about to start again.
_WILL_RETRY_TAG: Final = "dagster/will_retry"
#: Dagster's tag of a run that it has started again.
_RETRY_TAG: Final = "dagster/auto_retry_run_id"
#: Tags of jobs of one step that continues where it stopped. Dagster may start a run again if its
#: process died. A step that failed by itself would fail again; Dagster would retry it by default.
RETRIES: Final = {
    "dagster/max_retries": "3",
    "dagster/retry_strategy": "ALL_STEPS",
    "dagster/retry_on_asset_or_op_failure": "false",
}
#: Tags of all other jobs. A mark begins anew until it is published, and never changes after that:
#: ``gc_resume`` knows the difference. Decisions of people need a new request of a person.
NO_RETRIES: Final = {"dagster/max_retries": "0"}
#: Tags of jobs for which a person waits: Dagster's queue starts them before the runs of a wave,
#: which may take hours. A sweep before the next mark of its repository also keeps that mark small.
URGENT: Final = {"dagster/priority": "1"}

#: States of runs that have ended.
ENDED: Final = (
    dg.DagsterRunStatus.SUCCESS,
    dg.DagsterRunStatus.FAILURE,
    dg.DagsterRunStatus.CANCELED,
)

#: States of backfills that a person has cancelled; Dagster has no public names for these.
_CANCELLED: Final = ("CANCELING", "CANCELED")

#: States of runs that were launched: the daemon may have died after it made a run.
LAUNCHED: Final = [one for one in dg.DagsterRunStatus if one is not dg.DagsterRunStatus.NOT_STARTED]

#: Tags of runs that no person launched individually; all but the last are set by Dagster.
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
    """The tags of a run that name its origin; of a repeated run, those of the first one.

    A person or a retry of Dagster (``run_retries``) that repeats a run requests no more than the
    first run did. Dagster keeps the tags of schedules and sensors, but the tag of a backfill only
    until the backfill has ended. Then it would seem that a person had requested a sweep. If an
    earlier run is not known any more, no person counts as its origin.
    """
    while run.parent_run_id is not None and not is_unattended(run.tags):
        before = instance.get_run_by_id(run.parent_run_id)
        if before is None:
            return {**run.tags, _UNATTENDED[0]: "not known"}
        run = before
    return run.tags


def is_dagster_plus(instance: dg.DagsterInstance) -> bool:
    """True for Dagster+, which does not show its settings, and lets no run delete another one."""
    return type(instance).__module__.partition(".")[0] == "dagster_cloud"


def is_retried(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """True if Dagster itself starts a failed run again, by ``run_retries`` of the instance."""
    enabled = is_dagster_plus(instance) or instance.run_retries_enabled
    return enabled and run.tags.get(_WILL_RETRY_TAG) == "true"


def is_cancelled(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """True if a person has cancelled the backfill of a run, which may have failed just before."""
    backfill = backfill_of(instance, run)
    return backfill is not None and backfill.status.value in _CANCELLED


def backfill_of(instance: dg.DagsterInstance, run: dg.DagsterRun) -> Any:  # noqa: ANN401 - Dagster has no public name for it
    """The backfill of a run, as Dagster records it; None without one, or if it was deleted."""
    backfill_id = run.tags.get(_UNATTENDED[0])
    # Dagster+ raises an error for a backfill that it does not have.
    return instance.get_backfill(backfill_id) if backfill_id else None


def is_left_to_dagster(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """True if Dagster has started a failed run again, or decides that by the state of a backfill.

    It forgets others whose failure has an id of a deleted record, which SQLite uses again.
    """
    taken = _RETRY_TAG in run.tags or _UNATTENDED[0] in run.tags
    return taken and is_retried(instance, run)


def resumed_before(run: dg.DagsterRun) -> int:
    """The number of times that a run was interrupted and started again; 0 for a damaged tag."""
    said = run.tags.get(RESUMED_TAG, "")
    return int(said) if said.isdecimal() else 0


def tag_value(said: str) -> str:
    """A text, cut to a tag of a run: PostgreSQL's index of tags takes at most 2,704 bytes."""
    return said if len(said) <= _TAG else f"{said[: _TAG - 1]}…"


def asking_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """The tags of a run that name its origin."""
    return {tag: tags[tag] for tag in (*_UNATTENDED, ASKED_TAG) if tag in tags}


def require_own_config(instance: dg.DagsterInstance, run: dg.DagsterRun) -> None:
    """Refuse a run without the configuration that was typed in the dialog of its backfill.

    A job gives each partition its own configuration, and then Dagster drops that of the backfill.
    """
    backfill = backfill_of(instance, run)
    typed = backfill.run_config if backfill is not None else None
    if typed and typed != run.run_config:
        raise RefusedError(
            "the configuration that was typed for this backfill does not reach its runs: launch "
            "each run by itself, or set the values in the component's file"
        )
