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
from lakegc_assets.storage.values import MultipartUpload

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
        """When the oldest of them was begun, UTC."""
        return self.uploads[0].begun


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
    places = [(one.id, one.storage_namespace) for one in server.chosen(names)]
    if not names:
        places += [(url, url) for url in server.namespace_roots]
    found: list[LeftoverUploads] = []
    problems: list[Problem] = []
    seen: set[tuple[str, str]] = set()
    for where, url in places:
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


def old_uploads(store: ObjectStore) -> list[MultipartUpload]:
    """The uploads of a store whose last part is older than ``MIN_AGE``, the oldest first."""
    before = store.server_time() - MIN_AGE
    old = [one for one in store.multipart_uploads(before) if one.newest < before]
    return sorted(old, key=lambda one: (one.begun, one.key, one.upload_id))
