"""Removes leftovers batch by batch, without the loss of an object that is still needed.

The ledger records all planned objects before the first delete. Right before each batch, the removal
checks again that it may delete. It first copies each object, unless the store keeps deleted objects
or a person accepts a removal without backup. A new object, or one that differs from the plan, shows
that somebody writes to the namespace. Then the removal stops.

The ledger is in ``<artifacts>/_leftover-removals/<id>/``: ``planned/*.parquet`` has every object to
delete. ``begin.json`` is the last file of the plan and makes it valid. ``outcomes/*.parquet`` holds
the store's answers batch by batch. ``end.json`` says that the removal ended. After a killed
process, a planned object without an outcome may exist or not: only the store knows.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.ddl import schema
from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.errors import ConfigurationError, RefusedError
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.leftovers.server import Server
from lakegc_assets.mark.installation import MARKER
from lakegc_assets.recovery.backup_location import overlapping, require_no_other_backup
from lakegc_assets.recovery.backups import FOLDER as BACKUP_FOLDER
from lakegc_assets.run import strings
from lakegc_assets.run.artifacts import ArtifactRoot
from lakegc_assets.run.clocks import SYSTEM_CLOCKS
from lakegc_assets.run.json_record import JsonRecord
from lakegc_assets.run.lock import repository_lock
from lakegc_assets.run.records import write_rows, write_values
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.copies import copy_object
from lakegc_assets.storage.errors import ChangedError, ObjectNotFoundError
from lakegc_assets.storage.probes import Condition, probe_conditions, probe_recovery
from lakegc_assets.storage.values import LISTING_SCHEMA, DeleteOutcome, require_removed
from lakegc_assets.sweep.lease_record import PROBES
from lakegc_assets.sweep.store_comparison import REWRITTEN, Marked, compare
from lakegc_assets.wording import counted

#: A folder name that no component and no repository can have.
FOLDER: Final = "_leftover-removals"
#: An object to delete, or an upload to abort if ``upload_id`` is not empty.
PLANNED: Final = LISTING_SCHEMA.append(pa.field("upload_id", pa.string(), nullable=False))
OUTCOMES: Final = schema(
    "key string not null, upload_id string not null, outcome string not null, error_code string, "
    "detail string, version string, at timestamp not null"
)
_ROWS: Final = 100_000
_UNKNOWN: Final = (
    "it is not known what this removal had to remove and where its copies are. Until this file is "
    "restored, or the folder of the removal is removed by hand, no namespace can be removed"
)
#: File next to the copies that names their removal. lakeFS writes nothing below this folder.
COPIES: Final = f"{BACKUP_FOLDER}removal.json"
#: Advice after the store refused a delete.
AGAIN: Final = "Correct the cause, then repeat the removal: it removes the rest"
_LAKEFS: Final = "_lakefs/"
_BATCH: Final = 1000
_THREADS: Final = 8
#: Kinds of recovery with which a store keeps deleted objects itself, so that no copy is needed.
_KEPT: Final = frozenset({"versions", "soft_delete"})


@dataclass(frozen=True)
class Removal(JsonRecord, damaged=_UNKNOWN):
    """A removal that has begun."""

    #: Id that sorts by time.
    id: str
    kind: str
    #: Repository, or URL of a namespace.
    where: str
    #: URL that keys are relative to.
    url: str
    #: Person who requested the removal.
    by: str
    #: Number of planned objects, and their bytes.
    objects: int
    size: int
    #: URL below which each object was copied before its delete; empty without a backup.
    backup: str


class Ledger:
    """The records of one removal; only its own process writes to it."""

    def __init__(self, root: ArtifactRoot, removal: Removal) -> None:
        self.removal = removal
        self._store = root.open(FOLDER, removal.id)
        self._batches = 0

    def begin(self, planned: pa.Table) -> None:
        """Record the plan. The caller may delete only after this returns."""
        for number, at in enumerate(range(0, planned.num_rows, _ROWS)):
            write_rows(self._store, f"planned/{number:06}.parquet", planned.slice(at, _ROWS))
        self._store.create("begin.json", self.removal.to_bytes())

    def add(self, outcomes: Sequence[DeleteOutcome], upload_ids: Sequence[str] = ()) -> None:
        """Record the answers of a batch; ``upload_ids`` are the ids of aborted uploads."""
        now = datetime.now(timezone.utc)
        ids = upload_ids or [""] * len(outcomes)
        rows = [
            (one.key, upload, one.outcome, one.error_code, one.detail, one.version, now)
            for one, upload in zip(outcomes, ids, strict=True)
        ]
        write_values(self._store, f"outcomes/{self._batches:06}.parquet", rows, OUTCOMES)
        self._batches += 1

    def end(self, facts: dict[str, Any]) -> None:
        """Record that the removal ended."""
        self._store.put("end.json", json.dumps(facts, indent=1).encode())


def new_removal_id() -> str:
    """An id that sorts by time."""
    return f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"


def removals(root: ArtifactRoot) -> list[Removal]:
    """All removals that have begun, in the order of time.

    Raises:
        IntegrityError: the record of a removal is damaged.
    """
    return [removal for removal, _ in _begun(root)]


def unfinished(root: ArtifactRoot) -> list[Removal]:
    """The removals that have begun and not ended, in the order of time.

    Raises:
        IntegrityError: the record of a removal is damaged.
    """
    return [removal for removal, store in _begun(root) if not store.exists("end.json")]


def _begun(root: ArtifactRoot) -> Iterator[tuple[Removal, ObjectStore]]:
    for folder in root.open(FOLDER).list_prefixes().prefixes:
        store = root.open(FOLDER, folder.rstrip("/"))
        try:
            begun = Removal.from_bytes(store.get("begin.json"), f"{store.url}/begin.json")
        except ObjectNotFoundError:
            # The process was killed before the plan was complete: it deleted nothing.
            continue
        yield begun, store


@dataclass(frozen=True)
class Plan:
    """The objects to remove."""

    #: Kind of leftovers: ``namespace`` or ``uploads``.
    kind: str
    #: Repository, or URL of a namespace.
    where: str
    #: Store that keys are relative to.
    store: ObjectStore
    #: Rows of ``PLANNED``, in the order of their deletes.
    rows: pa.Table

    @property
    def size(self) -> int:
        """Bytes of all planned objects."""
        return pc.sum(self.rows["size"]).as_py() or 0

    @property
    def id(self) -> str:
        """The digest of exactly this plan: a confirmation is for no other plan."""
        digest = hashlib.sha256(f"{self.kind} {self.store.url}\n".encode())
        for rows in _batches(self.rows):
            for row in rows:
                digest.update(repr(sorted(row.items())).encode())
        return digest.hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON values, without the objects."""
        return {
            "kind": self.kind,
            "where": self.where,
            "url": self.store.url,
            "id": self.id,
            "objects": self.rows.num_rows,
            "bytes": self.size,
        }

    def require(self, plan_id: str) -> None:
        """Continue only with the plan that a person confirmed.

        Raises:
            RefusedError: the plan has changed.
        """
        if self.id != plan_id:
            raise RefusedError(
                f"the leftovers of {self.where} are not those that were confirmed ({plan_id}), but "
                f"{counted(self.rows.num_rows, 'object')} ({self.id}). Nothing was removed. Repeat "
                "the command, and check them again"
            )


