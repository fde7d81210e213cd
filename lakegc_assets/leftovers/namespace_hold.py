"""The hold of a namespace that no repository has: shows it, and ends it for a person.

The hold keeps the namespace from being removed. lakeFS has no repository there, so no command can
restore the lost objects, and only those that the hold names are looked up, at their addresses.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from lakegc_assets.errors import RefusedError
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.leftovers.namespace_removal import require_nobodys
from lakegc_assets.leftovers.namespaces import OTHERS, require_claimed, whose
from lakegc_assets.leftovers.server import Server
from lakegc_assets.mark.installation import known_server
from lakegc_assets.run.clocks import SYSTEM_CLOCKS
from lakegc_assets.run.command_line import command_line
from lakegc_assets.run.object_lookup import look_up
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.sweep.acceptance import replace_hold
from lakegc_assets.sweep.hold import (
    ACCEPTED,
    HOLD,
    LOST,
    RECORDS,
    Hold,
    find_hold,
    object_lines,
)
from lakegc_assets.sweep.hold_report import hold_lines, shown_acceptance
from lakegc_assets.sweep.lease import repository_lease
from lakegc_assets.sweep.lease_record import owner_of
from lakegc_assets.wording import minute

_COPY: Final = (
    "no command restores to a repository that was deleted: copy what you need to another place, "
    "from the namespace, from what its store has kept, or from a backup"
)
_THERE, _NOT_THERE = "at its address", "not at its address"


def known_hold(server: Server, url: str) -> dict[str, Any]:
    """Return the hold of a namespace that no repository has, as JSON values.

    Raises:
        RefusedError: a repository has it, or may have it.
        LakegcError: the namespace or the list of repositories cannot be read.
    """
    place = _nobodys(server, url)
    return _shown(server.open(place.url()), place)


def accept_hold(
    server: Server, url: str, hold_id: str, by: str, *, unclaimed: bool, unverified: bool
) -> dict[str, Any]:
    """End the hold of a namespace that no repository has; return the acceptance as JSON values.

    ``hold_id``: id of the hold that the person has seen. ``unclaimed``: the person confirms that no
    other lakeFS server uses the namespace. ``unverified``: also if an object is not at its address.

    Raises:
        RefusedError: a repository or another server has the namespace, or may have it; another
            process holds its lease; or the hold is another one, or names objects that are not
            there, without ``unverified``.
        LakegcError: something could not be read, or it is unknown if the hold was accepted.
    """
    place = _nobodys(server, url)
    store, settings = server.open(place.url()), server.context("any").settings
    owner = owner_of(doing="accept a hold")
    with repository_lease(
        store, owner, duration=settings.lease_duration, wait=settings.lease_wait
    ) as lease:
        _nobodys(server, url)
        _require_unclaimed(server, place, store, unclaimed=unclaimed)
        if find_hold(store) is None:
            raise RefusedError(f"{place.url()} is not on hold: nothing to accept")
        etag, hold = store.head(HOLD).etag, find_hold(store)
        if hold is None or hold.acceptance is not None or hold.id != hold_id:
            raise RefusedError(
                f"the hold of {place.url()} is not {hold_id} any more: read it again with "
                f"`{command_line('hold', place.url())}`"
            )
        states = _states(store, hold)
        lacking = sorted(address for address, state in states.items() if state != _THERE)
        if (lacking or not states) and not unverified:
            raise RefusedError(
                f"the hold of {place.url()} stays: it is not known what is lost, since no "
                "repository has its objects any more. Copy what you need to another place first. "
                "If you need nothing of it, accept it with --unverified"
            )
        acceptance = {"id": hold.id, "by": by, "at": SYSTEM_CLOCKS.now().isoformat()}
        values = {
            ACCEPTED: {**acceptance, "owner": dict(lease.owner)},
            "totals": [_totals(states)],
            LOST: {},
            "unverified": lacking,
            "hold": hold.text,
        }
        accepted = Hold(json.dumps(values, indent=1))
        lease.require()
        replace_hold(store, accepted, etag)
        store.put(f"{RECORDS}{hold.id}.json", accepted.text.encode())
    return _shown(store, place)


def lines(found: Mapping[str, Any]) -> list[str]:
    """Format the result of ``known_hold`` or ``accept_hold`` as lines."""
    url = found["repository"]
    if found["state"] != "on hold":
        return hold_lines(found) if found["state"] == "accepted" else [f"{url} is not on hold"]
    said = [f"{url} is on hold, and no repository of the server has it. Hold {found['id']}"]
    for alarm in found["alarms"]:
        at = minute(alarm["at"]) if alarm.get("at") else "some time"
        said.append(f"{at}: {alarm.get('alarm') or 'an alarm without a message'}")
        said += object_lines(alarm["objects"], alarm.get("count"))
        said += [f"  all objects: {alarm['all']}"] if alarm.get("all") else []
    if not found["alarms"]:
        said.append(f"{found['url']} is not the JSON of an alarm")
    counts = ", ".join(f"{count:,} {state}" for state, count in found["states"].items())
    return [
        *said,
        f"now: {counts or 'it names no objects'}",
        "What to do:",
        f"  {_COPY}",
        f"  then end the hold, so that the namespace can be removed:  {found['accept']}",
    ]


def _nobodys(server: Server, url: str) -> StorageNamespace:
    """The place of a namespace. Raises RefusedError: a repository has it, or may have it."""
    place = StorageNamespace.parse(url)
    require_nobodys(server, place)
    return place


def _require_unclaimed(
    server: Server, place: StorageNamespace, store: ObjectStore, *, unclaimed: bool
) -> None:
    owner = whose(server, known_server(store))
    if owner == OTHERS:
        raise RefusedError(
            f"the hold of {place.url()} stays: its server.json names another lakeFS server, or "
            "this one, which does not show its id. Accept it with the one that collects it"
        )
    require_claimed(owner, f"the hold of {place.url()}", unclaimed=unclaimed)


def _shown(store: ObjectStore, place: StorageNamespace) -> dict[str, Any]:
    url, found = f"{store.url}/{HOLD}", find_hold(store)
    if found is None:
        return {"repository": place.url(), "state": "no hold"}
    if found.acceptance is not None:
        return shown_acceptance(place.url(), found, url)
    states = _states(store, found)
    names = ("run", "at", "alarm", "all", "count")
    return {
        "repository": place.url(),
        "state": "on hold",
        "id": found.id,
        "url": url,
        "alarms": [
            {**{name: alarm.get(name) for name in names}, "objects": _objects(alarm, states)}
            for alarm in found.alarms
        ],
        "states": _totals(states),
        "accept": command_line("hold", place.url(), "--accept", "--id", found.id),
    }


def _objects(alarm: Mapping[str, Any], states: Mapping[str, str]) -> list[dict[str, Any]]:
    named = alarm.get("objects")
    rows = [one for one in named if isinstance(one, dict)] if isinstance(named, list) else []
    return [{**row, "state": states.get(str(row.get("address")))} for row in rows]


def _states(store: ObjectStore, hold: Hold) -> dict[str, str]:
    """The state of each object that a hold names, by its address."""
    rows = [row for alarm in hold.alarms for row in _objects(alarm, {}) if "address" in row]
    found = look_up(store, [str(row["address"]) for row in rows])
    return {key: _NOT_THERE if one is None else _THERE for key, one in found.items()}


def _totals(states: Mapping[str, str]) -> dict[str, int]:
    return {state: [*states.values()].count(state) for state in sorted({*states.values()})}
