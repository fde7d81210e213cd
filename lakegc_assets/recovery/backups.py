"""Finished backups: where they lie, of which mark they are, and what can be had from them.

``<backup_url>/<repository>/<run>/<address>`` are the copies, so that other tools can read them, and
``_lakegc/`` beside them says what they are: ``begin.json``, written first, of which mark;
``ledger/`` what became of each object while it was made; and ``manifest.json``, written last, with
``outcomes/``: a backup without it is not finished, and is never read. It counts beside the
``begin.json`` that it goes on from: whoever was suspended may write it when all else was removed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final, Literal

import pyarrow as pa

from lakegc_assets.engine.datasets import Part
from lakegc_assets.errors import IntegrityError, RefusedError
from lakegc_assets.run.artifacts import Manifest
from lakegc_assets.run.command_line import command_line
from lakegc_assets.run.hashing import KeyDigest
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.errors import ObjectNotFoundError
from lakegc_assets.storage.opening import open_store

#: Of our own files in a backup; no mark names an address below it.
FOLDER: Final = "_lakegc/"
BEGIN: Final = f"{FOLDER}begin.json"
MANIFEST: Final = f"{FOLDER}manifest.json"
#: What the manifest said, while a backup is being removed.
PRUNING: Final = f"{FOLDER}pruning.json"
#: Raised with the form of backups.
VERSION: Final = 1
#: What became of each marked object: ``etag`` is that of the object as the mark has it.
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
COPIED: Final = ("address", "size", "etag", "copy_etag")
State = Literal["finished", "unfinished", "being removed"]


@dataclass(frozen=True)
class Subject:
    """Of what a backup is.

    Attributes:
        repository: lakeFS repository.
        run: id of the run, the mark id.
        attempt: of the run.
        namespace: storage namespace, in its canonical form.
        mark: SHA-256 of the last manifest of the mark, in hex.
        digest: ``KeyDigest`` of what the mark names, as text.
    """

    repository: str
    run: str
    attempt: str
    namespace: str
    mark: str
    digest: str


def subject_of(chain: Mapping[str, Manifest]) -> Subject:
    """The subject of a backup of a mark.

    Args:
        chain: the manifests of a published mark.
    """
    last = chain["gc_report"]
    return Subject(
        repository=last.repository,
        run=last.run,
        attempt=last.attempt,
        namespace=last.namespace,
        mark=last.sha256,
        digest=chain["deletion_candidates"].digest,
    )


@dataclass(frozen=True)
class Record:
    """The record of a backup: ``begin.json`` and, once it is finished, ``manifest.json``.

    Attributes:
        subject: of what it is.
        begun: when, UTC, by the clock of the machine that made it.
        finished: likewise; None while it is not.
        objects: copies that were verified.
        size: of these, in bytes.
        digest: ``KeyDigest`` of their addresses, as text.
        outcomes: objects and bytes by outcome.
        verified: objects by what was the same on both sides.
        parts: files of ``OUTCOMES``, one row for each marked object.
    """

    subject: Subject
    begun: datetime
    finished: datetime | None = None
    objects: int = 0
    size: int = 0
    digest: str = ""
    outcomes: dict[str, dict[str, int]] | None = None
    verified: dict[str, int] | None = None
    parts: Sequence[Part] = ()

    @property
    def since(self) -> datetime:
        """The time at which it was finished, or else begun."""
        return self.finished or self.begun

    def to_bytes(self) -> bytes:
        """As it is stored: JSON."""
        values = asdict(self) | {
            "version": VERSION,
            "begun": self.begun.isoformat(),
            "finished": self.finished and self.finished.isoformat(),
            "parts": [part.to_json() for part in self.parts],
        }
        return json.dumps(values, indent=1, sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> Record:
        """Read what ``to_bytes`` wrote.

        Raises:
            IntegrityError: it is damaged, or of another version.
        """
        try:
            values: dict[str, Any] = json.loads(data)
            version = values.pop("version")
            if version != VERSION:
                raise IntegrityError(
                    f"{where} has version {version}, and this is version {VERSION}: read it with "
                    "the version that wrote it"
                )
            values["subject"] = Subject(**values["subject"])
            values["begun"] = datetime.fromisoformat(values["begun"])
            if values["finished"] is not None:
                values["finished"] = datetime.fromisoformat(values["finished"])
            values["parts"] = [Part(*part) for part in values["parts"]]
            return cls(**values)
        except (ValueError, KeyError, TypeError) as error:
            raise IntegrityError(
                f"{where} is damaged ({error}): nothing of this backup can be trusted. Back the "
                "mark up again at another backup_url"
            ) from error


@dataclass(frozen=True)
class Backup:
    """A finished backup.

    Attributes:
        store: rooted at its folder: keys are the addresses.
        record: what its manifest says.
    """

    store: ObjectStore
    record: Record

    def require_digest(self, found: KeyDigest) -> None:
        """Compare the addresses of the copies with the manifest.

        Raises:
            IntegrityError: they are others.
        """
        if str(found) != self.record.digest:
            raise IntegrityError(
                f"the backup {self.store.url} holds {found}, and its manifest says "
                f"{self.record.digest}: nothing of it can be trusted"
            )

    def require_of(self, subject: Subject) -> None:
        """Refuse it where it is of another mark.

        Raises:
            RefusedError: it is, with what to do.
        """
        require_same(self.store.url, self.record.subject, subject)


def damaged(url: str) -> IntegrityError:
    """The error where the files that list the copies of a backup are missing or changed."""
    return IntegrityError(
        f"the backup {url} is damaged: {url}/{FOLDER} is not what its manifest says. Nothing of it "
        "can be trusted; back the mark up again at another backup_url"
    )


def require_same(url: str, found: Subject, wanted: Subject) -> None:
    """Refuse a backup of another mark, or of another attempt of this one.

    Raises:
        RefusedError: it is one, with what to do.
    """
    differing = [
        f"{name} {getattr(found, name)!r} in place of {getattr(wanted, name)!r}"
        for name in Subject.__dataclass_fields__
        if getattr(found, name) != getattr(wanted, name)
    ]
    if differing:
        pruning = command_line(
            "backups", "prune", "--url", url.rsplit("/", 2)[0], "--backup", folder_name(url)
        )
        raise RefusedError(
            f"{url} is a backup of another attempt or mark: it is of {', '.join(differing)}. "
            f"Choose another backup_url, or remove it with `{pruning}` if nothing of it is needed"
        )


def folder_url(backup_url: str, repository: str, run: str) -> str:
    """URL of the backup of a run."""
    return f"{backup_url.rstrip('/')}/{repository}/{run}"


def folder_name(url: str) -> str:
    """``repository/run`` of the folder of a backup, whatever is in it."""
    return "/".join(url.rsplit("/", 2)[-2:])


def read_record(store: ObjectStore, key: str) -> Record | None:
    """Read the record of a backup; None where there is none.

    Args:
        store: rooted at its folder.
        key: ``BEGIN`` or ``MANIFEST``.

    Raises:
        IntegrityError: it is damaged.
    """
    try:
        return Record.from_bytes(store.get(key), f"{store.url}/{key}")
    except ObjectNotFoundError:
        return None


def read_state(store: ObjectStore) -> tuple[Record, State] | None:
    """Read the record of a backup and its state; None where there is none.

    A manifest of which not all else is there is left of a backup that was removed.

    Args:
        store: rooted at its folder.

    Raises:
        IntegrityError: it is damaged.
        StorageError: the store does not tell.
    """
    pruning = read_record(store, PRUNING)
    if pruning is not None:
        return pruning, "being removed"
    manifest, begin = read_record(store, MANIFEST), read_record(store, BEGIN)
    if manifest is None:
        return None if begin is None else (begin, "unfinished")
    if begin is None or (begin.subject, begin.begun) != (manifest.subject, manifest.begun):
        return manifest, "being removed"
    return manifest, "finished"


def find_backup(
    stores: StoreConfig,
    backup_url: str | None,
    repository: str,
    run: str,
    *,
    removing: bool = False,
) -> Backup | None:
    """The finished backup of a run; None without one. Of which mark it is was not looked at.

    Args:
        stores: how the stores of backups are reached.
        backup_url: the place of all backups; None where none is set.
        repository: lakeFS repository.
        run: id of the run.
        removing: whether one that is being removed will do: of that copies may be gone.

    Raises:
        ConfigurationError: the URL cannot be opened.
        IntegrityError: its manifest is damaged.
        StorageError: the store does not tell.
    """
    if backup_url is None:
        return None
    store = open_store(folder_url(backup_url, repository, run), stores)
    match read_state(store):
        case record, "finished":
            return Backup(store, record)
        # One that was never finished may be removed, too.
        case record, "being removed" if removing and record.finished is not None:
            return Backup(store, record)
    return None
