"""The record of each removal of leftovers: the planned objects and the outcomes.

``<artifacts>/_leftover-removals/<id>/`` has ``planned/*.parquet`` with every object to delete,
written before the first delete. ``begin.json`` is the last file of the plan and makes it valid.
``outcomes/*.parquet`` holds the store's answers batch by batch. ``end.json`` says that the removal
ended. After a killed process, a planned object without an outcome may exist or not: only the store
knows.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Final

import pyarrow as pa

from lakegc_assets.engine.ddl import schema
from lakegc_assets.run.artifacts import ArtifactRoot
from lakegc_assets.run.json_record import JsonRecord
from lakegc_assets.run.records import write_rows, write_values
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import ObjectNotFoundError
from lakegc_assets.storage.values import LISTING_SCHEMA, DeleteOutcome

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
