"""The lakeFS server, the stores and the artifacts of the component that the command acts for."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lakegc_assets.definitions import component
from lakegc_assets.defs.names import partition_key
from lakegc_assets.defs.resources import CollectorResource
from lakegc_assets.engine.spark_session import configured_by, prepare_environment, start_session
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
    root: ArtifactRoot
    collector: CollectorResource
    settings: Settings

    @classmethod
    def defined(cls, backup_url: str | None = None) -> Site:
        """From the definitions that Dagster loads; backups at ``backup_url`` where it is given."""
        prepare_environment()
        lakefs, stores, collector = component().connections()
        if backup_url:
            collector = collector.model_copy(update={"backup_url": backup_url})
        return cls(lakefs.config(), collector.root(stores), collector, collector.settings())

    @property
    def stores(self) -> StoreConfig:
        """The object stores."""
        return self.root.stores

    def attempt(self, repository: str, run: str) -> AttemptArtifacts:
        """The present attempt of a run; of an unknown one, the error says whose mark has its id."""
        partition_key(repository, run)
        return known_attempt(self.root, repository, run, lambda: self.store(repository))

    def namespace(self, repository: str) -> str:
        """The URL of the storage namespace of a repository, in its canonical form."""
        found = known_repository(self.lakefs.connect(), repository)
        return StorageNamespace.parse(found.storage_namespace).url()

    def store(self, repository: str) -> ObjectStore:
        """The object store, rooted at the namespace of a repository."""
        return open_store(self.namespace(repository), self.stores)

    def context(self, repository: str, run: str) -> RunContext:
        """A run with the settings of its repository; neither need exist."""
        partition_key(repository, run)
        return RunContext(
            repository=repository,
            run=run,
            settings=self.collector.of_repository(repository, {}).settings(),
            lakefs=self.lakefs,
            root=self.root,
            session=start_session,
            spark_configured_by=configured_by(),
        )


def run_context(repository: str, run: str) -> RunContext:
    """A run, to ask its artifacts something."""
    Site.defined().attempt(repository, run)
    return repository_context(repository, run)


def repository_context(repository: str, run: str = "any") -> RunContext:
    """A repository, to ask something about it; the run need not exist."""
    site = Site.defined()
    found = site.context(repository, "any")
    site.namespace(repository)
    # It may be the id of a mark of lakeFS's, which no run of ours could have.
    return replace(found, run=run)