@dataclass(frozen=True)
class Choices:
    """The choices of the person (``by``) who removes leftovers and confirmed one plan.

    The removal copies objects to ``backup_url``. With ``without_backup`` it deletes them even if
    nothing keeps deleted objects.
    """

    by: str
    plan_id: str
    backup_url: str | None = None
    without_backup: bool = False


@dataclass(frozen=True)
class Safeguard:
    """The store to which each object is copied first, and the calls that honour a key's etag."""

    backup: ObjectStore | None = None
    condition: Condition = "none"


def _safeguard(server: Server, plan: Plan, choices: Choices, removal_id: str) -> Safeguard:
    """The protection of the objects that a removal deletes, outside of the server's namespaces.

    Raises:
        ConfigurationError: copies would be lost at the place of the backup.
        RefusedError: nothing keeps the deleted objects, or the settings require a backup.
        StorageError: the recovery settings of the store could not be read.
    """
    if choices.without_backup and (url := server.context("any").settings.backup_url):
        raise RefusedError(
            f"backup_url is set ({url}), so nothing is deleted without a backup: name a place for "
            "copies with --backup URL"
        )
    if choices.backup_url:
        place = StorageNamespace.parse(choices.backup_url)
        _require_free(server, plan, place)
        backup = server.open(f"{place.url()}/{removal_id}")
        require_no_other_backup(backup, server.root.stores)
        return Safeguard(backup, probe_conditions(plan.store, PROBES))
    if not choices.without_backup:
        # A trash would be in the namespace itself, which must become empty.
        recovery = probe_recovery(plan.store, f"{PROBES}{removal_id}/", None)
        if recovery.kind not in _KEPT:
            raise RefusedError(
                f"{recovery.notice}. So removed objects would be lost for good: name a place for "
                "copies with --backup URL, or accept this with --without-backup"
            )
    return Safeguard(condition=probe_conditions(plan.store, PROBES))


