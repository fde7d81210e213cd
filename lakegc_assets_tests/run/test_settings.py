"""Settings that make no sense are refused, and no cutoff is ever too late."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakegc_assets.errors import ConfigurationError
from lakegc_assets.retention.retain_rules import Retain
from lakegc_assets.run.settings import MIN_SAFE_AGE, CollectorSettings, Settings

WRONG: list[dict[str, Any]] = [
    {"min_age_hours": -1.0, "allow_unsafe_min_age": True},
    {"clock_skew_seconds": -1.0},
    {"max_candidate_share": -0.1},
    {"max_candidate_share": 1.1},
    {"max_candidate_share": float("nan")},
    {"range_num_partitions": 0},
    {"address_num_partitions": 0},
    {"listing_num_partitions": 0},
    {"sweep_num_partitions": -1},
    {"snapshot_attempts": 0},
    {"max_served_lookups": -1},
    {"sweep_keys_per_second": 0},
    {"sweep_keys_per_second": float("nan")},
    {"sweep_requests_per_second": float("inf")},
    {"lease_duration_seconds": 60},
    {"lease_wait_seconds": -1},
    {"trash_days": -1},
    {"adopt": "their-mark", "mode": "committed"},
    {"adopt": "their-mark", "mode": "uncommitted"},
    {"mode": "all"},
]


@pytest.mark.parametrize("values", WRONG, ids=lambda values: next(iter(values)))
def test_values_that_make_no_sense_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(values))):
        Settings(**values)


def test_an_age_below_a_day_is_refused_unless_it_is_allowed() -> None:
    with pytest.raises(ConfigurationError, match=r"min_age is 23:59:59\.99"):
        Settings(min_age_hours=24 - 1e-6)
    assert Settings(min_age_hours=24 - 1e-6, allow_unsafe_min_age=True).min_age < MIN_SAFE_AGE


MOMENTS = st.integers(0, 2**32).map(lambda seconds: datetime.fromtimestamp(seconds, timezone.utc))
HOUR = timedelta(hours=1)
AGES = st.timedeltas(timedelta(0), timedelta(days=400))


@given(MOMENTS, AGES, AGES, st.timedeltas(timedelta(0), timedelta(hours=2)))
def test_a_cutoff_leaves_every_address_its_time(
    start: datetime, min_age: timedelta, grace_period: timedelta, skew: timedelta
) -> None:
    day = timedelta(hours=24)
    cutoff = Settings(
        min_age_hours=max(min_age, day) / HOUR, clock_skew_seconds=skew.total_seconds()
    ).cutoff(start, grace_period)
    # The later of three ages, both clocks wrong in the bad direction, and an hour.
    assert start - cutoff == max(min_age, grace_period, day) + 2 * skew + timedelta(hours=1)


@given(MOMENTS, AGES, AGES)
def test_an_unsafe_age_is_taken_as_it_is(
    start: datetime, min_age: timedelta, grace_period: timedelta
) -> None:
    unsafe = Settings(min_age_hours=min_age / HOUR, allow_unsafe_min_age=True)
    assert start - unsafe.cutoff(start, grace_period) == min_age


def test_settings_are_recorded_as_json() -> None:
    values = json.loads(json.dumps(Settings().to_json()))
    assert values["min_age_hours"] == 24.0
    assert values["clock_skew_seconds"] == 300.0
    assert set(values) == set(CollectorSettings.model_fields)


def test_other_values_are_checked_as_the_first_ones_are() -> None:
    settings = Settings(backup_url="", retain={"tags": ["v*"]})
    assert settings.backup_url is None
    assert settings.changed(clean=True).retained == Retain(("v*",))
    refused: list[dict[str, Any]] = [{"trash_days": -1}, {"trash_dais": 1}, {"retain": {"tagz": 1}}]
    for wrong in refused:
        with pytest.raises(ConfigurationError):
            settings.changed(**wrong)
