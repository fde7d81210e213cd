"""``run_on``: marks and sweeps in a remote process, which a Pipes client of Dagster starts.

Dagster and that process exchange JSON without secrets.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from pkgutil import resolve_name
from typing import Annotated, Any, Final

import dagster as dg
from pydantic import Field

from lakegc_assets.defs.execution import Execution
from lakegc_assets.defs.failures import shown, stopped
from lakegc_assets.defs.fields import AsWritten, filled_in
from lakegc_assets.defs.names import (
    WAITS_TAG,
    Names,
    asking_tags,
    first_tags,
    require_own_config,
)
from lakegc_assets.defs.stages import DATA_VERSION_TAG, Stage, materialized
from lakegc_assets.errors import ConfigurationError, IntegrityError, LakegcError, RefusedError
from lakegc_assets.run.artifacts import located
from lakegc_assets.run.command_line import printing

#: Version of the form of these messages, which must be the same on both sides.
VERSION: Final = 2
_KINDS: Final = {
    "refused": RefusedError,
    "configuration": ConfigurationError,
    "integrity": IntegrityError,
}
#: Keys of custom messages of Pipes: an event of the process, and its end.
_EVENT: Final = "lakegc_event"
_END: Final = "lakegc"
_EVENTS: Final = (dg.AssetMaterialization, dg.AssetCheckEvaluation)
Event = dg.AssetMaterialization | dg.AssetCheckEvaluation


@dataclass(frozen=True)
class RemoteRun:
    """The assets that a remote process makes, and its settings.

    ``component``: its fields, as in its file. ``place``: the path of that file on Dagster's
    machine, or empty. ``assets``: plain names. ``config``: the settings that the run configures.
    ``tags``: name the origin of the run.
    """

    component: Mapping[str, Any]
    place: str
    repository: str
    run: str
    assets: Sequence[str]
    config: Mapping[str, Any]
    tags: Mapping[str, str]
    version: int = VERSION

    @classmethod
    def from_json(cls, extras: Mapping[str, Any]) -> "RemoteRun":
        """Read it from the extras of Pipes.

        Raises:
            ConfigurationError: the extras are of another version of this package, or of no version.
        """
        if extras.get("version") != VERSION:
            raise ConfigurationError(
                "Dagster has sent a message of another version of lakegc_assets: install the same "
                "version where Dagster runs and where this process runs"
            )
        return cls(**extras)


@dataclass(frozen=True)
class Report:
    """The last message of a process: its final error, if any, in the form of ``of_error``.

    ``tags``: to be added to the run of Dagster.
    """

    stopped: Mapping[str, Any] | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    version: int = VERSION

    def to_json(self) -> dict[str, Any]:
        """The report as a custom message of Pipes."""
        return {_END: asdict(self)}

    @classmethod
    def of_messages(cls, messages: list[Any]) -> "Report | None":
        """The report among custom messages; None if there is none of this version."""
        ours = [one for one in _sent(messages, _END) if one.get("version") == VERSION]
        return cls(**ours[-1]) if ours else None


def of_error(error: LakegcError) -> dict[str, Any]:
    """An error as JSON values."""
    kind = next((name for name, one in _KINDS.items() if isinstance(error, one)), "failed")
    return {
        "kind": kind,
        "said": str(error),
        "figures": dict(error.figures),
        "transient": error.transient,
    }


def error_of(values: Mapping[str, Any]) -> LakegcError:
    """The error from which ``of_error`` made these values."""
    error: LakegcError = _KINDS.get(values["kind"], LakegcError)(values["said"])
    error.figures, error.transient = values["figures"], values["transient"]
    return error


def event_message(event: Event) -> dict[str, str]:
    """An event as a custom message; Pipes' own reports lack some of Dagster's fields."""
    return {_EVENT: dg.serialize_value(event)}


def _sent(messages: Iterable[Any], name: str) -> list[Any]:
    """The values under a name in custom messages; other senders may have sent some messages."""
    return [one[name] for one in messages if isinstance(one, dict) and name in one]


#: Settings of a run that are paths or URLs of Dagster's machine.
_PLACES: Final = ("artifact_root", "backup_url", "backup_log", "inventory_place")
_RESOURCES: Final = ("collector", "lakefs", "stores")


class RunOnSection(dg.Model, dg.Resolvable):
    """The remote process, started by a Pipes client, that runs marks and sweeps."""

    client: Annotated[
        Any,
        filled_in(lambda value: isinstance(value, str) and _named(value)),
        dg.Resolver.default(model_field_type=str),
    ] = Field(description="package.module:name of a Pipes client, or of a function that makes one")
    arguments: AsWritten = Field(
        default_factory=dict,
        description="arguments of its `run` besides `context` and `extras`: a command, a job",
    )

    def pipes_client(self) -> dg.PipesClient:
        """The client, or the one that its function makes now; else a ``ConfigurationError``."""
        found = _named(self.client) if isinstance(self.client, str) else self.client
        if not isinstance(found, dg.PipesClient) and callable(found):
            found = found()
        if not isinstance(found, dg.PipesClient):
            raise ConfigurationError(
                f"run_on: {self.client} is a {type(found).__name__}, not a Pipes client: name a "
                "dagster.PipesClient, or a function that returns one"
            )
        return found


class RemoteProcessError(LakegcError):
    """A remote process ended without a report."""

    transient = True


def remote_assets(
    name: str,
    stages: Sequence[Stage],
    checks: Sequence[dg.AssetChecksDefinition],
    specs: Mapping[str, dg.AssetSpec],
    names: Names,
    section: RunOnSection,
    component: Callable[[], Mapping[str, Any]],
) -> dg.AssetsDefinition:
    """Assets of a component, with their checks, that one remote process makes."""

    @dg.multi_asset(
        name=names.of(name),
        specs=[one.connected(specs[one.name], names) for one in stages],
        check_specs=[spec for one in checks for spec in one.check_specs],
        can_subset=True,
        required_resource_keys=names.all_of(*_RESOURCES),
    )
    def made(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[None]]:
        with shown(), printing(names.source):
            work = _remote_run(context, names, stages, component())
            yield from _launched(context, names, section, work, stages)  # type: ignore[misc]

    return made


def _launched(
    context: dg.AssetExecutionContext,
    names: Names,
    section: RunOnSection,
    work: RemoteRun,
    stages: Sequence[Stage],
) -> Iterator[dg.MaterializeResult[None] | dg.AssetCheckResult]:
    """Start the process, wait for it, and yield the events that it reports.

    Raises:
        Stopped: the process has reported the error that stopped it.
        RemoteProcessError: it ended without a report.
        IntegrityError: it has not reported all assets that it had to make.
    """
    client = section.pipes_client()
    started = f"the process that {type(client).__name__} has started"
    try:
        done = _run_client(client, context, section.arguments, work)
    except Exception as error:
        raise RemoteProcessError(
            f"{started} ended without a report, so nothing counts as made: {error}. See the log of "
            "this run and the log of that process"
        ) from error
    messages = list(done.get_custom_messages())
    report = Report.of_messages(messages)
    results: list[dg.MaterializeResult[None] | dg.AssetCheckResult] = []
    unread: Exception | None = None
    try:
        events = (dg.deserialize_value(one, _EVENTS) for one in _sent(messages, _EVENT))
        results += _reported(context, names, stages, events)
    except Exception as error:  # noqa: BLE001 - Dagster has no public name for what it raises
        unread = error
    yield from results
    if report is None:
        raise RemoteProcessError(
            f"{started} ended without a report of its end: is it `python -m lakegc_assets.pipes` "
            "of this version, and does its message writer fit the client's message reader?"
        )
    if report.tags:
        context.instance.add_run_tags(context.run.run_id, dict(report.tags))
        context.log.warning("%s", report.tags[WAITS_TAG])
    if report.stopped is not None:
        raise stopped(error_of(report.stopped)) from None
    if unread is not None:
        raise IntegrityError(
            f"{started} has sent a report that cannot be read here: {unread}. Install the same "
            "version of Dagster there and here"
        ) from unread
    made = {one.asset_key for one in results if isinstance(one, dg.MaterializeResult)}
    due = [one.name for one in stages if one.name in work.assets and not one.skippable]
    if missing := [name for name in due if names.key(name) not in made]:
        raise IntegrityError(
            f"{started} ended without an error, and did not report {', '.join(missing)}: see its "
            "log, and check that it runs lakegc_assets of this version"
        )


def _run_client(
    client: dg.PipesClient,
    context: dg.AssetExecutionContext,
    arguments: Mapping[str, Any],
    work: RemoteRun,
) -> dg.PipesClientCompletedInvocation:
    """Start the process, and wait for its end."""
    # A Pipes session makes Dagster require an output of each asset. Some assets may rightly have
    # none, as in process; missing ones are found later.
    context.set_requires_typed_event_stream = lambda **_: None
    # Dagster warns about features that its own clients use.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.PreviewWarning)
        # Some clients change their arguments.
        return client.run(context=context, extras=asdict(work), **deepcopy(dict(arguments)))


def _reported(
    context: dg.AssetExecutionContext,
    names: Names,
    stages: Sequence[Stage],
    events: Iterable[Event],
) -> Iterator[dg.MaterializeResult[None] | dg.AssetCheckResult]:
    """The events of a process as results of this step, with only the selected checks."""
    # The remote assets have keys without translation.
    by_key = {Names(names.name).key(one.name): one for one in stages}
    chosen = {(one.asset_key, one.name) for one in context.selected_asset_check_keys}
    for event in events:
        stage = by_key[event.asset_key]
        key = names.key(stage.name)
        if isinstance(event, dg.AssetMaterialization):
            version = (event.tags or {}).get(DATA_VERSION_TAG)
            made = dg.MaterializeResult[None](
                metadata=event.metadata, data_version=dg.DataVersion(version) if version else None
            )
            yield from materialized(stage, context, names, [made])
        elif (key, event.check_name) in chosen:
            yield dg.AssetCheckResult(
                passed=event.passed,
                asset_key=key,
                check_name=event.check_name,
                metadata=event.metadata,
                severity=event.severity,
                description=event.description,
            )


def _remote_run(
    context: dg.AssetExecutionContext,
    names: Names,
    stages: Sequence[Stage],
    component: Mapping[str, Any],
) -> RemoteRun:
    """The order for the process of a step; refuses settings that would not reach it."""
    execution = Execution(context, names)
    (repository, run), resources = execution.partition, execution.resources
    resources.collector.require_included(repository)
    require_own_config(context.instance, context.run)
    # Wrong settings stop the run before anything is started.
    resources.collector.of_repository(repository, execution.config).settings()
    _require_only_settings(context.run.run_config, names)
    config = {
        name: located(value) if name in _PLACES and value else value
        for name, value in execution.config.items()
    }
    assets = [one.name for one in stages if names.key(one.name) in context.selected_asset_keys]
    alone = sorted(
        one.name
        for one in context.selected_asset_check_keys
        if one.asset_key not in context.selected_asset_keys
    )
    if alone:
        raise ConfigurationError(
            f"{', '.join(alone)}: with run_on, a check runs only with its asset. Select both"
        )
    return RemoteRun(
        component=component,
        place=names.source.definitions.partition("#")[0],
        repository=repository,
        run=run,
        assets=assets,
        config=config,
        tags=asking_tags(first_tags(context.instance, context.run)),
    )


def _require_only_settings(run_config: Mapping[str, Any], names: Names) -> None:
    given = run_config.get("resources", {})
    others = sorted(
        key
        for key in names.all_of("lakefs", "stores", "pyspark")
        if given.get(key, {}).get("config")
    )
    if others:
        raise ConfigurationError(
            f"this run configures {', '.join(others)}, which does not reach the process of run_on: "
            "take it out; that process has its connections from the component's file and from its "
            "own machine"
        )


def _named(name: str) -> Any:  # noqa: ANN401 - whatever has this name
    """The object that ``package.module:name`` names; a ``ValueError`` where there is none."""
    if ":" not in name:
        raise ValueError(f"{name!r} does not name a client: write package.module:name")
    try:
        return resolve_name(name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{name!r} cannot be imported: {error}") from error
