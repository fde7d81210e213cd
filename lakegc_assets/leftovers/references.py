"""References of repositories of the server to objects of a namespace that no repository has.

An import takes objects where they are: what was imported from the namespace of a repository that is
deleted by now is live, and lies there. So every repository is read, with all of its ranges.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

import pyarrow as pa

from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.lakefs.models import Repository
from lakegc_assets.leftovers.ledger import FOLDER
from lakegc_assets.leftovers.server import Server
from lakegc_assets.mark.full_addresses import Inside, cached_full, inside, read_full
from lakegc_assets.mark.installation import known_server
from lakegc_assets.mark.live_ranges import live_ranges
from lakegc_assets.mark.other_repositories import Other, heads_of, staged_addresses, tables_of
from lakegc_assets.mark.ranges import wanted
from lakegc_assets.run.context import RunContext

#: Staged addresses that are held at a time.
_AT_ONCE: Final = 50_000


def named_by(server: Server, place: StorageNamespace) -> str:
    """The repository that may name an object in a place, and where, in words; empty for none.

    Args:
        server: whose repositories are read.
        place: a namespace that none of them has.

    Raises:
        RefusedError: the list of repositories is not whole.
        LakegcError: a repository cannot be read, so that nobody knows.
    """
    for one in repositories_beside(server, place):
        if place.is_same_kind(one.storage_namespace):
            ctx = server.context(one.id)
            namespace = StorageNamespace.parse(one.storage_namespace)
            other = Other(one, ctx.connections(one.id, namespace))
            if where := _named_in(server, ctx, other, place):
                return f"repository {one.id!r} names objects in it, or may, {where}"
    return ""


def repositories_beside(server: Server, place: StorageNamespace) -> list[Repository]:
    """All repositories, of which the one that the marker of a namespace names must not be hidden.

    Raises:
        RefusedError: the list is not whole.
        LakegcError: the marker is damaged, or the server does not answer.
    """
    known = known_server(server.open(place.url()))
    return server.every_repository([known.repository] if known else [])


def _named_in(server: Server, ctx: RunContext, other: Other, place: StorageNamespace) -> str:
    heads = heads_of(server.client, other)
    for branch in heads:
        addresses = staged_addresses(server.client, other, branch)
        while some := list(islice(addresses, _AT_ONCE)):
            if _any(inside(place, pa.array(some, pa.string()))):
                return f"in what is staged on {branch!r}"
    # Behind what is staged, so that what is committed meanwhile is seen as one or the other.
    tables = tables_of(server.client, other, heads, server.root.open(FOLDER, "_cache"))
    ranges = live_ranges(ctx, other.connections, tables.metaranges, every=True).ranges
    read = read_full(other.connections, wanted(ranges, cached_full(other.connections)), place)
    for name, addresses in read:
        if _any(inside(place, addresses)):
            return f"in the range {name}"
    return ""


def _any(found: Inside) -> bool:
    return bool(len(found.addresses) or found.last_parts)
