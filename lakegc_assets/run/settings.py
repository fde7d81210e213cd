"""The settings of a run, as the core has them: times as such, rules parsed."""

# ruff: noqa: RUF009 - the calls make fields, as dataclasses.field does
from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from functools import cache, reduce
from operator import or_
from typing import Any, Final

from pydantic import ValidationError

from lakegc_assets.engine.choice import EngineSetting
from lakegc_assets.errors import ConfigurationError
from lakegc_assets.retention.retain import NO_RETAIN, Retain
from lakegc_assets.run.bounds import Bounds
from lakegc_assets.run.setting_fields import (
    CollectorSettings,
    CompareWith,
    Distribution,
    Listing,
    ListingCheck,
    Mode,
    Publish,
)

MIN_SAFE_AGE = timedelta(hours=24)
CUTOFF_MARGIN = timedelta(hours=1)
#: The recorded name of a setting, in the metadata of a field of ``Settings``.
_NAME: Final = "setting"


def recorded_retain(recorded: Iterable[Mapping[str, Any]]) -> Retain:
    """The rules that keep more than lakeFS's by any of some settings.

    Args:
        recorded: settings as manifests have them; those of earlier versions have no such rules.
    """
    return reduce(or_, (Retain.parse(one.get("retain")) for one in recorded), NO_RETAIN)


@cache
def time_unit(name: str) -> timedelta | None:
    """The unit of a setting that is a time; None of all others.

    Args:
        name: of a field of ``CollectorSettings``.
    """
    for one in CollectorSettings.model_fields[name].metadata:
        if isinstance(one, Bounds) and one.unit in {"seconds", "hours", "days"}:
            return timedelta(**{one.unit: 1})
    return None


def _for_core(name: str, value: Any) -> Any:  # noqa: ANN401 - of any field
    """A value of ``CollectorSettings`` as ``Settings`` has it."""
    if unit := time_unit(name):
        return value * unit
    if name == "retain":
        return Retain.parse(value)
    if isinstance(value, list):
        return tuple(value)
    return None if value == "" else value


def _as_written(name: str, value: Any) -> Any:  # noqa: ANN401 - of any field
    """A value of ``Settings`` as ``CollectorSettings`` has it."""
    if unit := time_unit(name):
        return value / unit
    if isinstance(value, Retain):
        return value.to_json()
    if isinstance(value, tuple):
        return list(value)
    absent = value is None and CollectorSettings.model_fields[name].annotation is str
    return "" if absent else value


def _setting(name: str) -> Any:  # noqa: ANN401 - of the type that the field says
    """A field with the default of a setting."""
    default = CollectorSettings.model_fields[name].get_default(call_default_factory=True)
    return field(default=_for_core(name, default), metadata={_NAME: name})