def _require_free(server: Server, plan: Plan, place: StorageNamespace) -> None:
    """Refuse a place where copies would be treated as original objects or as garbage."""
    others = [("what is removed", plan.store.url), ("the artifacts", server.root.url)]
    others += [("the root of namespaces", url) for url in server.namespace_roots]
    taken = overlapping(place, others, server.root.stores)
    if owner := server.owner_of(place, server.every_repository()):
        taken = taken or f"the namespace of repository {owner.id!r}"
    if taken:
        raise ConfigurationError(
            f"the backup at {place.url()} would lie in {taken}, or around it: choose another place"
        )


def carry_out(
    server: Server,
    place: StorageNamespace,
    choices: Choices,
    make_plan: Callable[[], Plan],
    require: Callable[[Plan], None],
    remove: Callable[[Plan, Ledger, Safeguard], Counter[str]],
) -> Counter[str]:
    """Remove the leftovers of a place; the number of objects by outcome.

    No other process of this machine works there meanwhile. ``require`` raises if the planned
    objects may not be deleted; it is called before the plan is recorded.

    Raises:
        RefusedError: the plan is not the confirmed one; or an error of ``require`` or ``remove``.
        LakegcError: something could not be read, recorded or removed; remove it again.
    """
    with repository_lock(place.url()):
        plan = make_plan()
        plan.require(choices.plan_id)
        totals: Counter[str] = Counter()
        if plan.rows.num_rows:
            require(plan)
            ledger, protection = _begin(server, plan, choices)
            totals = remove(plan, ledger, protection)
            ledger.end(dict(totals))
        _close_earlier(server, plan)
    return totals


def _begin(server: Server, plan: Plan, choices: Choices) -> tuple[Ledger, Safeguard]:
    """Record the plan; the caller may delete only after this returns.

    Raises:
        LakegcError: see ``_safeguard``; or the plan could not be recorded.
    """
    if choices.backup_url and choices.without_backup:
        raise ConfigurationError("give either --backup or --without-backup, not both")
    removal_id = new_removal_id()
    if plan.kind == "uploads":
        if choices.backup_url:
            raise ConfigurationError(
                "the parts of an upload cannot be read, nor copied: leave --backup out"
            )
        protection = Safeguard()
    else:
        protection = _safeguard(server, plan, choices, removal_id)
    removal = Removal(
        removal_id, plan.kind, plan.where, plan.store.url, choices.by, plan.rows.num_rows,
        plan.size, protection.backup.url if protection.backup else "",
    )  # fmt: skip
    if protection.backup:
        # Without this file, copies of a namespace could be taken for a namespace if the ledger is
        # lost.
        protection.backup.create(COPIES, removal.to_bytes())
    ledger = Ledger(server.root, removal)
    ledger.begin(plan.rows)
    return ledger, protection


def remove_objects(
    plan: Plan, ledger: Ledger, protection: Safeguard, require_allowed: Callable[[], None]
) -> Counter[str]:
    """Delete the planned objects, and record each outcome; the number of objects by outcome.

    ``require_allowed`` is called right before each delete and after the copies, which may take
    long. It raises if nothing may be deleted any more.

    Raises:
        RefusedError: an object is new, or differs from the plan. It stays, and so do all objects
            after it in the plan.
        StorageError: some objects could not be deleted; the others are.
    """
    totals: Counter[str] = Counter()
    for turn, following in _turns(plan.rows):
        _require_nothing_new(plan, following, totals)
        for rows in _batches(turn):
            found = _removed(plan.store, rows, protection, require_allowed)
            ledger.add(found)
            totals.update(one.outcome for one in found)
            if changed := [one for one in found if one.outcome == "spared"]:
                raise _written(plan, changed[0].key, changed[0].detail or "", totals)
            require_removed(found, plan.store.url, AGAIN)
    return totals


