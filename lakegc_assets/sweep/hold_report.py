"""The report of the hold of a repository, before its acceptance and after."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lakegc_assets.run.command_line import command_line, in_dagster
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.undo import with_trash
from lakegc_assets.sweep.acceptance import (
    BACK,
    KEPT,
    LOST_NOW,
    Alarm,
    accept_hold,
    look_at_alarms,
)
from lakegc_assets.sweep.hold import (
    ACCEPTING_JOB,
    HOLD,
    Hold,
    find_hold,
    object_lines,
    restore_command,
)
from lakegc_assets.wording import counted, minute


def known_hold(ctx: RunContext) -> dict[str, Any]:
    """Return the hold of a repository, and the states of its objects, as JSON values.

    Raises:
        StorageError: the store could not be read.
    """
    ctx = ctx.connect()
    store = ctx.connections.store()
    found = find_hold(store)
    if found is None:
        return {"repository": ctx.repository, "state": "no hold"}
    if found.acceptance is not None:
        return shown_acceptance(ctx.repository, found, f"{store.url}/{HOLD}")
    alarms = look_at_alarms(ctx, found)
    accepting = command_line(
        "hold", ctx.repository, "--accept", "--id", found.id, settings=ctx.given_settings
    )
    return {
        "repository": ctx.repository,
        "state": "on hold",
        "id": found.id,
        "url": f"{store.url}/{HOLD}",
        "alarms": [_alarm(ctx, alarm) for alarm in alarms],
        "all_back": bool(alarms) and all(alarm.is_back for alarm in alarms),
        "store": with_trash(store.recovery(), ctx.settings.trash_lifetime).notice,
        "accept": accepting,
    }


def accepted(ctx: RunContext, hold_id: str, by: str, *, unverified: bool) -> dict[str, Any]:
    """Accept a hold; return the acceptance as JSON values.

    Raises:
        HoldError: the hold has been replaced by another one.
        RefusedError: another process works on the repository.
        IntegrityError: it is unknown if all is lost.
        StorageError: it is unknown if the hold was accepted.
    """
    return shown_acceptance(ctx.repository, *accept_hold(ctx, hold_id, by, unverified=unverified))


def hold_lines(found: Mapping[str, Any]) -> list[str]:
    """Format the result of ``known_hold`` or ``accepted`` as lines."""
    name = repr(found["repository"])
    if found["state"] == "no hold":
        return [f"{name} is not on hold: sweeps may start"]
    if found["state"] == "accepted":
        lines = [f"{name} is not on hold: {found['by']} has accepted it on {minute(found['at'])}"]
        lines += [f"  {_totals_line(one)}" for one in found["totals"]]
        return [*lines, f"  record  {found['record']}"]
    lines = [f"{name} is on hold, and is not swept. Hold {found['id']}"]
    for alarm in found["alarms"]:
        at = minute(alarm["at"]) if alarm["at"] else "some time"
        lines.append(f"{at}: {alarm['alarm'] or 'an alarm without a message'}")
        lines.append(f"  now: {_totals_line(alarm['states']) or 'it names no objects'}")
        lines += [f"  {alarm['unread']}"] if alarm["unread"] else []
        lines += object_lines(alarm["objects"])
        lines += [f"  all objects: {alarm['all']}"] if alarm["all"] else []
    if not found["alarms"]:
        lines.append(
            f"{found['url']} is not the JSON of an alarm: the log of the sweep that raised it "
            "names the objects"
        )
    lines.append(f"settings of the store, for later deletes: {found['store']}")
    return [*lines, "What to do:", *_advice(found)]


def _advice(found: Mapping[str, Any]) -> list[str]:
    """Return the steps that a person can take about a hold, one per line."""
    job = f"or the job {in_dagster(ACCEPTING_JOB)} with `accept` {found['id']}"
    if found["all_back"]:
        sentence = "all objects are at their addresses again, and nothing is lost: accept the hold"
        return [f"  {sentence}:  {found['accept']}  ({job})"]
    totals = [alarm["states"] for alarm in found["alarms"]]
    kept = sum(total.get(state, 0) for total in totals for state in KEPT.values())
    lost = sum(total.get(LOST_NOW, 0) for total in totals)
    lines = [
        f"  restore the objects, then run this command again:  {alarm['restore']}"
        for alarm in found["alarms"]
        # If all objects are lost, or back, a restore has nothing to do.
        if alarm["restore"] and not {*alarm["states"]} <= {BACK, LOST_NOW}
    ]
    clear = {BACK, LOST_NOW, *KEPT.values()}
    known = bool(totals) and all({*total} <= clear for total in totals)
    if not known or any(alarm["unread"] for alarm in found["alarms"]):
        lines.append("  copy the other objects to their addresses, if you have copies elsewhere")
        step = "accept the loss of the objects that nothing keeps"
    elif lost:
        those = f"the {counted(lost, 'object')} that nothing keeps"
        lines.append(f"  copy {those} to their addresses, if you have copies elsewhere")
        step = f"accept the loss of {those}{', once the others are back' if kept else ''}"
    else:
        step = "nothing is lost yet: accept the hold, which restores the kept objects"
    return [*lines, f"  {step}:  {found['accept']}  ({job})"]


def shown_acceptance(repository: str, found: Hold, record: str) -> dict[str, Any]:
    """Return the acceptance of a hold as JSON values; ``record``: its URL."""
    acceptance: Mapping[str, Any] = found.acceptance or {}
    known = {name: acceptance.get(name) for name in ("id", "by", "at", "owner")}
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
    """Return the objects of the hold with their states; missing objects come first."""
    objects = alarm.values.get("objects")
    named = [row for row in objects if isinstance(row, dict)] if isinstance(objects, list) else []
    known = {str(row.get("address")): row for row in named}
    shown = [
        {**known.get(address, {}), "address": address, "state": state}
        for address, state in sorted(alarm.states.items())
    ]
    return sorted(shown, key=lambda row: row["state"] == BACK)


def _totals_line(states: Mapping[str, Any]) -> str:
    """Format the number of objects in each state."""
    counts = {name: count for name, count in states.items() if isinstance(count, int)}
    run = f"mark {states['run']}: " if states.get("run") else ""
    return run + ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items()))
