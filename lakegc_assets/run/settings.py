"""The settings of a run: what may be collected, how old it must be, and how the work is split."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import reduce
from operator import or_
from typing import Any, Final, Literal, get_args

from lakegc_assets.engine.choice import ENGINE_SETTINGS, EngineSetting
from lakegc_assets.errors import ConfigurationError
from lakegc_assets.retention.retain import NO_RETAIN, Retain

MIN_SAFE_AGE = timedelta(hours=24)
CUTOFF_MARGIN = timedelta(hours=1)
MAX_BATCH = 1000
#: MB with which the embedded engine sorts and joins at all.
LEAST_MEMORY = 128
MIN_LEASE = timedelta(minutes=2)
MAX_PIN = timedelta(days=36_500)
MAX_LIST_THREADS = 40
#: What may become a candidate: see ``Settings.mode``.
Mode = Literal["unified", "committed", "uncommitted"]
MODES: Final[tuple[Mode, ...]] = get_args(Mode)
Publish = Literal["unified", "sgc"]
CompareWith = Literal["none", "unified", "sgc"]
#: What tells which objects there are, and what a listing is held against.
Listing = Literal["store", "inventory"]
ListingCheck = Literal["none", "inventory"]
PUBLISH: Final[tuple[Publish, ...]] = get_args(Publish)


def recorded_retain(recorded: Iterable[Mapping[str, Any]]) -> Retain:
    """The rules that keep more than lakeFS's by any of some settings.

    Args:
        recorded: settings as manifests have them; those of earlier versions have no such rules.
    """
    return reduce(or_, (Retain.parse(one.get("retain")) for one in recorded), NO_RETAIN)


@dataclass(frozen=True)
class Settings:
    """What one run may collect, and how its work is split.

    Attributes:
        mode: what may become a candidate: ``committed``, what ranges name that no active commit
            holds, without a listing of the store; ``uncommitted``, what no range names, whoever
            holds it; ``unified``, both. A sweep is of the mode of its mark.
        min_age: an object younger than this at the start of the run is never a candidate.
        allow_unsafe_min_age: take ``min_age`` as it is, without the grace period of the server,
            24 h, the clock skew and the margin of one hour. For tests and trials only.
        clock_skew: how far the clocks of lakeFS and of the store may differ from this machine's.
        max_candidate_share: the share of the listing (0 to 1) that may become candidates; more
            stops the run. Raising it for one run is the operator's approval.
        protect_tags: tagged commits count as active, whatever the rules say.
        retain: rules that lakeFS does not have, which keep more. A sweep follows those of its mark,
            too.
        accept_missing: digest of the set of objects that a branch HEAD names, the store does not
            hold, and the operator has looked at. The error that stops a run names it.
        skip_new_slices: do not list slices that were made after the cutoff, by their names: they
            cannot hold a candidate.
        clean: list the whole store; else what earlier runs saw of slices that nobody writes to any
            more is carried forward.
        clean_every: a run is a clean one if the last clean one is older than this.
        listing: what tells which objects there are: a listing of the ``store``, or an ``inventory``
            report that its service wrote. The mode ``committed`` needs neither.
        inventory_place: URL of the folder of these reports, of which the newest complete one is
            read; or of one of them.
        inventory_max_age: a report that was begun longer ago is refused.
        listing_check: hold a listing against the newest ``inventory`` report, and warn of what one
            of them lacks; or ``none``.
        range_num_partitions: the most tasks that read metaranges.
        address_num_partitions: the most tasks that read ranges, or compare addresses.
        listing_num_partitions: the most tasks that list the store.
        sweep_num_partitions: the most tasks that delete.
        sweep_batch: objects in one delete request, 1 to 1,000 (the most that S3 takes). HEADs and
            rules are read before each.
        sweep_keys_per_second: the most objects that a sweep deletes in a second, in all its tasks.
        sweep_requests_per_second: the most requests that delete it sends in a second.
        require_conditional_deletes: delete only on the condition that an object is the one that
            was listed, one request for each object if the store takes conditions only so; refuse
            to sweep a store that ignores them.
        lease_duration: for how long the lease of a sweep holds without being renewed; a sweep that
            died keeps others out for so long. At least 2 minutes.
        lease_wait: how long a sweep waits for another one of its repository, 0 to refuse at once.
        restore_revived: what a sweep deleted and is needed after all is put back at once, from what
            the store kept or from the backup; a hold is written only for the rest.
        pin_days: for how long no mark takes what was restored; 0 for no time at all.
        trash_days: for how long deleted files of a local store stay in the trash of its namespace;
            0 to delete them at once, which leaves older trash where it is.
        ignored_repositories: names of other repositories of the server that are not read for
            references into this one. What only they name can be deleted.
        max_served_lookups: how many paths at branch HEADs may be looked up to see which address
            lakeFS serves there; candidates beyond it stay alive and are reported.
        engine: what computes the tasks: ``embedded``, ``spark``, or ``auto``: Spark where it is
            configured, or where more rows are known than ``embedded_rows``.
        embedded_rows: rows listed and decoded that the embedded engine is good for.
        embedded_memory: MB that the embedded engine's joins may use before they spill to disk; None
            for a quarter of the machine's memory, 4,096 at most.
        snapshot_attempts: how often an uncommitted snapshot is started again before the run stops.
        adopt: id of a mark of lakeFS's own collector: only what it names can be a candidate, and
            what it names and stays is spared. None for a run of its own.
        publish: the forms of lakeFS's collectors in which a mark is published: ``unified`` for
            those of its Spark client, ``sgc`` for that of its standalone collector, too.
        compare_with: whose newest mark each of ours is compared with: of lakeFS's Spark client
            (``unified``) or of its standalone collector (``sgc``); ``none`` for nobody's.
        attribution: say of each mark whose the storage is that it has listed.
        backup_url: where backups are; a sweep then deletes only what is verified in that of its
            mark. None for no backups.
        without_backup: where no ``backup_url`` is set, go on with a sweep that did not end and had
            relied on a backup.
        backup_num_partitions: the most tasks that copy.
        backup_bandwidth: the most that all of them copy together, in MB/s; None for no limit.
        backup_log: folder or URL of logs with one line for each object; None for no logs.
        backup_list_threads: that list a backup, 1 to 40.
        backup_distribution: ``dynamic``: each task takes the next of many portions of about equal
            bytes; ``uniform``: each gets one.
    """

    mode: Mode = "unified"
    min_age: timedelta = MIN_SAFE_AGE
    allow_unsafe_min_age: bool = False
    clock_skew: timedelta = timedelta(minutes=5)
    max_candidate_share: float = 0.5
    protect_tags: bool = False
    retain: Retain = NO_RETAIN
    accept_missing: str | None = None
    skip_new_slices: bool = True
    clean: bool = False
    clean_every: timedelta = timedelta(days=7)
    listing: Listing = "store"
    inventory_place: str | None = None
    inventory_max_age: timedelta = timedelta(days=3)
    listing_check: ListingCheck = "none"
    range_num_partitions: int = 50
    address_num_partitions: int = 200
    listing_num_partitions: int = 200
    sweep_num_partitions: int = 32
    sweep_batch: int = MAX_BATCH
    sweep_keys_per_second: float = 10_000.0
    sweep_requests_per_second: float = 1_000.0
    require_conditional_deletes: bool = False
    lease_duration: timedelta = timedelta(minutes=3)
    lease_wait: timedelta = timedelta(0)
    restore_revived: bool = True
    pin_days: timedelta = timedelta(days=30)
    trash_days: timedelta = timedelta(days=7)
    ignored_repositories: tuple[str, ...] = ()
    max_served_lookups: int = 100_000_000
    snapshot_attempts: int = 3
    engine: EngineSetting = "auto"
    embedded_rows: int = 10_000_000
    embedded_memory: int | None = None
    adopt: str | None = None
    publish: Publish = "unified"
    compare_with: CompareWith = "none"
    attribution: bool = True
    backup_url: str | None = None
    without_backup: bool = False
    backup_num_partitions: int = 20
    backup_bandwidth: float | None = None
    backup_log: str | None = None
    backup_list_threads: int = 8
    backup_distribution: Literal["dynamic", "uniform"] = "dynamic"

    def __post_init__(self) -> None:
        """Refuse values that make no sense.

        Raises:
            ConfigurationError: a value is out of its range, or ``min_age`` is below 24 h without
                ``allow_unsafe_min_age``.
        """
        self._check_scope()
        if self.min_age < timedelta(0):
            raise ConfigurationError(f"min_age is {self.min_age}: it cannot be negative")
        if self.min_age < MIN_SAFE_AGE and not self.allow_unsafe_min_age:
            raise ConfigurationError(
                f"min_age is {self.min_age}, below {MIN_SAFE_AGE}: an upload that is still on its "
                "way could be deleted. Set allow_unsafe_min_age only where nobody writes",
            )
        if self.clock_skew < timedelta(0):
            raise ConfigurationError(f"clock_skew is {self.clock_skew}: it cannot be negative")
        for name in (
            "range_num_partitions",
            "address_num_partitions",
            "listing_num_partitions",
            "sweep_num_partitions",
            "backup_num_partitions",
            "snapshot_attempts",
        ):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} is {getattr(self, name)}: it must be 1 or more")
        if self.clean_every < timedelta(0):
            raise ConfigurationError(f"clean_every is {self.clean_every}: it cannot be negative")
        self._check_listing()
        self._check_engine()
        self._check_sweep()
        self._check_backup()
        if self.max_served_lookups < 0:
            raise ConfigurationError(
                f"max_served_lookups is {self.max_served_lookups}: it cannot be negative"
            )

    def _check_scope(self) -> None:
        if self.mode not in MODES:
            raise ConfigurationError(f"mode is {self.mode!r}: it is one of {', '.join(MODES)}")
        if self.adopt is not None and self.mode != "unified":
            raise ConfigurationError(
                f"adopt goes with the mode unified only, and the mode is {self.mode!r}: what a "
                "mark of lakeFS's collector names is judged by all that is known"
            )
        if not all(self.ignored_repositories):
            raise ConfigurationError(
                f"ignored_repositories is {list(self.ignored_repositories)}: a name is empty"
            )
        if self.compare_with not in get_args(CompareWith):
            names = ", ".join(get_args(CompareWith))
            raise ConfigurationError(f"compare_with is {self.compare_with!r}: it is one of {names}")
        if self.publish not in PUBLISH:
            raise ConfigurationError(
                f"publish is {self.publish!r}: it is one of {', '.join(PUBLISH)}"
            )
        if not 0 <= self.max_candidate_share <= 1:
            raise ConfigurationError(
                f"max_candidate_share is {self.max_candidate_share}: it is a share from 0 to 1",
            )

    def _check_listing(self) -> None:
        for name, choices in (("listing", Listing), ("listing_check", ListingCheck)):
            if (value := getattr(self, name)) not in get_args(choices):
                names = ", ".join(get_args(choices))
                raise ConfigurationError(f"{name} is {value!r}: it is one of {names}")
            if value == "inventory" and not self.inventory_place:
                raise ConfigurationError(
                    f"{name} is inventory, and inventory_place is not set: where are the reports?"
                )
        if self.listing == self.listing_check:
            raise ConfigurationError(
                "listing and listing_check are both inventory: a listing of the store is held "
                "against a report, and there is none where the report is read in its place"
            )
        if self.inventory_max_age <= timedelta(0):
            raise ConfigurationError(
                f"inventory_max_age is {self.inventory_max_age}: it must be positive"
            )

    def _check_engine(self) -> None:
        if self.engine not in ENGINE_SETTINGS:
            raise ConfigurationError(
                f"engine is {self.engine!r}: it is one of {', '.join(ENGINE_SETTINGS)}"
            )
        if self.embedded_rows < 0:
            raise ConfigurationError(
                f"embedded_rows is {self.embedded_rows}: it cannot be negative"
            )
        if self.embedded_memory is not None and self.embedded_memory < LEAST_MEMORY:
            raise ConfigurationError(
                f"embedded_memory is {self.embedded_memory}: it must be {LEAST_MEMORY} (MB) or more"
            )

    def _check_sweep(self) -> None:
        if not 1 <= self.sweep_batch <= MAX_BATCH:
            raise ConfigurationError(
                f"sweep_batch is {self.sweep_batch}: it must be from 1 to {MAX_BATCH}"
            )
        for name in ("sweep_keys_per_second", "sweep_requests_per_second"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigurationError(f"{name} is {getattr(self, name)}: it must be positive")
        if self.lease_duration < MIN_LEASE or self.lease_wait < timedelta(0):
            raise ConfigurationError(
                f"lease_duration is {self.lease_duration} and lease_wait {self.lease_wait}: they "
                f"must be at least {MIN_LEASE} and 0",
            )
        if self.trash_days < timedelta(0):
            raise ConfigurationError(f"trash_days is {self.trash_days}: it cannot be negative")

    def _check_backup(self) -> None:
        if not timedelta(0) <= self.pin_days <= MAX_PIN:
            raise ConfigurationError(f"pin_days is {self.pin_days}: it must be from 0 to {MAX_PIN}")
        rate = self.backup_bandwidth
        if rate is not None and not 0 < rate < float("inf"):
            raise ConfigurationError(f"backup_bandwidth is {rate}: it must be positive, in MB/s")
        if not 1 <= self.backup_list_threads <= MAX_LIST_THREADS:
            raise ConfigurationError(
                f"backup_list_threads is {self.backup_list_threads}: it must be from 1 to "
                f"{MAX_LIST_THREADS}"
            )
        if self.backup_distribution not in {"dynamic", "uniform"}:
            raise ConfigurationError(
                f"backup_distribution is {self.backup_distribution!r}: it is 'dynamic' or 'uniform'"
            )

    def cutoff(self, start: datetime, grace_period: timedelta) -> datetime:
        """The time before which an object must have been written to be a candidate.

        Args:
            start: start of the run, by the store's clock.
            grace_period: for how long the server lets an address be linked.
        """
        if self.allow_unsafe_min_age:
            return start - self.min_age
        age = max(grace_period, MIN_SAFE_AGE, self.min_age)
        return start - (age + 2 * self.clock_skew + CUTOFF_MARGIN)

    def to_json(self) -> dict[str, Any]:
        """The settings as JSON values, times in seconds; recorded in every manifest."""
        # All values are plain: a deep copy of them would take longer than all else in a manifest.
        values = {
            name: value.total_seconds() if isinstance(value, timedelta) else value
            for name, value in self.__dict__.items()
        }
        return values | {
            "ignored_repositories": list(self.ignored_repositories),
            "retain": self.retain.to_json(),
        }
