"""The settings of a run: each with its type, unit, default, limits and help, declared once.

The collector resource, the component's policies, the options of the command, the table in
docs/operations.md and the errors are generated from these fields. ``Settings`` has the same
fields, and checks that their values are consistent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from functools import reduce
from operator import or_
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    field_validator,
    model_validator,
)

from lakegc_assets.engine.choice import EngineSetting
from lakegc_assets.errors import ConfigurationError
from lakegc_assets.retention.retain_rules import NO_RETAIN, Retain
from lakegc_assets.run.bounds import Bounds
from lakegc_assets.wording import duration

#: The objects that may become candidates.
Mode = Literal["unified", "committed", "uncommitted"]
MODES: Final[tuple[Mode, ...]] = get_args(Mode)
Distribution = Literal["dynamic", "uniform"]
Publish = Literal["unified", "sgc"]
CompareWith = Literal["none", "unified", "sgc"]
#: The source of the listing, and the source that the listing is compared with.
Listing = Literal["store", "inventory"]
ListingCheck = Literal["none", "inventory"]

MIN_SAFE_AGE: Final = timedelta(hours=24)
_SAFE_HOURS: Final = duration(MIN_SAFE_AGE)
CUTOFF_MARGIN: Final = timedelta(hours=1)
MAX_BATCH: Final = 1000
#: Most days of a time: more than a hundred years is a slip, and no date can be computed.
MAX_DAYS: Final = 36_500

_Tasks = Annotated[int, Bounds(1)]
_Hours = Annotated[float, Bounds(0, MAX_DAYS * 24, unit="hours")]
_Days = Annotated[float, Bounds(0, MAX_DAYS, unit="days")]
_Seconds = Annotated[float, Bounds(0, MAX_DAYS * 86_400, unit="seconds")]


class RepositorySettings(BaseModel):
    """Settings that a policy may give for single repositories."""

    mode: Mode = Field(
        default="unified",
        description="what may become a candidate: what only expired commits hold, without a "
        "listing of the store (committed); what was never committed (uncommitted); or both "
        "(unified). A sweep is of the mode of its mark",
    )
    min_age_hours: _Hours = Field(
        default=24.0,
        description="younger objects are never candidates; a value below 24 needs "
        "`allow_unsafe_min_age`",
    )
    longest_commit_seconds: _Seconds = Field(
        default=300.0,
        description="the longest duration of a commit, including the hooks before it: until a "
        "commit has ended, lakeFS may list the objects of that commit nowhere. A sweep starts to "
        "delete no earlier than this long after its mark has read the staged objects",
    )
    max_candidate_share: Annotated[float, Bounds(0, 1)] = Field(
        default=0.5,
        description="the largest share of the listing, 0 to 1, that a run may delete; a larger "
        "share stops the run. Raise it to approve",
    )
    protect_tags: bool = Field(
        default=False, description="tagged commits keep their objects, regardless of the rules"
    )
    retain: dict[str, Any] = Field(
        default={},
        description="rules that lakeFS does not have, and that keep more objects: by tags, "
        "branches, metadata and paths. A sweep also follows the rules of its mark",
    )
    ignored_repositories: list[str] = Field(
        default_factory=list,
        description="other repositories of the server whose references to objects of this "
        "repository are not read, so that these objects can be deleted; separated by commas in "
        "`--set`",
    )
    clean_every_hours: _Hours = Field(
        default=168.0,
        description="the interval between listings of the whole store: a run is a clean run if "
        "the last clean run is older than this",
    )
    listing: Listing = Field(
        default="store",
        description="the source of the list of objects: a listing of the store, or the newest "
        "inventory report at `inventory_place`. The mode committed needs neither",
    )
    inventory_place: str | None = Field(
        default=None,
        description="URL of one inventory report, or of the folder of the reports about the "
        "bucket of the repository; of a folder, the newest complete report is read",
    )
    inventory_max_age_days: Annotated[float, Bounds(0, MAX_DAYS, above=True, unit="days")] = Field(
        default=3.0, description="an inventory report that was started longer ago is refused"
    )
    listing_check: ListingCheck = Field(
        default="none",
        description="inventory: compare a listing of the store with the newest inventory report, "
        "and warn about objects that only one of them has",
    )
    publish: Publish = Field(
        default="unified",
        description="the forms of lakeFS's collectors in which a mark is published: the form of "
        "its Spark client (unified), or also the form of its standalone collector (sgc): "
        "`reports/<id>/deleted.csv` and its `summary.json`",
    )
    compare_with: CompareWith = Field(
        default="none",
        description="shadow mode: compare each mark with the newest finished mark of lakeFS's "
        "Spark client (unified) or of its standalone collector (sgc); the metadata of `gc_report` "
        "show the differences",
    )
    attribution: bool = Field(
        default=True,
        description="compute for each mark who uses the listed storage; nothing else depends on it",
    )


class SharedSettings(BaseModel):
    """Settings that a component gives for all repositories: engine, tasks, rates, waits."""

    clock_skew_seconds: _Seconds = Field(
        default=300.0,
        description="the largest difference between this machine's clock and those of lakeFS and "
        "the store",
    )
    skip_new_slices: bool = Field(
        default=True,
        description="do not list slices whose names show that they were made after the cutoff: "
        "they cannot hold a candidate",
    )
    engine: EngineSetting = Field(
        default="auto",
        description="the engine that computes: embedded (threads and processes of this machine, "
        "no JVM), spark, or auto. auto takes Spark for every stage if Spark is configured "
        "(`LAKEGC_SPARK_CONF`, `SPARK_REMOTE`, a `spark_config` of the resource pyspark), or if "
        "more rows are known than `embedded_rows`",
    )
    embedded_rows: Annotated[int, Bounds(0)] = Field(
        default=100_000_000,
        description="the number of rows, listed and decoded by this run or the one before it, "
        "above which auto takes Spark; without a Java the embedded engine continues, and the log "
        "says so",
    )
    embedded_memory: Annotated[int | None, Bounds(128, unit="MB")] = Field(
        default=None,
        description="MB that joins of the embedded engine may use before they spill to disk, "
        "below `TMPDIR`. Default: 512 for each core; a query that needs more may use a quarter of "
        "the memory of the machine or container, at most 4,096. The engine has one thread for "
        "each 512 MB",
    )
    range_num_partitions: _Tasks = Field(
        default=50, description="the most tasks that read metaranges"
    )
    address_num_partitions: _Tasks = Field(
        default=200, description="the most tasks that read ranges, or compare addresses"
    )
    listing_num_partitions: _Tasks = Field(
        default=200, description="the most tasks that list the store"
    )
    sweep_num_partitions: _Tasks = Field(default=32, description="the most tasks that delete")
    sweep_batch: Annotated[int, Bounds(1, MAX_BATCH)] = Field(
        default=MAX_BATCH,
        description="the most objects in one delete request (Azure accepts 256); before each "
        "request the sweep reads HEADs, rules and the lease",
    )
    sweep_keys_per_second: Annotated[float, Bounds(0, above=True)] = Field(
        default=10_000.0,
        description="the most objects that all tasks of a sweep together delete in a second; "
        "halved whenever the store asks for fewer requests, then raised slowly",
    )
    sweep_requests_per_second: Annotated[float, Bounds(0, above=True)] = Field(
        default=1_000.0, description="the most delete requests that a sweep sends in a second"
    )
    require_conditional_deletes: bool = Field(
        default=False,
        description="delete an object only if it still has the listed etag: one request for each "
        "object if the store supports the condition only there (versitygw); no delete if the "
        "store never supports it (MinIO)",
    )
    lakefs_wait_seconds: _Seconds = Field(
        default=120.0,
        description="how long all calls of a process together wait for a lakeFS server that does "
        "not answer (refused or broken connections, no answer in time, 502, 503, 504); the log "
        "says so. Other errors, unknown hosts and certificates are reported at once or after "
        "`max_attempts`. The reads of a mark before its report wait together as long for an "
        "object store that is away. "
        "Tasks that delete never wait: a sweep whose tasks cannot reach the server or the store "
        "ends, and has to be run again",
    )
    lease_duration_seconds: Annotated[float, Bounds(120, MAX_DAYS * 86_400, unit="seconds")] = (
        Field(
            default=180.0,
            description="how long the lease of a sweep that died excludes other sweeps. On the "
            "machine on which the sweep was killed: a minute if it may have deleted something, "
            "else no time",
        )
    )
    lease_wait_seconds: _Seconds = Field(
        default=0.0,
        description="how long to wait for a running sweep of the repository, and for any other "
        "run of the repository on this machine",
    )
    restore_revived: bool = Field(
        default=True,
        description="put deleted objects back at once if they turn out to be needed; only for the "
        "others a hold is written",
    )
    pin_days: _Days = Field(
        default=30.0,
        description="for how many days no mark and no sweep takes restored objects; 0: no pins "
        "are written",
    )
    trash_days: _Days = Field(
        default=7.0,
        description="for how many days deleted files of a local store stay in "
        "`_lakefs/retention/gc/lakegc/trash/` of the namespace, counted from the start of the "
        "sweep. No sweep removes its own. Later sweeps with fewer days do not shorten this, and "
        "the only copy of a needed object stays longer. 0: files are deleted at once, and older "
        "trash stays. Other stores keep deleted objects as their own settings say",
    )
    max_served_lookups: Annotated[int, Bounds(0)] = Field(
        default=100_000_000,
        description="the most paths at HEADs to look up; candidates that need more look-ups, or "
        "for which there is no time, stay alive",
    )
    snapshot_attempts: _Tasks = Field(
        default=3,
        description="how often a snapshot of the staged objects is started again before the run "
        "stops",
    )
    backup_num_partitions: _Tasks = Field(
        default=20, description="the most tasks that copy (`-m`, `--max-maps`)"
    )
    backup_bandwidth: Annotated[float | None, Bounds(0, above=True, unit="MB/s")] = Field(
        default=None,
        description="the most MB/s that all of these tasks copy together (`--bandwidth`)",
    )
    backup_list_threads: Annotated[int, Bounds(1, 40)] = Field(
        default=8, description="threads that list a backup (`--num-liststatus-threads`)"
    )
    backup_distribution: Distribution = Field(
        default="dynamic",
        description="dynamic: each copying task takes the next of many portions of equal bytes; "
        "uniform: each task gets one portion (`--strategy`)",
    )


class CollectorSettings(SharedSettings, RepositorySettings):
    """Settings of a run: the objects that it may collect, and the division of its work."""

    allow_unsafe_min_age: bool = Field(
        default=False,
        description="use `min_age_hours` as it is, without grace period, clock skew and margin; "
        "only if nobody writes",
    )
    accept_missing: str | None = Field(
        default=None,
        description="continue although objects of branch HEADs are lost: the digest of exactly "
        "these objects, from the error that names them",
    )
    clean: bool = Field(
        default=False,
        description="list the whole store; else a run reuses what earlier runs listed of old "
        "slices",
    )
    adopt: str | None = Field(
        default=None,
        description="id of a mark of lakeFS's own collector: only objects that this mark also "
        "names are candidates (`lakegc adopt`)",
    )
    backup_url: str | None = Field(
        default=None,
        description="URL or path of backups; else `LAKEGC_BACKUP_URL`. If it is set, a sweep "
        "deletes only objects that are verified in the backup of its mark",
    )
    backup_log: str | None = Field(
        default=None,
        description="folder or URL for the logs of backups, one line of JSON for each object "
        "(`--log`)",
    )
    without_backup: bool = Field(
        default=False,
        description="without `backup_url`, continue an unfinished sweep that had relied on a "
        "backup",
    )


class Settings(CollectorSettings):
    """The settings of one run, which are consistent; properties return times and parsed rules.

    Raises:
        ConfigurationError: a value is beyond its limits, or values contradict each other.
        RulesError: the rules of ``retain`` cannot be parsed.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    @field_validator(
        "accept_missing", "adopt", "backup_log", "backup_url", "inventory_place", mode="before"
    )
    @classmethod
    def _absent(cls, value: object) -> object:
        """Take an empty text for None, as in ``--set backup_url=``."""
        return None if value == "" else value

    @field_validator("retain")
    @classmethod
    def _parsed(cls, value: object) -> object:
        return Retain.parse(value).to_json()

    @model_validator(mode="wrap")
    @classmethod
    def _refuse(cls, values: object, handler: ModelWrapValidatorHandler[Settings]) -> Settings:
        try:
            return handler(values)
        except ValidationError as error:
            raise refusal(error) from error

    @property
    def retained(self) -> Retain:
        """The rules that keep more objects than lakeFS's."""
        return Retain.parse(self.retain)

    @property
    def min_age(self) -> timedelta:
        """The least age of a candidate."""
        return timedelta(hours=self.min_age_hours)

    @property
    def clock_skew(self) -> timedelta:
        """The largest allowed difference between clocks."""
        return timedelta(seconds=self.clock_skew_seconds)

    @property
    def clean_every(self) -> timedelta:
        """The age of the last clean run after which the whole store is listed."""
        return timedelta(hours=self.clean_every_hours)

    @property
    def inventory_max_age(self) -> timedelta:
        """The age of an inventory report, counted from its begin, above which it is refused."""
        return timedelta(days=self.inventory_max_age_days)

    @property
    def longest_commit(self) -> timedelta:
        """The longest duration of a commit, with the hooks before it."""
        return timedelta(seconds=self.longest_commit_seconds)

    @property
    def lease_duration(self) -> timedelta:
        """The time after which a lease expires unless it is renewed."""
        return timedelta(seconds=self.lease_duration_seconds)

    @property
    def lease_wait(self) -> timedelta:
        """The longest wait for another run."""
        return timedelta(seconds=self.lease_wait_seconds)

    @property
    def pin_lifetime(self) -> timedelta:
        """The time for which restored objects are pinned."""
        return timedelta(days=self.pin_days)

    @property
    def trash_lifetime(self) -> timedelta:
        """The time for which deleted files stay in the trash."""
        return timedelta(days=self.trash_days)

    def changed(self, **values: Any) -> Settings:  # noqa: ANN401 - of any field
        """Return the settings with other values of some fields."""
        now = self.to_json()
        # A check of all fields takes longer than the rest of most callers' work.
        return self if now == now | values else Settings(**now | values)

    @model_validator(mode="after")
    def _check_scope(self) -> Settings:
        if self.min_age < MIN_SAFE_AGE and not self.allow_unsafe_min_age:
            raise ConfigurationError(
                f"min_age is {self.min_age}, below {_SAFE_HOURS}: an upload in progress could be "
                "deleted. Raise it; set allow_unsafe_min_age only if nobody writes",
            )
        if self.adopt is not None and self.mode != "unified":
            raise ConfigurationError(
                f"adopt needs the mode unified, and the mode is {self.mode!r}: remove one of the "
                "two settings"
            )
        if not all(self.ignored_repositories):
            raise ConfigurationError(
                f"ignored_repositories is {self.ignored_repositories}: remove the empty name"
            )
        return self

    @model_validator(mode="after")
    def _check_listing(self) -> Settings:
        for name in ("listing", "listing_check"):
            if getattr(self, name) == "inventory" and not self.inventory_place:
                raise ConfigurationError(
                    f"{name} is inventory: set inventory_place to the URL of the folder of reports"
                )
        if self.listing == self.listing_check:
            raise ConfigurationError(
                "listing and listing_check are both inventory: listing_check compares a listing of "
                "the store with a report, so it needs the listing store"
            )
        return self

    def cutoff(self, start: datetime, grace_period: timedelta) -> datetime:
        """Return the time before which a candidate must have been written.

        ``start``: start of the run, by the store's clock. ``grace_period``: time for which the
        server lets an address be linked.
        """
        if self.allow_unsafe_min_age:
            return start - self.min_age
        age = max(grace_period, MIN_SAFE_AGE, self.min_age)
        return start - (age + 2 * self.clock_skew + CUTOFF_MARGIN)

    def to_json(self) -> dict[str, Any]:
        """Return the settings as JSON values, by their names, as in every manifest."""
        # All values are plain: a deep copy would take longer than the rest of a manifest.
        return vars(self).copy()


def refusal(error: ValidationError) -> ConfigurationError:
    """Return the error on wrong settings: the name of each, its value and its limits."""
    found = error.errors(include_url=False)
    return ConfigurationError(
        "; ".join(
            f"{one['loc'][0]} is {one['input']!r}: {one['msg'].removeprefix('Value error, ')}"
            for one in found
        )
    )


def recorded_retain(recorded: Iterable[Mapping[str, Any]]) -> Retain:
    """Return the union of the ``retain`` rules of several recorded settings."""
    return reduce(or_, (Retain.parse(one.get("retain")) for one in recorded), NO_RETAIN)
