"""Removes a namespace that no repository has.

The marker is deleted last. After a killed removal, the marker therefore still names the repository
and server.

An import does not copy objects. Objects imported from the namespace of a deleted repository are
live and still in that namespace. So the removal first reads every repository of the server, with
all of its ranges.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.errors import RefusedError
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.lakefs.models import Repository
from lakegc_assets.leftovers.ledger import FOLDER, PLANNED
from lakegc_assets.leftovers.namespaces import guarded, read_namespace, require_claimed
from lakegc_assets.leftovers.removal import Choices, Plan, carry_out, remove_objects
from lakegc_assets.leftovers.server import Server
from lakegc_assets.mark.full_addresses import Inside, cached_full, inside, read_full
from lakegc_assets.mark.installation import MARKER, known_server
from lakegc_assets.mark.live_ranges import live_ranges
from lakegc_assets.mark.other_repositories import Other, heads_of, staged_addresses, tables_of
from lakegc_assets.mark.ranges import wanted
from lakegc_assets.run.clocks import NEVER, SYSTEM_CLOCKS
from lakegc_assets.run.context import RunContext
from lakegc_assets.storage.values import LISTING_SCHEMA

_LAKEFS = "_lakefs/"
#: Seconds after which the repositories are read again for references.
_LOOK_LIFETIME_S: Final = 600.0
#: Number of staged addresses in memory at a time.
STAGED_AT_ONCE: Final = 50_000


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
