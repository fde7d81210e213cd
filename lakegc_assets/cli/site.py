"""Server, stores and artifacts of the component that a command acts for, and queries to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from lakegc_assets.definitions import component
from lakegc_assets.defs.names import partition_key
from lakegc_assets.defs.resources import CollectorResource
from lakegc_assets.engine.spark_session import configured_by, prepare_environment, start_session
from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.errors import LakegcError, RefusedError
from lakegc_assets.estate.repository_state import UNREADABLE, Unread, runs_by_begin
from lakegc_assets.estate.run_outcome import outcome_of
from lakegc_assets.estate.run_state import Guards, RunManifests, read_guards, run_state
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.lakefs.config import LakeFSConfig
from lakegc_assets.lakefs.errors import NotFoundError
from lakegc_assets.lakefs.models import Repository
from lakegc_assets.leftovers.server import Server
from lakegc_assets.mark.marked_objects import known_attempt
from lakegc_assets.recovery.restore.selection import known_ref
from lakegc_assets.run.artifacts import ArtifactRoot, AttemptArtifacts
from lakegc_assets.run.context import RunContext, known_repository
from lakegc_assets.run.settings import Settings
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.opening import open_store
from lakegc_assets.sweep.status import Restoring, with_restores

_THREADS: Final = 8
#: Seconds for lakeFS to answer if a command can do without the answer.
_SOON_S: Final = 3.0
_NONE: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(frozen=True)
class Site:
    """The resources of the component, as classes of the core."""

    lakefs: LakeFSConfig
    root: ArtifactRoot
    collector: CollectorResource
    settings: Settings
    given: Mapping[str, Any]

    @classmethod
    def defined(cls, given: Mapping[str, Any] = _NONE) -> Site:
        """The site of the definitions that Dagster loads, with settings that options have given."""
        prepare_environment()
        lakefs, stores, collector = component().connections()
        collector = collector.model_copy(update=given)
        return cls(lakefs.config(), collector.root(stores), collector, collector.settings(), given)

    @property
    def stores(self) -> StoreConfig:
        """The object stores."""
        return self.root.stores

    def attempt(self, repository: str, run: str) -> AttemptArtifacts:
        """The present attempt of a run; the error for an unknown run says whose mark has its id."""
        partition_key(repository, run)
        return known_attempt(self.root, repository, run, lambda: self.store(repository))

    def namespace(self, repository: str) -> str:
        """The URL of the storage namespace of a repository, in its canonical form."""
        found = known_repository(self.lakefs.connect(), repository, self.root)
        return StorageNamespace.parse(found.storage_namespace).url()

    def store(self, repository: str) -> ObjectStore:
        """The object store, rooted at the namespace of a repository."""
        return open_store(self.namespace(repository), self.stores)

    def context(self, repository: str, run: str) -> RunContext:
        """A run with the settings of its repository; neither of them has to exist."""
        partition_key(repository, run)
        return RunContext(
            repository=repository,
            run=run,
            settings=self.collector.of_repository(repository, self.given).settings(),
            lakefs=self.lakefs,
            root=self.root,
            session=start_session,
            spark_configured_by=configured_by(),
        )


def server_to_search(roots: Sequence[str] = ()) -> Server:
    """The server; ``roots``: URLs below which it keeps namespaces; none for the configured ones."""
    site = Site.defined()
    return Server(
        site.root,
        lambda repository: replace(site.context(repository, "leftovers"), settings=site.settings),
        site.lakefs.connect(),
        tuple(roots) or site.collector.roots(),
    )


def run_context(repository: str, run: str, given: Mapping[str, Any] = _NONE) -> RunContext:
    """A run, to read its artifacts; ``given``: settings from options."""
    Site.defined().attempt(repository, run)
    return repository_context(repository, run, given)


def repository_context(
    repository: str, run: str = "any", given: Mapping[str, Any] = _NONE
) -> RunContext:
    """A repository, to query it; the run does not have to exist."""
    site = Site.defined(given)
    found = site.context(repository, "any")
    site.namespace(repository)
    # The run may be a mark id of lakeFS's collector, which ``partition_key`` would refuse.
    return replace(found, run=run)


def outcome(repository: str, run: str) -> dict[str, Any]:
    """The findings and the outcome of a run, as JSON values."""
    site = Site.defined()
    return outcome_of(site.attempt(repository, run), _place_now(site.lakefs, repository))


def _place_now(lakefs: LakeFSConfig, repository: str) -> str:
    """The namespace of a repository now; empty if lakeFS does not tell it soon."""
    soon = replace(
        lakefs, connect_timeout_s=_SOON_S, read_timeout_s=_SOON_S, max_attempts=1, wait_s=0.0
    )
    with suppress(LakegcError):
        return _place_of(soon.connect().repository(repository))
    return ""


def _place_of(found: Repository) -> str:
    """The namespace of a repository in its canonical form; empty if it has none."""
    with suppress(LakegcError):
        return StorageNamespace.parse(found.storage_namespace).url()
    return ""


def address_at(repository: str, ref: str, path: str) -> str:
    """The full address of the object that lakeFS shows at a path of a branch, tag or commit."""
    partition_key(repository, "any")
    site = Site.defined()
    client = site.lakefs.connect()
    known_repository(client, repository, site.root)
    try:
        found = client.stat(repository, known_ref(client, repository, ref), path)
    except NotFoundError as error:
        raise RefusedError(
            f"lakeFS shows nothing at {path!r} of {ref!r}: correct the path. If the branch had it "
            "earlier, give the id of a commit that had it in place of the branch"
        ) from error
    return found.physical_address


def names_on(lakefs: LakeFSConfig) -> tuple[set[str], list[str]]:
    """The repositories of a server; or none, and a sentence about the reason."""
    try:
        return {one.id for one in lakefs.connect().repositories()}, []
    except LakegcError as error:
        return set(), [f"lakeFS does not list its repositories ({error}): some may not be shown"]


def known_runs() -> list[dict[str, Any]]:
    """The repositories of the server with their namespaces and the runs in the artifacts."""
    site = Site.defined()
    found = list(site.lakefs.connect().repositories())

    def look(repository: Repository) -> dict[str, Any]:
        guards = read_guards(repository.storage_namespace, site.stores)
        runs = runs_by_begin(site.root, repository.id)
        others = with_restores([one.attempt for one in runs if isinstance(one, RunManifests)])
        return {
            "repository": repository.id,
            "storage_namespace": repository.storage_namespace,
            "read_only": repository.read_only,
            "on_hold": guards.hold is not None,
            "runs": [_described(one, guards, others, _place_of(repository)) for one in runs],
        }

    return thread_map(look, found, _THREADS)


def last_marked(repository: str) -> str | None:
    """The run with a finished mark that began last; None without a finished mark."""
    partition_key(repository, "any")
    runs = reversed(runs_by_begin(Site.defined().root, repository))
    marked = (one for one in runs if isinstance(one, RunManifests) and one.report is not None)
    return next((one.attempt.run for one in marked), None)


def _described(
    one: RunManifests | Unread, guards: Guards, others: Sequence[Restoring], now_at: str
) -> dict[str, str]:
    """The state of a run; ``UNREADABLE`` with the reason if it is unknown.

    ``others``: the runs of the repository that restored something. ``now_at``: its namespace.
    """
    if isinstance(one, Unread):
        return _unreadable(one.run, one.error)
    try:
        found = run_state(one, guards, others, now_at)
    except LakegcError as error:
        return _unreadable(one.attempt.run, error)
    shown = {"state": found.state, "summary": found.summary, "because": found.because}
    return {"run": one.attempt.run, **shown}


def _unreadable(run: str, error: Exception) -> dict[str, str]:
    return {"run": run, "state": UNREADABLE, "summary": UNREADABLE, "because": str(error)}
