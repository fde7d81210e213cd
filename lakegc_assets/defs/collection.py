"""Shared parts of the definitions of one component, and the runs that they request."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import dagster as dg

from lakegc_assets.defs.execution import Resources
from lakegc_assets.defs.names import MODE_TAG, OWN_REPOSITORY_TAG, PLAIN, Names, partition_key
from lakegc_assets.defs.policy import NoticeSection, Policies
from lakegc_assets.errors import ConfigurationError
from lakegc_assets.lakefs.client import utc_now
from lakegc_assets.lakefs.config import LakeFSConfig
from lakegc_assets.lakefs.models import Repository
from lakegc_assets.run.artifacts import ArtifactRoot, is_name
from lakegc_assets.run.command_line import printing
from lakegc_assets.wording import counted

_Evaluation = Callable[[dg.SensorEvaluationContext], dg.SensorResult | dg.SkipReason]


@dataclass(frozen=True)
class Collection:
    """The policies, names, receivers of notices, connections and clock of one component.

    ``lakefs`` and ``root`` (of the artifacts) are for sensors that must not fail if a resource
    cannot be made: they raise a ``ConfigurationError`` if a variable is not set.
    """

    policies: Policies
    names: Names = PLAIN
    notices: NoticeSection = field(default_factory=NoticeSection)
    lakefs: Callable[[], LakeFSConfig] = LakeFSConfig
    root: Callable[[], ArtifactRoot | None] = lambda: None
    now: Callable[[], datetime] = utc_now

    def sensor(
        self,
        name: str,
        seconds: int,
        description: str,
        *needs: str,
        running: bool = False,
        **jobs: Any,  # noqa: ANN401 - as Dagster takes them
    ) -> Callable[[_Evaluation], dg.SensorDefinition]:
        """Make a sensor of a function; its messages print the commands of the component.

        ``name`` and ``needs`` (resources) are plain names. ``seconds``: least time between two
        ticks. ``running``: the sensor is on even if the component's file does not turn it on.
        """

        def made(evaluate: _Evaluation) -> dg.SensorDefinition:
            on = self.policies.are_on(always=running)
            return dg.sensor(
                name=self.names.of(name),
                required_resource_keys=self.names.all_of(*needs),
                minimum_interval_seconds=seconds,
                default_status=dg.DefaultSensorStatus["RUNNING" if on else "STOPPED"],
                description=description,
                **jobs,
            )(printing(self.names.source)(evaluate))

        return made

    def of(self, context: Any) -> Resources:  # noqa: ANN401 - of a tick or a check
        """The resources of a tick or a check."""
        return Resources(context.resources, self.names)

    def request(
        self,
        repository: str,
        run: str,
        *,
        run_key: str,
        job: str,
        tags: Mapping[str, str] | None = None,
    ) -> dg.RunRequest:
        """The request for a run on a repository, with the tags of its policy.

        Repository and run must be partition keys when the run starts; ``job`` is a plain name. The
        request has no settings, so the run uses those of the policy at its start: it may wait in
        the queue, or continue a run of yesterday, and must respect protections that were added
        since.
        """
        policy = self.policies.of(repository)
        return dg.RunRequest(
            run_key=run_key,
            job_name=self.names.of(job),
            partition_key=partition_key(repository, run),
            # Without a configuration, Dagster would use that of the launchpad.
            run_config={"resources": {self.names.of("collector"): {"config": {}}}},
            tags={
                **policy.tags,
                OWN_REPOSITORY_TAG: repository,
                MODE_TAG: policy.sweep,
                **(tags or {}),
            },
        )

    def started(
        self, requests: list[dg.RunRequest], otherwise: str, cursor: str | None = None
    ) -> dg.SensorResult:
        """The result of a tick that requests runs, with the partition keys that they need.

        ``otherwise``: the reason if it requests none.
        """
        repositories, runs = keys_of(requests)
        added = [*changes(self.names.repositories, repositories), *changes(self.names.runs, runs)]
        return dg.SensorResult(
            run_requests=requests,
            skip_reason=None if requests else otherwise,
            cursor=cursor,
            dynamic_partitions_requests=added,
        )


def collected(lakefs: LakeFSConfig, policies: Policies) -> list[Repository]:
    """The repositories of the server that schedules and sensors collect.

    Raises:
        ConfigurationError: the component names, without a pattern, a repository that the server
            does not have. A rule that protects a repository would then apply to none. Or no
            repository remains, so that each tick would succeed and start nothing.
        LakegcError: the server does not answer, or none is configured.
    """
    there = list(lakefs.connect().repositories())
    known = {repository.id for repository in there}
    unknown = sorted((f, name) for name, f in policies.named().items() if name not in known)
    if unknown:
        shown = "; ".join(f"`{of}` names {name!r}" for of, name in unknown)
        raise ConfigurationError(
            f"{shown}, which the lakeFS server does not have: correct the name, or take it out. "
            "Only a pattern may name repositories that are created later"
        )
    chosen = [one for one in there if policies.collects(one.id)]
    if there and not chosen:
        found = counted(len(there), "repository", "repositories")
        raise ConfigurationError(
            f"`include` and `exclude` leave nothing of the lakeFS server, which has {found}: "
            "correct the patterns, or turn schedules and sensors off"
        )
    return [one for one in chosen if not one.read_only and is_name(one.id)]


def changes(
    partitions: dg.DynamicPartitionsDefinition, new: Iterable[str], gone: Iterable[str] = ()
) -> list[Any]:
    """The requests that add and remove partition keys in a tick; none without keys."""
    added, removed = sorted(new), sorted(gone)
    return [
        *([partitions.build_add_request(added)] if added else ()),
        *([partitions.build_delete_request(removed)] if removed else ()),
    ]


def keys_of(requests: list[dg.RunRequest]) -> tuple[list[str], list[str]]:
    """The partition keys that requests need: repositories, and runs."""
    pairs = [str(request.partition_key).split("|") for request in requests]
    return sorted({repository for repository, _ in pairs}), sorted({run for _, run in pairs})


def remembered(context: dg.SensorEvaluationContext) -> dict[str, Any]:
    """The JSON values in the cursor of a sensor; empty if it is damaged or not its own.

    A person may have changed it in the interface. A sensor then begins as if it were new.
    """
    if not context.cursor:
        return {}
    try:
        known = json.loads(context.cursor)
    except ValueError:
        known = None
    # A cursor of Dagster's own sensors names its class.
    if not isinstance(known, dict) or "__class__" in known:
        context.log.warning(
            "the cursor cannot be read, so this sensor starts without one: %s", context.cursor
        )
        return {}
    return known
