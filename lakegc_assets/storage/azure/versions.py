"""Versions, deleted and uncommitted blobs of an Azure account, which usual listings omit.

With versioning, the version of the lost object is copied to the blob's name if no blob has it. With
soft delete only, the blob is undeleted, which changes nothing about an existing blob. With a
hierarchical namespace it is undeleted by the id of its deletion, of which one path may have
several. Azure drops uncommitted blocks a week after the last one was written, and reports no time
of a block. So it is not known whether such an upload has ended, and nothing here removes one.

Format: https://learn.microsoft.com/rest/api/storageservices/list-blobs and
https://learn.microsoft.com/rest/api/storageservices/get-block-list
"""

from __future__ import annotations

import time
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Final, NamedTuple
from urllib.parse import quote

from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.storage.azure.blobs import Blob
from lakegc_assets.storage.azure.service import (
    AzureService,
    is_directory,
    name_of,
    open_service,
    soft_delete_days,
)
from lakegc_assets.storage.bucket_store import BucketStore, undelete_each
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.http import HttpFailure, explaining
from lakegc_assets.storage.values import (
    ARCHIVED,
    DataProtection,
    Lost,
    Recovery,
    Retained,
    UncommittedBlob,
    UndeleteOutcome,
)

#: Kinds of entries in a request for all retained blobs, the most complete request first.
_ALL: Final = ("versions,deleted,immutabilitypolicy,legalhold", "versions,deleted", "deleted")
#: Properties of a container about locks, and the meaning of each.
_LOCKS: Final = {
    "x-ms-has-immutability-policy": "the container has an immutability policy: younger blobs "
    "cannot be deleted",
    "x-ms-has-legal-hold": "the container has a legal hold: its blobs cannot be deleted",
    "x-ms-immutable-storage-with-versioning-enabled": "single blobs may have immutability "
    "policies and legal holds",
}
_DATA: Final = "data/"
_COPY_POLL_S: Final = 0.5
_OK: Final = 200
_BAD_REQUEST: Final = 400
_THREADS: Final = 8
#: Statuses for a blob that is gone, or is not made of blocks.
_NO_BLOCKS: Final = frozenset({404, 409})


class Listed(NamedTuple):
    """One entry of a listing for a blob.

    ``version`` is a time, so later ones are greater; it is empty without versions. ``current`` is
    the blob that readers see, ``deleted`` one that soft delete retains, ``held`` one under a legal
    hold. ``until`` is the end of its immutability policy, UTC. ``deletion`` is the id of a
    deletion, which only accounts with a hierarchical namespace have. An ``archived`` blob cannot be
    read.
    """

    version: str
    current: bool
    deleted: bool
    etag: str
    size: int
    held: bool = False
    until: datetime | None = None
    deletion: str = ""
    archived: bool = False