@dataclass(frozen=True)
class Settings:
    """Settings of one run: see ``CollectorSettings``."""

    mode: Mode = _setting("mode")
    min_age: timedelta = _setting("min_age_hours")
    allow_unsafe_min_age: bool = _setting("allow_unsafe_min_age")
    clock_skew: timedelta = _setting("clock_skew_seconds")
    max_candidate_share: float = _setting("max_candidate_share")
    protect_tags: bool = _setting("protect_tags")
    retain: Retain = _setting("retain")
    accept_missing: str | None = _setting("accept_missing")
    skip_new_slices: bool = _setting("skip_new_slices")
    clean: bool = _setting("clean")
    clean_every: timedelta = _setting("clean_every_hours")
    listing: Listing = _setting("listing")
    inventory_place: str | None = _setting("inventory_place")
    inventory_max_age: timedelta = _setting("inventory_max_age_days")
    listing_check: ListingCheck = _setting("listing_check")
    range_num_partitions: int = _setting("range_num_partitions")
    address_num_partitions: int = _setting("address_num_partitions")
    listing_num_partitions: int = _setting("listing_num_partitions")
    sweep_num_partitions: int = _setting("sweep_num_partitions")
    sweep_batch: int = _setting("sweep_batch")
    sweep_keys_per_second: float = _setting("sweep_keys_per_second")
    sweep_requests_per_second: float = _setting("sweep_requests_per_second")
    require_conditional_deletes: bool = _setting("require_conditional_deletes")
    lease_duration: timedelta = _setting("lease_duration_seconds")
    lease_wait: timedelta = _setting("lease_wait_seconds")
    restore_revived: bool = _setting("restore_revived")
    pin_days: timedelta = _setting("pin_days")
    trash_days: timedelta = _setting("trash_days")
    ignored_repositories: tuple[str, ...] = _setting("ignored_repositories")
    max_served_lookups: int = _setting("max_served_lookups")
    snapshot_attempts: int = _setting("snapshot_attempts")
    engine: EngineSetting = _setting("engine")
    embedded_rows: int = _setting("embedded_rows")
    embedded_memory: int | None = _setting("embedded_memory")
    adopt: str | None = _setting("adopt")
    publish: Publish = _setting("publish")
    compare_with: CompareWith = _setting("compare_with")
    attribution: bool = _setting("attribution")
    backup_url: str | None = _setting("backup_url")
    without_backup: bool = _setting("without_backup")
    backup_num_partitions: int = _setting("backup_num_partitions")
    backup_bandwidth: float | None = _setting("backup_bandwidth")
    backup_log: str | None = _setting("backup_log")
    backup_list_threads: int = _setting("backup_list_threads")
    backup_distribution: Distribution = _setting("backup_distribution")

    @classmethod
    def of(cls, written: CollectorSettings, **places: str | None) -> Settings:
        """The settings of a run.

        Args:
            written: as people have written them.
            places: URLs in place of those in ``written``.

        Raises:
            ConfigurationError: they make no sense together.
            RulesError: the rules of ``retain`` cannot be parsed.
        """
        values = {core: getattr(written, name) for core, name in SETTING_NAMES.items()} | places
        return cls(
            **{core: _for_core(SETTING_NAMES[core], value) for core, value in values.items()}
        )

    def __post_init__(self) -> None:
        """Refuse values that make no sense.

        Raises:
            ConfigurationError: a value is beyond its limits, or values contradict each other.
        """
        values = {
            name: _as_written(name, getattr(self, core)) for core, name in SETTING_NAMES.items()
        }
        try:
            CollectorSettings.model_validate(values, strict=True)
        except ValidationError as error:
            raise refusal(error) from error
        self._check_scope()
        self._check_listing()

    def _check_scope(self) -> None:
        if self.min_age < MIN_SAFE_AGE and not self.allow_unsafe_min_age:
            raise ConfigurationError(
                f"min_age is {self.min_age}, below {MIN_SAFE_AGE}: an upload that is still on its "
                "way could be deleted. Set allow_unsafe_min_age only where nobody writes",
            )
        if self.adopt is not None and self.mode != "unified":
            raise ConfigurationError(
                f"adopt goes with the mode unified only, and the mode is {self.mode!r}: what a "
                "mark of lakeFS's collector names is judged by all that is known"
            )
        if not all(self.ignored_repositories):
            raise ConfigurationError(
                f"ignored_repositories is {list(self.ignored_repositories)}: a name is empty"
            )

    def _check_listing(self) -> None:
        for name in ("listing", "listing_check"):
            if getattr(self, name) == "inventory" and not self.inventory_place:
                raise ConfigurationError(
                    f"{name} is inventory, and inventory_place is not set: where are the reports?"
                )
        if self.listing == self.listing_check:
            raise ConfigurationError(
                "listing and listing_check are both inventory: a listing of the store is held "
                "against a report, and there is none where the report is read in its place"
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


#: The names of settings as people write them, by those that ``Settings`` and manifests have.
SETTING_NAMES: Final = {one.name: str(one.metadata[_NAME]) for one in fields(Settings)}


def refusal(error: ValidationError) -> ConfigurationError:
    """The error about wrong settings: the name of each, its value and its limits.

    Args:
        error: of ``CollectorSettings``.
    """
    found = error.errors(include_url=False)
    return ConfigurationError(
        "; ".join(
            f"{one['loc'][0]} is {one['input']!r}: {one['msg'].removeprefix('Value error, ')}"
            for one in found
        )
    )
