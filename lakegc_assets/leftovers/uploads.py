"""Uploads in parts that nobody completed or aborted, in the namespaces of a server.

Their parts are in no listing, so no mark finds them. lakeFS's S3 gateway and clients that upload to
the store themselves leave them behind when they die.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from lakegc_assets.errors import LakegcError
from lakegc_assets.leftovers.server import Problem, Server
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.values import MultipartUpload, UncommittedBlob

#: An upload that got its last part later may still be completed.
MIN_AGE: Final = timedelta(days=7)


@dataclass(frozen=True)
class LeftoverUploads:
    """The old uploads of one place.

    Attributes:
        where: repository, or URL of a root.
        url: that their keys are relative to.
        uploads: the oldest first.
    """

    where: str
    url: str
    uploads: Sequence[MultipartUpload]

    @property
    def size(self) -> int:
        """Bytes of all parts."""
        return sum(one.size for one in self.uploads)

    @property
    def oldest(self) -> datetime:
        """The start of the oldest of them, UTC."""
        return self.uploads[0].begun


@dataclass(frozen=True)
class UncommittedBlobs:
    """Blobs of a place of which there are only blocks that nobody has committed.

    The store drops them by itself, and tells of none how old it is: they are reported only.

    Attributes:
        where: repository, or URL of a root.
        url: that their keys are relative to.
        blobs: each with the bytes of its blocks.
    """

    where: str
    url: str
    blobs: Sequence[UncommittedBlob]

    @property
    def size(self) -> int:
        """Bytes of all blocks."""
        return sum(one.size for one in self.blobs)


def leftover_uploads(
    server: Server, names: Sequence[str] = ()
) -> tuple[list[LeftoverUploads], list[Problem]]:
    """The old uploads of repositories, and of all roots where no repository is named.

    Args:
        server: of the repositories.
        names: of repositories; none for all.

    Returns:
        A value for each place that has some, each upload once; and what could not be looked at.
    """
    found: list[LeftoverUploads] = []
    problems: list[Problem] = []
    seen: set[tuple[str, str]] = set()
    for where, url in _places(server, names):
        try:
            store = server.open(url)
            old = [
                one
                for one in old_uploads(store)
                if (f"{store.url}/{one.key}", one.upload_id) not in seen
            ]
            seen |= {(f"{store.url}/{one.key}", one.upload_id) for one in old}
            if old:
                found.append(LeftoverUploads(where, store.url, old))
        except LakegcError as error:
            problems.append(Problem(where, str(error)))
    return found, problems


def uncommitted_blobs(
    server: Server, names: Sequence[str] = ()
) -> tuple[list[UncommittedBlobs], list[Problem]]:
    """The uncommitted blobs of repositories, and of all roots where no repository is named.

    Args:
        server: of the repositories.
        names: of repositories; none for all.

    Returns:
        A value for each place that has some, each blob once; and what could not be looked at.
    """
    found: list[UncommittedBlobs] = []
    problems: list[Problem] = []
    seen: set[str] = set()
    for where, url in _places(server, names):
        try:
            store = server.open(url)
            blobs = [b for b in store.uncommitted_blobs() if f"{store.url}/{b.key}" not in seen]
        except LakegcError as error:
            problems.append(Problem(where, str(error)))
            continue
        seen |= {f"{store.url}/{one.key}" for one in blobs}
        if blobs:
            found.append(UncommittedBlobs(where, store.url, blobs))
    return found, problems


def _places(server: Server, names: Sequence[str]) -> list[tuple[str, str]]:
    """Names and URLs of repositories, and of all roots where no repository is named."""
    places = [(one.id, one.storage_namespace) for one in server.chosen(names)]
    return places if names else [*places, *((url, url) for url in server.namespace_roots)]


def old_uploads(store: ObjectStore) -> list[MultipartUpload]:
    """The uploads of a store whose last part is older than ``MIN_AGE``, the oldest first."""
    before = latest_part(store)
    old = [one for one in store.multipart_uploads(before) if one.newest < before]
    return sorted(old, key=lambda one: (one.begun, one.key, one.upload_id))


def latest_part(store: ObjectStore) -> datetime:
    """The time by the store's clock before which the last part of an old upload was written."""
    return store.server_time() - MIN_AGE