class AzureVersions(BucketStore[Blob]):
    """A container, with the deleted blobs that Azure retains in it."""

    def __init__(self, namespace: StorageNamespace, config: StoreConfig) -> None:
        super().__init__(namespace, config)
        self._host, _, self._container = namespace.authority.partition("/")
        # Each answer about a blob tells which of the two is missing.
        self.bucket_seen = True

    @property
    def service(self) -> AzureService:
        """The service of the account: one for all stores of one configuration."""
        return open_service(self.config, self._host)

    def _object(self, full_key: str, where: str, config: StoreConfig) -> Blob:
        return Blob(open_service(config, self._host), self._container, full_key, where)

    def _bring_back(self, objects: Sequence[Lost], *, dry_run: bool) -> Sequence[UndeleteOutcome]:
        return undelete_each(objects, partial(self._one, dry_run=dry_run), self._url)

    def _one(self, lost: Lost, *, dry_run: bool) -> UndeleteOutcome:
        url = self.object_at(lost.key).url()
        listed = self._listed(self.prefix + lost.key)
        if any(one.current for one in listed):
            return UndeleteOutcome(lost.key, "already_there")
        found = _kept(listed, lost)
        if found is None or (found.etag, found.size) != (lost.etag, lost.size):
            return UndeleteOutcome(lost.key, "not_kept", None, _why(lost, found))
        archived = found.archived and f"{ARCHIVED}: bring it back to a tier that can be read"
        if archived and lost.copied:
            return UndeleteOutcome(lost.key, "not_kept", None, archived)
        if archived and found.version:
            detail = f"version {found.version} of it cannot be copied, since {archived}"
            return UndeleteOutcome(lost.key, "failed", "BlobArchived", detail)
        if not dry_run and found.version:
            self._copy(url, found.version)
        elif not dry_run:
            source = f"{quote(self.prefix + lost.key)}?deletionid={found.deletion}"
            headers = {"x-ms-undelete-source": source} if found.deletion else {}
            # Any other write is answered with other codes.
            self.service.send("PUT", f"{url}?comp=undelete", headers, also_good=(_OK,))
        return UndeleteOutcome(lost.key, "restored", None, archived or None)

    def _copy(self, url: str, version: str) -> None:
        source = f"{url}?versionid={quote(version, safe='')}"
        headers = {"x-ms-copy-source": source, "If-None-Match": "*"}
        answer = self.service.send("PUT", url, headers)
        while (status := answer.headers.get("x-ms-copy-status")) == "pending":
            time.sleep(_COPY_POLL_S)
            answer = self.service.send("HEAD", url)
        if status != "success":
            if status in {"failed", "aborted"} and (etag := answer.headers.get("ETag")):
                # The failed copy left an empty blob, which would block the name for another
                # attempt.
                with suppress(HttpFailure):
                    self.service.send("DELETE", url, {"If-Match": etag})
            why = answer.headers.get("x-ms-copy-status-description", "without a reason")
            message = f"the copy of a version ended as {status!r} ({why}): restore again"
            raise HttpFailure("NoAnswer", message)

    def _listed(self, name: str) -> list[Listed]:
        """All entries of exactly one blob's name."""
        try:
            return self._named(name, _ALL[1:2])
        except HttpFailure as failure:
            if failure.status != _BAD_REQUEST:
                raise
        # Accounts with real directories have no versions, and list retained deleted paths
        # separately.
        return self._named(name, ["deleted", "metadata"]) or self._named(
            name, ["metadata"], showonly="deleted"
        )

    def _named(self, name: str, include: Sequence[str], **more: str) -> list[Listed]:
        """The entries of a listing for a blob; they come before names that start with its name."""
        found: list[Listed] = []
        for page in self.service.pages(self._container, name, include, _read_versions, **more):
            found += [one for listed, one in page if listed == name]
            if page and page[-1][0] != name:
                break
        return found

    def retained(self, prefix: str = "") -> Retained:
        """See ``ObjectStore``: versions that are not the latest, and soft-deleted blobs."""
        below = self.prefix + prefix
        with explaining(f"{self._url}: listing versions"):
            pages = self.service.pages(self._container, below, _ALL, _read_versions)
            old = (one for page in pages for _, one in page if not one.current)
            return Retained.counting((one.size, one.held, one.until) for one in old)

    def recovery(self) -> Recovery:
        """See ``ObjectStore``: soft delete of blobs, and versions."""
        return self._settings()[0]

    def _settings(self) -> tuple[Recovery, bool]:
        """The recovery, and whether blobs may have versions although the recovery uses none.

        No request tells whether versioning is on. A blob from before versioning has no version, and
        becomes one when it is deleted. A blob with a version keeps it when versioning is off.
        """
        where, service = self._url, self.service
        try:
            answer = service.send("GET", f"{service.url}/?restype=service&comp=properties")
            days = soft_delete_days(answer.content)
            listed = self._has_versions()
        except (HttpFailure, ValueError) as error:
            code = error.code if isinstance(error, HttpFailure) else error
            advice = "check the account, or let the credentials read the properties of blobs"
            return Recovery.unknown(where, code, advice), True
        if service.versioned or (listed and service.versioned is None):
            kept = "versioning is on: deleted blobs stay as versions, and are paid for"
            until = "until a lifecycle rule removes them, which counts from when they were written"
            return Recovery("versions", None, f"{where}: {kept} {until}"), True
        earlier = ""
        if listed:
            earlier = "; versioning is off now, and was on: what was written then may stay"
        if days:
            kept = f"soft delete is on: deleted blobs stay for {days} days, and are paid for"
            return Recovery("soft_delete", float(days), f"{where}: {kept}{earlier}"), listed
        notice = f"{where}: the account keeps nothing of deleted blobs{earlier}"
        return Recovery("nothing", None, notice), listed or service.versioned is None

    def data_protection(self) -> DataProtection:
        """See ``ObjectStore``: the same, and policies and holds of the container."""
        query = {"restype": "container"}
        try:
            headers = self.service.send("GET", self._target(query)).headers
            held = (
                text for name, text in _LOCKS.items() if headers.get(name, "").lower() == "true"
            )
            locks = list(held)
        except HttpFailure as failure:
            why = f"({failure.code}): let the credentials read its properties"
            locks = [f"it is not known whether the container has policies or holds {why}"]
        recovery, perhaps_versions = self._settings()
        found = DataProtection.of(recovery)
        if perhaps_versions:
            found = found._replace(held=found.held or None, at_least=True)
        return found.with_locks(locks)

    def _has_versions(self) -> bool:
        """True if the first blob of the data has a version: lakeFS's newest slice comes first."""
        query = {"restype": "container", "comp": "list", "include": "versions", "maxresults": "1"}
        query["prefix"] = f"{self.prefix}{_DATA}"
        try:
            listed = self.service.send("GET", self._target(query)).content
        except HttpFailure as failure:
            # Accounts with real directories have no versions, and refuse the question as an error.
            if failure.status != _BAD_REQUEST:
                raise
            return False
        return b"<VersionId>" in listed

    def uncommitted_blobs(self) -> Sequence[UncommittedBlob]:
        # The list also has empty committed blobs, and does not distinguish them.
        include = ["metadata,uncommittedblobs"]
        with (
            explaining(f"{self._url}: listing uncommitted blobs"),
            ThreadPoolExecutor(_THREADS) as pool,
        ):
            pages = self.service.pages(self._container, self.prefix, include, _empty)
            names = [name for page in pages for name in page]
            found = list(zip(names, pool.map(self._block_sizes, names), strict=True))
        return [
            UncommittedBlob(name.removeprefix(self.prefix), sum(sizes))
            for name, sizes in found
            if sizes
        ]

    def _block_sizes(self, name: str) -> list[int]:
        query = {"comp": "blocklist", "blocklisttype": "uncommitted"}
        try:
            answer = self.service.send("GET", self.service.target(self._container, name, query))
        except HttpFailure as failure:
            if failure.status not in _NO_BLOCKS:
                raise
            return []
        try:
            root = ET.fromstring(answer.content)  # noqa: S314 - expat refuses what would grow
            return [int(one.text or "") for one in root.iterfind("UncommittedBlocks/Block/Size")]
        except (ET.ParseError, ValueError) as error:
            raise HttpFailure("NoAnswer", f"a damaged list of blocks: {error}") from error

    def _target(self, query: Mapping[str, str]) -> str:
        """The URL of a request about the container."""
        return self.service.target(self._container, query=query)


