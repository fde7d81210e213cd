"""Multipart uploads in the namespaces of a server that were neither completed nor aborted.

No listing has their parts, so no mark finds them. lakeFS's S3 gateway, and clients that upload to
the store themselves, leave them when they die. An abort deletes the parts of an upload.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Final, Generic, TypeVar

from lakegc_assets.engine.datasets import table_of
from lakegc_assets.errors import LakegcError, RefusedError
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.leftovers.namespaces import guarded
from lakegc_assets.leftovers.removal import (
    AGAIN,
    PLANNED,
    Choices,
    Ledger,
    Plan,
    Safeguard,
    carry_out,
)
from lakegc_assets.leftovers.server import Problem, Server, noting
from lakegc_assets.mark.installation import require_one_server
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.values import (
    DeleteOutcome,
    MultipartUpload,
    UncommittedBlob,
    require_removed,
)

#: Age of the last part below which an upload may still be completed.
MIN_AGE: Final = timedelta(days=7)
#: Uploads to abort after one listing of all uploads.
_BATCH: Final = 100

_Found = TypeVar("_Found", MultipartUpload, UncommittedBlob)


@dataclass(frozen=True)
class LeftoverUploads(Generic[_Found]):
    """Unfinished uploads to a place (a repository, or the URL of a root).

    These are multipart uploads, the oldest first; or blobs with uncommitted blocks only. The store
    does not report the age of such blobs, and drops them itself, so they are only reported.
    """

    where: str
    #: URL that their keys are relative to.
    url: str
    uploads: Sequence[_Found]

    @property
    def size(self) -> int:
        """Bytes of all parts."""
        return sum(one.size for one in self.uploads)


def leftover_uploads(
    server: Server, names: Sequence[str] = ()
) -> tuple[list[LeftoverUploads[MultipartUpload]], list[Problem]]:
    """The old uploads of the named repositories, or of all of them and of all roots of namespaces.

    Returns:
        A value for each place that has uploads, each upload once; and the places that could not be
        read.
    """
    return _new_in(server, names, _old_uploads)


def uncommitted_blobs(
    server: Server, names: Sequence[str] = ()
) -> tuple[list[LeftoverUploads[UncommittedBlob]], list[Problem]]:
    """The uncommitted blobs of the same places, as ``leftover_uploads`` returns uploads."""
    return _new_in(server, names, lambda store: store.uncommitted_blobs())


def _new_in(
    server: Server, names: Sequence[str], list_in: Callable[[ObjectStore], Sequence[_Found]]
) -> tuple[list[LeftoverUploads[_Found]], list[Problem]]:
    """The places with leftovers, without the leftovers that an earlier place has, too."""
    chosen = server.chosen(names)
    read_only = {one.id for one in chosen if one.read_only}
    places = [(one.id, one.storage_namespace, server.open) for one in chosen]
    if not names:
        places += [(url, url, server.open_root) for url in server.namespace_roots]
    found: list[LeftoverUploads[_Found]] = []
    problems: list[Problem] = []
    seen: set[tuple[str, str]] = set()
    for where, url, opened in places:
        with noting(problems, where):
            store = opened(url)
            # lakeFS writes nothing for a repository that is made read-only: on a local disk there
            # is no folder by whose files the store's clock could be read.
            if where in read_only and not any(store.list_prefixes("", max_objects=1)):
                continue
            ids = {
                (f"{store.url}/{one.key}", getattr(one, "upload_id", "")): one
                for one in list_in(store)
            }
            if new := [one for name, one in ids.items() if name not in seen]:
                found.append(LeftoverUploads(where, store.url, new))
            seen |= ids.keys()
    return found, problems


def _old_uploads(store: ObjectStore) -> list[MultipartUpload]:
    """The uploads of a store with a last part older than ``MIN_AGE``, the oldest first."""
    before = _latest_part(store)
    old = [one for one in store.multipart_uploads(before) if one.newest < before]
    return sorted(old, key=lambda one: (one.begun, one.key, one.upload_id))


def _latest_part(store: ObjectStore) -> datetime:
    """The time, by the store's clock, before which the last part of an old upload was written."""
    return store.server_time() - MIN_AGE


def plan_uploads(server: Server, repository: str) -> Plan:
    """Plan the abort of the uploads of a repository.

    Raises:
        ConfigurationError: there is no such repository.
        LakegcError: the repository or its store cannot be read.
    """
    (found,) = server.chosen([repository])
    store = server.open(found.storage_namespace)
    rows = [(one.key, one.size, one.newest, "", one.upload_id) for one in _old_uploads(store)]
    return Plan("uploads", repository, store, table_of(rows, PLANNED))


def abort_uploads(server: Server, repository: str, choices: Choices) -> Counter[str]:
    """Abort the old uploads of a repository; their number by outcome.

    Raises:
        RefusedError: the plan is not the confirmed one; another process works on the repository, it
            is on hold, or another server collects it; or clocks differ.
        LakegcError: the repository cannot be collected, since it is read-only or shares its
            namespace; or something could not be read, recorded or aborted: remove them again.
    """
    (found,) = server.chosen([repository])
    place = StorageNamespace.parse(found.storage_namespace)

    def require(plan: Plan) -> None:
        # The owner of the namespace of a read-only repository may be another server. A namespace
        # inside of another one has the uploads of two repositories.
        ctx = server.context(repository).connect()
        require_one_server(ctx.client, repository, plan.store)
        ctx.check_clocks(ctx.client, plan.store)
        _require_unguarded(server, place)

    make_plan = partial(plan_uploads, server, repository)
    return carry_out(server, place, choices, make_plan, require, partial(_abort, server, place))


def _require_unguarded(server: Server, place: StorageNamespace) -> None:
    if why := guarded(server, place):
        raise RefusedError(f"the uploads of {place.url()} stay: {why}")


def _abort(
    server: Server, place: StorageNamespace, plan: Plan, ledger: Ledger, _: Safeguard
) -> Counter[str]:
    totals: Counter[str] = Counter()
    for at in range(0, plan.rows.num_rows, _BATCH):
        _require_unguarded(server, place)
        # A client may have completed an upload meanwhile, or added parts to it.
        before = _latest_part(plan.store)
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
        return DeleteOutcome(key, "spared", None, f"it was continued at {upload.newest}")
    try:
        gone = not store.abort_upload(upload)
    except LakegcError as error:
        return DeleteOutcome(key, "failed", type(error).__name__, str(error))
    return DeleteOutcome(key, "already_missing" if gone else "deleted")
