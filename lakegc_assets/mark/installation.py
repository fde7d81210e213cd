"""A marker in the namespace names the one repository, of one lakeFS server, that collects it.

A second repository on the same namespace, of the same or another server, does not know the objects
of the first: to its mark they all look dead. A repository is known by its name and creation date,
and by the installation id of its server if the server tells one.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from lakegc_assets.errors import IntegrityError, RefusedError
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.run.json_record import JsonRecord
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import ObjectNotFoundError, PreconditionFailedError

MARKER: Final = "_lakefs/retention/gc/lakegc/server.json"
BY_ID: Final = "its installation id"
BY_DATE: Final = "the creation date of the repository, since it gives no installation id"


class OtherServerError(RefusedError):
    """Another lakeFS server, or another repository, collects this namespace."""


@dataclass(frozen=True)
class Server(
    JsonRecord,
    damaged="make sure that no other lakeFS server uses the namespace, then remove the file",
):
    """The identity of a repository and its lakeFS server."""

    #: None if the server tells none.
    installation_id: str | None
    repository: str
    #: Creation date of the repository, in seconds since 1970.
    creation_date: int

    def is_same(self, other: Server) -> bool:
        """Return whether both are the same repository of the same server, as far as known."""
        both_tell = self.installation_id and other.installation_id
        if both_tell and self.installation_id != other.installation_id:
            return False
        mine = (self.repository, self.creation_date)
        return mine == (other.repository, other.creation_date)

    def __str__(self) -> str:
        """Text for messages."""
        known = f"installation id {self.installation_id or 'unknown'}"
        return f"{known}, repository {self.repository!r} made at {self.creation_date}"


def require_one_server(client: LakeFSClient, repository: str, store: ObjectStore) -> str:
    """Refuse a namespace that another repository collects; the first one writes the marker.

    Returns:
        How the server is known: ``BY_ID`` or ``BY_DATE``.

    Raises:
        OtherServerError: the marker names another repository or server.
        IntegrityError: the marker is damaged.
    """
    mine = _present(client, repository)
    known = _read(store)
    if known is None:
        with suppress(PreconditionFailedError):
            store.create(MARKER, mine.to_bytes())
        # Read again: without conditional writes, another process may have written the marker last.
        known = _read(store) or (mine, "")
    theirs, etag = known
    _require_same(mine, theirs, store)
    if mine.installation_id and not theirs.installation_id:
        try:
            store.put_if_match(MARKER, mine.to_bytes(), etag)
        except PreconditionFailedError:
            return require_one_server(client, repository, store)
    return BY_ID if mine.installation_id else BY_DATE


def require_no_other_server(client: LakeFSClient, repository: str, store: ObjectStore) -> None:
    """Refuse a namespace that another repository collects, without writing a marker.

    Raises:
        OtherServerError: the marker names another repository or server.
        IntegrityError: the marker is damaged.
    """
    if (theirs := known_server(store)) is not None:
        _require_same(_present(client, repository), theirs, store)


def require_marked(client: LakeFSClient, repository: str, store: ObjectStore) -> None:
    """Refuse a store without the marker of this repository, without writing one.

    A store that is reached by a wrong endpoint or folder has neither holds nor pins nor trash.

    Raises:
        OtherServerError: the marker names another repository or server.
        IntegrityError: there is no marker, or it is damaged.
    """
    if (theirs := known_server(store)) is None:
        raise IntegrityError(
            f"{store.url} has no {MARKER}, which every mark writes: this is not the store of the "
            "marks, or the file was removed. Correct the endpoint, region, account or local_root; "
            "if they are right, mark again"
        )
    _require_same(_present(client, repository), theirs, store)


def known_server(store: ObjectStore) -> Server | None:
    """The server that the marker of a namespace names; None without a marker.

    Raises:
        IntegrityError: the marker is damaged.
    """
    known = _read(store)
    return known and known[0]


def _present(client: LakeFSClient, repository: str) -> Server:
    made = client.repository(repository).creation_date
    return Server(client.installation_id(), repository, made)


def _require_same(mine: Server, theirs: Server, store: ObjectStore) -> None:
    if not mine.is_same(theirs):
        raise OtherServerError(
            f"{store.url} is collected by another lakeFS server or repository ({theirs}), and this "
            f"one ({mine}) does not know what that one needs. Collect with the one that is in use. "
            "If the server was moved, or the repository was made anew, and nothing else uses the "
            f"namespace, remove {store.url}/{MARKER} and mark again"
        )


def _read(store: ObjectStore) -> tuple[Server, str] | None:
    try:
        etag = store.head(MARKER).etag
        return Server.from_bytes(store.get(MARKER), f"{store.url}/{MARKER}"), etag
    except ObjectNotFoundError:
        return None
