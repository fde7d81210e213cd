"""Backups: their location, their mark, and their state.

The copies are at ``<backup_url>/<repository>/<run>/<address>``, so that other tools can read them.
The folder ``_lakegc/`` next to them describes them: ``begin.json``, written first, names the mark;
``ledger/`` has the outcome of each object; ``manifest.json`` is written last, with ``outcomes/``.
A backup without a manifest is not finished, and is never read. A manifest counts only next to the
``begin.json`` with the same subject and time: a process that was suspended may write its manifest
after a prune has removed all else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final, Literal

import pyarrow as pa

from lakegc_assets.engine.datasets import Part
from lakegc_assets.engine.session import Dataset
from lakegc_assets.errors import IntegrityError, RefusedError
from lakegc_assets.run.command_line import command_line
from lakegc_assets.run.hashing import KeyDigest
from lakegc_assets.run.json_record import JsonRecord, Moment
from lakegc_assets.run.manifest import Manifest
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.errors import ObjectNotFoundError
from lakegc_assets.storage.opening import open_store

#: Folder of our own files in a backup; no mark names an address below it.
FOLDER: Final = "_lakegc/"
BEGIN: Final = f"{FOLDER}begin.json"
MANIFEST: Final = f"{FOLDER}manifest.json"
#: The content of the manifest, while a backup is being removed.
PRUNING: Final = f"{FOLDER}pruning.json"
#: Version of the form of backups.
VERSION: Final = 1
#: Outcomes of marked objects. ``etag`` is the etag of the object in the mark.
OUTCOMES: Final = pa.schema(
    [
        ("address", pa.string()),
        ("size", pa.int64()),
        ("etag", pa.string()),
        ("copy_etag", pa.string()),
        ("verified_by", pa.string()),
        ("outcome", pa.string()),
        ("error_code", pa.string()),
        ("detail", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
    ]
)
State = Literal["finished", "unfinished", "being removed"]


@dataclass(frozen=True)
class Subject:
    """The mark that a backup belongs to."""

    repository: str
    run: str
    attempt: str
    #: URL in canonical form.
    namespace: str
    #: SHA-256 of the last manifest of the mark, in hex.
    mark: str
    #: ``KeyDigest`` of the addresses that the mark names, as text.
    digest: str


def subject_of(chain: Mapping[str, Manifest]) -> Subject:
    """Return the subject of the backup of a mark."""
    last = chain["gc_report"]
    return Subject(
        repository=last.repository,
        run=last.run,
        attempt=last.attempt,
        namespace=last.namespace,
        mark=last.sha256,
        digest=chain["deletion_candidates"].digest,
    )


#: The consequence of a damaged backup, and the remedy.
UNTRUSTED: Final = (
    "no copy in this backup can be trusted. If its mark is not swept yet, back it up again at "
    "another backup_url; else copy single objects by hand, after you have checked each of them"
)


@dataclass(frozen=True)
class Record(JsonRecord, damaged=UNTRUSTED):
    """The record of a backup: ``begin.json`` and, once it is finished, ``manifest.json``."""

    subject: Subject
    #: UTC, by the clock of the machine that made the backup.
    begun: Moment
    finished: Moment | None = None
    #: Verified copies, their bytes, and the ``KeyDigest`` of their addresses.
    objects: int = 0
    size: int = 0
    digest: str = ""
    #: Objects and bytes by outcome.
    outcomes: dict[str, dict[str, int]] | None = None
    #: Objects by the checksum or property that was equal on both sides.
    verified: dict[str, int] | None = None
    #: Files of ``OUTCOMES``, one row for each marked object.
    parts: Sequence[Part] = ()
    version: int = VERSION

    @property
    def since(self) -> datetime:
        """The time at which the backup was finished, or else begun."""
        return self.finished or self.begun

    @classmethod
    def _require_version(cls, values: Mapping[str, Any], where: str) -> None:
        if values["version"] != VERSION:
            raise IntegrityError(
                f"{where} has version {values['version']}, and this lakegc reads version "
                f"{VERSION}: use the lakegc that wrote it"
            )


@dataclass(frozen=True)
class Backup:
    """A backup in any state; its store is rooted at its folder, so keys are the addresses."""

    store: ObjectStore
    #: The content of its manifest while it is being removed.
    record: Record
    state: State

    @property
    def name(self) -> str:
        """``repository/run`` of its folder; a copied folder is a second backup of the same mark."""
        return "/".join(self.store.url.rsplit("/", 2)[-2:])

    @property
    def copy_of(self) -> str:
        """Name of the original of a copied or moved backup; empty if it is at its own place."""
        subject = self.record.subject
        made = f"{subject.repository}/{subject.run}"
        return "" if made == self.name else made

    @property
    def outcomes(self) -> Dataset:
        """The outcome of each marked object (``OUTCOMES``)."""
        return Dataset(self.store.url, self.record.parts, OUTCOMES)

    def require_digest(self, found: KeyDigest) -> None:
        """Compare the addresses of the copies with the manifest.

        Raises IntegrityError: they differ.
        """
        if str(found) != self.record.digest:
            raise IntegrityError(
                f"the backup {self.store.url} holds {found}, and its manifest says "
                f"{self.record.digest}: {UNTRUSTED}"
            )

    def require_of(self, subject: Subject) -> None:
        """Refuse a backup of another mark, or of another attempt of the same mark.

        Raises RefusedError: the subject differs, with advice.
        """
        url, found = self.store.url, asdict(self.record.subject)
        differing = [
            f"{name} {found[name]!r} in place of {wanted!r}"
            for name, wanted in asdict(subject).items()
            if found[name] != wanted
        ]
        if differing:
            place = url.rsplit("/", 2)[0]
            pruning = command_line("backups", "prune", "--url", place, "--backup", self.name)
            raise RefusedError(
                f"{url} is a backup of another attempt or mark: it is of {', '.join(differing)}. "
                f"Choose another backup_url, or remove it with `{pruning}` if nothing of it is "
                "needed"
            )


@dataclass(frozen=True)
class Damaged:
    """A backup whose record cannot be read."""

    repository: str
    run: str
    url: str
    error: IntegrityError


def folder_url(backup_url: str, repository: str, run: str) -> str:
    """Return the URL of the backup of a run."""
    return f"{backup_url.rstrip('/')}/{repository}/{run}"


def read_record(store: ObjectStore, key: str) -> Record | None:
    """Read the record of a backup; None where there is none.

    Raises IntegrityError: it is damaged.
    """
    try:
        return Record.from_bytes(store.get(key), f"{store.url}/{key}")
    except ObjectNotFoundError:
        return None


def backup_at(store: ObjectStore) -> Backup | None:
    """Return the backup in the folder at which a store is rooted; None for none.

    A manifest without its ``begin.json`` is the rest of a removed backup.

    Raises:
        IntegrityError: its record is damaged.
    """
    if (pruning := read_record(store, PRUNING)) is not None:
        return Backup(store, pruning, "being removed")
    manifest, begin = read_record(store, MANIFEST), read_record(store, BEGIN)
    if manifest is None:
        return None if begin is None else Backup(store, begin, "unfinished")
    if begin is None or (begin.subject, begin.begun) != (manifest.subject, manifest.begun):
        return Backup(store, manifest, "being removed")
    return Backup(store, manifest, "finished")


def find_backup(
    stores: StoreConfig,
    backup_url: str | None,
    repository: str,
    run: str,
    *,
    removing: bool = False,
) -> Backup | None:
    """Return the finished backup of a run, of any mark; None for none.

    ``removing``: accept a backup that is being removed, some copies of which may be gone.

    Raises:
        ConfigurationError: the URL cannot be opened.
        IntegrityError: its manifest is damaged.
    """
    if backup_url is None:
        return None
    found = backup_at(open_store(folder_url(backup_url, repository, run), stores))
    # A backup that was never finished may be in removal, too.
    if found is None or found.record.finished is None:
        return None
    return found if removing or found.state == "finished" else None


def backups_at(stores: StoreConfig, backup_url: str) -> Iterator[Backup | Damaged]:
    """Yield the backups below ``backup_url`` in any state, by repository and run."""
    place = open_store(backup_url, stores)
    for folder in place.list_prefixes().prefixes:
        repository = folder.rstrip("/")
        for below in place.list_prefixes(folder).prefixes:
            run = below.removeprefix(folder).rstrip("/")
            store = open_store(folder_url(backup_url, repository, run), stores)
            try:
                found = backup_at(store)
            except IntegrityError as error:
                yield Damaged(repository, run, store.url, error)
                continue
            if found is not None:
                yield found


def all_backups(stores: StoreConfig, backup_url: str) -> Iterator[Backup]:
    """Yield the backups below ``backup_url``, as ``backups_at`` does.

    Raises IntegrityError: the record of a backup is damaged.
    """
    for found in backups_at(stores, backup_url):
        if isinstance(found, Damaged):
            raise found.error
        yield found
