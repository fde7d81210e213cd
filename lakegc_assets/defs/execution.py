"""One execution of an asset, a check, an op or a tick: its resources and its run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from pyspark.sql import SparkSession

from lakegc_assets.defs.connections import (
    LakeFSResource,
    ObjectStoreResource,
    require_keys_on_nodes,
    require_lasting,
)
from lakegc_assets.defs.failures import shown
from lakegc_assets.defs.metadata import materialization, of_manifest
from lakegc_assets.defs.names import REPOSITORY, RUN, Names, parsed_key, require_own_config
from lakegc_assets.defs.resources import CollectorResource
from lakegc_assets.engine.progress import forwarding
from lakegc_assets.engine.spark_session import (
    OPTIONS,
    configured_by,
    master_of,
    place_of,
    session_settings,
    start_session,
    starting,
)
from lakegc_assets.errors import ConfigurationError
from lakegc_assets.run.artifacts import ArtifactRoot
from lakegc_assets.run.command_line import command_line, printing, source
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.lock import repository_lock
from lakegc_assets.run.manifest import Manifest

#: The plain keys of the resources that a run needs.
RESOURCES: Final = ("collector", "lakefs", "stores", "pyspark")
RunContexts = dg.AssetExecutionContext | dg.AssetCheckExecutionContext | dg.OpExecutionContext


def collector_config(run: dg.DagsterRun, names: Names) -> Mapping[str, Any]:
    """The settings that a run itself configures; null counts as absent."""
    config: Mapping[str, Any] = run.run_config
    resources: Mapping[str, Any] = config.get("resources", {})
    given: Mapping[str, Any] = resources.get(names.of("collector"), {}).get("config", {})
    return {name: value for name, value in given.items() if value is not None}


class Resources:
    """The resources of a component, by their plain names; only those that a step requires."""

    collector: CollectorResource
    lakefs: LakeFSResource
    stores: ObjectStoreResource
    pyspark: LazyPySparkResource

    def __init__(self, given: object, names: Names) -> None:
        """Read the resources by their names in Dagster."""
        for plain in RESOURCES:
            if hasattr(given, names.of(plain)):
                setattr(self, plain, getattr(given, names.of(plain)))

    @property
    def root(self) -> ArtifactRoot:
        """The root of the artifacts."""
        return self.collector.root(self.stores)


@dataclass(frozen=True)
class Execution:
    """An execution of an asset, a check or an op."""

    context: RunContexts
    names: Names

    @property
    def resources(self) -> Resources:
        """The resources of the component."""
        return Resources(self.context.resources, self.names)

    @property
    def config(self) -> Mapping[str, Any]:
        """The settings that the run itself configures."""
        return collector_config(self.context.run, self.names)

    @property
    def partition(self) -> tuple[str, str]:
        """The repository and the id of the run.

        Raises:
            ConfigurationError: a name is invalid; or the run has no partition, or one that was
                removed.
        """
        context, names = self.context, self.names
        if context.has_partition_key_range:
            raise ConfigurationError(
                "this run was launched as a single run for several partitions, and one run "
                "collects one repository: launch them as multiple runs"
            )
        if not context.has_partition_key:
            raise ConfigurationError(
                "this run has no partition, so its repository is not known: choose a partition in "
                f"the interface, or use `{command_line('run', 'REPO', '--run', 'ID')}`, "
                "since `dagster job launch` takes none"
            )
        repository, run = found = parsed_key(context.partition_key)
        if isinstance(context, dg.OpExecutionContext):
            return found
        # Dagster would execute the step, and fail only when it records the materialization.
        for name, key in ((REPOSITORY, repository), (RUN, run)):
            if not context.instance.has_dynamic_partition(names.of(name), key):
                raise ConfigurationError(
                    f"Dagster has no partition key {key!r} of {names.of(name)!r} (it was removed "
                    "since this run was launched, or never there): add it, and launch the run again"
                )
        return found

    @property
    def step(self) -> dg.OpExecutionContext:
        """The context of this step in the run."""
        found: dg.OpExecutionContext = self.context.op_execution_context
        return found

    @contextmanager
    def run_context(self, *, excluded: bool = False, marking: bool = False) -> Iterator[RunContext]:
        """The run of this partition; the repository is locked while it is used.

        Wrong keys, repository, credentials or settings are reported before Spark starts.

        Args:
            excluded: the repository may be one that is not collected.
            marking: reads wait for an object store that is away; nothing is deleted.

        Raises:
            Stopped: an error of ours, for example that another process works on the repository.
        """
        context, resources = self.context, self.resources
        collector, pyspark = resources.collector, resources.pyspark
        with (
            shown(),
            forwarding("lakegc_assets.lakefs", context.log),
            forwarding("lakegc_assets.storage", context.log),
        ):
            repository, run = self.partition
            if not excluded:
                collector.require_included(repository)
            require_own_config(context.instance, context.run)
            ctx, wait_s = self.repository_context(repository), collector.lakefs_wait_seconds
            stores = replace(ctx.root.stores, wait_s=wait_s if marking else 0.0)
            ctx = replace(
                ctx,
                run=run,
                lakefs=replace(resources.lakefs.config(), wait_s=wait_s),
                root=replace(ctx.root, stores=stores),
                session=lambda: session_of(pyspark),
                spark_configured_by=_configured_by(pyspark),
            )
            require_lasting("artifact_root", ctx.root.url)
            require_lasting("backup_url", ctx.settings.backup_url)
            ctx = ctx.connect()
            require_keys_on_nodes(
                place_of_tasks(pyspark) if ctx.engine.kind == "spark" else "local",
                ctx.lakefs.credentials_file,
                ctx.root.stores.credentials_file,
                ctx.root.stores.azure.credentials_file,
            )
            ctx.log.info("the engine is %s", ctx.engine)
            always = {"collect_excluded": True} if collector.collect_excluded else {}
            lock = (ctx.settings.lease_wait, ctx.log.info, ctx.started_by)
            with (
                printing(replace(source(), always=always)),
                repository_lock(ctx.connections.namespace_url, *lock),
            ):
                yield ctx

    def made(
        self, function: Callable[[RunContext], Manifest], *facts: str
    ) -> dg.MaterializeResult[None]:
        """Make an asset of a mark; its materialization shows some facts of its manifest."""
        with self.run_context(marking=True) as ctx:
            manifest = function(ctx)
        return materialization(ctx.root, manifest, of_manifest(manifest, facts))

    def repository_context(self, repository: str) -> RunContext:
        """A repository with its settings, for work that belongs to no single run."""
        context, collector = self.context, self.resources.collector
        return RunContext(
            repository=repository,
            run=context.run.job_name,
            settings=collector.of_repository(repository, self.config).settings(),
            lakefs=self.resources.lakefs.config(),
            root=self.resources.root,
            session=start_session,
            spark_configured_by=configured_by(),
            log=context.log,
            started_by=f"Dagster run {context.run.run_id}",
        )


def session_of(pyspark: LazyPySparkResource) -> SparkSession:
    """The Spark session, started at first use; a ``ConfigurationError`` if it cannot start."""
    with starting():
        session: SparkSession = pyspark.spark_session
        return session


def place_of_tasks(pyspark: LazyPySparkResource) -> str:
    """The place of Spark's tasks: the Connect server or master, as configured or in use."""
    return place_of(pyspark.spark_config) or master_of(session_of(pyspark))


def _configured_by(pyspark: LazyPySparkResource) -> str:
    """The source of the configuration of Spark; empty where the resource has its defaults."""
    # The JVM's options name an archive, which may have been made again since.
    own, default = (
        {**settings, OPTIONS: ""} for settings in (pyspark.spark_config, session_settings())
    )
    return "spark_config of the resource pyspark" if own != default else configured_by()