def _removed(
    store: ObjectStore,
    rows: Sequence[Mapping[str, Any]],
    protection: Safeguard,
    require_allowed: Callable[[], None],
) -> list[DeleteOutcome]:
    """Delete a batch, unless one of its objects differs from the plan; return the outcomes."""
    found = _not_copied(store, rows, protection.backup)
    require_allowed()
    copied = [row for row in rows if row["key"] not in found]
    marked = [Marked(*(row[name] for name in PLANNED.names[:4])) for row in copied]
    # This is needed with conditional deletes too: the same content written again has the same etag.
    for one, state, _ in compare(store, marked, SYSTEM_CLOCKS.elapsed):
        if state == "missing":
            found[one.address] = DeleteOutcome(one.address, "already_missing")
        elif state == "rewritten":
            found[one.address] = DeleteOutcome(one.address, "spared", None, REWRITTEN)
    if all(one.outcome != "spared" for one in found.values()):
        etags = {row["key"]: row["etag"] for row in rows if row["key"] not in found}
        outcomes = store.delete_many(
            list(etags),
            etags if protection.condition != "none" else None,
            singly=protection.condition == "single",
        )
        found |= {one.key: one for one in outcomes}
    return list(found.values())


def _require_nothing_new(plan: Plan, following: pa.Table, totals: Counter[str]) -> None:
    """Require that a namespace holds only objects that are still planned.

    Raises:
        RefusedError: a process wrote an object there after the plan.
    """
    for page in plan.store.list_to_the_end():
        new = page["key"].filter(pc.invert(strings.among(page["key"], following["key"])))
        # A store may have refused to delete a probe; probes are objects of this product.
        new = new.filter(pc.invert(pc.starts_with(new, PROBES)))
        if len(new):
            raise _written(plan, new[0].as_py(), "it was written since the plan", totals)


def _written(plan: Plan, key: str, why: str, totals: Counter[str]) -> RefusedError:
    removed = counted(totals["deleted"], "object was", "objects were")
    return RefusedError(
        f"the rest of {plan.where} stays: {key!r} differs from the plan ({why}), so somebody "
        f"writes there. {removed} removed before that was seen; the files that name its server and "
        "repository stay. Find out who writes there. When nobody does any more, run `lakegc "
        "leftovers` again"
    )


def _close_earlier(server: Server, plan: Plan) -> None:
    """Record the end of killed removals, after a later one has processed all that they left.

    The plan is that of the later removal, which has ended or has found nothing.
    """
    for removal in unfinished(server.root):
        if (removal.kind, removal.url) == (plan.kind, plan.store.url):
            Ledger(server.root, removal).end({"ended_by_a_later_removal": True})


def _turns(rows: pa.Table) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Split rows into data, lakeFS's files and the marker; each part needs all before it removed.

    lakeFS's files and the marker identify the namespace, so that remaining objects can be found and
    removed later. Each part comes with all rows that are left when its removal begins.
    """
    is_data = pc.invert(pc.starts_with(rows["key"], _LAKEFS))
    is_marker = pc.equal(rows["key"], MARKER)
    yield rows.filter(is_data), rows
    of_lakefs = rows.filter(pc.invert(is_data))
    yield rows.filter(pc.invert(pc.or_(is_data, is_marker))), of_lakefs
    yield rows.filter(is_marker), rows.filter(is_marker)


def _batches(rows: pa.Table) -> Iterator[list[dict[str, Any]]]:
    for at in range(0, rows.num_rows, _BATCH):
        yield rows.slice(at, _BATCH).to_pylist()


def _not_copied(
    store: ObjectStore, rows: Sequence[Mapping[str, Any]], backup: ObjectStore | None
) -> dict[str, DeleteOutcome]:
    """Copy objects if a backup is requested; the outcomes of failed copies, by key."""
    if backup is None:
        return {}
    found = thread_map(partial(_copy, store, backup), rows, _THREADS)
    return {one.key: one for one in found if one is not None}


def _copy(store: ObjectStore, backup: ObjectStore, row: Mapping[str, Any]) -> DeleteOutcome | None:
    key = row["key"]
    try:
        copy_object(store, key, backup, key, size=row["size"], etag=row["etag"], if_absent=True)
    except ObjectNotFoundError as error:
        return DeleteOutcome(key, "already_missing", None, str(error))
    except ChangedError as error:
        return DeleteOutcome(key, "spared", None, str(error))
    return None
