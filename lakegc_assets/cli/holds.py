"""What is known about holds, and their acceptance, for the command ``hold``."""

from __future__ import annotations

import getpass
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from lakegc_assets.cli.jobs import checked
from lakegc_assets.cli.queries import any_context
from lakegc_assets.defs.resources import CollectorResource
from lakegc_assets.run.command_line import command_line
from lakegc_assets.run.context import RunContext
from lakegc_assets.sweep.acceptance import Alarm, accept_hold, look_at_alarms
from lakegc_assets.sweep.hold import HOLD, Hold, find_hold, restore_command


@contextmanager
def _context(repository: str, settings: dict[str, Any]) -> Iterator[RunContext]:
    given = CollectorResource(**checked(settings)).settings()
    with any_context(repository, "any") as ctx:
        yield replace(ctx, settings=given)


def known_hold(repository: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The hold of a repository, and what became of the objects that it names, as JSON values.

    Raises:
        ConfigurationError: there is no such repository, or a setting is wrong.
        StorageError: nobody can tell.
    """
    with _context(repository, settings) as ctx:
        _, connections = ctx.connect()
        store = connections.store()
        found = find_hold(store)
        if found is None:
            return {"repository": repository, "state": "no hold"}
        if found.acceptance is not None:
            return _accepted(repository, found, f"{store.url}/{HOLD}")
        alarms = look_at_alarms(ctx, connections, found)
        accepting = command_line(
            "hold", repository, "--accept", "--id", found.id, settings=ctx.given_settings
        )
        return {
            "repository": repository,
            "state": "on hold",
            "id": found.id,
            "url": f"{store.url}/{HOLD}",
            "alarms": [_alarm(ctx, alarm) for alarm in alarms],
            "store": store.recovery().notice,
            "accept": accepting,
        }


def accepted(
    repository: str, settings: dict[str, Any], hold_id: str, by: str | None, *, unverified: bool
) -> dict[str, Any]:
    """Accept a hold; what was accepted, as JSON values.

    Raises:
        HoldError: the hold is another one by now.
        RefusedError: somebody else works on the repository.
        IntegrityError: it is not known whether all is lost.
        StorageError: it is not known to be accepted.
    """
    with _context(repository, settings) as ctx:
        done = accept_hold(ctx, hold_id, by or getpass.getuser(), unverified=unverified)
        return _accepted(repository, done.hold, done.record)


def _accepted(repository: str, found: Hold, record: str) -> dict[str, Any]:
    said: Mapping[str, Any] = found.acceptance or {}
    known = {name: said.get(name) for name in ("id", "by", "at", "owner")}
    values = {name: found.values.get(name) for name in ("totals", "lost")}
    return {"repository": repository, "state": "accepted", **known, **values, "record": record}


def _alarm(ctx: RunContext, alarm: Alarm) -> dict[str, Any]:
    values = alarm.values
    return {
        **{name: values.get(name) for name in ("run", "at", "alarm", "all")},
        "states": dict(alarm.totals),
        "unread": alarm.unread,
        "objects": _with_states(alarm),
        "restore": restore_command(ctx, alarm.run) if alarm.run else None,
    }


def _with_states(alarm: Alarm) -> list[dict[str, Any]]:
    """What the hold says of its objects, with what became of them; what is gone comes first."""
    objects = alarm.values.get("objects")
    named = [one for one in objects if isinstance(one, dict)] if isinstance(objects, list) else []
    known = {str(one.get("address")): one for one in named}
    shown = [
        {**known.get(address, {}), "address": address, "state": state}
        for address, state in sorted(alarm.states.items())
    ]
    return sorted(shown, key=lambda one: one["state"] == "back")
