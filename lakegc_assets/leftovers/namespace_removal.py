"""Removes a namespace that no repository has.

Its marker goes last, so that what a killed removal leaves still says whose it was.
"""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.errors import RefusedError
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.leftovers.namespaces import OURS, guarded, look
from lakegc_assets.leftovers.references import named_by, repositories_beside
from lakegc_assets.leftovers.removal import (
    Choices,
    Plan,
    begun,
    close_earlier,
    planned_objects,
    remove_objects,
)
from lakegc_assets.leftovers.server import Server
from lakegc_assets.mark.installation import MARKER
from lakegc_assets.run.lock import repository_lock
from lakegc_assets.storage.values import LISTING_SCHEMA

_LAKEFS = "_lakefs/"


def plan_namespace(server: Server, url: str, *, unclaimed: bool) -> Plan:
    """Plan the removal of a namespace.

    Args:
        server: that has no repository there.
        url: of the namespace.
        unclaimed: somebody knows that no other lakeFS server uses it.

    Raises:
        RefusedError: it stays, and why.
        LakegcError: it cannot be read wholly.
    """
    place = StorageNamespace.parse(url)
    _require_nobodys(server, place)
    store = server.open(place.url())
    listed = pa.concat_tables(
        [LISTING_SCHEMA.empty_table(), *(pa.table(page) for page in store.list_to_the_end())]
    )
    found = look(server, place)
    if found.stays:
        raise RefusedError(f"{place.url()} stays: {found.stays}")
    if found.server != OURS and not unclaimed:
        raise RefusedError(
            f"{place.url()} stays: nothing in it says that this server had it, and another lakeFS "
            "server may use it. If you know that none does, and these credentials see all "
            "repositories, say so with --unclaimed"
        )
    keys = listed["key"]
    of_lakefs = pc.cast(pc.starts_with(keys, _LAKEFS), pa.int8())
    last = pc.add(of_lakefs, pc.cast(pc.equal(keys, MARKER), pa.int8()))
    ordered = listed.append_column("last", last).sort_by(
        [("last", "ascending"), ("key", "ascending")]
    )
    return Plan("namespace", place.url(), store, planned_objects(ordered))


def remove_namespace(
    server: Server, url: str, choices: Choices, *, unclaimed: bool
) -> Counter[str]:
    """Remove a namespace; the number of objects by what became of them.

    Args:
        server: that has no repository there.
        url: of the namespace.
        choices: of the person who removes it.
        unclaimed: as in ``plan_namespace``.

    Raises:
        RefusedError: it stays, and why; or it is not what was confirmed.
        LakegcError: something could not be read, recorded or removed; remove it again.
    """
    place = StorageNamespace.parse(url)
    with repository_lock(place.url()):
        plan = plan_namespace(server, url, unclaimed=unclaimed)
        plan.require(choices.plan_id)
        if not plan.rows.num_rows:
            close_earlier(server, plan)
            return Counter()
        if named := named_by(server, place):
            raise RefusedError(f"{place.url()} stays: {named}")
        ledger, kept = begun(server, plan, choices)

        def still() -> None:
            _require_nobodys(server, place)
            if why := guarded(server, place):
                raise RefusedError(f"{place.url()} stays: {why}")

        totals = remove_objects(plan, ledger, kept, still)
        ledger.end(dict(totals))
        close_earlier(server, plan)
    return totals


def _require_nobodys(server: Server, place: StorageNamespace) -> None:
    """Require that no repository has a place, in it or around it.

    Raises:
        RefusedError: one has, or the list of repositories is not whole.
        LakegcError: nobody can tell.
    """
    if owner := server.owner_of(place, repositories_beside(server, place)):
        raise RefusedError(f"{place.url()} stays: repository {owner!r} has it, in it or around it")