def _read_versions(blobs: ET.Element) -> list[tuple[str, Listed]]:
    """Read names, and the retained entries of each."""
    found = [blob for blob in blobs.iter("Blob") if blob.find("Snapshot") is None]
    return [(name_of(one), _read(one)) for one in found]


def _read(blob: ET.Element) -> Listed:
    def says(name: str) -> bool:
        return (blob.findtext(name) or "").lower() == "true"

    version = blob.findtext("VersionId") or ""
    until = blob.findtext("Properties/ImmutabilityPolicyUntilDate")
    deleted = says("Deleted")
    return Listed(
        version=version,
        current=not deleted and (says("IsCurrentVersion") or not version),
        deleted=deleted,
        etag=(blob.findtext("Properties/Etag") or "").strip('"'),
        size=int(blob.findtext("Properties/Content-Length") or ""),
        held=says("Properties/LegalHold"),
        until=parsedate_to_datetime(until).astimezone(timezone.utc) if until else None,
        deletion=blob.findtext("DeletionId") or "",
        archived=blob.findtext("Properties/AccessTier") == "Archive",
    )


def _kept(listed: Sequence[Listed], lost: Lost) -> Listed | None:
    """The kept version of the lost object, by size and etag; else the newest of its name, or None.

    Without versions, the soft-deleted blob itself.
    """
    kept = [one for one in listed if one.version and not one.deleted]
    kept.sort(key=lambda one: one.version)
    kept = kept or [one for one in listed if one.deleted and not one.version]
    same = [one for one in kept if (one.etag, one.size) == (lost.etag, lost.size)]
    return next(iter([*same[-1:], *kept[-1:]]), None)


def _why(lost: Lost, found: Listed | None) -> str:
    if found is None:
        return "the account keeps nothing of it"
    return (
        f"what is kept has {found.size} bytes and the etag {found.etag}; {lost.size} and "
        f"{lost.etag} were expected"
    )


def _empty(blobs: ET.Element) -> list[str]:
    return [name_of(blob) for blob in blobs if _is_empty(blob)]


def _is_empty(blob: ET.Element) -> bool:
    properties = blob.find("Properties")
    if blob.tag != "Blob" or properties is None or is_directory(blob, properties):
        return False
    return int(properties.findtext("Content-Length") or 0) == 0
