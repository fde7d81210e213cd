"""The resources of the graph: those of connections, Spark, and the settings of a run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import dagster as dg
from dagster_aws.s3 import S3Resource
from dagster_pyspark import LazyPySparkResource
from pydantic import Field, PrivateAttr

from lakegc_assets.defs.connecting import LakeFSResource, ObjectStoreResource
from lakegc_assets.defs.policy import SETTINGS, Policies, Policy
from lakegc_assets.engine.choice import EngineSetting
from lakegc_assets.engine.spark import prepare_environment, session_settings
from lakegc_assets.errors import ConfigurationError, RefusedError
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.retention.retain import Retain
from lakegc_assets.run.artifacts import ArtifactRoot
from lakegc_assets.run.context import Clocks, SystemClocks
from lakegc_assets.run.settings import (
    MAX_BATCH,
    MAX_LIST_THREADS,
    MAX_PIN,
    MIN_LEASE,
    CompareWith,
    Listing,
    ListingCheck,
    Mode,
    Publish,
    Settings,
)
from lakegc_assets.storage.config import S3Access


def located(place: str) -> str:
    """A URL as it is; a path as it is from everywhere."""
    return place if "://" in place else str(Path(place).resolve())


class CollectorResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """The settings of a run; every one can be changed in the launchpad for a single run."""

    artifact_root: str = Field(
        default="", description="URL or path of the artifacts; else LAKEGC_ARTIFACT_ROOT"
    )
    name: str = Field(
        default="",
        description="of the component: where artifact_root is not set, its artifacts are in a "
        "folder of this name",
    )
    mode: Mode = Field(
        default="unified",
        description="committed: what only expired commits hold, without a listing of the store; "
        "uncommitted: what was never committed; unified: both",
    )
    min_age_hours: float = Field(
        default=24.0, ge=0, description="younger objects are never candidates; 24 h are the least"
    )
    allow_unsafe_min_age: bool = Field(
        default=False, description="take min_age_hours as it is; only where nobody writes"
    )
    clock_skew_seconds: float = Field(default=300.0, ge=0, description="how far clocks may differ")
    max_candidate_share: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="a larger share of the listing, 0 to 1, stops the run; raise it to approve",
    )
    protect_tags: bool = Field(default=False, description="tagged commits keep their objects")
    retain: dict[str, Any] = Field(
        default={},
        description="rules that lakeFS does not have, which keep more: tags, branches, metadata, "
        "paths",
    )
    ignored_repositories: list[str] = Field(
        default_factory=list,
        description="other repositories of the server that are not read for what they name of "
        "this one's objects, which can then be deleted",
    )
    accept_missing: str | None = Field(
        default=None, description="digest of objects at HEADs that are known to be lost"
    )
    publish: Publish = Field(
        default="unified",
        description="forms of lakeFS's collectors in which a mark is published: those of its Spark "
        "client (unified), or that of its standalone collector, too (sgc)",
    )
    compare_with: CompareWith = Field(
        default="none",
        description="compare each mark with the newest one of lakeFS's Spark client (unified), or "
        "of its standalone collector (sgc)",
    )
    attribution: bool = Field(
        default=True, description="say of each mark whose the storage is that it has listed"
    )
    skip_new_slices: bool = Field(
        default=True, description="do not list slices made after the cutoff, by their names"
    )
    clean: bool = Field(
        default=False, description="list the whole store, and carry nothing forward"
    )
    clean_every_hours: float = Field(
        default=168.0,
        ge=0,
        description="a run is a clean one if the last clean one is older than this",
    )
    listing: Listing = Field(
        default="store",
        description="what tells which objects there are: a listing of the store, or the newest "
        "inventory report at inventory_place",
    )
    inventory_place: str = Field(
        default="",
        description="URL of the folder of inventory reports about the bucket of the repository, or "
        "of one report",
    )
    inventory_max_age_days: float = Field(
        default=3.0, gt=0, description="an inventory report that was begun longer ago is refused"
    )
    listing_check: ListingCheck = Field(
        default="none",
        description="inventory: hold a listing of the store against the newest inventory report, "
        "and warn of what one of them lacks",
    )
    engine: EngineSetting = Field(
        default="auto",
        description="what computes: embedded (this machine, no JVM), spark, or auto: Spark where "
        "it is configured, or where more is known than embedded_rows",
    )
    embedded_rows: int = Field(
        default=10_000_000,
        ge=0,
        description="rows listed and decoded from which on auto takes Spark",
    )
    embedded_memory: int | None = Field(
        default=None,
        ge=128,
        description="MB that joins of the embedded engine may use before they spill to disk; "
        "without it a quarter of the machine's memory, 4,096 at most",
    )
    range_num_partitions: int = Field(
        default=50, ge=1, description="the most tasks that read metaranges"
    )
    address_num_partitions: int = Field(
        default=200, ge=1, description="the most tasks that read ranges"
    )
    listing_num_partitions: int = Field(
        default=200, ge=1, description="the most tasks that list the store"
    )
    sweep_num_partitions: int = Field(default=32, ge=1, description="the most tasks that delete")
    sweep_batch: int = Field(
        default=MAX_BATCH,
        ge=1,
        le=MAX_BATCH,
        description="objects in one delete request; 1,000 are the most",
    )
    sweep_keys_per_second: float = Field(
        default=10_000.0,
        gt=0,
        allow_inf_nan=False,
        description="the most objects that a sweep deletes in a second",
    )
    sweep_requests_per_second: float = Field(
        default=1_000.0,
        gt=0,
        allow_inf_nan=False,
        description="the most requests that delete it sends in a second",
    )
    require_conditional_deletes: bool = Field(
        default=False, description="delete only what still has the etag that was listed"
    )
    lease_duration_seconds: float = Field(
        default=180.0,
        ge=MIN_LEASE.total_seconds(),
        description="for how long a sweep that died keeps others out; 120 are the least",
    )
    lease_wait_seconds: float = Field(
        default=0.0, ge=0, description="how long to wait for another sweep of the repository"
    )
    lakefs_wait_seconds: float = Field(
        default=120.0,
        ge=0,
        allow_inf_nan=False,
        description="how long to wait for a lakeFS server that is away; never within a batch of "
        "deletes",
    )
    restore_revived: bool = Field(
        default=True, description="put back at once what a sweep deleted and is needed after all"
    )
    pin_days: float = Field(
        default=30.0,
        ge=0,
        le=MAX_PIN.days,
        description="for how many days no mark takes what was restored",
    )
    trash_days: float = Field(
        default=7.0,
        ge=0,
        description="for how long deleted files of a local store stay in its trash; 0: not at all",
    )
    max_served_lookups: int = Field(
        default=100_000_000,
        ge=0,
        description="paths at HEADs to look up; what is beyond stays alive",
    )
    policies: dict[str, Any] = Field(
        default={}, description="how single repositories are collected, as the component says it"
    )
    adopt: str | None = Field(
        default=None, description="mark id of lakeFS's own collector: take what it names only"
    )
    backup_url: str = Field(
        default="",
        description="URL or path of backups; else LAKEGC_BACKUP_URL. A sweep then deletes only "
        "what is verified in the backup of its mark",
    )
    backup_endpoint_url: str | None = Field(
        default=None,
        description="S3 server of the bucket of backup_url, where it is not that of the "
        "namespaces; else LAKEGC_BACKUP_ENDPOINT_URL",
    )
    backup_region: str | None = Field(
        default=None, description="of that server; else LAKEGC_BACKUP_REGION"
    )
    backup_profile: str | None = Field(
        default=None,
        description="in ~/.aws, with credentials for that bucket; else LAKEGC_BACKUP_PROFILE",
    )
    without_backup: bool = Field(
        default=False,
        description="without backup_url, go on with a sweep that did not end and had relied on a "
        "backup",
    )
    backup_num_partitions: int = Field(default=20, ge=1, description="the most tasks that copy")
    backup_bandwidth: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="the most that all of them copy together, in MB/s",
    )
    backup_log: str | None = Field(
        default=None, description="folder or URL of logs of backups, one line for each object"
    )
    backup_list_threads: int = Field(
        default=8,
        ge=1,
        le=MAX_LIST_THREADS,
        description="threads that list a backup; 40 are the most",
    )
    backup_distribution: Literal["dynamic", "uniform"] = Field(
        default="dynamic", description="whether tasks that copy take portions as they go, or one"
    )
    collect_excluded: bool = Field(
        default=False,
        description="collect a repository although include and exclude of the component leave it "
        "out",
    )
    namespace_roots: list[str] = Field(
        default_factory=list,
        description="URLs below which the server keeps namespaces; those that no repository has "
        "are leftovers. Else LAKEGC_NAMESPACE_ROOTS, separated by commas",
    )
    _clocks: Clocks = PrivateAttr(default_factory=SystemClocks)

    def with_clocks(self, clocks: Clocks) -> CollectorResource:
        """This resource with other clocks, for tests."""
        self._clocks = clocks
        return self

    def settings(self) -> Settings:
        """The settings as the core takes them.

        Raises:
            ConfigurationError: one makes no sense.
        """
        backup_url = self._backup_url()
        try:
            return Settings(
                min_age=timedelta(hours=self.min_age_hours),
                allow_unsafe_min_age=self.allow_unsafe_min_age,
                clock_skew=timedelta(seconds=self.clock_skew_seconds),
                max_candidate_share=self.max_candidate_share,
                protect_tags=self.protect_tags,
                retain=Retain.parse(self.retain),
                mode=self.mode,
                ignored_repositories=tuple(self.ignored_repositories),
                accept_missing=self.accept_missing,
                skip_new_slices=self.skip_new_slices,
                clean=self.clean,
                clean_every=timedelta(hours=self.clean_every_hours),
                listing=self.listing,
                inventory_place=located(self.inventory_place) if self.inventory_place else None,
                inventory_max_age=timedelta(days=self.inventory_max_age_days),
                listing_check=self.listing_check,
                engine=self.engine,
                embedded_rows=self.embedded_rows,
                embedded_memory=self.embedded_memory,
                range_num_partitions=self.range_num_partitions,
                address_num_partitions=self.address_num_partitions,
                listing_num_partitions=self.listing_num_partitions,
                sweep_num_partitions=self.sweep_num_partitions,
                sweep_batch=self.sweep_batch,
                sweep_keys_per_second=self.sweep_keys_per_second,
                sweep_requests_per_second=self.sweep_requests_per_second,
                require_conditional_deletes=self.require_conditional_deletes,
                lease_duration=timedelta(seconds=self.lease_duration_seconds),
                lease_wait=timedelta(seconds=self.lease_wait_seconds),
                restore_revived=self.restore_revived,
                pin_days=timedelta(days=self.pin_days),
                trash_days=timedelta(days=self.trash_days),
                max_served_lookups=self.max_served_lookups,
                adopt=self.adopt,
                publish=self.publish,
                compare_with=self.compare_with,
                attribution=self.attribution,
                backup_url=located(backup_url) if backup_url else None,
                without_backup=self.without_backup,
                backup_num_partitions=self.backup_num_partitions,
                backup_bandwidth=self.backup_bandwidth,
                backup_log=located(self.backup_log) if self.backup_log else None,
                backup_list_threads=self.backup_list_threads,
                backup_distribution=self.backup_distribution,
            )
        except (ValueError, OverflowError) as error:
            raise ConfigurationError(f"hours and seconds must be usual numbers: {error}") from error

    @property
    def clocks(self) -> Clocks:
        """The clocks of its runs."""
        return self._clocks

    def all_policies(self) -> Policies:
        """How each repository is collected by itself."""
        return Policies(**self.policies)

    def policy(self, repository: str) -> Policy:
        """How a repository is collected by itself."""
        return self.all_policies().of(repository)

    def of_repository(self, repository: str, given: Mapping[str, Any]) -> CollectorResource:
        """This resource with the settings of one repository.

        Args:
            repository: lakeFS repository.
            given: what the run itself configures of this resource, which holds whatever the policy
                is.
        """
        if not self.policies:
            return self
        own = Policies(**self.policies).changed(repository)
        return self.model_copy(
            update={k: v for k, v in own.items() if k in SETTINGS and k not in given}
        )

    def require_included(self, repository: str) -> None:
        """Refuse a repository that is not collected, unless the run says so.

        Raises:
            RefusedError: ``include`` and ``exclude`` leave it out.
        """
        if self.collect_excluded or self.all_policies().collects(repository):
            return
        raise RefusedError(
            f"repository {repository!r} is excluded, so nothing was done: `include` and `exclude` "
            "of the component leave it out. To collect it all the same, set collect_excluded: true "
            "for this run (in the launchpad below resources, collector, config; of the command "
            "`--set collect_excluded=true`)"
        )

    def root(self, stores: ObjectStoreResource) -> ArtifactRoot:
        """Where the artifacts live."""
        shared = os.environ.get("LAKEGC_ARTIFACT_ROOT") or ".lakegc/artifacts"
        # No repository has such a name, so this is none to whoever has all of that place.
        own = f"{shared.rstrip('/')}/_{self.name}" if self.name else shared
        chosen = self.artifact_root or own
        return ArtifactRoot(located(chosen), replace(stores.config(), elsewhere=self.elsewhere()))

    def roots(self) -> tuple[str, ...]:
        """URLs below which the server keeps namespaces."""
        shared = os.environ.get("LAKEGC_NAMESPACE_ROOTS", "").split(",")
        return tuple(self.namespace_roots or filter(None, map(str.strip, shared)))

    def _backup_url(self) -> str | None:
        return self.backup_url or os.environ.get("LAKEGC_BACKUP_URL")

    def elsewhere(self) -> tuple[tuple[str, S3Access], ...]:
        """The bucket of the backups, where it is reached in a way of its own.

        Raises:
            ConfigurationError: there is such a way, and the backups are in no S3 bucket.
        """
        ways: dict[str, Any] = {
            name: getattr(self, f"backup_{name}")
            or os.environ.get(f"LAKEGC_BACKUP_{name.upper()}")
            or None
            for name in ("endpoint_url", "region", "profile")
        }
        if not any(ways.values()):
            return ()
        url = self._backup_url()
        place = StorageNamespace.parse(located(url)) if url else None
        if place is None or place.scheme != "s3":
            given = " and ".join(f"backup_{name}" for name, value in ways.items() if value)
            raise ConfigurationError(
                f"{given} is set, and backup_url is {url or 'not set'}: it goes with a URL like "
                "s3://bucket/backups"
            )
        return ((place.authority, S3Access(**ways)),)


@dg.definitions
def resources() -> dg.Definitions:
    """The resources, as they are where nothing else is configured."""
    prepare_environment()
    return dg.Definitions(
        resources={
            "lakefs": LakeFSResource(),
            "stores": ObjectStoreResource(
                s3=S3Resource(), local_root=os.environ.get("LAKEGC_LOCAL_ROOT")
            ),
            "pyspark": LazyPySparkResource(spark_config=session_settings()),
            "collector": CollectorResource(),
        },
    )
