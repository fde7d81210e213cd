"""The lakeFS server, the stores and the artifacts of the component that the command acts for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from lakegc_assets.definitions import component
from lakegc_assets.defs.partitions import partition_key
from lakegc_assets.engine.spark import configured_by, prepare_environment, start_session
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.lakefs.config import LakeFSConfig
from lakegc_assets.mark.marked_objects import known_attempt
from lakegc_assets.run.artifacts import ArtifactRoot, AttemptArtifacts
from lakegc_assets.run.context import RunContext, known_repository
from lakegc_assets.run.settings import Settings
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.opening import open_store


@dataclass(frozen=True)
class Site:
    """The resources as they are defined, in the core's own terms."""

    lakefs: LakeFSConfig
    stores: StoreConfig
    root: ArtifactRoot
    settings: Settings
    namespace_roots: tuple[str, ...] = ()
    own: Callable[[str], Settings] | None = None

    def settings_of(self, repository: str) -> Settings:
        """The settings of one repository, by its policy."""
        return self.settings if self.own is None else self.own(repository)

    @classmethod
    def defined(cls, backup_url: str | None = None) -> Site:
        """From the definitions that Dagster loads.

        Args:
            backup_url: place of backups; None for the one that is set.

        Raises:
            ConfigurationError: the file of Spark settings is wrong, or a resource.
        """
        prepare_environment()
        lakefs, stores, collector = component().connections()
        if backup_url:
            collector = collector.model_copy(update={"backup_url": backup_url})
        root = collector.root(stores)
        return cls(
            lakefs.config(),
            root.stores,
            root,
            collector.settings(),
            collector.roots(),
            lambda repository: collector.of_repository(repository, {}).settings(),
        )

    def attempt(self, repository: str, run: str) -> AttemptArtifacts:
        """The present attempt of a run.

        Raises:
            ConfigurationError: a name cannot be one.
            RefusedError: the run is unknown; where its id is that of another mark, whose.
        """
        partition_key(repository, run)
        return known_attempt(self.root, repository, run, lambda: self.store(repository))

    def namespace(self, repository: str) -> str:
        """The URL of the storage namespace of a repository, in its canonical form.

        Raises:
            ConfigurationError: there is no such repository.
            ReadOnlyRepositoryError: it is read-only.
        """
        found = known_repository(self.lakefs.connect(), repository)
        return StorageNamespace.parse(found.storage_namespace).url()

    def store(self, repository: str) -> ObjectStore:
        """The object store, rooted at the namespace of a repository."""
        return open_store(self.namespace(repository), self.stores)

    def context(self, repository: str, run: str) -> RunContext:
        """A run with the settings of its repository; neither need exist.

        Raises:
            ConfigurationError: a name cannot be one.
        """
        partition_key(repository, run)
        return RunContext(
            repository=repository,
            run=run,
            settings=self.settings_of(repository),
            lakefs=self.lakefs,
            root=self.root,
            session=start_session,
            spark_configured_by=configured_by(),
        )


def run_context(repository: str, run: str) -> RunContext:
    """A run, to ask its artifacts something.

    Raises:
        RefusedError: the run is unknown.
        ConfigurationError: there is no such repository.
    """
    Site.defined().attempt(repository, run)
    return repository_context(repository, run)


def repository_context(repository: str, run: str = "any") -> RunContext:
    """A repository, to ask something about it; the run need not exist.

    Raises:
        ConfigurationError: there is no such repository.
    """
    site = Site.defined()
    found = site.context(repository, "any")
    site.namespace(repository)
    # It may be the id of a mark of lakeFS's, which no run of ours could have.
    return replace(found, run=run)
