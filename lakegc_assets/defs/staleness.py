"""``marked_in_time``: one check for each repository, whether it has had a mark lately enough.

A check of a partitioned asset, since a freshness policy looks at an asset as a whole: a repository
that is marked often would hide those that are not.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any, Final

import dagster as dg

from lakegc_assets.defs.execution import Resources
from lakegc_assets.defs.names import Names
from lakegc_assets.defs.policy import Policies
from lakegc_assets.defs.requests import collected, remembered, silent
from lakegc_assets.errors import LakegcError
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.lakefs.models import Repository
from lakegc_assets.lakefs.reads import utc_now
from lakegc_assets.run.artifacts import ArtifactRoot
from lakegc_assets.run.history import earlier
from lakegc_assets.run.tasks import each
from lakegc_assets.storage.errors import StorageError

REPOSITORIES: Final = "repositories"
CHECK: Final = "marked_in_time"
_THREADS: Final = 8
_RESOURCES: Final = ("lakefs", "stores", "collector")
_DESCRIPTION: Final = "The repository was marked no longer ago than its `stale_after_days`."


@dataclass(frozen=True)
class Freshness:
    """How long ago a repository was marked.

    Attributes:
        passed: whether that is lately enough.
        sentence: for people.
        last: when the last mark was finished; None where there is none.
    """

    passed: bool
    sentence: str
    last: datetime | None

    @property
    def metadata(self) -> dict[str, Any]:
        """For Dagster, with the sentence, which its pages show there only."""
        last = dg.MetadataValue.timestamp(self.last) if self.last else "none"
        return {"what": self.sentence, "last mark": last}


def freshness(
    root: ArtifactRoot, repository: Repository, policies: Policies, now: datetime
) -> Freshness:
    """Look at the marks of a repository.

    Raises:
        LakegcError: nobody can tell.
    """
    days = policies.of(repository.id).stale_after_days
    namespace = StorageNamespace.parse(repository.storage_namespace).url()
    marks = earlier(root, repository.id, "gc_report", namespace, but="")
    last = marks[0].manifest.finished if marks else None
    made = datetime.fromtimestamp(repository.creation_date, timezone.utc)
    ago = now - (last or made)
    told = f"was marked {_days(ago)} ago" if last else f"was made {_days(ago)} ago and never marked"
    passed = ago <= timedelta(days=days)
    then = "" if passed else ": look at its last runs, and whether gc_schedule is on"
    return Freshness(passed, f"{repository.id} {told}, {days:g} days are allowed{then}", last)


def _or_why_not(
    root: ArtifactRoot, repository: Repository, policies: Policies, now: datetime
) -> Freshness:
    """The same; what cannot be told of one repository keeps nobody from telling of the others.

    Raises:
        StorageError: the store of all artifacts does not answer.
    """
    try:
        return freshness(root, repository, policies, now)
    except StorageError:
        raise
    except LakegcError as error:
        sentence = f"{repository.id}: nobody can tell when it was marked: {error}"
        return Freshness(passed=False, sentence=sentence, last=None)


def _days(time: timedelta) -> str:
    return f"{max(time / timedelta(days=1), 0):.1f} days"


def repositories_spec(names: Names) -> dg.AssetSpec:
    """The asset that the check is of."""
    return dg.AssetSpec(
        names.key(REPOSITORIES),
        description="The repositories of the lakeFS server. Nothing here makes or changes them.",
        group_name=names.of("gc"),
        kinds={"lakefs"},
        partitions_def=names.repositories,
    )


def staleness_check(policies: Policies, names: Names) -> dg.AssetChecksDefinition:
    """The check, for who asks by hand."""

    @dg.asset_check(
        asset=names.key(REPOSITORIES),
        name=CHECK,
        description=_DESCRIPTION,
        partitions_def=names.repositories,
        required_resource_keys=names.resources(*_RESOURCES),
    )
    def marked_in_time(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        resources = Resources(context.resources, names)
        repository = resources.lakefs.config().connect().repository(context.partition_key)
        found = freshness(resources.root, repository, policies, utc_now())
        return dg.AssetCheckResult(
            passed=found.passed,
            severity=dg.AssetCheckSeverity.WARN,
            description=found.sentence,
            metadata=found.metadata,
        )

    return marked_in_time


def staleness_sensor(
    policies: Policies, names: Names, now: Callable[[], datetime] = utc_now
) -> dg.SensorDefinition:
    """``gc_staleness``: the same for all repositories, told where it changed and once a day."""

    @dg.sensor(
        name=names.of("gc_staleness"),
        required_resource_keys=names.resources(*_RESOURCES),
        minimum_interval_seconds=3600,
        default_status=policies.sensor_status,
        description="Looks for repositories that were not marked for too long.",
    )
    def staleness(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        resources = Resources(context.resources, names)
        told = remembered(context)
        try:
            there = collected(resources.lakefs.config(), policies)
        except LakegcError as error:
            return silent(error)
        root, moment = resources.root, now()
        look = partial(_or_why_not, root, policies=policies, now=moment)
        try:
            looks = each(look, there, _THREADS)
        except StorageError as error:
            return dg.SkipReason(f"the artifacts cannot be read: {error}")
        found = {r.id: one for r, one in zip(there, looks, strict=True)}
        today = moment.date().isoformat()
        current = {name: [one.passed, today] for name, one in found.items()}
        return dg.SensorResult(
            asset_events=[
                dg.AssetCheckEvaluation(
                    asset_key=names.key(REPOSITORIES),
                    check_name=CHECK,
                    passed=found[name].passed,
                    severity=dg.AssetCheckSeverity.WARN,
                    description=found[name].sentence,
                    metadata=found[name].metadata,
                    partition=name,
                )
                for name in sorted(current)
                if told.get(name) != current[name]
            ],
            cursor=json.dumps(current, sort_keys=True),
            dynamic_partitions_requests=[names.repositories.build_add_request(sorted(current))],
        )

    return staleness
