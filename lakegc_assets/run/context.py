"""The context of a run: connections, settings, clocks, engine and artifacts."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from pyspark.sql import SparkSession
from typing_extensions import Self

from lakegc_assets import traffic
from lakegc_assets.engine.choice import Engine, choose_engine
from lakegc_assets.engine.datasets import Part
from lakegc_assets.engine.session import Session
from lakegc_assets.engine.spark_frames import SparkBackedSession
from lakegc_assets.engine.spark_session import prepare_session
from lakegc_assets.engine.tasks import Tasks
from lakegc_assets.errors import ConfigurationError, IntegrityError, RefusedError
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.lakefs.config import LakeFSConfig
from lakegc_assets.lakefs.errors import BadRequestError, NotFoundError
from lakegc_assets.lakefs.models import Repository
from lakegc_assets.run.artifacts import ArtifactRoot, is_name
from lakegc_assets.run.clocks import SYSTEM_CLOCKS, Clocks
from lakegc_assets.run.command_line import command_line, given_settings
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.hashing import KeyDigest
from lakegc_assets.run.history import known_rows, note_rows
from lakegc_assets.run.manifest import PROTECTION, PROTECTION_VERSION, Manifest
from lakegc_assets.run.settings import Settings
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.config import StoreConfig


def overlap(namespace: StorageNamespace, url: str) -> bool:
    """Return True if another namespace, given by its URL, may hold objects of this one.

    Raises:
        ConfigurationError: its kind of store is the same, but the URL cannot be read.
    """
    # A namespace on another kind of store (mem://, another cloud) cannot overlap.
    if not namespace.is_same_kind(url):
        return False
    other = StorageNamespace.parse(url)
    # Servers decode percent escapes that this parser keeps, so compare both readings.
    readings = ({n, replace(n, prefix=unquote(n.prefix))} for n in (namespace, other))
    return any(ours.overlaps(theirs) for ours, theirs in product(*readings))


def apart_in_lakefs(one: Repository, other: Repository) -> str:
    """A sentence about two repositories that lakeFS keeps in different storages; else empty."""
    if one.storage_id == other.storage_id:
        return ""
    return (
        f". lakeFS has {one.id!r} in its storage {one.storage_id!r} and {other.id!r} in "
        f"{other.storage_id!r}; both may be one store, so lakegc takes equal URLs for one place"
    )


def require_apart(
    repository: Repository, namespace: StorageNamespace, others: Iterable[Repository]
) -> None:
    """Refuse a repository if another repository shares its namespace, or may share it.

    Raises:
        IntegrityError: another namespace is equal, contained or containing.
        ConfigurationError: another namespace cannot be read.
    """
    for other in others:
        if other.id == repository.id:
            continue
        try:
            shared = overlap(namespace, other.storage_namespace)
        except ConfigurationError as error:
            raise ConfigurationError(
                f"it is not known if repository {other.id!r} shares the storage namespace of "
                f"{repository.id!r}, so neither can be collected: {error}. Move one of them to a "
                "namespace of another bucket"
            ) from error
        if shared:
            raise IntegrityError(
                f"the storage namespaces of repositories {repository.id!r} "
                f"({repository.storage_namespace}) and {other.id!r} ({other.storage_namespace}) "
                "overlap: what one of them needs looks like garbage in the other. Neither can be "
                "collected while both exist. Recreate one of them in a namespace of its own"
                f"{apart_in_lakefs(repository, other)}",
            )


def placed(url: str, stores: StoreConfig) -> StorageNamespace:
    """Return a place for comparisons: a local folder has its real path, without symbolic links.

    Raises:
        ConfigurationError: it is not the URL of a store.
    """
    place = StorageNamespace.parse(url)
    if place.scheme == "local" and stores.local_root:
        folder = Path(stores.local_root, place.authority, place.prefix)
    elif place.scheme == "file":
        folder = Path("/", place.prefix)
    else:
        return place
    return StorageNamespace.parse(str(folder.resolve()))


class NoRepositoryError(ConfigurationError):
    """The server has no repository of this name, or it has no longer."""


def no_repository(root: ArtifactRoot, repository: str, answer: str = "") -> NoRepositoryError:
    """Return the error that the server has no repository of this name.

    If there are artifacts of such a repository, the error says what is left of it.

    ``answer``: of the server, in parentheses; empty if it was not asked by name.
    """
    said = (
        f"there is no repository {repository!r}{answer}: `{command_line('repositories')}` lists "
        "them"
    )
    if is_name(repository) and (runs := root.runs(repository)):
        report = command_line("report", repository, "--run", runs[-1])
        said += (
            f". {root.url.rstrip('/')}/{repository} has runs of a repository of this name. If it "
            "was deleted, its objects are still in its storage namespace, which "
            f"`{command_line('leftovers')}` finds; its runs and backups are kept, too. `{report}` "
            "still shows a run, and other tools can copy objects out of a backup, but no command "
            "can restore to it or prune its runs. If nobody needs its runs and backups any more, "
            "remove their folders by hand"
        )
    return NoRepositoryError(said)


def known_repository(client: LakeFSClient, repository: str, root: ArtifactRoot) -> Repository:
    """Return a writable repository by its name.

    ``root``: of the artifacts, for the error.

    Raises:
        NoRepositoryError: the server has no repository of this name.
        ReadOnlyRepositoryError: it is read-only.
    """
    try:
        return client.writable_repository(repository)
    except (BadRequestError, NotFoundError) as error:
        # For an invalid name lakeFS answers 400 (bad request).
        raise no_repository(root, repository, f" ({error})") from error


class Connected(NamedTuple):
    """A client of the server of a run, and the connections of its tasks."""

    client: LakeFSClient
    connections: Connections


@dataclass(frozen=True)
class RunContext:
    """One run on one repository: the input of every stage of the graph."""

    repository: str
    #: The id of the run, which is the mark id.
    run: str
    settings: Settings
    lakefs: LakeFSConfig
    root: ArtifactRoot
    #: Returns the Spark session of the run, if its engine is Spark.
    session: Callable[[], SparkSession]
    clocks: Clocks = SYSTEM_CLOCKS
    log: logging.Logger = field(default_factory=lambda: logging.getLogger("lakegc"))
    #: The Dagster run that started it; None if it is unknown.
    started_by: str | None = None
    #: Requests that this process sent before the run began, by kind.
    sent_before: Mapping[str, int] = field(default_factory=traffic.by_kind)
    #: The source of Spark's configuration, in words; empty if Spark is not configured.
    spark_configured_by: str = ""
    #: None before ``connect``.
    connected: Connected | None = None

    @property
    def client(self) -> LakeFSClient:
        """A client of the server; RuntimeError before ``connect``."""
        return self._connected.client

    @property
    def connections(self) -> Connections:
        """The connections that tasks use; RuntimeError before ``connect``."""
        return self._connected.connections

    @property
    def _connected(self) -> Connected:
        if self.connected is None:
            raise RuntimeError("the run is not connected: call connect() first")
        return self.connected

    @property
    def requests_sent(self) -> int:
        """Requests sent to lakeFS and the stores since the run began; each retry counts."""
        return sum(self.requests_by_kind.values())

    @property
    def requests_by_kind(self) -> dict[str, int]:
        """Requests sent by server and method (``traffic.by_kind``)."""
        return traffic.since(self.sent_before)

    @property
    def given_settings(self) -> Mapping[str, Any]:
        """The settings in the form of manifests and of commands in messages."""
        return given_settings(self.settings, self.root.stores)

    @property
    def tasks(self) -> Tasks:
        """The runner of a stage's tasks."""
        return Tasks(self.engine, self._prepared, self.log)

    def frames(self) -> Session:
        """Return the data frame session of a stage, to be used within ``with``."""
        if self.engine.kind == "spark":
            return SparkBackedSession(self._prepared, self.connections.open, self.log)
        # DuckDB and SQLFrame load for some tenths of a second, and few commands need them.
        from lakegc_assets.engine.embedded import EmbeddedSession  # noqa: PLC0415

        memory = self.settings.embedded_memory
        return EmbeddedSession(cache(self.connections.open), memory and memory << 20, self.log)

    def _prepared(self) -> SparkSession:
        spark = self.session()
        prepare_session(spark)
        return spark

    @property
    def engine(self) -> Engine:
        """The engine of the run, chosen by the known amount of work, with the reason."""
        settings = self.settings
        rows = 0
        if settings.engine == "auto" and not self.spark_configured_by:
            rows = known_rows(self.root, self.repository, self.run)
        return choose_engine(
            settings.engine, self.spark_configured_by, rows, settings.embedded_rows
        )

    def lost_rows(self, what: str) -> IntegrityError:
        """Return the error that two computations of one result, by other joins, differ.

        ``what``: the difference.
        """
        return IntegrityError(
            f"{self.engine.kind} has lost rows in run {self.run!r} of {self.repository!r}: {what}. "
            "None of these objects was deleted. Run it again, a mark under a new id, with the "
            "other engine (--engine), and on a cluster without plug-ins and shuffle services. "
            "Please report it, with the versions of both"
        )

    def connect(self) -> Self:
        """Return the run with a client of the server, and the connections of tasks.

        Raises:
            UnsupportedServerError: the server is older than 0.100.
            ConfigurationError: the repository does not exist.
            ReadOnlyRepositoryError: the repository is read-only.
            IntegrityError: another repository's namespace is equal, contained or containing.
            ConfigurationError: another repository's namespace cannot be read; the artifacts are
                inside this repository's namespace or around it; or backups are on another server,
                in a bucket of the same name.
        """
        client = self.lakefs.connect()
        client.check_supported()
        repository = known_repository(client, self.repository, self.root)
        namespace = StorageNamespace.parse(repository.storage_namespace)
        require_apart(repository, namespace, client.repositories())
        stores = self.root.stores
        if placed(namespace.url(), stores).overlaps(placed(self.root.url, stores)):
            raise ConfigurationError(
                f"the artifacts at {self.root.url} lie in the storage namespace "
                f"{repository.storage_namespace}, or around it: they would be collected, or take "
                "its place. Choose another artifact root (LAKEGC_ARTIFACT_ROOT)",
            )
        made = repository.creation_date
        return self.at(client, self.connections_of(self.repository, namespace, made))

    def at(self, client: LakeFSClient, connections: Connections) -> Self:
        """Return the run with other connections, for example to read another repository."""
        return replace(self, connected=Connected(client, connections))

    def connections_of(
        self, repository: str, namespace: StorageNamespace, made: int | None = None
    ) -> Connections:
        """Return the connections of tasks for a repository, created at ``made``.

        Raises:
            ConfigurationError: the backups are in a bucket of the same name on another server.
        """
        if self.root.stores.at(namespace.url()) is not self.root.stores:
            raise ConfigurationError(
                f"the backups are on another server, in a bucket with the name of that of "
                f"{namespace.url()}: a URL could mean either of the two. "
                "Choose a bucket with another name for backup_url"
            )
        # The meaning of a full address depends on the namespace, and so does the cache's content.
        place = hashlib.sha256(namespace.url().encode()).hexdigest()[:16]
        cache_url = f"{self.root.url.rstrip('/')}/{repository}/_cache/{place}"
        settled, stores = self.lakefs.settled(), self.root.stores
        return Connections(settled, stores, namespace.url(), cache_url, made)

    def check_clocks(self, client: LakeFSClient, store: ObjectStore) -> datetime:
        """Compare the clocks of lakeFS and the store with ours; return the store's time, UTC.

        Raises:
            RefusedError: a clock differs by more than ``settings.clock_skew``.
        """
        store_time = self.clocks.of_store(store)
        self._require_same_time("object store", store_time)
        # Each is compared at once: reading the next one may wait for a server that is away.
        self._require_same_time("lakeFS server", self.clocks.of_lakefs(client))
        return store_time

    def _require_same_time(self, name: str, theirs: datetime) -> None:
        skew = abs(theirs - self.clocks.now())
        if skew > self.settings.clock_skew:
            raise RefusedError(
                f"the clock of the {name} differs from this machine's by {skew}, more than "
                f"{self.settings.clock_skew}: ages cannot be trusted. Correct the clock of "
                f"this machine or of the {name}",
            )

    def finish(
        self,
        asset: str,
        previous: Manifest,
        started: datetime,
        parts: Mapping[str, Sequence[Part]],
        facts: Mapping[str, object],
        digest: KeyDigest | None = None,
    ) -> Manifest:
        """Write the manifest of an asset after its files, as the successor of ``previous``.

        ``previous``: manifest of the previous asset in the graph. ``parts``: the files of each
        part; the rows of ``data`` count as the rows of the asset. ``facts``: facts for later stages
        and the report. ``digest``: digest of the keys of its rows; None for an asset without keys.

        Raises:
            RefusedError: another process has started the run again since ``previous``.
        """
        attempt = self.root.attempt(self.repository, self.run)
        if attempt.attempt != previous.attempt:
            raise RefusedError(
                f"run {self.run!r} of {self.repository!r} was started again by another process "
                f"while {asset} was made, as attempt {attempt.attempt}: this process ends, and the "
                "other one continues"
            )
        requests = self.requests_by_kind
        manifest = attempt.finish(
            Manifest(
                asset=asset,
                repository=self.repository,
                run=self.run,
                attempt=attempt.attempt,
                namespace=previous.namespace,
                cutoff=previous.cutoff,
                started=started,
                finished=self.clocks.now(),
                rows=sum(part.rows for part in parts["data"]),
                digest=str(digest) if digest else "",
                parts=parts,
                previous=previous.sha256,
                # The mode of a mark is the mode of its listing, whatever later stages are given.
                settings={**self.given_settings, "mode": previous.mode},
                facts={
                    **facts,
                    "requests": sum(requests.values()),
                    "requests_by_kind": requests,
                    "engine": str(self.engine),
                    PROTECTION: PROTECTION_VERSION,
                },
            ),
        )
        note_rows(
            self.root, self.repository, self.run, int(manifest.facts.get("entries", manifest.rows))
        )
        return manifest
