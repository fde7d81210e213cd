"""The state of schedules and sensors: which are on, which ticks failed, which sensors only fail."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Final

import dagster as dg

from lakegc_assets.defs.failures import first_cause
from lakegc_assets.estate.notices import Outbox, document

#: States of a schedule or sensor that a person has turned on, or that is on from the start.
#: Dagster has no public names for these states, nor for the methods of an instance used here
#: (``all_instigator_state``, ``get_ticks``). Otherwise only GraphQL provides them, and a sensor
#: does not know its URL.
_ON: Final = ("RUNNING", "DECLARED_IN_CODE")
#: A sensor without a tick for this time does not count: its code location is gone.
_TICKING: Final = timedelta(minutes=10)
#: States of ticks that ended without an error; a tick that has not ended proves nothing.
_ENDED_WELL: Final = ("SUCCESS", "SKIPPED")


def schedules_on(
    instance: dg.DagsterInstance, location: str | None = None
) -> dict[str, Sequence[str]]:
    """The cron schedules of each schedule that is turned on, by its name.

    ``location``: a code location; None for all of them.
    """
    found: dict[str, Sequence[str]] = {}
    for state in _on(instance, "SCHEDULE", location):
        crons = getattr(state.instigator_data, "cron_schedule", None)
        if crons is not None:
            found[state.instigator_name] = [crons] if isinstance(crons, str) else crons
    return found


def _on(instance: dg.DagsterInstance, kind: str, location: str | None) -> Iterator[Any]:
    """The states of the schedules or sensors that are turned on."""
    if instance.schedule_storage is None:
        return
    for state in instance.all_instigator_state():
        of_kind = state.instigator_type.value == kind and state.status.value in _ON
        if of_kind and location in {None, _location(state)}:
            yield state


def _location(state: Any) -> str:  # noqa: ANN401 - Dagster has no public name for it
    name: str = state.origin.repository_origin.code_location_origin.location_name
    return name


def locations_of(
    instance: dg.DagsterInstance, sensor: str, here: str, now: datetime
) -> Sequence[str]:
    """Other code locations in which a sensor with this name ticks."""
    found = set()
    for state in _on(instance, "SENSOR", None):
        if state.instigator_name != sensor or _location(state) == here:
            continue
        ticks = instance.get_ticks(
            state.instigator_origin_id,
            state.selector_id,
            after=(now - _TICKING).timestamp(),
            limit=1,
        )
        if ticks:
            found.add(_location(state))
    return sorted(found)


@dataclass(frozen=True)
class FailedTick:
    """A failed tick: its schedule or sensor, the time when it was due (UTC), and the error."""

    name: str
    at: datetime
    error: str


def failed_ticks(
    instance: dg.DagsterInstance, since: datetime, location: str | None = None
) -> list[FailedTick]:
    """The failed ticks since a time (UTC) of schedules that are on; the oldest first.

    ``location``: a code location; None for all of them.
    """
    found: list[FailedTick] = []
    for state in _on(instance, "SCHEDULE", location):
        ticks = instance.get_ticks(
            state.instigator_origin_id, state.selector_id, after=since.timestamp() - 1
        )
        name = state.instigator_name
        found += [_failed(name, tick) for tick in ticks if tick.status.value == "FAILURE"]
    return sorted(found, key=lambda one: one.at)


#: Least time from the first to the last of consecutive failed ticks.
_FAILING: Final = timedelta(hours=1)
#: Time over which ticks are read; longer for a sensor with fewer than ``_TICKS`` ticks in it.
_TICKS_BACK: Final = timedelta(hours=3)
_TICKS: Final = 3


def failing_sensors(
    instance: dg.DagsterInstance, location: str | None, now: datetime, names: Container[str]
) -> dict[str, FailedTick]:
    """The last failed tick of each sensor whose ticks have all failed for an hour.

    ``location``: a code location; None for all of them. ``names``: names of sensors.
    """
    found: dict[str, FailedTick] = {}
    for state in _on(instance, "SENSOR", location):
        if state.instigator_name not in names:
            continue
        every_s = getattr(state.instigator_data, "min_interval", None) or 0
        back = max(_TICKS_BACK, _TICKS * timedelta(seconds=every_s))
        ticks = instance.get_ticks(
            state.instigator_origin_id, state.selector_id, after=(now - back).timestamp()
        )
        failed = []
        for tick in sorted(ticks, key=lambda one: one.timestamp):
            if tick.status.value == "FAILURE":
                failed.append(tick)
            elif tick.status.value in _ENDED_WELL:
                failed.clear()
        if failed and failed[-1].timestamp - failed[0].timestamp >= _FAILING.total_seconds():
            found[state.instigator_name] = _failed(state.instigator_name, failed[-1])
    return found


def add_failing(
    outbox: Outbox, failing: Mapping[str, FailedTick], reported: Collection[str], owners: list[str]
) -> list[str]:
    """Queue a notice for each failing sensor not yet reported; return the names of all."""
    for name in sorted(failing.keys() - set(reported)):
        outbox.add(
            f"sensor {name}",
            document=document(
                "sensor",
                f"the sensor {name} fails",
                f"all ticks of {name} have failed for an hour or more. The last error: "
                f"{failing[name].error}",
                "correct the cause that the error names; Dagster shows all of its ticks under "
                '"Automation". The sensor continues with its next tick',
                sensor=name,
                owners=owners,
            ),
        )
    return sorted(failing)


def _failed(name: str, tick: Any) -> FailedTick:  # noqa: ANN401 - Dagster has no public name for it
    at = datetime.fromtimestamp(tick.timestamp, timezone.utc)
    why = (
        first_cause(tick.error)
        if tick.error
        else "Dagster has recorded no error: see the log of its daemon"
    )
    return FailedTick(name, at, why)
