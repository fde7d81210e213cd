"""Removes ranges and metaranges that nothing names, and puts back what is needed after all.

lakeFS may commit a table again that nothing named a moment ago: it writes it anew, and a delete
that was on its way removes it. So lakeFS dumps its refs right before each batch, and once more
afterwards: what is named then comes back. What a killed removal has not looked at, the next looks
at first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import pyarrow as pa

from lakegc_assets.errors import IntegrityError, LakegcError
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.leftovers.ledger import Ledger, unfinished
from lakegc_assets.leftovers.metadata import needed_again, unreferenced_tables
from lakegc_assets.leftovers.removal import Choices, Plan, begun, planned_objects, remove_objects
from lakegc_assets.leftovers.server import Server
from lakegc_assets.mark.installation import require_one_server
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.lock import repository_lock
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.copies import copy_object
from lakegc_assets.storage.errors import PreconditionFailedError
from lakegc_assets.storage.values import Lost
from lakegc_assets.sweep.hold import require_no_hold
from lakegc_assets.sweep.lease import Lease
from lakegc_assets.sweep.leased import leased

_KIND: Final = "metadata"
_FOLDER: Final = "_lakefs/"


class _Alone(NamedTuple):
    """A repository that nobody else works on."""

    ctx: RunContext
    client: LakeFSClient
    connections: Connections
    lease: Lease


def plan_metadata(server: Server, repository: str) -> Plan:
    """What is to go of a repository.

    Raises:
        ConfigurationError: there is no such repository.
        LakegcError: nobody can tell what nothing names.
    """
    ctx = server.context(repository)
    client, connections = ctx.connect()
    return _plan(ctx, client, connections)


def remove_metadata(server: Server, repository: str, choices: Choices) -> Counter[str]:
    """Remove the tables of a repository that nothing names; their number by what became of them.

    Raises:
        RefusedError: somebody else works on the repository, another server collects it, it is on
            hold; nothing would keep what goes; or it is not what was confirmed.
        IntegrityError: something that is needed could not be put back; or nobody can tell what
            nothing names.
        LakegcError: something could not be read, recorded or removed; remove it again.
    """
    with _alone(server, repository) as alone:
        ctx, client, connections, lease = alone
        _settle(server, alone)
        plan = _plan(ctx, client, connections)
        plan.require(choices.plan_id)
        if not plan.rows.num_rows:
            return Counter()
        ledger, kept = begun(server, plan, choices)

        def still() -> set[tuple[str, str]]:
            lease.require()
            rows = unreferenced_tables(ctx, client, connections).tables
            lease.require()
            return set(zip(rows["key"].to_pylist(), rows["etag"].to_pylist(), strict=True))

        try:
            totals = remove_objects(plan, ledger, kept, still)
        except LakegcError:
            put_back(server, ledger, alone)
            raise
        back = put_back(server, ledger, alone)
        if back:
            totals["put_back"] = len(back)
        ledger.end({**totals, "put_back": back})
    return totals


def settle_killed(server: Server, repository: str) -> None:
    """Look after the removals of a repository that were killed; see ``remove_metadata``."""
    if any((one.kind, one.where) == (_KIND, repository) for one in unfinished(server.root)):
        with _alone(server, repository) as alone:
            _settle(server, alone)


def _settle(server: Server, alone: _Alone) -> None:
    """Look after the removals of a repository that were killed, and put back what is needed.

    Raises:
        IntegrityError: something could not be put back.
    """
    store = alone.connections.store()
    for removal in unfinished(server.root):
        if (removal.kind, removal.url) == (_KIND, store.url):
            ledger = Ledger(server.root, removal)
            back = put_back(server, ledger, alone)
            ledger.end({"settled": True, "put_back": back})


def put_back(server: Server, ledger: Ledger, alone: _Alone) -> list[str]:
    """Bring back what a removal has deleted and something names now; the keys.

    Args:
        server: of the repository.
        ledger: of the removal, which may have been killed.
        alone: the repository.

    Raises:
        IntegrityError: something could not be put back: where its copy is.
    """
    ctx, client, connections, _ = alone
    store = connections.store()
    rows = {row["key"].removeprefix(_FOLDER): row for row in ledger.planned().to_pylist()}
    outcomes = ledger.outcomes()
    versions = dict(zip(outcomes["key"].to_pylist(), outcomes["version"].to_pylist(), strict=True))
    backup = server.open(ledger.removal.backup) if ledger.removal.backup else None
    back: list[str] = []
    # A metarange that came back names ranges.
    while needed := [
        rows[i]
        for i in sorted(needed_again(ctx, client, connections, rows))
        if not store.exists(rows[i]["key"])
    ]:
        for row in needed:
            _bring_back(store, backup, row, versions.get(row["key"]))
            back.append(row["key"])
    return back


def _bring_back(
    store: ObjectStore, backup: ObjectStore | None, row: dict[str, Any], version: str | None
) -> None:
    key, why = row["key"], "nothing keeps it"
    if backup is None:
        (outcome,) = store.undelete_many([Lost(key, row["size"], row["etag"], version)])
        why = outcome.detail or outcome.outcome
    else:
        try:
            copy_object(backup, key, store, key, size=row["size"], etag=None, if_absent=True)
        except PreconditionFailedError:
            # lakeFS has written it again.
            return
        except LakegcError as error:
            why = str(error)
    if not store.exists(key):
        raise IntegrityError(
            f"{store.url}/{key} was removed as unreferenced, something names it by now, and it "
            f"could not be put back: {why}. Put it back by hand"
            + (f" from {backup.url}/{key}" if backup else "")
        )


def _plan(ctx: RunContext, client: LakeFSClient, connections: Connections) -> Plan:
    found: pa.Table = unreferenced_tables(ctx, client, connections).tables
    return Plan(_KIND, ctx.repository, connections.store(), planned_objects(found))


@contextmanager
def _alone(server: Server, repository: str) -> Iterator[_Alone]:
    """Keep all others from the repository, or refuse."""
    ctx = server.context(repository)
    client, connections = ctx.connect()
    store = connections.store()
    require_one_server(client, repository, store)
    with (
        repository_lock(connections.namespace_url),
        leased(ctx, store, doing="removal of leftovers") as lease,
    ):
        require_no_hold(ctx, store)
        yield _Alone(ctx, client, connections, lease)
