"""Aborts the uploads of a repository that never ended: their parts are lost with that."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Final

from lakegc_assets.errors import LakegcError, RefusedError
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.leftovers.ledger import Ledger
from lakegc_assets.leftovers.namespaces import guarded
from lakegc_assets.leftovers.removal import (
    AGAIN,
    Choices,
    Plan,
    begun,
    close_earlier,
    planned,
)
from lakegc_assets.leftovers.server import Server
from lakegc_assets.leftovers.uploads import latest_part, old_uploads
from lakegc_assets.mark.installation import require_one_server
from lakegc_assets.run.lock import repository_lock
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.values import DeleteOutcome, MultipartUpload, require_removed

#: Uploads that are aborted after one look at all that there are.
_BATCH: Final = 100


def plan_uploads(server: Server, repository: str) -> Plan:
    """Plan the abortion of the uploads of a repository.

    Raises:
        ConfigurationError: there is no such repository.
        LakegcError: nobody can tell.
    """
    (found,) = server.chosen([repository])
    store = server.open(found.storage_namespace)
    rows = [(one.key, one.size, one.newest, "", one.upload_id) for one in old_uploads(store)]
    return Plan("uploads", repository, store, planned(rows))


def abort_uploads(server: Server, repository: str, choices: Choices) -> Counter[str]:
    """Abort the old uploads of a repository; their number by what became of them.

    Raises:
        RefusedError: they are not what was confirmed; somebody is at work on the repository, it is
            on hold, or another server collects it.
        LakegcError: something could not be read, recorded or aborted; remove them again.
    """
    (found,) = server.chosen([repository])
    place = StorageNamespace.parse(found.storage_namespace)
    with repository_lock(place.url()):
        plan = plan_uploads(server, repository)
        plan.require(choices.plan_id)
        if not plan.rows.num_rows:
            close_earlier(server, plan)
            return Counter()
        require_one_server(server.client, repository, plan.store)
        _require_unguarded(server, place)
        ledger, _ = begun(server, plan, choices)
        totals = _abort(server, plan, place, ledger)
        ledger.end(dict(totals))
        close_earlier(server, plan)
    return totals


def _require_unguarded(server: Server, place: StorageNamespace) -> None:
    if why := guarded(server, place):
        raise RefusedError(f"the uploads of {place.url()} stay: {why}")


def _abort(server: Server, plan: Plan, place: StorageNamespace, ledger: Ledger) -> Counter[str]:
    totals: Counter[str] = Counter()
    for at in range(0, plan.rows.num_rows, _BATCH):
        _require_unguarded(server, place)
        # Somebody may have ended one of them, or gone on with it.
        before = latest_part(plan.store)
        now = {one.upload_id: one for one in plan.store.multipart_uploads(before)}
        rows = plan.rows.slice(at, _BATCH).to_pylist()
        outcomes = [
            _aborted(plan.store, now.get(row["upload_id"]), row["key"], before) for row in rows
        ]
        ledger.add(outcomes, [row["upload_id"] for row in rows])
        totals.update(one.outcome for one in outcomes)
        require_removed(outcomes, plan.store.url, AGAIN)
    return totals


def _aborted(
    store: ObjectStore, upload: MultipartUpload | None, key: str, before: datetime
) -> DeleteOutcome:
    if upload is None or upload.key != key:
        return DeleteOutcome(key, "already_missing", None, "it was completed or aborted")
    if upload.newest >= before:
        return DeleteOutcome(key, "spared", None, f"somebody has gone on with it: {upload.newest}")
    try:
        gone = not store.abort_upload(upload)
    except LakegcError as error:
        return DeleteOutcome(key, "failed", type(error).__name__, str(error))
    return DeleteOutcome(key, "already_missing" if gone else "deleted")
