"""Removes a namespace that no repository has, and ends its hold for a person.

The marker is deleted last. After a killed removal, the marker therefore still names the repository
and server.

An import does not copy objects. Objects imported from the namespace of a deleted repository are
live and still in that namespace. So the removal first reads every repository of the server, with
all of its ranges.

A hold keeps the namespace from being removed. lakeFS has no repository there, so no command can
restore the lost objects, and only those that the hold names are looked up, at their addresses.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.errors import RefusedError
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.lakefs.models import Repository
from lakegc_assets.leftovers.namespaces import (
    OTHERS,
    guarded,
    read_namespace,
    require_claimed,
    whose,
)
from lakegc_assets.leftovers.removal import (
    FOLDER,
    PLANNED,
    Choices,
    Plan,
    carry_out,
    remove_objects,
)
from lakegc_assets.leftovers.server import Server
from lakegc_assets.mark.full_addresses import Inside, cached_full, inside, read_full
from lakegc_assets.mark.installation import MARKER, known_server
from lakegc_assets.mark.live_ranges import live_ranges
from lakegc_assets.mark.other_repositories import Other, heads_of, staged_addresses, tables_of
from lakegc_assets.mark.ranges import wanted
from lakegc_assets.run.clocks import NEVER, SYSTEM_CLOCKS
from lakegc_assets.run.command_line import command_line
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.object_lookup import look_up
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.values import LISTING_SCHEMA
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

_LAKEFS = "_lakefs/"
#: Seconds after which the repositories are read again for references.
_LOOK_LIFETIME_S: Final = 600.0
#: Number of staged addresses in memory at a time.
STAGED_AT_ONCE: Final = 50_000
_COPY: Final = (
    "no command restores to a repository that was deleted: copy what you need to another place, "
    "from the namespace, from what its store has kept, or from a backup"
)
_THERE, _NOT_THERE = "at its address", "not at its address"


def plan_namespace(server: Server, url: str, *, unclaimed: bool) -> Plan:
    """Plan the removal of a namespace in which the server has no repository.

    ``unclaimed``: a person confirms that no other lakeFS server uses it.

    Raises:
        RefusedError: the namespace must stay; the message has the reason. Or clocks differ.
        LakegcError: the namespace cannot be read completely.
    """
    place = StorageNamespace.parse(url)
    require_nobodys(server, place)
    store = server.open(place.url())
    # A namespace in use looks old to a store whose clock is ahead.
    server.context("any").check_clocks(server.client, store)
    listed = pa.concat_tables(
        [LISTING_SCHEMA.empty_table(), *(pa.table(page) for page in store.list_to_the_end())]
    )
    found = read_namespace(server, place)
    if found.stays:
        raise RefusedError(f"{place.url()} stays: {found.stays}")
    require_claimed(found.server, place.url(), unclaimed=unclaimed)
    keys = listed["key"]
    of_lakefs = pc.cast(pc.starts_with(keys, _LAKEFS), pa.int8())
    last = pc.add(of_lakefs, pc.cast(pc.equal(keys, MARKER), pa.int8()))
    ordered = listed.append_column("last", last).sort_by(
        [("last", "ascending"), ("key", "ascending")]
    )
    no_upload = pa.repeat(pa.scalar(""), ordered.num_rows)
    columns = [*ordered.select(PLANNED.names[:-1]).columns, no_upload]
    return Plan("namespace", place.url(), store, pa.table(columns, schema=PLANNED))


def remove_namespace(
    server: Server, url: str, choices: Choices, *, unclaimed: bool
) -> Counter[str]:
    """Remove a namespace, as ``plan_namespace`` plans it; the number of objects by outcome.

    Raises:
        RefusedError: the namespace must stay, or the plan is not the confirmed one.
        LakegcError: something could not be read, recorded or removed; remove it again.
    """
    place = StorageNamespace.parse(url)
    look = _Look(server, place)

    def require_allowed() -> None:
        require_nobodys(server, place)
        if why := guarded(server, place):
            raise RefusedError(f"{place.url()} stays: {why}")
        look.require_recent()

    make_plan = partial(plan_namespace, server, url, unclaimed=unclaimed)
    remove = partial(remove_objects, require_allowed=require_allowed)
    return carry_out(server, place, choices, make_plan, lambda _: look.take(), remove)


@dataclass
class _Look:
    """The last look for objects of a place that repositories name.

    A removal may last for hours, and a client may import or stage an object meanwhile.
    """

    server: Server
    place: StorageNamespace
    #: Its end, by ``Clocks.elapsed``, and its length in seconds.
    ended: float = NEVER
    took: float = 0.0

    def take(self) -> None:
        """Look now. Raises RefusedError: a repository names an object, or may."""
        begun = SYSTEM_CLOCKS.elapsed()
        if named := named_by(self.server, self.place):
            raise RefusedError(f"{self.place.url()} stays: {named}")
        self.ended = SYSTEM_CLOCKS.elapsed()
        self.took = self.ended - begun

    def require_recent(self) -> None:
        """Look again if the last look is too old. Raises RefusedError, as ``take`` does.

        If looks take long, they take at most half of the time of the removal.
        """
        if SYSTEM_CLOCKS.elapsed() - self.ended >= max(_LOOK_LIFETIME_S, self.took):
            self.take()


def require_nobodys(server: Server, place: StorageNamespace) -> None:
    """Require that no repository has its namespace at a place, in it or around it.

    Raises:
        RefusedError: a repository has, or the list of repositories is incomplete.
        LakegcError: the namespace of a repository is not known.
    """
    if owner := server.owner_of(place, _repositories_beside(server, place)):
        raise RefusedError(
            f"{place.url()} stays: the storage namespace of repository {owner.id!r} "
            f"({owner.storage_namespace}) is at, in or around it"
        )


def named_by(server: Server, place: StorageNamespace) -> str:
    """The repository that may name an object in a place, with the entry, in words; empty for none.

    Raises:
        RefusedError: the list of repositories is incomplete.
        LakegcError: a repository cannot be read, so its entries are not known.
    """
    for one in _repositories_beside(server, place):
        if place.is_same_kind(one.storage_namespace):
            ctx = server.context(one.id)
            namespace = StorageNamespace.parse(one.storage_namespace)
            other = Other(one, ctx.connections_of(one.id, namespace))
            if where := _named_in(server, ctx, other, place):
                return f"repository {one.id!r} names, or may name, objects in it, {where}"
    return ""


def _repositories_beside(server: Server, place: StorageNamespace) -> list[Repository]:
    """All repositories, after a check that the repository in the namespace's marker is not hidden.

    Raises:
        RefusedError: the list is incomplete.
        LakegcError: the marker is damaged, or the server does not answer.
    """
    known = known_server(server.open(place.url()))
    return server.every_repository([known.repository] if known else [])


def _named_in(server: Server, ctx: RunContext, other: Other, place: StorageNamespace) -> str:
    heads = heads_of(server.client, other)
    for branch in heads:
        addresses = staged_addresses(server.client, other, branch)
        while some := list(islice(addresses, STAGED_AT_ONCE)):
            if _any(inside(place, pa.array(some, pa.string()))):
                return f"in what is staged on {branch!r}"
    # Tables are read after staged entries, so an entry committed meanwhile is seen in one of both.
    tables = tables_of(server.client, other, heads, server.root.open(FOLDER, "_cache"))
    ranges = live_ranges(
        ctx.at(server.client, other.connections), tables.metaranges, every=True
    ).ranges
    read = read_full(other.connections, wanted(ranges, cached_full(other.connections)), place)
    for name, addresses in read:
        if _any(inside(place, addresses)):
            return f"in the range {name}"
    return ""


def _any(found: Inside) -> bool:
    return bool(len(found.addresses) or found.last_parts)


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
